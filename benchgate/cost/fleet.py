"""How many replicas a demand needs, what they cost, and how early a new one must be asked for.

The demand and what one replica carries are rates in the same unit, output tokens or requests per second. What a
replica carries is what it was measured to carry *while its SLOs held*, never its highest throughput.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HOURS_PER_MONTH = 730.0  # 8,760 hours a year by twelve
MOST_REPLICAS = 1_000_000  # of a fleet: beyond it a unit is wrong
MOST_PER_S = 1e12  # and beyond this of a rate
MOST_USD_PER_HOUR = 1e9  # and of a price
_ROUNDED = 0.5
_HAIR = 1e-9  # a demand that is exactly so many replicas needs no further one for the last bit of a division


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica: what it carries per second with its SLOs held, by estimate and by the lower 95 % limit of it."""

    per_s: float
    lower_per_s: float | None = None
    usd_per_hour: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("per_s", self.per_s), ("lower_per_s", self.lower_per_s)):
            if value is not None and not 0 < value <= MOST_PER_S:
                raise ValueError(f"a replica's {name} is {value!r}; expected a rate above 0, at most {MOST_PER_S:g}")
        if self.usd_per_hour is not None and not 0 < self.usd_per_hour <= MOST_USD_PER_HOUR:
            raise ValueError(
                f"a replica's usd_per_hour is {self.usd_per_hour!r}; expected dollars above 0, at most"
                f" {MOST_USD_PER_HOUR:g}"
            )


@dataclass(frozen=True, slots=True)
class Sized:
    """Replicas for one demand: `bare` carry it, `replicas` do with the safety factor, `with_spares` also when some are
    lost.

    `by_lower` is `with_spares` if every replica carries only the lower limit of what was measured; None without one.
    Dollars are of `with_spares`, those of the other `by_lower_usd_per_month`.
    `load_ratio` is how much of what all of them carry the demand then uses.
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


def size(demand_per_s: float, replica: Replica, *, safety_factor: float = 1.0, spares: int = 1) -> Sized:
    """ceil(demand · safety factor / what a replica carries), and so many spares.

    Raises ValueError for a demand that is not finite or below 0, a factor below 1 or spares below 0.
    """
    if not (math.isfinite(demand_per_s) and demand_per_s >= 0):
        raise ValueError(f"demand_per_s is {demand_per_s!r}; expected a rate, 0 or more")
    if not (math.isfinite(safety_factor) and safety_factor >= 1):
        raise ValueError(f"safety_factor is {safety_factor!r}; expected 1 or more")
    if not 0 <= spares <= MOST_REPLICAS:
        raise ValueError(f"spares is {spares!r}; expected 0 or more, at most {MOST_REPLICAS:,}")
    bare = replicas_for(demand_per_s, replica.per_s)
    needed = replicas_for(demand_per_s * safety_factor, replica.per_s)
    paid = needed + spares
    by_lower = (
        None
        if replica.lower_per_s is None
        else replicas_for(demand_per_s * safety_factor, replica.lower_per_s) + spares
    )
    usd_per_hour = None if replica.usd_per_hour is None else replica.usd_per_hour * paid
    load_ratio = demand_per_s / (paid * replica.per_s) if paid else 0.0
    return Sized(
        demand_per_s,
        bare,
        needed,
        paid,
        by_lower,
        load_ratio,
        usd_per_hour,
        _usd_per_month(replica, paid),
        _usd_per_month(replica, by_lower),
    )


def _usd_per_month(replica: Replica, count: int | None) -> float | None:
    return None if replica.usd_per_hour is None or count is None else replica.usd_per_hour * count * HOURS_PER_MONTH


def replicas_for(demand_per_s: float, per_replica_per_s: float) -> int:
    """The least whole number of replicas that carries a demand. Raises ValueError for more than MOST_REPLICAS."""
    share = demand_per_s / per_replica_per_s * (1 - _HAIR)
    if not share <= MOST_REPLICAS:
        raise ValueError(
            f"{demand_per_s:g} per second takes more than {MOST_REPLICAS:,} replicas of {per_replica_per_s:g}; expected"
            " both in one unit"
        )
    return math.ceil(share)


def in_flight(requests_per_s: float, residence_s: float) -> float:
    """Requests inside at once: arrivals per second times the mean time each stays (Little 1961)."""
    inside = requests_per_s * residence_s
    if not (requests_per_s >= 0 and residence_s >= 0 and math.isfinite(inside)):
        raise ValueError(f"{requests_per_s!r} requests/s that stay {residence_s!r} s; expected numbers, 0 or more")
    return inside


def require_places(requests_per_s: float, residence_s: float, places: int) -> None:
    """Raises ValueError where so many a second cannot be answered on so many places, by Little's law.

    A place more is not asked for a half: places that a run tells are a mean that was rounded.
    """
    inside = in_flight(requests_per_s, residence_s)
    if inside > places + _ROUNDED:
        raise ValueError(
            f"a replica that carries {requests_per_s:g} requests/s of {residence_s:g} s each has {inside:,.4g} inside"
            f" at once (Little's law), and {places:,} places carry no more than {places / residence_s:,.4g} requests/s;"
            " give more places, a shorter request time, or less that a replica carries"
        )


def replicas_while_one_starts(growth_per_s2: float, cold_start_s: float, replica: Replica) -> int:
    """Replicas that must be there beyond the demand, because it goes on growing while a new one starts.

    `growth_per_s2` is how fast the demand grows at its steepest, per second and second.
    """
    if not (math.isfinite(growth_per_s2) and math.isfinite(cold_start_s) and cold_start_s >= 0):
        raise ValueError(f"growth {growth_per_s2!r} while one starts in {cold_start_s!r} s; expected finite numbers")
    return replicas_for(max(0.0, growth_per_s2) * cold_start_s, replica.per_s)
