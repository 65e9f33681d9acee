"""Whether the environment moved: a baseline that shifted is told with its run, noise is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchgate.gate.decide import judge
from benchgate.gate.drift import drift_notes, environment_series, level_changes
from benchgate.model.deployment import Arm
from benchgate.model.history import PastArm, PastCheck, PastRun, past_arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Scale, Unit
from tests.fakes.measured import HEALTHY, Noise, SuiteText, measured

SUITE = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
EVIDENCE = measured(SUITE, HEALTHY, noise=Noise(cv=0.002))
CHECKS = judge(SUITE, EVIDENCE).checks
CHECK: CheckResult = CHECKS[0]
BASELINE, CANDIDATE = (past_arm(EVIDENCE.run.arms[arm], EVIDENCE.run.environment) for arm in Arm)


def past(number: int, value: float, baseline: PastArm = BASELINE, candidate: PastArm = CANDIDATE) -> PastRun:
    check = PastCheck(CHECK.id, Unit.SECONDS, Scale.LOG_RATIO, value, value, 0.0, -0.01, 0.01, 0.05, 8)
    at = f"2026-01-{number + 1:02}T00:00:00Z"
    return PastRun(f"run-{number:04}-xxxxxx", at, None, baseline, candidate, {CHECK.id: check})


def with_history(values: list[float]) -> Evidence:
    return replace(EVIDENCE, history=tuple(past(k, value) for k, value in enumerate(values)))


def noisy(seed: int, count: int, spread: float = 0.01) -> list[float]:
    level = CHECK.baseline or 0.0
    return [float(level * np.exp(one)) for one in np.random.default_rng(seed).normal(0, spread, count)]


def test_baseline_that_shifted_is_told_with_the_run_and_by_how_much() -> None:
    values = noisy(1, 16)
    values[:8] = [value / 1.07 for value in values[:8]]
    (note,) = drift_notes(SUITE, with_history(values), CHECKS)
    assert "the environment moved around run run-0008-xxxx of 2026-01-09" in note
    assert "rose by" in note and "not comparable" in note
    assert note in judge(SUITE, with_history(values)).notes


def test_a_promotion_by_a_waiver_months_later_moves_no_measurement() -> None:
    values = noisy(1, 16)
    values[:8] = [value / 1.07 for value in values[:8]]
    measured_order = with_history(values)
    waived = replace(measured_order.history[2], decided_at="2026-06-01T00:00:00Z")
    late = (*measured_order.history[:2], *measured_order.history[3:], waived)
    assert drift_notes(SUITE, replace(measured_order, history=late), CHECKS) == drift_notes(
        SUITE, measured_order, CHECKS
    )


def test_noise_alone_is_told_no_oftener_than_alpha() -> None:
    told = sum(bool(drift_notes(SUITE, with_history(noisy(seed, 14)), CHECKS)) for seed in range(100))
    assert told <= 10  # 5 expected; more than 10 has a chance of 1 %


def test_few_runs_say_nothing_and_drift_changes_no_outcome() -> None:
    values = noisy(1, 8)
    assert drift_notes(SUITE, with_history([values[0] / 2] * 4 + values[4:]), CHECKS) == ()
    shifted = [value / 2 for value in noisy(2, 8)] + noisy(3, 8)
    assert judge(SUITE, with_history(shifted)).outcome is judge(SUITE, EVIDENCE).outcome


def test_series_begins_anew_where_nothing_joins_two_runs() -> None:
    other, elsewhere = replace(BASELINE, fingerprint="x", release="x"), replace(BASELINE, hardware="elsewhere")
    unjoined = (past(0, 1.0, other, replace(CANDIDATE, release="y")), past(1, 2.0), past(2, 4.0))
    assert environment_series(unjoined, CHECK.id) == [0.0, np.log(2.0)]
    assert environment_series((past(0, 1.0, elsewhere), past(1, 2.0)), CHECK.id) == [0.0]
    promoted = past(0, 1.0, other, replace(BASELINE, release=BASELINE.fingerprint))
    assert environment_series((promoted, past(1, 2.0)), CHECK.id) == [0.0, np.log(2.0)]
    assert environment_series((past(0, 1.0), replace(past(1, 2.0), checks={})), CHECK.id) == []


def test_levels_that_changed_twice_are_found_where_they_did_and_noise_is_not() -> None:
    values = np.random.default_rng(3).normal(0, 0.01, 36)
    values[12:24] += 0.2
    found = level_changes(values.tolist(), 1, 0.05, among=10)
    assert [change.at for change in found] == [12, 24]
    assert found[0].after - found[0].before > 0.15 > 0 > found[1].after - found[1].before
    assert level_changes(values[:12].tolist(), 1, 0.05, among=10) == ()
    assert level_changes(values[:9].tolist(), 1, 0.05, among=1) == ()  # fewer than five on each side
