"""Text for a terminal: its width, its colours, and tables that fit it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from textwrap import wrap

from benchgate.escape import terminal_line
from benchgate.model.verdict import Outcome

_GAP = "  "
_ELLIPSIS = "…"
_LEAST_TEXT = 24  # columns that the last column of a table is wrapped in
_BEFORE_UNIT = re.compile(r"(?<=[0-9]) (?=%|(?:[nµm]?s|min|h|d|J|[kMGT]i?B|points?|nats?|tokens?|requests?|blocks?)\b)")


class Style(StrEnum):
    """Style of a text, as the parameters of an SGR sequence (ECMA-48, 8.3.117)."""

    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    MAGENTA = "35"


STYLES = {
    Outcome.PASS: Style.GREEN,
    Outcome.WARN: Style.YELLOW,
    Outcome.BLOCK: Style.RED,
    Outcome.INCONCLUSIVE: Style.MAGENTA,
    Outcome.INVALID: Style.MAGENTA,
}


@dataclass(frozen=True, slots=True)
class Screen:
    """The receiver of text. `columns` is None where lines may have any length, as in a file or a log."""

    columns: int | None = None
    colour: bool = False

    def paint(self, text: str, *styles: Style | None) -> str:
        """Return the text escaped and, if the screen has colours, styled."""
        codes = ";".join(style for style in styles if style is not None)
        escaped = terminal_line(text)
        return f"\x1b[{codes}m{escaped}\x1b[0m" if codes and self.colour and escaped else escaped

    def wrapped(self, text: str, indent: str = "", *styles: Style | None, first: str | None = None) -> Iterator[str]:
        """Yield a text as escaped lines that fit, each after `indent`; `first` replaces the indent of the first."""
        begin = indent if first is None else first
        lines = [begin + text]
        if self.columns is not None:
            lines = wrapped_lines(text, self.columns, begin, indent)
        yield from (self.paint(line, *styles) for line in lines)

    def folded(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield lines that fit, escaped. A line that is wrapped goes on two columns right of where it begins."""
        for line in lines:
            begin = line[: len(line) - len(line.lstrip(" "))]
            yield from self.wrapped(line.lstrip(" "), begin + _GAP, first=begin) if line.strip() else ("",)

    def labelled(self, label: str, text: str, indent: str, *styles: Style | None) -> Iterator[str]:
        """Yield a text as lines after its label. The label alone is styled: a paragraph in yellow is hard to read."""
        first, *rest = Screen(self.columns).wrapped(text, indent, first=label)
        name = label.rstrip()
        yield self.paint(name, *styles) + first[len(terminal_line(name)) :]
        yield from rest


def wrapped_lines(text: str, columns: int, first: str = "", indent: str = "") -> list[str]:
    """Return a text in lines of at most so many columns; a number and its unit stay together."""
    lines = wrap(
        _BEFORE_UNIT.sub("\xa0", re.sub(r"[ \t\r\n\f\v]+", " ", text).strip(" ")),
        columns,
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace("\xa0", " ") for line in lines]


PLAIN = Screen()
Cell = tuple[str, Style | None]


def table_width(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the columns that a table of these texts takes."""
    widths = [max(len(terminal_line(row[at])) for row in (headings, *rows)) for at in range(len(headings))]
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _least(heading: str) -> int:
    """Return the columns that a cell is never cut below."""
    return max(4, len(heading))


def table_lines(
    screen: Screen,
    headings: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
    *,
    right: Sequence[int] = (),
    shrink: Sequence[int] = (),
    indent: str = "",
) -> Iterator[str]:
    """Yield the lines of a table, escaped.

    Columns in `right` are aligned right. Where the table is too wide for the screen, the widest of the columns in
    `shrink` get narrower: a longer text is cut in its middle, or in the first column stands on a line before its row.
    """
    cells = [[(terminal_line(one), None) if isinstance(one, str) else (terminal_line(one[0]), one[1]) for one in row]
             for row in ([(heading, Style.DIM) for heading in headings], *rows)]  # fmt: skip
    widths = [max(len(row[at][0]) for row in cells) for at in range(len(headings))]
    while screen.columns is not None and len(indent) + sum(widths) + len(_GAP) * (len(widths) - 1) > screen.columns:
        widest = max(shrink, key=lambda at: widths[at], default=None)
        if widest is None or widths[widest] <= _least(headings[widest]):
            break
        widths[widest] -= 1
    for row in cells:
        parts, above = list[str](), ""
        for at, ((text, style), width) in enumerate(zip(row, widths, strict=True)):
            if at == 0 and width < len(text) <= (screen.columns or 0) - len(indent):
                above, text = f"{indent}{screen.paint(text, style)}\n", ""
            kept = width // 2
            cut = text if len(text) <= width else text[: width - kept - 1] + _ELLIPSIS + text[len(text) - kept :]
            blank = " " * (width - len(cut))
            parts.append(blank + screen.paint(cut, style) if at in right else screen.paint(cut, style) + blank)
        yield above + (indent + _GAP.join(parts)).rstrip()


def fitting_table(
    screen: Screen,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    shrink: Sequence[int] = (),
    indent: str = "",
) -> Iterator[str]:
    """Yield a table of which nothing is cut but names in the columns `shrink`, escaped.

    Where it is too wide for the screen, a last column of text is wrapped; else each row becomes a paragraph that names
    its cells.
    """
    columns, last = screen.columns, len(headings) - 1
    least = [[text[: _least(headings[at])] if at in shrink else text for at, text in enumerate(row)] for row in rows]
    if columns is None or len(indent) + table_width(headings, least) <= columns:
        yield from table_lines(screen, headings, rows, right=right, shrink=shrink, indent=indent)
        return
    room = columns - len(indent) - table_width(headings[:-1], [row[:-1] for row in rows]) - len(_GAP)
    if last not in right and room >= _LEAST_TEXT:
        parts = [(row, wrapped_lines(row[-1], room) or [""]) for row in rows]
        lines = [
            (*(row[:-1] if at == 0 else [""] * last), text) for row, texts in parts for at, text in enumerate(texts)
        ]
        yield from table_lines(screen, headings, lines, right=right, indent=indent)
        return
    for row in rows:
        yield indent + screen.paint(row[0], Style.BOLD)
        cells = (f"{heading} {cell}".strip() for heading, cell in zip(headings[1:], row[1:], strict=True) if cell)
        yield from screen.wrapped("; ".join(cells), indent + _GAP * 2, first=indent + _GAP)
