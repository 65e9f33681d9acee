"""The course of a stage's load: its rate over time, how many requests that comes to, and how a person would say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchgate.model.arrivals import RateProfile, bursts, level, ramp, steps
from benchgate.units import as_written, show_duration, show_number

if TYPE_CHECKING:
    from benchgate.suite.classes import ClassSpec
    from benchgate.suite.stage import Bursts, Stage, Step

MOST_REQUESTS = 1_000_000
MOST_BURSTS = 10_000
_MOST_STEPS_SHOWN = 4
_LEAST_BACKGROUND = 64  # requests that a background class has before it begins again with the first


def profile_of(known: Mapping[str, Any]) -> RateProfile | None:
    """The profile that the fields of a stage, which need not fit together, describe; None where they describe none."""
    rate_rps, duration_s = known.get("rate_rps"), known.get("duration_s")
    if known.get("steps") is not None:
        return steps((step.rate_rps, step.duration_s) for step in known["steps"])
    if rate_rps is None or duration_s is None:
        return None
    if known.get("ramp_to_rps") is not None:
        return ramp(rate_rps, known["ramp_to_rps"], duration_s)
    spikes: Bursts | None = known.get("bursts")
    if spikes is None:
        return level(rate_rps, duration_s)
    if duration_s / spikes.every_s > MOST_BURSTS:
        return None
    return bursts(rate_rps, spikes.factors, spikes.every_s, spikes.duration_s, duration_s)


def requests_of(known: Mapping[str, Any]) -> int:
    """The requests of a stage that does not say how many; 0, which no stage may have, where nothing says it."""
    if known.get("classes") is not None:
        return sum(class_requests(spec) for spec in known["classes"].values() if not spec.background)
    profile = profile_of(known)
    return 0 if profile is None else profile.requests


def class_requests(spec: ClassSpec) -> int:
    """The requests of a class, in the background as many as differ from each other; 0 where nothing says it."""
    if spec.requests is not None:
        return spec.requests
    if spec.background:
        return max(_LEAST_BACKGROUND, 4 * (spec.concurrency or 0))
    return requests_of({"rate_rps": spec.rate_rps, "duration_s": spec.duration_s})


def _class_offered(spec: ClassSpec) -> str:
    if spec.trace is not None:
        return f"{spec.trace} replayed" + (f" {_number(spec.speed)} times as fast" if spec.speed else "")
    if spec.rate_rps is not None:
        return f"{_rate(spec.rate_rps)} {spec.arrival}"
    return f"{spec.concurrency} in flight" + (" in the background" if spec.background else "")


def offered_by(stage: Stage) -> str:
    """What a stage offers, in a few words."""
    if stage.classes is not None:
        return "; ".join(f"{name}: {_class_offered(spec)}" for name, spec in stage.classes.items())
    if stage.trace is not None:
        return f"{stage.trace} replayed" + (f" {_number(stage.speed)} times as fast" if stage.speed else "")
    if stage.steps is not None:
        return f"{_steps_offered(stage.steps)}, {stage.arrival}"
    if stage.rate_rps is None:
        return f"{stage.concurrency} in flight"
    if stage.ramp_to_rps is not None:
        return f"{_rate(stage.rate_rps)} to {_rate(stage.ramp_to_rps)} in {_time(stage.duration_s)}, {stage.arrival}"
    if stage.bursts is not None:
        factors = ", ".join(_number(factor) for factor in stage.bursts.factors)
        return f"{_rate(stage.rate_rps)} with bursts of {factors} times that, {stage.arrival}"
    return f"{_rate(stage.rate_rps)} {stage.arrival}"


def _steps_offered(taken: tuple[Step, ...]) -> str:
    if len(taken) <= _MOST_STEPS_SHOWN:
        return ", ".join(f"{_rate(step.rate_rps)} for {_time(step.duration_s)}" for step in taken)
    rates_rps = [step.rate_rps for step in taken]
    return f"{len(taken)} steps from {_rate(min(rates_rps))} to {_rate(max(rates_rps))}"


def _rate(rate_rps: float) -> str:
    return f"{_number(rate_rps)}/s"


def _number(value: float) -> str:
    return as_written(show_number(value))


def _time(seconds: float | None) -> str:
    return as_written(show_duration(seconds or 0.0))
