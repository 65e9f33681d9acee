"""What a request must meet to be good: the `slo` of a suite, or of one class of its traffic."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from benchgate.model.metrics import Slo
from benchgate.suite.fields import Duration, PositivePercent, StrictSection


class SloSpec(StrictSection):
    """What one request must meet to be good, and the share of scheduled requests that must be."""

    ttft_s: Duration | None = Field(default=None, alias="ttft")
    tpot_s: Duration | None = Field(default=None, alias="tpot")
    e2e_s: Duration | None = Field(default=None, alias="e2e")
    target_ratio: PositivePercent = Field(default=0.95, alias="target")

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("an slo needs at least one of `ttft`, `tpot` and `e2e`")
        return self

    @property
    def per_request(self) -> Slo:
        """The bounds one request must meet."""
        return Slo(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s)
