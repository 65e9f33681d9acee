"""A capacity search in a suite: over what, how far, and how well the answer must be known."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from benchgate import units
from benchgate.suite.types import (
    WHOLE,
    ArrivalText,
    Expected,
    Name,
    PositivePercent,
    StrictSection,
    Whole,
    Written,
    is_stored,
    text,
)

CAPACITY_STAGE = "capacity"
"""The stage of a search: a level's looks are stored as `capacity/2.5`."""

_REQUESTS = re.compile(r"([0-9]{1,9}) requests?")
_MOST_IN_FLIGHT = 10_000
LEAST_REQUESTS, MOST_REQUESTS = 20, 1_000_000
"""Of one level, and at least of a whole search."""


def _level(value: object, info: ValidationInfo) -> object:
    """`8/s` of rates, a whole number of concurrencies."""
    if is_stored(info):
        return value
    if info.data.get("over") != "concurrency":
        return units.parse_rate_rps(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_IN_FLIGHT:
        return float(value)
    raise ValueError(f"{units.show_found(value)} is not a number of requests in flight; write a whole number, like 8")


def _requests(value: object, info: ValidationInfo) -> object:
    """`400 requests`, or the number alone."""
    match = _REQUESTS.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(match[1]) if match is not None else value


Level = Annotated[
    float, BeforeValidator(_level), Expected('a rate like "8/s", or a number in flight like 8'),
    Written.of(text(units.PATTERNS[units.parse_rate_rps]), {**WHOLE, "minimum": 1, "maximum": _MOST_IN_FLIGHT}),
]  # fmt: skip
Requests = Annotated[
    Whole, BeforeValidator(_requests), Expected('a number of requests like "400 requests"'),
    Written.of(WHOLE, text(rf"^\s*{_REQUESTS.pattern}\s*$")),
]  # fmt: skip


class Capacity(StrictSection):
    """A search for the highest load at which the share of good requests meets the target, once per arm."""

    over: Literal["rate", "concurrency"]
    lowest: Level = Field(alias="from")
    highest: Level = Field(alias="to")
    target_ratio: PositivePercent | None = Field(default=None, alias="target")  # that of the `slo` unless said
    resolution_ratio: PositivePercent = Field(default=0.1, alias="resolution")  # how far its two ends may be apart
    probe_requests: Requests = Field(default=1000, ge=LEAST_REQUESTS, le=MOST_REQUESTS, alias="probe")  # at one level
    budget_requests: Requests | None = Field(default=None, ge=LEAST_REQUESTS, alias="budget")  # of an arm's search
    arrival: ArrivalText = "poisson"  # of rates
    workload: Name | None = None  # of `load.workloads`; the default one unless said

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
    """The level that an observation's stage names; None for a stage that is no look of a search."""
    stage, _, level = name.partition("/")
    try:
        return float(level) if stage == CAPACITY_STAGE and level else None
    except ValueError:
        return None
