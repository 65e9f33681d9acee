"""Do a server's own counts of output tokens fit the pieces of text that it sent?"""

from __future__ import annotations

import numpy as np

from benchgate.model.metrics import succeeded
from benchgate.model.records import BoolArray, IntArray, RequestColumns, TokenSource
from benchgate.units import show_percent

MISCOUNTED_SHARE = 0.01  # of the successful answers
_LEAST = 3  # of them: an odd one now and then is nobody's habit
WITHHELD = 1
"""Pieces of text beyond the tokens counted: a server may close a stream with the tail of a token."""


def undercounted(columns: RequestColumns) -> BoolArray:
    """Answers whose usage counts fewer tokens than there were pieces of text: a token makes at most one of them.

    More tokens than pieces are no fault: servers merge tokens into one piece under load, and count those they withhold.
    """
    fewer: BoolArray = columns.output_tokens < _pieces(columns) - WITHHELD
    return fewer & _by_usage(columns)


def miscounted(columns: RequestColumns, asked: int | None = None) -> str | None:
    """Why one server's counts of tokens are not to be judged by; None when nothing speaks against them.

    With `asked`, the most tokens that every request allowed, a usage must not tell of more than that and than there
    were pieces, but for one piece: a server that passes the limit sends what it counts. Thoughts that were counted and
    not sent would make any pace.
    """
    few = _share(columns, undercounted(columns))
    if few is not None:
        return _told(few, "fewer tokens than there were pieces of text")
    if asked is None:
        return None
    pieces = _pieces(columns)
    most = np.maximum(pieces, asked) + columns.output_tokens / np.maximum(pieces, 1)
    many = _share(columns, (columns.output_tokens > most) & _by_usage(columns))
    return None if many is None else _told(many, f"more tokens than the {asked} asked for, in too few pieces of text")


def _pieces(columns: RequestColumns) -> IntArray:
    pieces: IntArray = np.diff(columns.chunk_start)
    return pieces


def _by_usage(columns: RequestColumns) -> BoolArray:
    return columns.token_source.are((TokenSource.USAGE,))


def _share(columns: RequestColumns, marked: BoolArray) -> float | None:
    """Of the successful answers; None where it is nothing to speak of."""
    of_ok = marked[succeeded(columns)]
    if np.count_nonzero(of_ok) < _LEAST or float(np.mean(of_ok)) <= MISCOUNTED_SHARE:
        return None
    return float(np.mean(of_ok))


def _told(share: float, what: str) -> str:
    return f"in {show_percent(share)} of the answers the server's usage counts {what} (bound {MISCOUNTED_SHARE:.0%})"
