"""What a check of a cost may say of a gain that is worth paying for. Only speed is: quality is never for sale."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from benchgate.suite.fields import Percent, StrictSection
from benchgate.suite.metric_kinds import LATENCY_METRICS, Statistic


class Trade(StrictSection):
    """A margin for the cost where so much faster an answer, or so much more throughput, is shown at the same place.

    The gain is that of another check of the policy, `metric` with `statistic`, which guards and all apply to.
    """

    metric: Literal["ttft", "ttfot", "tpot", "itl", "e2e", "output_throughput", "request_throughput"] = Field(
        alias="for"
    )
    statistic: Statistic | None = None  # of a latency: p50 unless said
    gain_ratio: Percent = Field(alias="gain", gt=0, lt=1)  # of the baseline's value, shown at least
    margin_ratio: Percent = Field(alias="margin", gt=0, lt=1)  # of the cost, instead of the check's own

    @model_validator(mode="after")
    def _has_its_statistic(self) -> Self:
        if self.statistic is not None and self.metric not in LATENCY_METRICS:
            raise ValueError(f"`statistic` means nothing for {self.metric}, which is one number a block; remove it")
        return self
