"""Sections of a report: tables, charts and sentences that HTML, Markdown and the terminal lay out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from benchgate.report.charts import Figure
from benchgate.report.table import Table


class Style(StrEnum):
    """Layout of sentences."""

    LIST = "list"
    TEXT = "text"
    NOTE = "note"  # small print below a table or a chart
    HEADING = "heading"
    FAULTS = "faults"  # a list in a red box


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences in one style. Backticked words of the suite language are shown in quotation marks."""

    lines: tuple[str, ...]
    style: Style = Style.LIST
    kind: ClassVar[str] = "lines"


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts side by side. `show_numbers` opens the table that is folded below each."""

    figures: tuple[Figure, ...]
    show_numbers: bool = False
    kind: ClassVar[str] = "charts"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values."""

    pairs: tuple[tuple[str, str], ...]
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True, slots=True)
class SplitText:
    """An answer: the beginning that the other answer shares, and the rest."""

    same: str
    other: str


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with the differing answers of both arms."""

    prompt_id: str
    prompt: str
    baseline: SplitText
    candidate: SplitText
    note: str


@dataclass(frozen=True, slots=True)
class Examples:
    """Prompts with both answers side by side."""

    examples: tuple[Example, ...]
    kind: ClassVar[str] = "examples"


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts behind a summary line, closed unless `opened`."""

    summary: str
    parts: tuple[Part, ...]
    opened: bool = False
    kind: ClassVar[str] = "fold"


Part = Table | Lines | Charts | Facts | Examples | Fold


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report: HTML lays out `parts`, Markdown `summary`, a terminal `lines`.

    `link` is its name in the page's navigation. `invalidated_by` names the guards that forbid using its numbers.
    Markdown that is too long drops the highest `rank` first.
    """

    anchor: str
    title: str
    parts: tuple[Part, ...]
    summary: tuple[Part, ...] = ()
    lines: tuple[str, ...] = ()
    link: str = ""
    invalidated_by: str = ""
    rank: int = 0

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables but those of charts, in reading order."""
        return tuple(part for part in walk(self.parts) if isinstance(part, Table))

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All charts in reading order."""
        return tuple(figure for part in walk(self.parts) if isinstance(part, Charts) for figure in part.figures)

    @property
    def sentences(self) -> tuple[str, ...]:
        """All sentences in reading order."""
        return tuple(line for part in walk(self.parts) if isinstance(part, Lines) for line in part.lines)


def walk(parts: tuple[Part, ...]) -> Iterator[Part]:
    """Yield parts in reading order, folded ones included."""
    for part in parts:
        if isinstance(part, Fold):
            yield from walk(part.parts)
        else:
            yield part


def notes(*lines: str) -> Lines:
    """Return small print, one paragraph a line, without empty lines."""
    return Lines(tuple(line for line in lines if line), Style.NOTE)


def present(*parts: Part | None) -> tuple[Part, ...]:
    """Return the parts that have something to show."""
    return tuple(part for part in parts if part is not None and not (isinstance(part, Lines) and not part.lines))
