"""Tables of finished text, the same for HTML, Markdown and terminals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Column:
    """A heading. Numeric columns are aligned right; a `bar` column shows the table's bars instead of text."""

    title: str
    numeric: bool = True
    bar: bool = False


@dataclass(frozen=True, slots=True)
class ShareBar:
    """A share and its target as lengths from 0 to 100; `width` is None when nothing was measured."""

    width: float | None
    target: float


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, one cell a column. `starts` are the rows that begin a group; `bars` has one bar a row, if any."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    starts: frozenset[int] = frozenset()
    bars: tuple[ShareBar, ...] = ()
    kind: ClassVar[str] = "table"


def text_columns(*titles: str) -> tuple[Column, ...]:
    """Return columns of text."""
    return tuple(Column(title, numeric=False) for title in titles)


def number_columns(*titles: str) -> tuple[Column, ...]:
    """Return columns of numbers."""
    return tuple(Column(title) for title in titles)


def group_starts(keys: Sequence[object]) -> frozenset[int]:
    """Return the indices of rows whose key differs from that of the row above."""
    return frozenset(i for i, key in enumerate(keys) if i > 0 and key != keys[i - 1])


def of_expected(found: int, expected: int) -> str:
    """`1,319`, or `1,300 of 1,319` when some are missing."""
    return f"{found:,}" if found == expected else f"{found:,} of {expected:,}"
