"""Classes of traffic in one stage, and stages that differ in one value: how a suite says either."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)

from benchgate.suite.fields import ArrivalText, Duration, Flag, Name, PositivePercent, Rate, StrictSection, Text, Whole
from benchgate.suite.lengths import Count
from benchgate.suite.slo import SloSpec

ServiceTimes = Annotated[float, Strict(), Field(ge=0, le=10_000)]


class Each(StrictSection):
    """One stage for every value of one key, named after the stage and the value: `in-128`, `in-512`."""

    concurrency: tuple[Annotated[Whole, Field(ge=1, le=10_000)], ...] = ()
    rate_rps: tuple[Rate, ...] = Field(default=(), alias="rate")
    input_tokens: tuple[Count, ...] = Field(default=(), alias="input")
    output_tokens: tuple[Count, ...] = Field(default=(), alias="output")
    prefix_share: tuple[PositivePercent, ...] = ()

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name)]
        if len(given) != 1:
            raise ValueError("`each` varies exactly one of `concurrency`, `rate`, `input`, `output` and `prefix_share`")
        values = getattr(self, given[0])
        if len(set(values)) != len(values):
            raise ValueError("`each` names a value twice; every value is a stage of its own")
        return self

    @property
    def field(self) -> str:
        """Which field of a stage it varies: `prefix_share` is of its prefix."""
        return next(name for name in type(self).model_fields if getattr(self, name))

    @property
    def values(self) -> tuple[float, ...]:
        """What that field is set to, one after the other."""
        found: tuple[float, ...] = getattr(self, self.field)
        return found


class ClassSpec(StrictSection):
    """One class of traffic beside others in a stage: its own workload, arrivals, SLO and priority.

    It takes a stage's plainest forms: a closed loop, an open one at a level rate, and a trace.
    """

    workload: Name | None = None  # of `load.workloads`; the default one unless said
    concurrency: Whole | None = Field(default=None, ge=1, le=10_000)
    rate_rps: Rate | None = Field(default=None, alias="rate")
    trace: Text | None = None
    speed: Annotated[float, Strict(), Field(gt=0, le=1000)] | None = None
    arrival: ArrivalText = "poisson"
    ramp: ServiceTimes | None = None  # of a level rate, in mean service times
    duration_s: Duration | None = Field(default=None, alias="for")
    requests: Whole | None = Field(default=None, ge=1, le=1_000_000)  # per block and arm
    background: Flag = False  # goes on until the other classes are done
    slo: SloSpec | None = None  # that of the suite unless said
    priority: Annotated[int, Strict()] | None = Field(default=None, ge=-1000, le=1000)

    @model_serializer(mode="wrap")
    def _what_is_said(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialise(self)
        return {key: value for key, value in written.items() if value is not None}
