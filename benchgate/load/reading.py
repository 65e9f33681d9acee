"""A spool into columns, once the stage is over: each response decoded, and answers that came twice found out."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchgate.load.decode import decode_named
from benchgate.load.exchange import Response
from benchgate.load.hung import hung, with_failures
from benchgate.load.repeats import NO_NAME, came_again
from benchgate.load.result import ClassResult, no_rows
from benchgate.load.shard import Part
from benchgate.load.spool import Phase, read_spool
from benchgate.model.columns import ColumnBuilder, split_by_use
from benchgate.model.records import ErrorClass, IntArray, RequestColumns
from benchgate.model.request import ModelRequest
from benchgate.targets.dialect import Target

_NS = 1_000_000_000
_PLAIN = ModelRequest("chat", {}, None)
_TWICE = "the same answer, byte for byte, under the same id as that of an earlier request, in no time"


def read_class(part: Part, spool: Path, target: Target) -> ClassResult:
    """What the spool of one class holds; of one that was cut short, what had ended by then, of none nothing."""
    if not spool.exists():
        return ClassResult(part.name, no_rows(), 0.0)
    find, secret = part.find(), target.secrets
    builder, names = ColumnBuilder(), array("q")
    first_ns, last_ns, tail_ns = None, 0, None
    broken_off_ns, in_one_piece = dict[int, int](), dict[int, int]()
    for number, intended_ns, epoch_ns, response, phase in read_spool(spool):
        request = find(number)
        leaves = response.left or (request is not None and request.leave is not None)
        ask = _PLAIN if request is None else request.ask
        record, name = decode_named(
            number, intended_ns, epoch_ns, response, ask=ask, leaves=leaves, secret=secret, target=target
        )
        whole = record.error is None and record.end_ns is not None
        ended_ns = record.end_ns if whole and record.end_ns is not None else response.over_ns - epoch_ns
        if part.background and response.left and (request is None or request.leave is None):
            broken_off_ns[number] = response.over_ns - epoch_ns
            if not ask.stream and ask.output_tokens is not None:
                in_one_piece[number] = ask.output_tokens
        if phase is Phase.TAIL:
            tail_ns = intended_ns if tail_ns is None else min(tail_ns, intended_ns)
        if phase is Phase.MEASURED and (part.holds_slots or not leaves):
            last_ns = max(last_ns, ended_ns, intended_ns)  # what was given up was due all the same
            first_ns = intended_ns if first_ns is None else min(first_ns, intended_ns)
        builder.add(record if phase is Phase.MEASURED else replace(record, ramp=True))
        answered = whole and not leaves and len(record.chunk_ns) > 0
        names.append(hash(name) or 1 if answered and name is not None else NO_NAME)
    columns = _without_repeats(builder.columns(), np.frombuffer(names, dtype=np.int64), spool)
    unanswered = hung(columns, broken_off_ns, in_one_piece)
    last_ns = max([last_ns, *(broken_off_ns[number] for number in unanswered)])
    parts = split_by_use(with_failures(columns, unanswered))
    if part.holds_slots and tail_ns is not None:
        last_ns = tail_ns
    window_s = max(0, last_ns - (first_ns or 0)) / _NS
    return ClassResult(part.name, parts.measured, window_s, parts.left, parts.ramp, part.holds_slots)


def _without_repeats(columns: RequestColumns, names: IntArray, spool: Path) -> RequestColumns:
    """The same, where an answer that came twice is a failure; rows and names are in the order of the spool."""

    def bodies(rows: IntArray) -> IntArray:
        wanted = set(rows.tolist())
        answers = (spooled.response for row, spooled in enumerate(read_spool(spool)) if row in wanted)
        return np.array([_digest(response) for response in answers], dtype=np.int64)

    again = came_again(columns, names, bodies)
    if not len(again):
        return columns
    repeated = np.zeros(len(names), dtype=np.bool_)
    repeated[again] = True
    error, detail = columns.error.but(repeated, ErrorClass.PROTOCOL), columns.error_detail.but(repeated, _TWICE)
    return replace(columns, error=error, error_detail=detail)


def _digest(response: Response) -> int:
    """Of what an answer says; its head (a date) and its chunks may differ between two copies."""
    return hash(b"".join([data for _, data in response.body]))
