"""Traffic by the hour, as text: one row an hour, in order, with its mean rate per second."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from difflib import get_close_matches

from benchgate.cost.fleet import MOST_PER_S
from benchgate.errors import UsageError

TOKENS, REQUESTS = "output_tokens_per_s", "requests_per_s"
_KNOWN = (TOKENS, REQUESTS)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Consecutive hours. `column` is what their rates count, TOKENS or REQUESTS."""

    column: str
    per_s: tuple[float, ...]


def read_traffic(text: str, name: str) -> Traffic:
    """CSV with a heading, of which one column is `output_tokens_per_s` or `requests_per_s`; others are not read.

    A blank line between two hours is an error: where there is but one column it is a row whose cell is missing.

    Raises UsageError with the place of what is wrong.
    """
    try:
        reader = csv.reader(text.removeprefix("\ufeff").splitlines(keepends=True))
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UsageError(f"{name}: this is no CSV: {error}") from None
    while rows and not rows[-1][1]:
        rows.pop()  # a blank line is no hour below the last one; between two it is one whose rate is missing
    heading = [cell.strip() for cell in rows[0][1]] if rows else []
    column = _column(heading, name)
    at = heading.index(column)
    for line, row in rows[1:]:
        _require_no_more_cells(row, len(heading), f"{name}:{line}")
    rates = [_rate(row, at, column, f"{name}:{line}") for line, row in rows[1:]]
    if not rates:
        raise UsageError(f"{name}: there is no hour below the heading; write one row an hour with its {column}")
    return Traffic(column, tuple(rates))


def _column(heading: list[str], name: str) -> str:
    found = [column for column in heading if column in _KNOWN]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name}:1: {' and '.join(found)} both say the demand; keep the one that does")
    if len(heading) == 1 and (mark := next((mark for mark in ";\t" if mark in heading[0]), None)) is not None:
        called = "tabs" if mark == "\t" else f"{mark!r}"
        raise UsageError(f"{name}:1: its cells are parted by {called}; write commas, and a point in numbers: 3.5")
    near = [(cell, match[0]) for cell in heading if (match := get_close_matches(cell, _KNOWN, n=1))]
    hint = f"; did you mean {near[0][1]} by {near[0][0]!r}?" if near else ""
    raise UsageError(f"{name}:1: no column is called {TOKENS} or {REQUESTS}{hint}")


def _require_no_more_cells(row: list[str], most: int, place: str) -> None:
    """A comma inside a number parts it: of `1,200` the first cell alone would be a rate, and too small a one."""
    if any(cell.strip() for cell in row[most:]):
        raise UsageError(
            f"{place}: it has {len(row)} cells, and the heading {most}; write a point in numbers, 3.5, and nothing"
            " between thousands, 1200"
        )


def _rate(row: list[str], at: int, column: str, place: str) -> float:
    cell = row[at].strip() if at < len(row) else ""
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST_PER_S:
        raise UsageError(
            f"{place}: {column} is {cell[:40]!r}; expected a mean rate per second, 0 or more, at most {MOST_PER_S:g}"
        )
    return value
