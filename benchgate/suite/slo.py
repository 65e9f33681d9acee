"""The `slo` of a suite, or of one class of its traffic: latency bounds of a good request, and their target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ValidationError, field_validator, model_validator

from benchgate.model.request_metrics import Slo
from benchgate.suite.types import Duration, PositivePercent, Section, Written, key, text, word
from benchgate.units import PATTERNS, parse_duration_s

NO_BOUND = "none"
"""Written in a class's `slo` for a bound of the suite's that does not apply to the class."""

_Bound = Annotated[Duration, Written(text(PATTERNS[parse_duration_s]), word(NO_BOUND))]


class SloSpec(Section):
    """Latency bounds that a good request meets, and the share of scheduled requests that must be good."""

    ttft_s: _Bound | None = key("Time to the first output, from the intended send", default=None, alias="ttft")
    tpot_s: _Bound | None = key("Time per output token after the first", default=None, alias="tpot")
    e2e_s: _Bound | None = key("Time to the end of the answer, from the intended send", default=None, alias="e2e")
    target_ratio: PositivePercent = key("Share of scheduled requests that must be good", default=0.95, alias="target")

    @field_validator("ttft_s", "tpot_s", "e2e_s", mode="before")
    @classmethod
    def _no_bound(cls, found: object) -> object:
        return None if found == NO_BOUND else found

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("an slo needs at least one of `ttft`, `tpot` and `e2e`")
        return self

    @property
    def per_request(self) -> Slo:
        """The latency bounds, without the target."""
        return Slo(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s)


def with_inherited_slos(data: Mapping[str, Any]) -> dict[str, Any]:
    """Fill keys missing in the `slo` of a class of traffic from the suite's `slo`, in a suite's plain data.

    Without this a class that only tightens its `ttft` would lose the other bounds and the target. Return the data
    unchanged if the suite's `slo` is not valid.
    """
    shared, load = data.get("slo"), data.get("load")
    sweep = load.get("sweep") if isinstance(load, Mapping) else None
    if not isinstance(shared, Mapping) or not isinstance(load, Mapping) or not isinstance(sweep, list):
        return dict(data)
    try:
        SloSpec.model_validate(shared)
    except ValidationError:
        return dict(data)

    def with_slo(spec: object) -> object:
        own = spec.get("slo") if isinstance(spec, Mapping) else None
        return {**spec, "slo": {**shared, **own}} if isinstance(spec, Mapping) and isinstance(own, Mapping) else spec

    def with_slos(stage: object) -> object:
        classes = stage.get("classes") if isinstance(stage, Mapping) else None
        if not isinstance(stage, Mapping) or not isinstance(classes, Mapping):
            return stage
        return {**stage, "classes": {name: with_slo(spec) for name, spec in classes.items()}}

    return {**data, "load": {**load, "sweep": [with_slos(stage) for stage in sweep]}}
