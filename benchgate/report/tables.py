"""A table of finished texts: what the HTML and the Markdown both lay out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; numeric columns are set right in figures of equal width."""

    title: str
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, one cell per column. `starts` are the rows that begin a group, set off from the one above."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    starts: frozenset[int] = frozenset()


def of_expected(found: int, expected: int) -> str:
    """`1,319`, or `1,300 of 1,319` where some are missing."""
    return f"{found:,}" if found == expected else f"{found:,} of {expected:,}"
