"""What is known of the work of a worker that did not bring it home."""

from __future__ import annotations

from dataclasses import replace

from benchgate.load.result import ClassResult, StageResult, no_rows
from benchgate.load.shard import Part, Shard
from benchgate.load.worker import read_result
from benchgate.model.columns import ColumnBuilder, concatenate_columns
from benchgate.model.records import ErrorClass, RequestColumns, RequestRecord
from benchgate.model.run import ClientUse

_UNKNOWN = ClientUse(cpu_s=0.0, wall_s=0.0, workers=1)


def read_left(shard: Shard) -> StageResult:
    """What a shard's spools hold; nothing when the shard never came to answers."""
    if shard.spool is None:
        return StageResult(tuple(ClassResult(part.name, no_rows(), 0.0) for part in shard.parts), _UNKNOWN)
    return read_result(shard, shard.spool, _UNKNOWN)


def remove_spools(shard: Shard) -> None:
    """Remove what is kept of a shard's answers: its result is where it belongs, or nobody wants it."""
    for spool in () if shard.spool is None else shard.spools(shard.spool):
        spool.unlink(missing_ok=True)


def of_lost(shard: Shard) -> StageResult:
    """What a lost worker had answered, and the rest of its share as never sent: nothing planned goes missing.

    A request that was in flight with the worker counts as never sent too. In a closed loop for a time, and in the
    background, there is no telling what it would have sent.
    """
    fault = f"{shard.name} was lost"
    left = read_left(shard)
    classes = tuple(
        read
        if part.requests.endless
        else replace(read, requests=concatenate_columns([read.requests, _unsent(part, read, fault)]))
        for part, read in zip(shard.parts, left.classes, strict=True)
    )
    return replace(left, classes=classes, client=replace(_UNKNOWN, faults=(fault,)))


def _unsent(part: Part, read: ClassResult, fault: str) -> RequestColumns:
    answered = {*read.requests.index.tolist(), *read.left.index.tolist(), *read.ramp.index.tolist()}
    builder = ColumnBuilder()
    for request in part.requests:
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
