"""How much may add up over promotions, each of which stays inside its own margin."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo

from benchgate import units
from benchgate.suite.fields import Expected, Flag, StrictSection, Whole, is_stored
from benchgate.suite.written import Written, text


def _points(found: object, info: ValidationInfo) -> object:
    return found if is_stored(info) else units.parse_points_ratio(found)


def _percent(found: object, info: ValidationInfo) -> object:
    return found if is_stored(info) else units.parse_percent_ratio(found)


Points = Annotated[
    float, BeforeValidator(_points), Expected('points like "5 points"', quantity=True),
    Written.of(text(units.PATTERNS[units.parse_points_ratio])),
]  # fmt: skip
Percent = Annotated[
    float, BeforeValidator(_percent), Expected('a percentage like "10%"', quantity=True),
    Written.of(text(units.PATTERNS[units.parse_percent_ratio])),
]  # fmt: skip


class Creep(StrictSection):
    """What the candidate may have lost since the release so many promotions ago, this one counted.

    Looked at of every required check that compares the arms and whose harm adds up: latencies, rates and perplexity in
    percent, shares of requests and of eval items in points. Advisory, unless it is `required`.
    """

    releases: Whole = Field(default=10, ge=2, le=50)
    margin: Percent = Field(default=0.10, gt=0, lt=1)
    points: Points = Field(default=0.05, gt=0, lt=1)
    required: Flag = False
