"""What a request must meet to be good: the `slo` of a suite, or of one class of its traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from benchgate.model.metrics import Slo
from benchgate.suite.fields import Duration, PositivePercent, StrictSection
from benchgate.suite.written import Written, text, word
from benchgate.units import PATTERNS, parse_duration_s

NO_BOUND = "none"
"""How a class of traffic says that a bound of the suite's `slo` is not for it."""

_Bound = Annotated[Duration, Written.of(text(PATTERNS[parse_duration_s]), word(NO_BOUND))]


class SloSpec(StrictSection):
    """What one request must meet to be good, and the share of scheduled requests that must be."""

    ttft_s: _Bound | None = Field(default=None, alias="ttft")
    tpot_s: _Bound | None = Field(default=None, alias="tpot")
    e2e_s: _Bound | None = Field(default=None, alias="e2e")
    target_ratio: PositivePercent = Field(default=0.95, alias="target")

    @field_validator("ttft_s", "tpot_s", "e2e_s", mode="before")
    @classmethod
    def _may_be_none(cls, found: object) -> object:
        return None if found == NO_BOUND else found

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("an slo needs at least one of `ttft`, `tpot` and `e2e`")
        return self

    @property
    def per_request(self) -> Slo:
        """The bounds one request must meet."""
        return Slo(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s)


def with_inherited_slos(data: Mapping[str, Any]) -> dict[str, Any]:
    """A suite's plain data in which every class of traffic with an `slo` of its own has all that the suite's says.

    What the class says goes before it; without this a class that only tightens its `ttft` would lose the other bounds
    and the target. The data as they are where the suite's `slo`, or anything on the way to a class, is not sound.
    """
    shared, load = data.get("slo"), data.get("load")
    sweep = load.get("sweep") if isinstance(load, Mapping) else None
    if not isinstance(shared, Mapping) or not isinstance(load, Mapping) or not isinstance(sweep, list):
        return dict(data)
    try:
        SloSpec.model_validate(shared)
    except ValidationError:
        return dict(data)
    return {**data, "load": {**load, "sweep": [_stage(stage, shared) for stage in sweep]}}


def _stage(stage: object, shared: Mapping[str, Any]) -> object:
    classes = stage.get("classes") if isinstance(stage, Mapping) else None
    if not isinstance(stage, Mapping) or not isinstance(classes, Mapping):
        return stage
    return {**stage, "classes": {name: _class(one, shared) for name, one in classes.items()}}


def _class(spec: object, shared: Mapping[str, Any]) -> object:
    own = spec.get("slo") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(own, Mapping):
        return spec
    return {**spec, "slo": {**shared, **own}}
