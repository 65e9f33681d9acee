"""The `error_budget` of a suite: how many production requests may fail, and how much of that is spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from benchgate import units
from benchgate.suite.deployment import PrometheusAddress, Service
from benchgate.suite.stages import TrafficName
from benchgate.suite.types import Duration, Section, Text, Written, key, positive_share, quantity, text

BudgetMetric = Literal["error_rate", "goodput"]

BURN = "error_budget_burn"  # id of the check on the burn rate
MOST_SPENT = 1e9  # implausible number of spent budgets
BURN_ALARM = 14.4
"""The burn that pages: 2 % of a budget of 30 days in one hour (Beyer and others, The Site Reliability Workbook, 5)."""

_DAY_S, _HOUR_S = 86_400.0, 3_600.0


def _parse_objective(found: object) -> float:
    ratio = positive_share(found)
    if ratio == 1:
        raise ValueError(f"{units.show_found(found)} leaves no budget to spend; write less, like 99.9%")
    return ratio


def parse_spent_ratio(found: object) -> float:
    """Parse `"40%"` to 0.4. Raises ValueError for other text, and for implausible percentages."""
    ratio = units.parse_percent_ratio(found)
    if ratio > MOST_SPENT:
        raise ValueError(f'{units.show_found(found)} is more than anybody can have spent; write it like "40%"')
    return ratio


_PERCENT = Written(text(units.PATTERNS[units.parse_percent_ratio]))
Objective = Annotated[
    float, *quantity(_parse_objective, 'a percentage like "99.5%"', pattern_of=units.parse_percent_ratio),
    Field(gt=0, lt=1),
]  # fmt: skip
SpentShare = Annotated[
    float, *quantity(parse_spent_ratio, 'a percentage like "40%"', pattern_of=units.parse_percent_ratio), Field(ge=0)
]


class Prometheus(Service):
    """A query for the spent share of the budget (0.4 for 40 %), sent when a run starts."""

    url: PrometheusAddress = key("Base address, without `/api/v1`")
    query: Text = key("An instant query that returns one number, the share: 0.4 for 40 %")


class Spent(Section):
    """Source of the spent share: the suite itself, a file, or Prometheus. Exactly one of the three."""

    spent_ratio: SpentShare | None = key("The share itself", default=None, alias="share")
    file: Text | None = key('A JSON file like `{"spent": "40%"}`', default=None)
    prometheus: Prometheus | None = key("A Prometheus query", default=None)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, found: Any) -> Any:
        return found if isinstance(found, dict | Spent) else {"share": found}

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.spent_ratio, self.file, self.prometheus)) != 1:
            raise ValueError("needs exactly one of `share`, `file` and `prometheus`")
        return self

    @property
    def shown(self) -> str:
        """Source in words: `40 %, from the suite`."""
        if self.spent_ratio is not None:
            return f"{units.as_written(units.show_percent, self.spent_ratio)}, from the suite"
        if self.file is not None:
            return f"read from {self.file} when a run starts"
        return "queried from Prometheus when a run starts"


class ErrorBudget(Section):
    """An objective for production with its window, and the spent share of its budget."""

    objective_ratio: Objective = key("Share of production requests that must not fail", alias="objective")
    window_s: Duration = key("Period over which the objective holds", alias="window")
    spent: Annotated[Spent, _PERCENT] = key("Share of the budget that production has spent")
    metric: BudgetMetric = key(
        "Requests that count as failed: those that failed, or those that were not good", default="error_rate"
    )
    stage: TrafficName | None = key(
        "The stage most like production. Default: `gate.operating`, or the only stage", default=None
    )
    when_blown: Literal["block", "warn"] = key(
        "With an exhausted budget, everything but a clean PASS blocks, or only warns", default="block"
    )

    @property
    def shown(self) -> str:
        """Objective and window in words: `error budget of 99.5 % over 30 days`."""
        return f"error budget of {show_objective(self.objective_ratio)} over {show_window(self.window_s)}"


def budget_stage(budget: ErrorBudget, operating: str | None, stages: Sequence[str]) -> str | None:
    """Return the stage, or `stage/class`, whose failures predict those of production; None if it is not determined."""
    named = budget.stage or operating
    return named if named is not None or len(stages) != 1 else stages[0]


def worst_share(objective_ratio: float) -> float:
    """Return the share of failures at which a budget burns as fast as `BURN_ALARM`; 1 if it cannot."""
    return min(1.0, BURN_ALARM * (1 - objective_ratio))


def fewest_requests(objective_ratio: float, alpha: float) -> int:
    """Return how many requests without a failure show, at alpha, that the burn is at most `BURN_ALARM`.

    None of n requests fails with probability (1 - p)**n at a share p of failures, which must come down to alpha.
    """
    worst = worst_share(objective_ratio)
    return 2 if worst == 1 else math.ceil(math.log(alpha) / math.log1p(-worst))


def show_objective(ratio: float) -> str:
    """Format 0.9995 as `99.95 %`, with every digit."""
    return f"{ratio * 100:.10g} %"


def show_window(window_s: float) -> str:
    """Format 2592000 as `30 days`."""
    for unit, size_s in (("day", _DAY_S), ("hour", _HOUR_S)):
        number = window_s / size_s
        if number >= 1:
            return f"{number:.3g} {unit}{'' if f'{number:.3g}' == '1' else 's'}"
    return units.show_duration(window_s)
