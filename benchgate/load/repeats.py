"""Answers that came twice: a server or proxy that sends one again answers somebody else's request with it.

In a closed loop the second copy is there as soon as the next request leaves, and a cache answers with what it has
kept. A model that says the same twice says it under two ids. Some servers draw their ids from few, or have one for each
connection: equal answers of theirs come at the pace of the first one, also where that one had to wait for its turn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchgate.model.records import IntArray, RequestColumns

NO_NAME = 0
_FASTER = 4  # times
_AT_ONCE_NS = 5_000_000  # all of an answer: a copy comes in one piece, and so does what is made faster than this


def came_again(columns: RequestColumns, names: IntArray, bodies: Callable[[IntArray], IntArray]) -> IntArray:
    """The rows of answers that had come before, byte for byte and under the same id, and came in no time now.

    From its sending to its end that is much less than the one that it repeats, and than nearly any answer that was the
    first under its id; from first output to last it is much less than the one that it repeats. So neither an answer
    that did not have to wait nor a short one of a server that is now slow and now quick is a copy.
    `names` tells the ids of all rows apart; `NO_NAME` is a row without one, and one that failed. `bodies` gives for
    some rows what tells their bytes apart. It is asked once, and only when an id came again in much less time, which it
    seldom does: to read so much costs time.
    """
    rows = _shared(names)
    _, group = np.unique(names[rows], return_inverse=True)
    took = columns.end_ns[rows] - columns.sent_ns[rows]
    slowest = np.zeros(len(rows), dtype=np.int64)
    np.maximum.at(slowest, group, took)
    quick = took * _FASTER < slowest[group]
    if not quick.any():
        return rows[quick]
    suspects = np.isin(group, group[quick])
    rows, took = rows[suspects], took[suspects]
    _, first, group = np.unique(bodies(rows), return_index=True, return_inverse=True)
    first = first[group]
    spoke = _spoke_ns(columns, rows)
    in_no_time = took * _FASTER < np.minimum(took[first], _quick_first_ns(columns, names))
    at_once = spoke <= np.maximum(spoke[first] // _FASTER, _AT_ONCE_NS)
    again: IntArray = rows[in_no_time & at_once]
    return again


def _shared(names: IntArray) -> IntArray:
    """The rows whose name another one has too, in order."""
    order = np.argsort(names, kind="stable")
    same = np.flatnonzero(names[order[1:]] == names[order[:-1]])
    shared = np.zeros(len(names), dtype=np.bool_)
    shared[order[same]] = shared[order[same + 1]] = True
    return np.flatnonzero(shared & (names != NO_NAME))


def _quick_first_ns(columns: RequestColumns, names: IntArray) -> int:
    """What the quickest answers took that were the first under their name; a tenth of them may be copies themselves."""
    told, first = np.unique(names, return_index=True)
    first = first[told != NO_NAME]
    took = np.sort(columns.end_ns[first] - columns.sent_ns[first])
    return int(took[(len(took) + 4) // 10])


def _spoke_ns(columns: RequestColumns, rows: IntArray) -> IntArray:
    """From the first output to the last of some answers, each of which has some."""
    return columns.chunk_ns[columns.chunk_start[rows + 1] - 1] - columns.chunk_ns[columns.chunk_start[rows]]
