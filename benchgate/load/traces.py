"""Recorded traffic: a trace file → the instants and lengths to replay, or every problem in it with its place.

A CSV with a header or JSON Lines, in one of the shapes below, told apart by the column that holds the instant. Rows
are read only as far as they are asked for, so the file may be as long as it likes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

from benchgate.errors import Problem, SuiteError
from benchgate.plan.replay import TracedRequest
from benchgate.suite.jsonl import parse_object
from benchgate.suite.schema import Load

_NS_PER_S = 1_000_000_000
_MOST_TOKENS = 1_000_000  # as in a suite's workload
_MOST_NS = 2**62  # Unix time is below it for another century
_MOST_PROBLEMS = 20  # of one file: the rest are the same mistake in other rows
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Shape:
    """One known kind of trace. `unit_ns` is what its instant counts in; None for a date and time.

    A public kind has more columns than these, which mean nothing here; in our own (`is_own`) every other is a mistake.
    """

    name: str
    at: str
    unit_ns: int | None
    input_tokens: str
    output_tokens: str
    is_own: bool = False


_SHAPES = (
    _Shape("AzurePublicDataset", "TIMESTAMP", None, "ContextTokens", "GeneratedTokens"),
    _Shape("BurstGPT", "Timestamp", _NS_PER_S, "Request tokens", "Response tokens"),
    _Shape("Mooncake", "timestamp", 1_000_000, "input_length", "output_length"),
    _Shape("benchgate", "at_s", _NS_PER_S, "input_tokens", "output_tokens", is_own=True),
)


@dataclass(frozen=True, slots=True)
class _Row:
    """One row as it stands in the file: its line, and its values with the column each begins at, all from 1."""

    line: int
    values: Mapping[str, object]
    columns: Mapping[str, int]


class _RowError(ValueError):
    """A row that cannot be used, with its place."""

    def __init__(self, line: int, column: int | None, key: str, message: str) -> None:
        super().__init__(message)
        self.line, self.column, self.key = line, column, key

    def problem(self, source: str) -> Problem:
        """The same for someone who is told all the problems of a file."""
        return Problem(source, self.line, self.column, self.key, str(self))


def load_traces(suite_dir: Path, load: Load) -> dict[str, tuple[TracedRequest, ...]]:
    """The rows of every stage that replays a trace, by the name of the stage: as many as all its blocks can use.

    Raises SuiteError with the problems of all traces: a file that cannot be read or is none of the known kinds, a row
    that lacks an instant or a length or has one that cannot be, an instant before the one above it, too few rows.
    """
    found: dict[str, tuple[TracedRequest, ...]] = {}
    problems: list[Problem] = []
    for stage in load.sweep:
        if stage.trace is None:
            continue
        path = suite_dir / stage.trace
        try:
            found[stage.name] = rows = load_trace(path, stage.requests * load.blocks)
        except SuiteError as error:
            problems += error.problems
            continue
        if len(rows) < stage.requests:
            what = (
                f'the trace has {len(rows):,} rows and stage "{stage.name}" sends {stage.requests:,} requests a block; '
                f"write `requests: {len(rows)}` or fewer, or name a longer trace"
            )
            problems.append(Problem(str(path), None, None, "", what))
    if problems:
        raise SuiteError(list(dict.fromkeys(problems)))
    return found


def load_trace(path: Path, limit: int) -> tuple[TracedRequest, ...]:
    """The first `limit` rows of a trace, or all when it has fewer; at least one. Raises SuiteError as `load_traces`."""
    source = str(path)
    problems: list[Problem] = []
    requests: list[TracedRequest] = []  # with instants as the file counts them
    line_above = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for shape, row in _rows(file, path.suffix):
                try:
                    request = _request(shape, row)
                    if requests and request.at_ns < requests[-1].at_ns:
                        raise _RowError(
                            row.line,
                            row.columns.get(shape.at),
                            shape.at,
                            f"is earlier than line {line_above}; sort the file by this column",
                        )
                    requests.append(request)
                    line_above = row.line
                except _RowError as error:
                    problems.append(error.problem(source))
                if len(requests) == limit or len(problems) == _MOST_PROBLEMS:
                    break
    except (OSError, UnicodeDecodeError) as error:
        what = f"the trace cannot be read ({error}); `trace` names a CSV or JSONL file beside the suite"
        raise SuiteError([Problem(source, None, None, "", what)]) from error
    except _RowError as error:  # of the file as a whole: nothing below it can be read either
        problems.append(error.problem(source))
    if not requests and not problems:
        problems.append(Problem(source, None, None, "", "the trace has no rows; write one row for each request"))
    if problems:
        raise SuiteError(problems)
    return tuple(replace(request, at_ns=request.at_ns - requests[0].at_ns) for request in requests)


def _rows(file: TextIO, suffix: str) -> Iterator[tuple[_Shape, _Row]]:
    """Every row with the shape of the file, which its first row settles."""
    if suffix.lower() == ".csv":
        rows = _csv_rows(file)
    elif suffix.lower() in (".jsonl", ".ndjson"):
        rows = _json_rows(file)
    else:
        raise _RowError(1, None, "", f'"{suffix}" is no kind of trace; name the file .csv or .jsonl')
    shape: _Shape | None = None
    for row in rows:
        shape = shape or _shape_of(row)
        yield shape, row


def _csv_rows(file: TextIO) -> Iterator[_Row]:
    lines = csv.reader(file, strict=True)
    header: list[str] | None = None
    try:
        for fields in lines:
            if not any(field.strip() for field in fields):
                continue
            if header is None:
                header = [field.strip() for field in fields]
                continue
            if len(fields) != len(header):
                what = f"has {len(fields)} values and the header {len(header)}; write one value for each column"
                raise _RowError(lines.line_num, None, "", what)
            begins = [1 + sum(len(field) + 1 for field in fields[:position]) for position in range(len(fields))]
            yield _Row(lines.line_num, dict(zip(header, fields, strict=True)), dict(zip(header, begins, strict=True)))
    except csv.Error as error:
        raise _RowError(lines.line_num, None, "", f"not CSV: {error}; write one row for each request") from None


def _json_rows(file: TextIO) -> Iterator[_Row]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            values = parse_object(line)
        except ValueError as error:
            raise _RowError(number, None, "", str(error)) from None
        yield _Row(number, values, {key: line.find(f'"{key}"') + 1 for key in values})


def _shape_of(row: _Row) -> _Shape:
    for shape in _SHAPES:
        if shape.at in row.values:
            lacking = [key for key in (shape.input_tokens, shape.output_tokens) if key not in row.values]
            if lacking and not shape.is_own:
                what = f"is missing; a trace with `{shape.at}` ({shape.name}) has it"
                raise _RowError(row.line, None, lacking[0], what)
            return shape
    known = ", ".join(f"`{shape.at}` ({shape.name})" for shape in _SHAPES)
    found = ", ".join(f"`{key}`" for key in list(row.values)[:8])
    raise _RowError(row.line, None, "", f"no column holds the instant; found {found}; expected one of {known}")


def _request(shape: _Shape, row: _Row) -> TracedRequest:
    """The row's request with its instant as the file counts it."""
    if shape.is_own:
        own = (shape.at, shape.input_tokens, shape.output_tokens)
        for key in row.values:
            if key not in own:
                near = get_close_matches(key, own, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"a row has {', '.join(own)}"
                raise _RowError(row.line, row.columns.get(key), key, f"unknown column; {hint}")
    return TracedRequest(
        at_ns=_at_ns(shape, row),
        input_tokens=_tokens(shape, row, shape.input_tokens),
        output_tokens=_tokens(shape, row, shape.output_tokens),
    )


def _at_ns(shape: _Shape, row: _Row) -> int:
    found = row.values.get(shape.at)
    if shape.unit_ns is None:
        try:
            at = datetime.fromisoformat(str(found).strip())
        except ValueError:
            raise _wrong(row, shape.at, "a date and time like 2023-11-16 18:17:03.9799600") from None
        since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
        return since // timedelta(microseconds=1) * 1000  # what is finer is cut off
    number = _number(found)
    if number is None or abs(number * shape.unit_ns) > _MOST_NS:
        raise _wrong(row, shape.at, "a number of " + {1_000_000: "ms", _NS_PER_S: "s"}[shape.unit_ns])
    return round(number * shape.unit_ns)


def _tokens(shape: _Shape, row: _Row, key: str) -> int | None:
    found = row.values.get(key)
    if shape.is_own and found in (None, ""):
        return None  # the workload says it
    number = _number(found)
    if number is None or number != int(number) or not 1 <= number <= _MOST_TOKENS:
        raise _wrong(row, key, f"a whole number of tokens, 1 to {_MOST_TOKENS:,}; take out rows that have none")
    return int(number)


def _number(found: object) -> float | None:
    """A finite number, in a CSV as text; None for anything else."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        number = float(found)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _wrong(row: _Row, key: str, expected: str) -> _RowError:
    found = repr(row.values[key])[:40] if key in row.values else "nothing"
    return _RowError(row.line, row.columns.get(key), key, f"found {found}; expected {expected}")
