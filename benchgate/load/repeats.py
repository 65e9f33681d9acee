"""Answers that came twice: a server or proxy that sends one again answers somebody else's request with it.

In a closed loop the second copy is there as soon as the next request leaves, and a cache answers with what it has
kept. A model that says the same twice says it under two ids. Some servers draw their ids from few, or have one for each
connection: equal answers of theirs take as long as the first one did.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchgate.model.records import IntArray

NO_NAME = 0
_FASTER = 4  # times: what waits before the first of two equal answers is seldom so long as three more


def came_again(names: IntArray, took_ns: IntArray, bodies: Callable[[IntArray], IntArray]) -> IntArray:
    """The rows of answers that had come before, byte for byte and under the same id, and came in no time now.

    `names` tells ids apart, `took_ns` is from sending to the end of the answer, both in the order of the requests;
    `NO_NAME` is one without an id, and one that failed. `bodies` gives for some rows what tells their bytes apart. It
    is asked once, and only when an id came again in much less time, which it seldom does: to read so much costs time.
    """
    rows = _shared(names)
    _, group = np.unique(names[rows], return_inverse=True)
    took = took_ns[rows]
    slowest = np.zeros(len(rows), dtype=np.int64)
    np.maximum.at(slowest, group, took)
    quick = took * _FASTER < slowest[group]
    if not quick.any():
        return rows[quick]
    suspects = np.isin(group, group[quick])
    rows, took = rows[suspects], took[suspects]
    _, first, group = np.unique(bodies(rows), return_index=True, return_inverse=True)
    return rows[took * _FASTER < took[first[group]]]


def _shared(names: IntArray) -> IntArray:
    """The rows whose name another one has too, in order."""
    order = np.argsort(names, kind="stable")
    same = np.flatnonzero(names[order[1:]] == names[order[:-1]])
    shared = np.zeros(len(names), dtype=np.bool_)
    shared[order[same]] = shared[order[same + 1]] = True
    return np.flatnonzero(shared & (names != NO_NAME))
