"""What differed between the arms while they were measured: how warm their caches were, who began, how fast they ran.

Nothing here is a fault by itself, and nothing can be declared: guards trip on what goes too far. It tells a reader how
far to trust the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from benchgate.gate.comparison import load_of
from benchgate.gate.telemetry_guards import hits_of_answers, hits_of_server
from benchgate.gate.telemetry_values import windows_of
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Gauge
from benchgate.model.verdict import Difference
from benchgate.suite.schema import Suite
from benchgate.units import show_percent

_WARMER = 0.01  # in shares of the prompts' tokens
_OTHER_CLOCK = 0.02  # of the faster accelerator


def seen_differences(evidence: Evidence, suite: Suite) -> Iterator[Difference]:
    """Every such difference of a run of two arms, in a fixed order."""
    stages = [stage.name for stage in suite.load.sweep] if suite.load is not None else []
    for stage in stages:
        yield from _warmth(evidence, suite, stage)
    for stage in stages:
        yield from _clocks(evidence, stage)
    yield from _first_in_blocks(evidence)


def _warmth(evidence: Evidence, suite: Suite, stage: str) -> Iterator[Difference]:
    """By what both servers say, else by what the answers of both say."""
    assert suite.load is not None, "a stage belongs to a load"
    names = [level.name for level in suite.load.levels() if level.stage == stage]
    by_server = [hits_of_server(evidence, stage, arm) for arm in Arm]
    told = by_server if None not in by_server else [hits_of_answers(evidence, names, arm) for arm in Arm]
    theirs, ours = told
    if theirs is not None and ours is not None and abs(theirs - ours) > _WARMER:
        what = f"prompt tokens found in the prefix cache, stage {stage}"
        yield Difference(what, show_percent(theirs), show_percent(ours), declared=False)


def _clocks(evidence: Evidence, stage: str) -> Iterator[Difference]:
    """The accelerators' own clocks, over all blocks: a hot one is a slow one."""
    found = []
    for arm in Arm:
        means = [window.mean(Gauge.GPU_CLOCK) for window in windows_of(evidence, stage, arm).values()]
        told = [mean for mean in means if mean is not None]
        found.append(fmean(told) if told else None)
    theirs, ours = found
    if theirs is None or ours is None or abs(theirs - ours) <= _OTHER_CLOCK * max(theirs, ours):
        return
    what = f"the accelerators' clock, stage {stage}"
    yield Difference(what, f"{theirs / 1e6:,.0f} MHz", f"{ours / 1e6:,.0f} MHz", declared=False)


def _first_in_blocks(evidence: Evidence) -> Iterator[Difference]:
    """Whoever is measured first in a block meets the machine as it is then; the order alternates so that it cancels."""
    first = dict.fromkeys(Arm, 0)
    of = 0
    for stage in dict.fromkeys(o.stage for o in evidence.load):
        theirs, ours = (load_of(evidence, stage, arm) for arm in Arm)
        for block in sorted(theirs.keys() & ours.keys()):
            first[Arm.BASELINE if theirs[block].position < ours[block].position else Arm.CANDIDATE] += 1
            of += 1
    if first[Arm.BASELINE] != first[Arm.CANDIDATE]:
        shown = {arm: f"{count:,} of {of:,}" for arm, count in first.items()}
        what = "who was measured first in a block of a stage"
        yield Difference(what, shown[Arm.BASELINE], shown[Arm.CANDIDATE], declared=False)
