"""Requests in the background that a server had stopped answering when the stage was over: not left, but failed.

Whatever is under way when the rest of a stage is done is broken off, and says nothing of success. But a slot that never
gets an answer holds one request to the end: counted as left, a server that hangs would have no failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from benchgate.model.records import ABSENT, ErrorClass, RequestColumns
from benchgate.model.request_metrics import succeeded

_PATIENCE = 2  # times as long as any answer of the class was silent: a queue may have grown since
_LEAST_NS = 250_000_000  # what a pause of a machine may take
_HUNG = (
    "still unanswered when the stage was over, and silent for far longer than any whole answer of its class ever was"
)


def hung(
    columns: RequestColumns, broken_off_ns: Mapping[int, int], in_one_piece: Mapping[int, int] | None = None
) -> frozenset[int]:
    """Which of the requests that were broken off, by number, the server had stopped answering.

    `broken_off_ns` says when each of them was, as the columns' instants. It was silent for more than twice as long as
    any whole answer, and older than the oldest of them: what is only long, or late as all are, is neither. None where
    there is no whole answer to know that by. An answer in one piece is silent for as long as it is being written:
    `in_one_piece` says how many tokens each such one was to have at most, which may be more than any whole one had; it
    counts where all of these went on to their limit.
    """
    if not broken_off_ns:
        return frozenset()
    whole = np.flatnonzero(succeeded(columns) & (columns.left != 1)).tolist()
    if not whole:
        return frozenset()
    ages = columns.end_ns[whole] - columns.sent_ns[whole]
    bound_ns = max(_LEAST_NS, _PATIENCE * max(_silence_ns(columns, row, int(columns.end_ns[row])) for row in whole))
    oldest_ns = int(ages.max())
    most_tokens = max(1, int(columns.output_tokens[whole].max()))
    to_the_limit = bool(columns.finish_reason.are(("length",))[whole].all())
    to_have = in_one_piece if in_one_piece is not None and to_the_limit else {}
    found = set()
    for row, number in enumerate(columns.index.tolist()):
        over_ns, sent_ns = broken_off_ns.get(number), int(columns.sent_ns[row])
        if over_ns is None or sent_ns == ABSENT or columns.error[row] is not None or over_ns - sent_ns <= oldest_ns:
            continue
        times_as_long = max(1.0, to_have.get(number, 0) / most_tokens)
        if over_ns - _last_sign_ns(columns, row) > bound_ns * times_as_long:
            found.add(number)
    return frozenset(found)


def with_failures(columns: RequestColumns, numbers: frozenset[int]) -> RequestColumns:
    """The same, where these requests are time-outs instead of left."""
    if not numbers:
        return columns
    are = np.isin(columns.index, sorted(numbers))
    error, detail = columns.error.but(are, ErrorClass.TIMEOUT), columns.error_detail.but(are, _HUNG)
    left = np.where(are, np.int8(0), columns.left)
    return replace(columns, left=left, error=error, error_detail=detail)


def _silence_ns(columns: RequestColumns, row: int, over_ns: int) -> int:
    """The longest time without output from the send to the end."""
    chunks = columns.chunk_ns[columns.chunk_start[row] : columns.chunk_start[row + 1]]
    return int(np.diff([int(columns.sent_ns[row]), *chunks.tolist(), over_ns]).max())


def _last_sign_ns(columns: RequestColumns, row: int) -> int:
    """The last output, or the send where there was none."""
    begin, end = columns.chunk_start[row], columns.chunk_start[row + 1]
    return int(columns.chunk_ns[end - 1] if end > begin else columns.sent_ns[row])
