"""Do a server's own counts of output tokens fit the pieces of text that it sent?"""

from __future__ import annotations

import numpy as np

from benchgate.model.metrics import succeeded
from benchgate.model.records import BoolArray, IntArray, RequestColumns, TokenSource
from benchgate.units import show_percent

MISCOUNTED_SHARE = 0.01  # of the successful answers
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

    With `asked`, the most tokens that every request allowed, a usage must not tell of more in no more pieces than that
    (thoughts it counts apart are its own affair): a server that passes the limit sends what it counts.
    """
    few = _share(columns, undercounted(columns))
    if few > MISCOUNTED_SHARE:
        return _told(few, "fewer tokens than there were pieces of text")
    if asked is None:
        return None
    more = columns.output_tokens - np.maximum(columns.reasoning_tokens, 0) > asked
    many = _share(columns, more & (_pieces(columns) <= asked) & _by_usage(columns))
    return None if many <= MISCOUNTED_SHARE else _told(many, f"more tokens than the {asked} asked for, and not in text")


def _pieces(columns: RequestColumns) -> IntArray:
    pieces: IntArray = np.diff(columns.chunk_start)
    return pieces


def _by_usage(columns: RequestColumns) -> BoolArray:
    return columns.token_source.are((TokenSource.USAGE,))


def _share(columns: RequestColumns, marked: BoolArray) -> float:
    ok = succeeded(columns)
    return float(np.mean(marked[ok])) if ok.any() else 0.0


def _told(share: float, what: str) -> str:
    return f"in {show_percent(share)} of the answers the server's usage counts {what} (bound {MISCOUNTED_SHARE:.0%})"
