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
