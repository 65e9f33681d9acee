"""A candidate measured alone against a stored run: decided by the noise profile, and not at all without one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchgate.gate.comparison import UntiedRuns, compare
from benchgate.gate.judge import judge
from benchgate.model.noise import NoiseSpread
from benchgate.model.request_metrics import quantile, ttft_s
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome
from tests.fakes.apart import TTFT, Line, alone, check_of, known, profile, suite
from tests.fakes.measured import Effect, Noise, SuiteText, measured


@pytest.mark.parametrize("slowdown", [1.0, 0.5, 3.0])
def test_without_a_profile_nothing_is_decided_either_way(slowdown: float) -> None:
    judged = alone(Effect(slowdown=slowdown), seed=2)
    verdict = judge(suite(TTFT), judged, alone())
    check = verdict.checks[0]
    assert verdict.outcome is check.outcome is Outcome.INCONCLUSIVE
    assert "there is no live baseline and no noise profile" in check.reason
    assert check.harm == pytest.approx(math.log(slowdown), abs=0.05)
    assert (check.lower, check.upper, check.p_value) == (None, None, None)
    assert "benchgate calibrate" in (check.advice or "")


@pytest.mark.parametrize(
    ("slowdown", "outcome"), [(1.0, Outcome.PASS), (1.5, Outcome.BLOCK), (1.05, Outcome.INCONCLUSIVE)]
)
def test_with_a_profile_the_margin_is_judged(slowdown: float, outcome: Outcome) -> None:
    verdict = judge(suite(TTFT), alone(Effect(slowdown=slowdown), seed=2), known(alone()))
    assert verdict.outcome is outcome, verdict.reason
    assert "no live baseline" in verdict.checks[0].notes[0]
    assert "noise profile (calibration, 12 days old)" in verdict.checks[0].notes[0]


def test_more_failures_than_in_the_stored_run_that_no_check_counts_are_no_pass() -> None:
    verdict = judge(suite(TTFT), alone(Effect(failed=2), seed=2), known(alone()))
    assert verdict.outcome is Outcome.INVALID
    assert "12 of 360 requests of the candidate failed, 0 of 360 of the baseline" in verdict.reason
    counted: Line = {"metric": "error_rate", "max": "10%"}
    assert judge(suite(TTFT, counted), alone(Effect(failed=2), seed=2), known(alone())).outcome is Outcome.PASS
    assert judge(suite(TTFT), alone(seed=2), known(alone(Effect(failed=2)))).outcome is Outcome.PASS


def test_limits_are_welchs_with_twice_the_variance_between_runs_added() -> None:
    judged, reference = alone(Effect(slowdown=1.1), seed=2, cv=0.03), alone(seed=3)
    check = check_of(judged, known(reference, cv=0.04, n=8))
    logs = [np.log([quantile(ttft_s(o.requests), 0.5) or 0.0 for o in run.load]) for run in (reference, judged)]
    parts = [(float(np.var(run, ddof=1)) / 6, 5) for run in logs] + [(2 * 0.04**2, 7)]
    error = math.sqrt(sum(v for v, _ in parts))
    freedom = error**4 / sum(v**2 / f for v, f in parts)
    harm = float(logs[1].mean() - logs[0].mean())
    assert check.harm == pytest.approx(harm)
    assert check.upper == pytest.approx(harm + float(stats.t.ppf(0.95, freedom)) * error)
    assert check.lower == pytest.approx(harm - float(stats.t.ppf(0.95, freedom)) * error)
    assert check.p_value == pytest.approx(float(stats.t.sf(harm / error, freedom)))
    assert check.n == 6


def test_more_noise_between_runs_takes_a_pass_and_a_block_away() -> None:
    for slowdown in (1.0, 1.5):
        check = check_of(alone(Effect(slowdown=slowdown), seed=2), known(alone(), cv=0.25))
        assert check.outcome is Outcome.INCONCLUSIVE


def test_each_run_counts_with_the_noise_of_its_own_deployment() -> None:
    reference = known(alone(), cv=0.01)
    judged = known(alone(seed=2), cv=0.30, run_id="the-other")
    check = check_of(judged, reference)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.upper is not None and check.harm is not None
    assert check.upper - check.harm > 1.6 * 0.30  # once each: 0.30² + 0.01²
    assert check.upper - check.harm < 2.2 * 0.30


def test_throughput_turns_harm_round() -> None:
    lines: Line = {"metric": "output_throughput", "margin": "10%"}
    assert check_of(alone(Effect(slowdown=1.5), seed=2), known(alone()), lines).outcome is Outcome.BLOCK
    assert check_of(alone(Effect(slowdown=0.7), seed=2), known(alone()), lines).outcome is Outcome.PASS


def test_a_check_in_either_direction_blocks_a_gain() -> None:
    either: Line = {"metric": "ttft", "margin": "10%", "direction": "either"}
    assert check_of(alone(Effect(slowdown=0.5), seed=2), known(alone()), either).outcome is Outcome.BLOCK
    assert check_of(alone(seed=2), known(alone()), either).outcome is Outcome.PASS


def test_harm_below_the_least_change_is_none() -> None:
    least: Line = {"metric": "ttft", "margin": "9%", "min_abs": "14ms"}  # a quarter of 53 ms
    assert check_of(alone(Effect(slowdown=1.1), seed=2), known(alone()), least).outcome is Outcome.PASS
    assert check_of(alone(Effect(slowdown=2.0), seed=2), known(alone()), least).outcome is Outcome.BLOCK
    far = check_of(
        alone(Effect(slowdown=1.15), seed=2), known(alone(), cv=0.005), {**least, "margin": "1%", "min_abs": "20ms"}
    )
    assert far.outcome is Outcome.WARN
    assert "but by `min_abs` alone" in far.reason


def test_breach_is_tested_at_the_margin() -> None:
    breach: Line = {**TTFT, "block_when": "breach"}
    assert check_of(alone(Effect(slowdown=1.15), seed=2), known(alone()), breach).outcome is Outcome.INCONCLUSIVE
    assert check_of(alone(Effect(slowdown=1.5), seed=2), known(alone()), breach).outcome is Outcome.BLOCK


def test_harm_that_is_shown_inside_the_margin_warns_where_a_breach_is_what_blocks() -> None:
    for slowdown, outcome in ((1.05, Outcome.WARN), (1.0, Outcome.PASS)):
        judged = alone(Effect(slowdown=slowdown), seed=2, cv=0.001)
        check = check_of(judged, known(alone(cv=0.001), cv=0.002), {**TTFT, "block_when": "breach"})
        assert check.outcome is outcome


@pytest.mark.parametrize("breach", [{}, {"block_when": "breach"}])
@pytest.mark.parametrize("cv", [0.0, 0.01, 0.3])
@pytest.mark.parametrize(("failed", "harm"), [(0, 0.0), (20, 1 / 3)])
def test_shares_are_shown_and_never_decided_whatever_the_profile_says(
    breach: Line, cv: float, failed: int, harm: float
) -> None:
    """Their noise goes by their level and by what is a miss, of which a calibration has seen one each."""
    lines: Line = {"metric": "error_rate", "margin": "50 points", **breach}
    check = check_of(alone(Effect(failed=failed), seed=2), known(alone(), cv=cv), lines)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert (check.lower, check.upper, check.p_value) == (None, None, None)
    assert check.harm == pytest.approx(harm)
    assert "nobody knows how far error_rate at c4 differs between runs" in check.reason
    assert "in one run" in (check.advice or "")


def test_goodput_falls_where_misses_rise() -> None:
    """A calibration in which every request met the SLO says nothing of one in which many just miss it."""
    lines: Line = {"metric": "goodput", "margin": "5 points"}
    still = replace(profile(alone()), spreads=(NoiseSpread("goodput", None, "c4", 0.0, 0.0, 10),))
    check = check_of(alone(Effect(slowdown=5.0), seed=2), replace(alone(), noise=still), lines)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.harm == 1.0
    assert check.baseline == 1.0 and check.candidate == 0.0


def test_a_class_of_errors_is_named_and_not_decided() -> None:
    lines: Line = {"metric": "error_rate", "of": "http_5xx", "margin": "5 points"}
    check = check_of(alone(seed=2), known(alone()), lines)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "error_rate (http_5xx)" in check.reason


def test_failures_of_the_candidate_leave_nothing_to_say_of_its_times() -> None:
    check = check_of(alone(Effect(failed=31), seed=2), known(alone()))
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "in 6 of 6 blocks the candidate has no finite value" in check.reason


def test_failures_of_the_stored_run_are_no_baseline() -> None:
    assert check_of(alone(seed=2), known(alone(Effect(failed=31)))).outcome is Outcome.INVALID


def first_block(evidence: Evidence) -> Evidence:
    """What is left where every other block had to be left out."""
    return replace(evidence, load=tuple(o for o in evidence.load if o.block == 0))


def test_one_block_each_is_judged_by_the_spread_of_its_requests() -> None:
    lines: list[Line] = [{"metric": metric, "margin": "10%"} for metric in ("ttft", "output_throughput", "itl")]
    policy = suite(*lines, {**TTFT, "statistic": "mean"}, {"metric": "error_rate", "margin": "5 points"})
    more = (NoiseSpread("itl", "p50", "c4", 0.02, 0.02, 10), NoiseSpread("ttft", "mean", "c4", 0.02, 0.02, 10))
    spreads = (*profile(alone()).spreads, *more)
    reference = known(first_block(alone(cv=0.0)), spreads=spreads)
    times, *others = judge(policy, first_block(alone(seed=2, cv=0.0)), reference).checks
    assert times.outcome is Outcome.PASS, times.reason
    assert times.n == 1
    within = [step.formula for step in times.steps if step.what.endswith("run's mean")]
    assert (
        within == ["bootstrap of its requests, 14 degrees of freedom"] * 2
    )  # 60 requests are fifteen times four neighbours
    assert [check.outcome for check in others] == [Outcome.INCONCLUSIVE] * 4
    assert all("tells nothing of how much this varies" in check.reason for check in others[:3])
    slow = judge(policy, first_block(alone(Effect(slowdown=2.0), seed=2)), reference)
    assert slow.checks[0].outcome is Outcome.BLOCK


@pytest.mark.parametrize(("blocks", "requests", "is_known"), [(2, 25, False), (1, 40, False), (1, 60, True)])
def test_a_tail_of_two_short_blocks_or_one_is_none(blocks: int, requests: int, is_known: bool) -> None:
    def cut(evidence: Evidence) -> Evidence:
        return replace(evidence, load=tuple(o for o in evidence.load if o.block < blocks))

    spreads = (NoiseSpread("ttft", "p95", "c4", 0.02, 0.02, 10),)
    judged, reference = (cut(alone(seed=seed, cv=0.0, requests=requests)) for seed in (2, 1))
    check = check_of(judged, known(reference, spreads=spreads), {**TTFT, "statistic": "p95"})
    says = f"p95 is not estimable from {blocks} blocks of {requests} requests"
    assert (check.upper is not None, says in check.reason) == (is_known, not is_known), check.reason


def test_a_few_requests_of_one_block_tell_nothing() -> None:
    judged, reference = (first_block(alone(seed=seed, requests=19)) for seed in (2, 1))
    check = check_of(judged, known(reference))
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "tells nothing of how much this varies" in check.reason


def test_two_runs_with_live_baselines_are_compared_through_them() -> None:
    live = SuiteText([TTFT]).suite()
    one, other = (measured(live, noise=Noise(seed=seed), run_id=f"run-{seed}") for seed in (1, 2))
    assert not isinstance(compare(other, one), UntiedRuns)
    assert isinstance(compare(alone(), alone()), UntiedRuns)
    assert judge(live, other, one).checks[0].outcome is Outcome.PASS


def test_absolute_bounds_need_no_profile() -> None:
    verdict = judge(suite({"metric": "ttft", "max": "200ms"}), alone(seed=2), alone())
    assert verdict.outcome is Outcome.PASS


def test_a_least_change_that_would_forgive_all_is_refused() -> None:
    lines: Line = {"metric": "request_throughput", "margin": "5%", "min_abs": "1000/s"}
    check = check_of(alone(seed=2), known(alone()), lines)
    assert check.outcome is Outcome.INVALID
    assert "would allow any loss" in check.reason


def test_verdict_says_that_there_was_no_live_baseline_and_what_stood_in_for_it() -> None:
    with_it = judge(suite(TTFT), alone(seed=2), known(alone()))
    assert with_it.notes[0].startswith("no live baseline: ")
    assert with_it.notes[1].startswith("noise profile of run calibration, 12 days old")
    assert len(judge(suite(TTFT), alone(seed=2), alone()).notes) == 1


def test_arithmetic_can_be_done_again_from_its_steps() -> None:
    check = check_of(alone(Effect(slowdown=1.1), seed=2), known(alone()))
    steps = {step.what: step for step in check.steps}
    assert check.upper is not None and check.lower is not None
    assert float(steps["upper limit"].value) == pytest.approx(check.upper)
    assert float(steps["lower limit"].value) == pytest.approx(check.lower)
    assert float(steps["variance between runs, by the noise profile"].value) == pytest.approx(2 * 0.02**2)
    parts = steps["standard error"].formula.removeprefix("sqrt(").removesuffix(")").split(" + ")
    assert math.sqrt(sum(map(float, parts))) == pytest.approx(float(steps["standard error"].value))
    assert len(steps["judged run: ln of each block"].value.split(", ")) == 6


def test_a_spread_needs_two_pairs() -> None:
    assert check_of(alone(seed=2), known(alone(), n=1)).outcome is Outcome.INCONCLUSIVE
    two = check_of(alone(seed=2), known(alone(), cv=1e-4, n=2))
    assert two.outcome is Outcome.PASS


@pytest.mark.parametrize("breach", [{}, {"block_when": "breach"}])
def test_p_value_of_the_steps_is_the_one_that_decides(breach: Line) -> None:
    check = check_of(alone(Effect(slowdown=1.2), seed=2), known(alone()), {**TTFT, **breach})
    told = next(step for step in check.steps if step.what == "p-value")
    assert check.p_value == pytest.approx(float(told.value))


def test_two_blocks_show_how_much_they_differ() -> None:
    runs = [replace(run, load=run.load[:2]) for run in (alone(cv=0.1), alone(seed=2, cv=0.1))]
    check = check_of(runs[1], known(runs[0], cv=1e-3))
    logs = [np.log([quantile(ttft_s(o.requests), 0.5) or 0.0 for o in run.load]) for run in runs]
    steps = {step.what: step for step in check.steps}
    error = math.sqrt(sum(float(np.var(run, ddof=1)) / 2 for run in logs) + 2e-6)
    assert float(steps["standard error"].value) == pytest.approx(error)
