"""Whether the environment moved: a change in what a release costs from run to run while it stayed the same release.

Candidates are held against a baseline that was measured beside them, so a verdict does not suffer from it; numbers of
runs on both sides of such a change are not comparable with each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from benchgate.gate.ancestry import promoted_to, same_release
from benchgate.gate.showing import RATES, change_of
from benchgate.model.deployment import Arm
from benchgate.model.history import PastCheck, PastRun, past_arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Scale
from benchgate.stats.change_point import Change, change_points
from benchgate.suite.schema import Suite

LEAST_RUNS = 5
"""On each side of a change: with fewer, hardly any order of the runs is unlikely."""


def drift_notes(suite: Suite, judged: Evidence, checks: Sequence[CheckResult]) -> tuple[str, ...]:
    """A sentence for each run at which the newest change of some of the baseline's numbers was found.

    A series is cut by chance with the probability alpha, over all of them together.
    """
    if len(judged.history) + 1 < 2 * LEAST_RUNS or len(judged.run.arms) < len(Arm):
        return ()
    levels = {check.id: check for check in checks if _is_level(check)}
    measured = sorted(judged.history, key=lambda run: run.started_at)  # a waiver may have promoted one of them later
    runs = (*measured, _this_run(judged, levels.values()))
    moved: dict[int, list[str]] = {}
    for check in levels.values():
        series = environment_series(runs, check.id)
        change = _newest_change(series, suite, len(levels))
        if change is not None:
            at, by = change
            moved.setdefault(len(runs) - len(series) + at, []).append(f"{check.title} {_moved(by, check)}")
    return tuple(_told(runs[at], told) for at, told in sorted(moved.items()))


def environment_series(runs: Sequence[PastRun], check: str) -> list[float]:
    """ln of the value that one unchanged release would have had in each run, up to a constant; newest part only.

    From one run to the next, where both had one baseline, by that; where the baseline is the candidate promoted before,
    by that release in both. It begins anew where neither is so, the number is missing, or the hardware is another.
    """
    series = list[float]()
    for before, run in zip((None, *runs), runs, strict=False):
        step = _step(before, run, check) if before is not None else None
        if step is None:
            series = [0.0] if check in run.checks else []
        else:
            series.append(series[-1] + step)
    return series


def _step(before: PastRun, run: PastRun, check: str) -> float | None:
    old, new = before.checks.get(check), run.checks.get(check)
    if old is None or new is None:
        return None
    if same_release(before, run):
        arm, value = before.baseline, old.baseline
    elif promoted_to(before, run):
        arm, value = before.candidate, old.candidate
    else:
        return None
    if arm.hardware != run.baseline.hardware or min(value, new.baseline) <= 0:
        return None
    return math.log(new.baseline / value)


def level_changes(series: Sequence[float], seed: int, alpha: float, among: int) -> tuple[Change, ...]:
    """Every change of the level of a series, oldest first; of `among` series looked at together at `alpha`.

    The same for the same seed. A change has `LEAST_RUNS` values or more on each side.
    """
    each = alpha / among
    generator = np.random.default_rng([seed, len(series)])
    values = np.array(series, dtype=np.float64)
    return change_points(values, generator, each, least=LEAST_RUNS, permutations=max(199, math.ceil(2 / each)))


def _newest_change(series: Sequence[float], suite: Suite, among: int) -> tuple[int, float] | None:
    changes = level_changes(series, suite.seed, suite.gate.alpha, among)
    return (changes[-1].at, changes[-1].after - changes[-1].before) if changes else None


def _is_level(check: CheckResult) -> bool:
    """A comparison of times or rates at one place, with a value of the baseline."""
    there = check.scale is Scale.LOG_RATIO and check.stage is not None
    return there and check.baseline is not None and 0 < check.baseline < math.inf


def _this_run(judged: Evidence, levels: Iterable[CheckResult]) -> PastRun:
    """The run judged, as one more of the history; only its baseline's values are looked at."""
    run = judged.run
    baseline, candidate = (past_arm(run.arms[arm], run.environment) for arm in Arm)
    checks = {}
    for check in levels:
        value = check.baseline or math.nan
        checks[check.id] = PastCheck(check.id, check.unit, check.scale, value, value, 0.0, 0.0, 0.0, 0.05, check.n)
    return PastRun(run.id, run.started_at, run.label, baseline, candidate, checks)


def _moved(by: float, check: CheckResult) -> str:
    return change_of(-by if check.unit in RATES else by, check.scale, check.unit)


def _told(run: PastRun, moved: Sequence[str]) -> str:
    return (
        f"the environment moved around run {run.told}: on the baseline's side {', '.join(moved)}; "
        "numbers of runs before and after it are not comparable"
    )
