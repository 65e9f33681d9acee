"""Fleet size: replicas, cost and headroom for a demand, and hourly traffic as its source.

Demand and replica are rates of the same unit, output tokens or requests per second. The rate of a replica is what it
was measured to carry *while its SLOs held*, never its highest throughput.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from benchgate.errors import UsageError
from benchgate.model.deployment import usd_per_million_tokens
from benchgate.sizing.kv_cache import CacheLayout
from benchgate.suite.demand_file import MAX_PER_S, MAX_REPLICAS
from benchgate.suite.types import MAX_MEMORY_BYTES

HOURS_PER_MONTH = 730.0  # 8,760 hours a year by twelve


# Larger values are taken as a wrong unit.
MOST_USD_PER_HOUR = 1e9
OUTPUT_TOKENS, REQUESTS = "output tokens", "requests"
TOKENS, TRAFFIC_REQUESTS = "output_tokens_per_s", "requests_per_s"
_TRAFFIC_COLUMNS = (TOKENS, TRAFFIC_REQUESTS)
_MOST = 1e9  # seconds or tokens of one request
_SECONDS_PER_HOUR = 3600.0
_ROUNDED = 0.5
_ROUNDING = 1e-9  # relative error of a division that needs no further replica


@dataclass(frozen=True, slots=True)
class Replica:
    """Replica: the rate that it carries with its SLOs held, the lower 95% limit of it, and its price."""

    per_s: float
    lower_per_s: float | None = None
    usd_per_hour: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("per_s", self.per_s), ("lower_per_s", self.lower_per_s)):
            if value is not None and not 0 < value <= MAX_PER_S:
                raise ValueError(f"a replica's {name} is {value!r}; expected a rate above 0, at most {MAX_PER_S:g}")
        if self.usd_per_hour is not None and not 0 < self.usd_per_hour <= MOST_USD_PER_HOUR:
            raise ValueError(
                f"a replica's usd_per_hour is {self.usd_per_hour!r}; expected dollars above 0, at most"
                f" {MOST_USD_PER_HOUR:g}"
            )


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand as rates per second, None if unknown.

    `p95_per_s` is not exceeded in 95 of 100 hours. `growth_per_s2` is the steepest rise between two hours, per second
    squared.
    """

    mean_per_s: float
    p95_per_s: float | None = None
    peak_per_s: float | None = None
    growth_per_s2: float | None = None

    def __post_init__(self) -> None:
        for name in ("mean_per_s", "p95_per_s", "peak_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_PER_S:
                raise ValueError(f"{name} of a demand is {value!r}; expected a rate, 0 to {MAX_PER_S:g}")
        for lower, upper in (("p95_per_s", "peak_per_s"), ("mean_per_s", "peak_per_s")):
            low, high = getattr(self, lower), getattr(self, upper)
            if low is not None and high is not None and low > high:
                raise ValueError(f"{lower} {low:g} is above {upper} {high:g}")

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        """Return the known levels by name."""
        named = (("mean", self.mean_per_s), ("p95", self.p95_per_s), ("peak", self.peak_per_s))
        return tuple((name, value) for name, value in named if value is not None)


def demand_from_hours(per_s: Sequence[float]) -> Demand:
    """Return the demand of consecutive hours, given as mean rates per second. Raises ValueError without any."""
    rates = np.asarray(per_s, dtype=np.float64)
    if not rates.size:
        raise ValueError("there is no hour of traffic")
    p95, peak = float(np.quantile(rates, 0.95, method="inverted_cdf")), float(rates.max())
    growth = float(np.diff(rates).max(initial=0.0)) / _SECONDS_PER_HOUR if rates.size > 1 else None
    mean = min(float(rates.mean()), peak)  # the mean of equal rates may be rounded up
    return Demand(mean, p95, peak, growth)


@dataclass(frozen=True, slots=True)
class FleetSize:
    """Replicas for one demand: `bare` without, `replicas` with the safety factor, `with_spares` with spares too.

    `by_lower` is `with_spares` if every replica carries only the lower limit of the measured rate; None without one.
    Dollars are for `with_spares`, `by_lower_usd_per_month` for `by_lower`. `load_ratio` is the utilisation of the whole
    fleet.
    """

    demand_per_s: float
    bare: int
    replicas: int
    with_spares: int
    by_lower: int | None
    load_ratio: float
    usd_per_hour: float | None
    usd_per_month: float | None
    by_lower_usd_per_month: float | None


def size_fleet(demand_per_s: float, replica: Replica, *, safety_factor: float = 1.0, spares: int = 1) -> FleetSize:
    """Return ceil(demand · safety factor / rate of a replica) plus spares.

    Raises ValueError for a demand that is not finite or below 0, a factor below 1 or spares below 0.
    """
    if not (math.isfinite(demand_per_s) and demand_per_s >= 0):
        raise ValueError(f"demand_per_s is {demand_per_s!r}; expected a rate, 0 or more")
    if not (math.isfinite(safety_factor) and safety_factor >= 1):
        raise ValueError(f"safety_factor is {safety_factor!r}; expected 1 or more")
    if not 0 <= spares <= MAX_REPLICAS:
        raise ValueError(f"spares is {spares!r}; expected 0 or more, at most {MAX_REPLICAS:,}")
    bare = replicas_for(demand_per_s, replica.per_s)
    needed = replicas_for(demand_per_s * safety_factor, replica.per_s)
    paid = needed + spares
    by_lower = (
        None
        if replica.lower_per_s is None
        else replicas_for(demand_per_s * safety_factor, replica.lower_per_s) + spares
    )
    price = replica.usd_per_hour
    return FleetSize(
        demand_per_s=demand_per_s,
        bare=bare,
        replicas=needed,
        with_spares=paid,
        by_lower=by_lower,
        load_ratio=demand_per_s / (paid * replica.per_s) if paid else 0.0,
        usd_per_hour=None if price is None else price * paid,
        usd_per_month=None if price is None else price * paid * HOURS_PER_MONTH,
        by_lower_usd_per_month=None if price is None or by_lower is None else price * by_lower * HOURS_PER_MONTH,
    )


def replicas_for(demand_per_s: float, per_replica_per_s: float) -> int:
    """Return the least whole number of replicas for a demand. Raises ValueError above MAX_REPLICAS."""
    share = demand_per_s / per_replica_per_s * (1 - _ROUNDING)
    if not share <= MAX_REPLICAS:
        raise ValueError(
            f"{demand_per_s:g} per second takes more than {MAX_REPLICAS:,} replicas of {per_replica_per_s:g}; expected"
            " both in one unit"
        )
    return math.ceil(share)


def in_flight(requests_per_s: float, residence_s: float) -> float:
    """Return the mean number of requests in the system: arrival rate times mean residence time (Little 1961)."""
    inside = requests_per_s * residence_s
    if not (requests_per_s >= 0 and residence_s >= 0 and math.isfinite(inside)):
        raise ValueError(f"{requests_per_s!r} requests/s that stay {residence_s!r} s; expected numbers, 0 or more")
    return inside


def require_slots(requests_per_s: float, residence_s: float, slots: int) -> None:
    """Raise ValueError if a replica cannot serve this rate with its slots, by Little's law.

    Half a slot is tolerated: the slots of a run are a rounded mean.
    """
    inside = in_flight(requests_per_s, residence_s)
    if inside > slots + _ROUNDED:
        raise ValueError(
            f"a replica that carries {requests_per_s:g} requests/s of {residence_s:g} s each has {inside:,.4g} inside"
            f" at once (Little's law), and {slots:,} slots carry no more than {slots / residence_s:,.4g} requests/s;"
            " give more slots, a shorter request time, or less that a replica carries"
        )


def replicas_ahead_of_growth(growth_per_s2: float, cold_start_s: float, replica: Replica) -> int:
    """Return the replicas needed ahead of a demand that grows while a new one starts.

    `growth_per_s2` is the steepest growth of the demand, per second squared.
    """
    if not (math.isfinite(growth_per_s2) and math.isfinite(cold_start_s) and cold_start_s >= 0):
        raise ValueError(f"growth {growth_per_s2!r} while one starts in {cold_start_s!r} s; expected finite numbers")
    return replicas_for(max(0.0, growth_per_s2) * cold_start_s, replica.per_s)


@dataclass(frozen=True, slots=True)
class KvCache:
    """KV-cache memory of a replica, and the tokens of a request with its answer.

    Memory and bytes are of all its accelerators together, `accelerators` of which share every layer.
    """

    layout: CacheLayout
    memory_bytes: float
    request_tokens: int
    dtype: str = ""  # of its numbers, where that is not the model's own
    accelerators: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.memory_bytes <= MAX_MEMORY_BYTES:
            raise ValueError(f"memory_bytes is {self.memory_bytes!r}; expected 0 to {MAX_MEMORY_BYTES:g}")
        _ = self.bytes_per_request

    @property
    def kept(self) -> CacheLayout:
        """Return the layout over its accelerators, with repeated heads."""
        return self.layout.shared_by(self.accelerators)

    @property
    def bytes_per_token(self) -> float:
        """Return the bytes of one more token."""
        return self.kept.bytes_per_token(self.dtype)

    @property
    def bytes_per_request(self) -> float:
        """Return the bytes of one whole request."""
        return self.bytes_of(self.request_tokens)

    def bytes_of(self, tokens: int) -> float:
        """Return the bytes of a request of `tokens` tokens."""
        return self.kept.bytes_per_request(tokens, self.dtype)

    @property
    def requests_that_fit(self) -> int:
        """Return the number of requests that fit at once."""
        return self.kept.requests_that_fit(self.memory_bytes, self.request_tokens, self.dtype)

    @property
    def times_kept(self) -> float:
        """Return the mean number of copies of each value over all accelerators."""
        return self.bytes_per_token / self.layout.bytes_per_token(self.dtype)


@dataclass(frozen=True, slots=True)
class SizingInput:
    """Demand and replica to size a fleet from, both in `unit` per second.

    The replica's price includes the overhead, `overhead_ratio` of the price without; None if not stated. `residence_s`
    is the mean residence time of a request and `tokens_per_request` its mean output, if known. `cold_start_s` is the
    time from requesting a replica to its first answer.
    """

    unit: str
    demand: Demand
    replica: Replica
    overhead_ratio: float | None = None
    safety_factor: float = 1.2
    spares: int = 1
    residence_s: float | None = None
    tokens_per_request: float | None = None
    cold_start_s: float | None = None
    cache: KvCache | None = None

    def __post_init__(self) -> None:
        for name in ("residence_s", "tokens_per_request"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= _MOST:
                raise ValueError(f"{name} is {value!r}; expected a number above 0, at most {_MOST:g}")


@dataclass(frozen=True, slots=True)
class SizedLevel:
    """Level of the demand, and the fleet for it.

    Dollars per million output tokens are the cost of that fleet over the mean demand, because it is paid in quiet hours
    too. None if the mean is 0 or the tokens of a request are unknown.
    """

    name: str
    sized: FleetSize
    in_flight: float | None
    usd_per_million_tokens: float | None


@dataclass(frozen=True, slots=True)
class FleetSizing:
    """Fleet for every level of a demand.

    `full_usd_per_million_tokens` is the cost on a fully used replica, `_upper` if it carries only the lower limit of
    the measured rate. `ahead` are the replicas needed ahead of growing demand while one starts.
    """

    question: SizingInput
    levels: tuple[SizedLevel, ...]
    full_usd_per_million_tokens: float | None
    full_usd_per_million_tokens_upper: float | None
    ahead: int | None


def size_demand(question: SizingInput) -> FleetSizing:
    """Size the fleet for every level of a demand. Raises ValueError for invalid numbers."""
    growth = question.demand.growth_per_s2
    ahead = None
    if growth is not None and question.cold_start_s is not None:
        ahead = replicas_ahead_of_growth(growth, question.cold_start_s, question.replica)
    levels = tuple(_level(question, name, per_s) for name, per_s in question.demand.levels)
    replica = question.replica
    full = _unit_price(question, replica.usd_per_hour, replica.per_s)
    lower_per_s = replica.lower_per_s
    upper = None if lower_per_s is None else _unit_price(question, replica.usd_per_hour, lower_per_s)
    return FleetSizing(question, levels, full, upper, ahead)


def _level(question: SizingInput, name: str, per_s: float) -> SizedLevel:
    sized = size_fleet(per_s, question.replica, safety_factor=question.safety_factor, spares=question.spares)
    per_request = 1.0 if question.unit == REQUESTS else question.tokens_per_request
    inside = None
    if per_request is not None and question.residence_s is not None:
        inside = in_flight(per_s / per_request, question.residence_s)
    return SizedLevel(name, sized, inside, _unit_price(question, sized.usd_per_hour, question.demand.mean_per_s))


def _unit_price(question: SizingInput, usd_per_hour: float | None, per_s: float) -> float | None:
    tokens = 1.0 if question.unit == OUTPUT_TOKENS else question.tokens_per_request
    if usd_per_hour is None or tokens is None:
        return None
    found = usd_per_million_tokens(usd_per_hour, 1, per_s * tokens)
    return found if found is not None and math.isfinite(found) else None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Rates of consecutive hours. `column` is their unit, TOKENS or REQUESTS."""

    column: str
    per_s: tuple[float, ...]


def read_traffic(text: str, name: str) -> Traffic:
    """Read CSV with a heading and a column `output_tokens_per_s` or `requests_per_s`, one row per hour.

    Other columns are ignored. A blank line between two hours is an error, a row with a missing rate. Raises UsageError
    with file and line.
    """
    try:
        reader = csv.reader(text.removeprefix("\ufeff").splitlines(keepends=True))
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UsageError(f"{name}: this is no CSV: {error}") from None
    while rows and not rows[-1][1]:
        rows.pop()  # blank lines at the end are no hours
    heading = [cell.strip() for cell in rows[0][1]] if rows else []
    column = _column(heading, name)
    at = heading.index(column)
    for line, row in rows[1:]:
        # A comma inside a number splits it: of `1,200` the first cell alone would be a rate, and too small a one.
        if any(cell.strip() for cell in row[len(heading) :]):
            raise UsageError(
                f"{name}:{line}: it has {len(row)} cells, and the heading {len(heading)}; write a point in numbers,"
                " 3.5, and nothing between thousands, 1200"
            )
    rates = [_rate(row, at, column, f"{name}:{line}") for line, row in rows[1:]]
    if not rates:
        raise UsageError(f"{name}: there is no hour below the heading; write one row an hour with its {column}")
    return Traffic(column, tuple(rates))


def _column(heading: list[str], name: str) -> str:
    found = [column for column in heading if column in _TRAFFIC_COLUMNS]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name}:1: {' and '.join(found)} both say the demand; keep the one that does")
    if len(heading) == 1 and (mark := next((mark for mark in ";\t" if mark in heading[0]), None)) is not None:
        separator = "tabs" if mark == "\t" else f"{mark!r}"
        raise UsageError(f"{name}:1: its cells are separated by {separator}; write commas, and a point in numbers: 3.5")
    near = [(cell, match[0]) for cell in heading if (match := get_close_matches(cell, _TRAFFIC_COLUMNS, n=1))]
    hint = f"; did you mean {near[0][1]} by {near[0][0]!r}?" if near else ""
    raise UsageError(f"{name}:1: no column is called {TOKENS} or {TRAFFIC_REQUESTS}{hint}")


def _rate(row: list[str], at: int, column: str, place: str) -> float:
    cell = row[at].strip() if at < len(row) else ""
    try:
        # float() also reads `1_200` and digits of other scripts
        value = float(cell) if cell.isascii() and "_" not in cell else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_PER_S:
        raise UsageError(
            f"{place}: {column} is {cell[:40]!r}; expected a mean rate per second, 0 or more, at most {MAX_PER_S:g}"
        )
    return value
