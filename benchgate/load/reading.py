"""A spool into columns, once the stage is over: each response decoded, and answers that came twice found out."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchgate.load.decode import decode_named
from benchgate.load.exchange import Response
from benchgate.load.hung import hung, with_failures
from benchgate.load.raw_body import RawBody
from benchgate.load.result import ClassResult, no_rows
from benchgate.load.shard import Part
from benchgate.load.spool import read_spool
from benchgate.model.ask import Ask
from benchgate.model.packing import ColumnBuilder, parted
from benchgate.model.records import ErrorClass, IntArray, RequestColumns
from benchgate.targets.refusals import Secret

_NS = 1_000_000_000
_PLAIN = Ask("chat", {}, None)
_NO_NAME = 0
_TWICE = "the same answer, byte for byte, under the same id as that of an earlier request, in no time"
_FASTER_THAN_ANSWERED = 4  # times: what waits before the first of two equal answers is seldom so long as three more


def read_class(part: Part, spool: Path, secret: Secret) -> ClassResult:
    """What the spool of one class holds; of one that was cut short, what had ended by then, of none nothing."""
    if not spool.exists():
        return ClassResult(part.name, no_rows(), 0.0)
    find = part.requests.find()
    builder, names, took_ns = ColumnBuilder(), array("q"), array("q")
    first_ns, last_ns = None, 0
    broken_off_ns: dict[int, int] = {}
    for number, intended_ns, epoch_ns, response in read_spool(spool):
        request = find(number)
        leaves = response.left or (request is not None and request.leave is not None)
        ask = _PLAIN if request is None else request.ask
        record, name = decode_named(number, intended_ns, epoch_ns, response, ask=ask, leaves=leaves, secret=secret)
        whole = record.error is None and record.end_ns is not None
        ended_ns = record.end_ns if whole and record.end_ns is not None else response.over_ns - epoch_ns
        if part.background and response.left and (request is None or request.leave is None):
            broken_off_ns[number] = response.over_ns - epoch_ns
        if not leaves:
            last_ns = max(last_ns, ended_ns, intended_ns)  # what was given up was due all the same
            first_ns = intended_ns if first_ns is None else min(first_ns, intended_ns)
        builder.add(record)
        names.append(_NO_NAME if name is None or record.error is not None else _digest(name, response))
        took_ns.append(ended_ns - (intended_ns if record.sent_ns is None else record.sent_ns))
    columns = _without_repeats(
        builder.columns(), np.frombuffer(names, dtype=np.int64), np.frombuffer(took_ns, dtype=np.int64)
    )
    unanswered = hung(columns, broken_off_ns)
    last_ns = max([last_ns, *(broken_off_ns[number] for number in unanswered)])
    requests, left = parted(with_failures(columns, unanswered))
    return ClassResult(part.name, requests, max(0, last_ns - (first_ns or 0)) / _NS, left)


def _digest(name: str, response: Response) -> int:
    """Of an answer as it came; what came before its body (a date) may differ between two copies."""
    body = response.body if isinstance(response.body, RawBody) else RawBody.of(response.body)
    return hash((name, bytes(body.raw[body.begins :]))) or 1


def _without_repeats(columns: RequestColumns, names: IntArray, took_ns: IntArray) -> RequestColumns:
    """The same, where an answer that was there before and came again in no time is a failure.

    Rows, names and how long each answer took are in order of their requests. A server or proxy that sends an answer
    twice answers the next request of a closed loop with the second copy, and a cache answers with what it has kept. A
    model that says the same twice says it under two ids. Some servers draw their ids from few, or have one for each
    connection: their equal answers take as long as the first did.
    """
    order = np.argsort(names, kind="stable")
    in_order = names[order]
    is_first = np.append(True, in_order[1:] != in_order[:-1])[: len(order)]
    first = order[np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))]
    in_no_time = took_ns[order] * _FASTER_THAN_ANSWERED < took_ns[first]
    again = order[~is_first & (in_order != _NO_NAME) & in_no_time]
    if not len(again):
        return columns
    repeated = np.zeros(len(names), dtype=np.bool_)
    repeated[again] = True
    error, detail = columns.error.but(repeated, ErrorClass.PROTOCOL), columns.error_detail.but(repeated, _TWICE)
    return replace(columns, error=error, error_detail=detail)
