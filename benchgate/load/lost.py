"""What is known of the work of a worker that did not bring it home."""

from __future__ import annotations

from dataclasses import replace

from benchgate.load.worker import Shard, StageResult, read_result
from benchgate.model.packing import ColumnBuilder, joined
from benchgate.model.records import ErrorClass, RequestColumns, RequestRecord
from benchgate.model.run import ClientUse

_UNKNOWN = ClientUse(cpu_s=0.0, wall_s=0.0, workers=1)


def read_left(shard: Shard) -> StageResult:
    """What a shard's spool holds, which is removed; nothing when the shard never came to answers."""
    if shard.spool is None or not shard.spool.exists():
        return StageResult(RequestColumns.pack([]), 0.0, _UNKNOWN)
    result = read_result(shard, shard.spool, _UNKNOWN)
    shard.spool.unlink()
    return result


def of_lost(shard: Shard) -> StageResult:
    """What a lost worker had answered, and the rest of its share as never sent: nothing planned goes missing.

    A request that was in flight with the worker counts as never sent too. In a closed loop for a time there is no
    telling what it would have sent.
    """
    fault = f"{shard.name} was lost"
    left = read_left(shard)
    requests = left.requests if shard.requests.endless else joined([left.requests, _unsent(shard, left, fault)])
    return replace(left, requests=requests, client=replace(_UNKNOWN, faults=(fault,)))


def _unsent(shard: Shard, left: StageResult, fault: str) -> RequestColumns:
    answered = set(left.requests.index.tolist())
    builder = ColumnBuilder()
    for request in shard.requests:
        if request.index not in answered:
            builder.add(
                RequestRecord(
                    index=request.index,
                    intended_ns=request.offset_ns or 0,
                    sent_ns=None,
                    chunk_ns=(),
                    end_ns=None,
                    input_tokens=None,
                    output_tokens=None,
                    token_source=None,
                    finish_reason=None,
                    http_status=None,
                    error=ErrorClass.CLIENT,
                    error_detail=f"{fault} before this request was over",
                )
            )
    return builder.columns()
