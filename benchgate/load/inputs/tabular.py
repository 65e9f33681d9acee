"""Rows of a data file, CSV with a header or JSON Lines, each with its place, so that what is wrong can be found."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TextIO

from benchgate.errors import Problem
from benchgate.suite.formats import parse_object

MOST_PROBLEMS = 20
"""Problems shown of one file: the rest are the same mistake in other rows."""

MOST_TOKENS = 1_000_000
"""Limit of one text, as in a suite's workload."""


@dataclass(frozen=True, slots=True)
class Header:
    """The line of a header, and the column that each of its names begins at."""

    line: int
    columns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it stands in the file: its line, and its values with the column each begins at, all from 1.

    `header` is where its keys are written, once for all rows; None where each row writes its own.
    """

    line: int
    values: Mapping[str, object]
    columns: Mapping[str, int]
    header: Header | None = None

    def misnamed(self, key: str, message: str) -> RowError:
        """A mistake of the keys: of the header where there is one, and then of no row below it."""
        if self.header is None:
            return RowError(self.line, self.columns.get(key), key, message)
        return HeaderError(self.header.line, self.header.columns.get(key), key, message)


class RowError(ValueError):
    """A row that cannot be used, with its place."""

    def __init__(self, line: int, column: int | None, key: str, message: str) -> None:
        super().__init__(message)
        self.line, self.column, self.key = line, column, key

    def problem(self, source: str) -> Problem:
        """The same for someone who is told all the problems of a file."""
        return Problem(source, self.line, self.column, self.key, str(self))


class HeaderError(RowError):
    """A header that cannot be used: whatever stands below it, there is nothing more to say."""


def csv_rows(file: TextIO) -> Iterator[Row]:
    """The rows of a CSV below its header. Raises RowError where it is none."""
    lines = csv.reader(file, strict=True)
    header: list[str] | None = None
    named = Header(0, {})
    try:
        for fields in lines:
            if not any(field.strip() for field in fields):
                continue
            if header is None:
                header = [field.strip() for field in fields]
                named = Header(lines.line_num, dict(zip(header, _begins(fields), strict=True)))
                _check_header(header, named)
                continue
            if len(fields) != len(header):
                what = f"has {len(fields)} values and the header {len(header)}; write one value for each column"
                raise RowError(lines.line_num, None, "", what)
            columns = dict(zip(header, _begins(fields), strict=True))
            yield Row(lines.line_num, dict(zip(header, fields, strict=True)), columns, named)
    except csv.Error as error:
        raise RowError(lines.line_num, None, "", f"not CSV: {error}; write one row for each request") from None


def _begins(fields: list[str]) -> list[int]:
    """The column at which each field of a line begins."""
    return [1 + sum(len(field) + 1 for field in fields[:position]) for position in range(len(fields))]


def _check_header(header: list[str], named: Header) -> None:
    """Each column has a name of its own, and a table that a spreadsheet wrote with another separator is no CSV."""
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise HeaderError(named.line, named.columns[twice], twice, "stands twice in the header; remove one column")
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(header) == 1 and separator in header[0]:
            what = f"the columns are separated by {name}; a CSV has commas: replace them, here and in every row"
            raise HeaderError(named.line, 1, "", what)


def json_rows(file: TextIO) -> Iterator[Row]:
    """The rows of a JSON Lines file. Raises RowError for a line that is no object."""
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            values = parse_object(line)
        except ValueError as error:
            raise RowError(number, None, "", str(error)) from None
        yield Row(number, values, {key: line.find(f'"{key}"') + 1 for key in values})


def beyond(context_tokens: int) -> str:
    """The end of a sentence about a request that is too long."""
    return f", and the deployments' context holds {context_tokens:,}"


def tokens_of(row: Row, key: str) -> int:
    """A number of tokens. Raises RowError for anything else, and for none."""
    number = number_of(row.values.get(key))
    if number is None or number != int(number) or not 1 <= number <= MOST_TOKENS:
        raise wrong(row, key, f"a whole number of tokens, 1 to {MOST_TOKENS:,}; take out rows that have none")
    return int(number)


def number_of(found: object) -> float | None:
    """A finite number, in a CSV as text; None for anything else."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        number = float(found)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def wrong(row: Row, key: str, expected: str) -> RowError:
    """Return an error with the found and the expected value of a column."""
    found = repr(row.values[key])[:40] if key in row.values else "nothing"
    return RowError(row.line, row.columns.get(key), key, f"found {found}; expected {expected}")
