"""Recorded traffic: a trace file → the instants and lengths to replay, or every problem in it with its place.

A CSV with a header or JSON Lines, in one of the shapes below, recognised by the column that holds the instant. Rows
are read only as far as they are needed, so the file may be as long as it likes. Rows of other data files are read
here too, each with its line and columns.
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
from benchgate.model.arrivals import TracedRequest
from benchgate.plan.prompts import MOONCAKE_BLOCK_TOKENS
from benchgate.suite.formats import parse_object
from benchgate.suite.load import Load

MOST_PROBLEMS = 20  # problems shown of one file: the rest are the same mistake in other rows
MOST_TOKENS = 1_000_000  # limit of one text, as in a suite's workload


@dataclass(frozen=True, slots=True)
class Header:
    """The line of a header, and the column that each of its names begins at."""

    line: int
    columns: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """A row: line, values, and the column of each, from 1. `header` has the keys' place, None where rows have keys."""

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
        """Return it as a problem of the file `source`."""
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
                twice = next((name for name in header if header.count(name) > 1), None)
                if twice is not None:
                    what = "stands twice in the header; remove one column"
                    raise HeaderError(named.line, named.columns[twice], twice, what)
                for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
                    if len(header) == 1 and separator in header[0]:
                        what = f"the columns are separated by {name}; a CSV has commas"
                        raise HeaderError(named.line, 1, "", f"{what}: replace them, here and in every row")
                continue
            if len(fields) != len(header):
                what = f"has {len(fields)} values and the header {len(header)}; write one value for each column"
                raise RowError(lines.line_num, None, "", what)
            columns = dict(zip(header, _begins(fields), strict=True))
            yield Row(lines.line_num, dict(zip(header, fields, strict=True)), columns, named)
    except csv.Error as error:
        raise RowError(lines.line_num, None, "", f"not CSV: {error}; write one row for each request") from None


def _begins(fields: list[str]) -> list[int]:
    return [1 + sum(len(field) + 1 for field in fields[:position]) for position in range(len(fields))]


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


_NS_PER_S = 1_000_000_000
_MOST_NS = 2**62  # Unix time is below it for another century
_HASHES = "hash_ids"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A kind of trace; `unit_ns` of its instant (None: date). Only our own (`is_own`) may have no other columns."""

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
class Bounds:
    """Limits for the rows of a trace.

    A hash stands for `block_tokens`. A prompt and its answer have at most `context_tokens` (None: unknown). Rows
    without lengths have those of the workload.
    """

    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    context_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


def load_traces(suite_dir: Path, load: Load, context_tokens: int | None = None) -> dict[str, tuple[TracedRequest, ...]]:
    """The rows of every level that replays a trace, by its name: as many as all its blocks can use.

    Raises SuiteError with the problems of all traces: a file that cannot be read or is none of the known kinds, a row
    that lacks an instant or a length or has one that cannot be, an instant before the one above it, too few rows, and
    more tokens than the context holds.
    """
    found: dict[str, tuple[TracedRequest, ...]] = {}
    problems: list[Problem] = []
    for traffic in load.classes():
        schedule, workload = traffic.schedule, traffic.workload
        if schedule.trace is None:
            continue
        path = suite_dir / schedule.trace
        bounds = Bounds(
            schedule.block_tokens or MOONCAKE_BLOCK_TOKENS,
            context_tokens,
            workload.most_input_tokens,
            workload.most_output_tokens,
        )
        try:
            found[traffic.name] = rows = load_trace(path, schedule.requests * load.blocks, bounds)
        except SuiteError as error:
            problems += error.problems
            continue
        if len(rows) < schedule.requests:
            what = (
                f'the trace has {len(rows):,} rows and stage "{traffic.name}" sends {schedule.requests:,} requests a '
                f"block; write `requests: {len(rows)}` or fewer, or name a longer trace"
            )
            problems.append(Problem(str(path), None, None, "", what))
    if problems:
        raise SuiteError(list(dict.fromkeys(problems)))
    return found


def load_trace(path: Path, limit: int, bounds: Bounds = Bounds()) -> tuple[TracedRequest, ...]:
    """The first `limit` rows of a trace, or all when it has fewer; at least one. Raises SuiteError as `load_traces`."""
    source = str(path)
    problems: list[Problem] = []
    requests: list[TracedRequest] = []  # with instants as the file counts them
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for shape, row in _rows(file, path.suffix):
                try:
                    request = _request(shape, row, bounds.block_tokens)
                    if requests and request.at_ns < requests[-1].at_ns:
                        what = f"is earlier than line {requests[-1].line}; sort the file by this column"
                        raise RowError(row.line, row.columns.get(shape.at), shape.at, what)
                    tokens_in = request.input_tokens or bounds.input_tokens or 0
                    tokens_out = request.output_tokens or bounds.output_tokens or 0
                    if bounds.context_tokens is not None and tokens_in + tokens_out > bounds.context_tokens:
                        what = f"has {tokens_in:,} tokens in and {tokens_out:,} out"
                        raise RowError(row.line, None, "", f"{what}{beyond(bounds.context_tokens)}; take the row out")
                    requests.append(request)
                except HeaderError:
                    raise
                except RowError as error:
                    problems.append(error.problem(source))
                if len(requests) == limit or len(problems) == MOST_PROBLEMS:
                    break
    except (OSError, UnicodeDecodeError) as error:
        what = f"the trace cannot be read ({error}); `trace` names a CSV or JSONL file beside the suite"
        raise SuiteError([Problem(source, None, None, "", what)]) from error
    except RowError as error:  # of the file as a whole: nothing below it can be read either
        problems.append(error.problem(source))
    if not requests and not problems:
        problems.append(Problem(source, None, None, "", "the trace has no rows; write one row for each request"))
    if problems:
        raise SuiteError(problems)
    return tuple(replace(request, at_ns=request.at_ns - requests[0].at_ns) for request in requests)


def _rows(file: TextIO, suffix: str) -> Iterator[tuple[_Shape, Row]]:
    """Every row with the shape of the file, which its first row settles."""
    if suffix.lower() == ".csv":
        rows = csv_rows(file)
    elif suffix.lower() in (".jsonl", ".ndjson"):
        rows = json_rows(file)
    else:
        raise RowError(1, None, "", f'"{suffix}" is no kind of trace; name the file .csv or .jsonl')
    shape: _Shape | None = None
    for row in rows:
        shape = shape or _shape_of(row)
        yield shape, row


def _shape_of(row: Row) -> _Shape:
    for shape in _SHAPES:
        if shape.at in row.values:
            lacking = [key for key in (shape.input_tokens, shape.output_tokens) if key not in row.values]
            if lacking and not shape.is_own:
                what = f"is missing; a trace with `{shape.at}` ({shape.name}) has it"
                raise row.misnamed(lacking[0], what)
            return shape
    known = ", ".join(f"`{shape.at}` ({shape.name})" for shape in _SHAPES)
    found = ", ".join(f"`{key}`" for key in list(row.values)[:8])
    raise row.misnamed("", f"no column holds the instant; found {found}; expected one of {known}")


def _request(shape: _Shape, row: Row, block_tokens: int) -> TracedRequest:
    if shape.is_own:
        own = (shape.at, shape.input_tokens, shape.output_tokens, _HASHES)
        for key in row.values:
            if key not in own:
                near = get_close_matches(key, own, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"a row has {', '.join(own)}"
                raise row.misnamed(key, f"unknown column; {hint}")
    # A row of our own kind may leave its lengths to the workload.
    input_tokens, output_tokens = (
        None if shape.is_own and row.values.get(key) in (None, "") else tokens_of(row, key)
        for key in (shape.input_tokens, shape.output_tokens)
    )
    hashes = row.values.get(_HASHES)
    if hashes in (None, ""):
        hashes = []
    elif not isinstance(hashes, list) or not all(isinstance(one, int) and 0 <= one < _MOST_NS for one in hashes):
        raise wrong(row, _HASHES, "a list of whole numbers, one for each block of the prompt")
    else:
        covered = len(hashes) * block_tokens
        if input_tokens is None or not covered - block_tokens < input_tokens <= covered:
            tokens = f"{input_tokens or 'a known number of'} tokens"
            what = f"{len(hashes)} hashes of {block_tokens:,} tokens are not {tokens}"
            what += "; set the `block` of a suite's `trace`, or leave `hash_ids` out"
            raise RowError(row.line, row.columns.get(_HASHES), _HASHES, what)
    return TracedRequest(
        at_ns=_at_ns(shape, row),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        hash_ids=tuple(hashes),
        line=row.line,
    )


def _at_ns(shape: _Shape, row: Row) -> int:
    found = row.values.get(shape.at)
    if shape.unit_ns is None:
        try:
            at = datetime.fromisoformat(str(found).strip())
        except ValueError:
            raise wrong(row, shape.at, "a date and time like 2023-11-16 18:17:03.9799600") from None
        since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
        return since // timedelta(microseconds=1) * 1000  # what is finer is cut off
    number = number_of(found)
    if number is None or abs(number * shape.unit_ns) > _MOST_NS:
        raise wrong(row, shape.at, "a number of " + {1_000_000: "ms", _NS_PER_S: "s"}[shape.unit_ns])
    return round(number * shape.unit_ns)
