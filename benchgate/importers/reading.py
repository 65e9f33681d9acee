"""A file of another tool: its values with their paths, its times, and its metric rows by benchgate's definitions."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from benchgate.errors import UsageError
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.metric import QUANTILES
from benchgate.model.run import MetricRow
from benchgate.suite.formats import RepeatedKey, unique_keys
from benchgate.system import read_at_most

MOST_BYTES = 256 * 2**20  # limit of a file, which is held in memory several times over

_MOST_SHOWN = 40
_MOST = 1e15  # no measurement is larger, in any unit


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a file, with its path, as in `$.requests[3].ttft`. Every method that fails raises UsageError."""

    value: Any
    source: str
    path: str = "$"

    def refuse(self, expected: str) -> NoReturn:
        """Raise UsageError with the value found here, and the one expected."""
        found = ascii(self.value)[:_MOST_SHOWN]
        raise UsageError(f"{self.source}: {self.path}: found {found}; expected {expected}; nothing was imported")

    def get(self, key: str) -> Field | None:
        """Return an object's value under a key; None if it is missing or null."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        found = self.value.get(key)
        return None if found is None else Field(found, self.source, f"{self.path}.{key}")

    def need(self, *keys: str) -> Field:
        """Return the nested value under these keys."""
        here = self
        for key in keys:
            found = here.get(key)
            if found is None:
                Field(None, here.source, f"{here.path}.{key}").refuse("a value")
            here = found
        return here

    def items(self) -> list[Field]:
        """Return the values of a list."""
        if not isinstance(self.value, list):
            self.refuse("a list")
        return [Field(one, self.source, f"{self.path}[{number}]") for number, one in enumerate(self.value)]

    def lines(self) -> list[Field]:
        """Return the values of a file with one a line, which is no list if it has one line alone."""
        return self.items() if isinstance(self.value, list) else [self]

    def entries(self) -> Iterator[tuple[str, Field]]:
        """Yield the keys of an object with their values."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        for key, one in self.value.items():
            yield key, Field(one, self.source, f"{self.path}.{key}")

    def number(self, *, most: float = _MOST) -> float:
        """Return a finite number from 0 to `most`; NaN, infinity and quoted numbers are refused."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:  # NaN is not
            self.refuse(f"a number from 0 to {most:g}" if most < _MOST else "a finite number, 0 or more")
        return float(value)

    def above_zero(self) -> float:
        """Return a finite number above 0."""
        found = self.number()
        if found == 0:
            self.refuse("a number above 0")
        return found

    def count(self) -> int:
        """Return a whole number, 0 or more."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not 0 <= self.value <= _MOST:
            self.refuse("a whole number, 0 or more")
        return self.value

    def text(self) -> str:
        """Return a text without control characters, which a terminal would obey."""
        if not isinstance(self.value, str) or any(unicodedata.category(char) in ("Cc", "Cs") for char in self.value):
            self.refuse("a text without control characters")
        return self.value


def optional_text(field: Field | None) -> str | None:
    """Return the text of a field that may be missing."""
    return None if field is None else field.text()


def read_bytes(path: Path) -> bytes:
    """Read a file. Raises UsageError if it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            data = read_at_most(file, MOST_BYTES + 1)
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path} has more than {MOST_BYTES:,} bytes; import the tool's summary instead of its records")
    return data


_MOST_LEVELS = 100  # of objects and lists in each other


def _is_deeper(value: object, levels: int) -> bool:
    """Return True if lists and objects are in each other more than so many levels deep."""
    inside: list[Any] = [value]
    for _ in range(levels + 1):
        found = (one.values() if isinstance(one, dict) else one for one in inside if isinstance(one, dict | list))
        inside = [inner for values in found for inner in values if isinstance(inner, dict | list)]
        if not inside:
            return False
    return True


def read_json(text: str, source: str, first_line: int = 1) -> Field:
    """Parse one JSON value. Raises UsageError with line and column for a mistake or a duplicate key.

    A value with more than 100 levels is refused, so that recursive readers do not overflow.
    """
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
        if _is_deeper(value, _MOST_LEVELS):
            raise ValueError(f"its values are nested more than {_MOST_LEVELS} levels deep")
        return Field(value, source)
    except json.JSONDecodeError as exc:
        place = f"{source}:{first_line + exc.lineno - 1}:{exc.colno}"
        raise UsageError(f"{place}: {exc.msg}; expected one whole JSON value: is the file cut short?") from exc
    except RepeatedKey as exc:
        key = exc.key
        places = [found.start() for found in re.finditer(re.escape(json.dumps(key)) + r"\s*:", text)]
        line = first_line + (text.count("\n", 0, places[1]) if len(places) == 2 else 0)  # else it is ambiguous
        raise UsageError(f"{source}:{line}: the key {key[:_MOST_SHOWN]!a} is there twice in one object") from exc
    except (ValueError, RecursionError) as exc:
        why = ascii(str(exc))[1:-1][:120]
        raise UsageError(f"{source}:{first_line}: it cannot be read as JSON: {why}") from exc


def about_the_same(one: float, other: float) -> bool:
    """Return True if two numbers agree within 1%, which tells seconds from milliseconds."""
    return math.isclose(one, other, rel_tol=0.01, abs_tol=0.01)


_EARLIEST = datetime(2015, 1, 1, tzinfo=UTC)  # a clock that was never set says 1970
_LAST_S = 4e9  # in 2096
_ROUND = timedelta(hours=14)  # how far a time zone can be ahead of UTC


@dataclass(frozen=True, slots=True)
class Measured:
    """Instant (RFC 3339 in UTC with milliseconds) at which a tool measured; `by` describes the field that has it.

    `zone_known` is False for a date without a time zone, which is taken as UTC: it may be up to 14 hours off.
    """

    at: str
    by: str
    zone_known: bool

    @property
    def may_be_ahead(self) -> timedelta:
        """Return how far it may lie after the true time, for want of a time zone."""
        return timedelta(0) if self.zone_known else _ROUND


def spelled(instant: datetime) -> str:
    """Format an instant as RFC 3339 in UTC with milliseconds."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def by_unix_time(field: Field, *, ns: bool = False) -> Measured:
    """Parse seconds, or nanoseconds, since 1970."""
    per_s = 1e9 if ns else 1.0
    instant = datetime.fromtimestamp(field.number(most=_LAST_S * per_s) / per_s, UTC)
    return _measured(field, instant, zone_known=True)


def by_local_time(field: Field, form: str) -> Measured:
    """Parse a date in a form of `strptime` without a time zone, taken as UTC."""
    try:
        instant = datetime.strptime(field.text(), form).replace(tzinfo=UTC)
    except ValueError:
        _refuse_time(field)
    return _measured(field, instant, zone_known=False)


def by_iso_time(field: Field) -> Measured:
    """Parse a date in ISO 8601; one without a time zone is taken as UTC."""
    try:
        instant = datetime.fromisoformat(field.text())
        zone_known = instant.tzinfo is not None
        instant = instant.astimezone(UTC) if zone_known else instant.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        _refuse_time(field)
    return _measured(field, instant, zone_known=zone_known)


def _measured(field: Field, instant: datetime, *, zone_known: bool) -> Measured:
    if not instant >= _EARLIEST - _ROUND:
        _refuse_time(field)
    unknown = "" if zone_known else ", which has no time zone and is taken as UTC"
    return Measured(spelled(instant), f"its {field.path.removeprefix('$').removeprefix('.')}{unknown}", zone_known)


def _refuse_time(field: Field) -> NoReturn:
    field.refuse(f"an instant since {_EARLIEST.year}; add the time of measurement with --measured-at")


INTERPOLATED = (
    "the tool interpolates between observations and leaves failures out; benchgate's percentiles are observations, "
    "with every failure among them as infinite"
)
SUMMARISED = (
    "the tool leaves failures out and interpolates its percentiles; benchgate's are observations, with every failure "
    "among them as infinite"
)
ARITHMETIC = "the tool's mean leaves failures out; benchgate's is the geometric mean over paired requests"
FROM_SEND_TO_END = "it counts from the sending, not from when the request was due, and not to the finish event"
OTHER_GOODPUT = (
    "its limits are held against times since the sending; benchgate's against times since the request was due"
)
NO_METRIC = "a setting, a name, or a measure that benchgate does not have"

_MOST_LISTED = 300
_DEEPEST = 6


@dataclass(frozen=True, slots=True)
class Reading:
    """Content of one file.

    `rows` are of the candidate's arm. `mapped` names the source fields of each metric, `unmapped` the reason why any
    other field was left out. `measured` is the time of the measurement, if the file has it.
    """

    tool: str
    version: str | None
    model: str | None
    rows: tuple[MetricRow, ...]
    mapped: Mapping[str, str]
    unmapped: Mapping[str, str] = field(default_factory=dict)
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Numbers of succeeded and failed requests of a stage in a window; tokens are None if unknown."""

    succeeded: int
    failed: int
    window_s: float
    output_tokens: float | None = None


def row(name: str, value: float, n: int, *, stage: str | None = None, task: str | None = None) -> MetricRow:
    """Return a number of the candidate without an interval, which another tool's summary does not have."""
    return MetricRow(Arm.CANDIDATE, name, None, stage, task, value, n)


def rate_rows(found: Outcomes, stage: str) -> Iterator[MetricRow]:
    """Yield rates of the successful requests over the window, and the share of all requests that failed."""
    scheduled = found.succeeded + found.failed
    if scheduled == 0:
        return
    yield row("request_throughput", found.succeeded / found.window_s, 1, stage=stage)
    if found.output_tokens is not None:
        yield row("output_throughput", found.output_tokens / found.window_s, 1, stage=stage)
    yield row("error_rate", found.failed / scheduled, 1, stage=stage)


def latency_rows(name: str, values_s: Sequence[float], failed: int, stage: str) -> Iterator[MetricRow]:
    """Yield percentiles by benchgate's own formula with failures as infinite; infinite percentiles have no row."""
    everything = np.array([*values_s, *[math.inf] * failed], dtype=np.float64)
    for statistic, value in zip(
        QUANTILES, request_metrics.quantiles(everything, tuple(QUANTILES.values())), strict=True
    ):
        if value is not None and math.isfinite(value):
            yield MetricRow(Arm.CANDIDATE, name, statistic, stage, None, value, len(everything))


def stage_name(concurrency: float | None, rate_rps: float | None) -> str:
    """Name a stage by its load: `c8`, `r2.5`, both, or `unlimited`."""
    parts = [f"c{concurrency:g}" if concurrency is not None else "", f"r{rate_rps:g}" if rate_rps is not None else ""]
    return "-".join(filter(None, parts)) or "unlimited"


def left_out(document: Field, taken: Sequence[str], reasons: Mapping[str, str]) -> dict[str, str]:
    """Return every field that was not taken, by its path, with the first reason that fits.

    `taken` and the keys of `reasons` are parts of paths. At most 300 fields are listed; a list counts as one.
    """
    found: dict[str, str] = {}
    for path in _leaves(document.value, document.path, 0):
        if not any(part in path for part in taken):
            found[path] = next((why for part, why in reasons.items() if part in path), NO_METRIC)
        if len(found) >= _MOST_LISTED:
            found["…"] = f"and more: {_MOST_LISTED} fields are listed"
            break
    return found


def _leaves(value: object, path: str, depth: int) -> Iterator[str]:
    if isinstance(value, dict) and value and depth < _DEEPEST:
        for key, one in value.items():
            yield from _leaves(one, f"{path}.{key}"[:200], depth + 1)
    else:
        yield path


@dataclass(frozen=True, slots=True)
class Format:
    """Format of one tool and its reader, recognised by keys that it alone writes together; `a.b` is the key b of its a.

    With `of_lines` a file has one such object a line.
    """

    name: str
    keys: tuple[str, ...]
    read: Callable[[Field], Reading]
    of_lines: bool = False

    @property
    def marked_by(self) -> str:
        """Description of its keys."""
        quoted = [f"`{key}`" for key in self.keys]
        found = f"an object with {', '.join(quoted[:-1])} and {quoted[-1]}"
        return f"lines, each {found}" if self.of_lines else found

    def is_it(self, document: Field) -> bool:
        """Return True for a document with its keys."""
        objects = document.lines() if self.of_lines else [document]
        return bool(objects) and all(_has_key(one.value, key) for one in objects for key in self.keys)


def _has_key(value: object, path: str) -> bool:
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True
