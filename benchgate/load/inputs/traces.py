"""Recorded traffic: a trace file → the instants and lengths to replay, or every problem in it with its place.

A CSV with a header or JSON Lines, in one of the shapes below, told apart by the column that holds the instant. Rows
are read only as far as they are asked for, so the file may be as long as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

from benchgate.errors import Problem, SuiteError
from benchgate.load.inputs.tabular import (
    MOST_PROBLEMS,
    HeaderError,
    Row,
    RowError,
    beyond,
    csv_rows,
    json_rows,
    number_of,
    tokens_of,
    wrong,
)
from benchgate.model.arrivals import TracedRequest
from benchgate.plan.prompts import MOONCAKE_BLOCK_TOKENS
from benchgate.suite.load import Load

_NS_PER_S = 1_000_000_000
_MOST_NS = 2**62  # Unix time is below it for another century
_HASHES = "hash_ids"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A known kind of trace. `unit_ns` is what its instant counts in; None for a date and time.

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
                    _check_order(shape, row, request, requests)
                    _check_fits(row, request, bounds)
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


def _check_order(shape: _Shape, row: Row, request: TracedRequest, earlier: Sequence[TracedRequest]) -> None:
    if earlier and request.at_ns < earlier[-1].at_ns:
        what = f"is earlier than line {earlier[-1].line}; sort the file by this column"
        raise RowError(row.line, row.columns.get(shape.at), shape.at, what)


def _check_fits(row: Row, request: TracedRequest, bounds: Bounds) -> None:
    tokens_in = request.input_tokens or bounds.input_tokens or 0
    tokens_out = request.output_tokens or bounds.output_tokens or 0
    if bounds.context_tokens is not None and tokens_in + tokens_out > bounds.context_tokens:
        what = f"asks for {tokens_in:,} tokens in and {tokens_out:,} out"
        raise RowError(row.line, None, "", f"{what}{beyond(bounds.context_tokens)}; take the row out")


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
    """The row's request with its instant as the file counts it."""
    if shape.is_own:
        own = (shape.at, shape.input_tokens, shape.output_tokens, _HASHES)
        for key in row.values:
            if key not in own:
                near = get_close_matches(key, own, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"a row has {', '.join(own)}"
                raise row.misnamed(key, f"unknown column; {hint}")
    input_tokens = _tokens(shape, row, shape.input_tokens)
    return TracedRequest(
        at_ns=_at_ns(shape, row),
        input_tokens=input_tokens,
        output_tokens=_tokens(shape, row, shape.output_tokens),
        hash_ids=_hash_ids(row, input_tokens, block_tokens),
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


def _tokens(shape: _Shape, row: Row, key: str) -> int | None:
    if shape.is_own and row.values.get(key) in (None, ""):
        return None  # the workload says it
    return tokens_of(row, key)


def _hash_ids(row: Row, input_tokens: int | None, block_tokens: int) -> tuple[int, ...]:
    """The hashes of the prompt's blocks; none where the row has none."""
    found = row.values.get(_HASHES)
    if found in (None, ""):
        return ()
    if not isinstance(found, list) or not all(isinstance(one, int) and 0 <= one < _MOST_NS for one in found):
        raise wrong(row, _HASHES, "a list of whole numbers, one for each block of the prompt")
    covered = len(found) * block_tokens
    if input_tokens is None or not covered - block_tokens < input_tokens <= covered:
        what = f"{len(found)} hashes of {block_tokens:,} tokens are not {input_tokens or 'a known number of'} tokens"
        raise RowError(row.line, row.columns.get(_HASHES), _HASHES, f"{what}; say how many one stands for with `block`")
    return tuple(found)
