"""The `capacity` of a load: a search for the highest load that meets the SLO."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ValidationInfo, model_validator

from benchgate import units
from benchgate.suite.types import (
    WHOLE,
    ArrivalText,
    Expected,
    Name,
    PositivePercent,
    Section,
    Whole,
    Written,
    is_stored,
    key,
    text,
)

CAPACITY_STAGE = "capacity"
"""The stage of a search: a level's looks are stored as `capacity/2.5`."""

_REQUESTS = re.compile(r"([0-9]{1,9}) requests?")
_MOST_IN_FLIGHT = 10_000
LEAST_REQUESTS, MOST_REQUESTS = 20, 1_000_000
"""Of one level, and at least of a whole search."""


def _level(value: object, info: ValidationInfo) -> object:
    if is_stored(info):
        return value
    if info.data.get("over") != "concurrency":
        return units.parse_rate_rps(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_IN_FLIGHT:
        return float(value)
    raise ValueError(f"{units.show_found(value)} is not a number of requests in flight; write a whole number, like 8")


def _requests(value: object, info: ValidationInfo) -> object:
    match = _REQUESTS.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(match[1]) if match is not None else value


Level = Annotated[
    float, BeforeValidator(_level), Expected('a rate like "8/s", or a number in flight like 8'),
    Written(text(units.PATTERNS[units.parse_rate_rps]), {**WHOLE, "minimum": 1, "maximum": _MOST_IN_FLIGHT}),
]  # fmt: skip
Requests = Annotated[
    Whole, BeforeValidator(_requests), Expected('a number of requests like "400 requests"'),
    Written(WHOLE, text(rf"^\s*{_REQUESTS.pattern}\s*$")),
]  # fmt: skip


class Capacity(Section):
    """A search for the highest load at which the share of good requests meets the target, once per arm."""

    over: Literal["rate", "concurrency"] = key(
        "Search over the rate (open loop) or over the number in flight (closed loop)"
    )
    lowest: Level = key("Lowest level; it should meet the target", alias="from")
    highest: Level = key("Highest level", alias="to")
    target_ratio: PositivePercent | None = key(
        "Share of scheduled requests that must be good", default=None, alias="target"
    )
    resolution_ratio: PositivePercent = key(
        "Largest relative width of the bracket; it must be finer than the `margin` of a check",
        default=0.1,
        alias="resolution",
    )
    probe_requests: Requests = key(
        "Most requests at one level. A rate passes only after a look ten times as long as its requests stay, and half "
        "of `probe` is the longest look: at 32/s, with answers of 2 s, about 1,900",
        default=1000,
        ge=LEAST_REQUESTS,
        le=MOST_REQUESTS,
        alias="probe",
    )
    budget_requests: Requests | None = key(
        "Most requests of the whole search, per arm", default=None, ge=LEAST_REQUESTS, alias="budget"
    )
    arrival: ArrivalText = key("Arrival process of a rate", default="poisson")
    workload: Name | None = key("Name of one of `load.workloads`", default=None)

    @model_validator(mode="after")
    def _can_be_searched(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("`from` is not below `to`; there is nothing to search between them")
        if self.target_ratio == 1:
            raise ValueError("a `target` of 100% is missed by one bad request in a million; write less, like 99%")
        if self.over == "concurrency" and "arrival" in self.model_fields_set and self.arrival != "poisson":
            raise ValueError("`arrival` means nothing in a closed loop; leave it out, or search over the rate")
        return self


def level_of_stage(name: str) -> float | None:
    """Return the load level in the name of a search's stage; None for any other stage."""
    stage, _, level = name.partition("/")
    try:
        return float(level) if stage == CAPACITY_STAGE and level else None
    except ValueError:
        return None
