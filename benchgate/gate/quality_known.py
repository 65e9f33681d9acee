"""Does the baseline score what it is known to score? What does not was not asked what it was asked then.

What is known: the band that a task's `expect` gives, else what the same deployment scored in earlier promoting runs of
the same measurement, give or take 5 points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate import units as shown
from benchgate.gate.guard import held, tripped, unknown
from benchgate.gate.quality_pairs import is_continuous
from benchgate.gate.specs import unit_name
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, QualityObservation
from benchgate.model.verdict import GuardResult, Unit
from benchgate.stats.limits import Limits
from benchgate.stats.proportions import clopper_pearson
from benchgate.suite.quality import TaskEntry
from benchgate.suite.schema import Suite

_NAME = "baseline-as-known"
_OWN_BAND = 0.05
_REMEDY = "see what was changed: prompt, template, few-shot, limit"


@dataclass(frozen=True, slots=True)
class _Band:
    """What a score is known to lie in, and whose word that is."""

    least: float
    most: float
    known: str


def baseline_as_known(evidence: Evidence, suite: Suite) -> GuardResult:
    """The baseline's score on each task, or on all of a group, that was run to its end."""
    looked = False
    for entry in suite.quality.tasks if suite.quality is not None else ():
        own = [o for o in _baselines(evidence) if unit_name(suite, o.task) == entry.name]
        if not any(one.items for one in own) or any(one.harness.get("stopped_early") for one in own):
            continue
        for band in _bands(entry, evidence, suite, own):
            looked = True
            value, limits = _score(own, suite.gate.alpha)
            if limits.upper < band.least or limits.lower > band.most:
                told = f"{shown.show_percent(band.least)} to {shown.show_percent(band.most)}"
                what = f"the baseline scores {shown.show_percent(value)} on {entry.name}, {band.known} {told}"
                return tripped(_NAME, what, _REMEDY, ("quality",))
    if not looked:
        told = "of no task that was run to its end does `expect`, or an earlier run, say what is known of it"
        return unknown(_NAME, told)
    return held(_NAME, "no baseline is outside of what is known of it")


def _baselines(evidence: Evidence) -> list[QualityObservation]:
    return [o for o in evidence.quality if o.arm is Arm.BASELINE and o.repeat == 0]


def _bands(entry: TaskEntry, evidence: Evidence, suite: Suite, own: Sequence[QualityObservation]) -> Iterator[_Band]:
    """At most one: the suite's word counts before what was seen."""
    if entry.expect is not None:
        yield _Band(entry.expect.least, entry.expect.most, "where it is known to score")
        return
    earlier = [] if any(map(is_continuous, own)) else _earlier(entry.name, evidence, suite)
    if earlier:
        usual = float(np.mean(earlier))
        known = f"where in {len(earlier)} earlier {'run' if len(earlier) == 1 else 'runs'} it scored about"
        yield _Band(max(0.0, usual - _OWN_BAND), min(1.0, usual + _OWN_BAND), known)


def _earlier(name: str, evidence: Evidence, suite: Suite) -> list[float]:
    """What the same deployment scored on it as the baseline of earlier runs."""
    if Arm.BASELINE not in evidence.run.arms:
        return []  # it was measured in another run, whose release is not this one's
    alone = suite.quality is not None and len(suite.quality.tasks) == 1
    ids = [f"accuracy@{name}", *(["accuracy"] if alone else [])]
    release = evidence.run.arms[Arm.BASELINE].release
    runs = [run for run in evidence.history if run.baseline.release == release]
    found = [next((run.checks[one] for one in ids if one in run.checks), None) for run in runs]
    return [check.baseline for check in found if check is not None and check.unit is Unit.RATIO]


def _score(own: Sequence[QualityObservation], alpha: float) -> tuple[float, Limits]:
    """Its value over all items, and its limits; of scores by degrees the value alone."""
    items = [item for one in own for item in one.items]
    if any(map(is_continuous, own)):
        value = float(np.mean([item.score or 0.0 for item in items]))
        return value, Limits(value, value)
    right = sum(item.correct is True for item in items)
    return right / len(items), clopper_pearson(right, len(items), alpha)
