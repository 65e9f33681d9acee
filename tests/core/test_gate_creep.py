"""Slow creep: what adds up over promotions is found, a missing link is said, and nothing passes by it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.gate.history.cumulative import creep_checks
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.history import Attempt, PastArm, PastCheck, PastRun, past_arm
from benchgate.model.noise import NoiseProfile, NoiseSpread, noise_key
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome, Scale, Unit, Verdict
from benchgate.suite.schema import Suite
from tests.fakes.measured import Effect, SuiteText, measured

CHECK, COST = "ttft-p50@c4", "usd_per_million_output_tokens"


def suite(**creep: object) -> Suite:
    return SuiteText([{"metric": "ttft", "margin": "10%"}], gate={"creep": creep}).suite()


def unwatched() -> Suite:
    return SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()


def arm(name: str) -> PastArm:
    return PastArm(name, name, name, "here")


def promoted(number: int, baseline: PastArm, candidate: PastArm, harm: float, check: str) -> PastRun:
    """A run of eight blocks whose log ratios spread by half a per cent."""
    values = harm + np.random.default_rng(number).normal(0, 0.005, 8)
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(8)
    reach = float(scipy_stats.t.ppf(0.95, 7)) * error
    past = PastCheck(check, Unit.SECONDS, Scale.LOG_RATIO, 0.05, 0.05, mean, mean - reach, mean + reach, 0.05, 8)
    return PastRun(
        f"run-{number:04}-xxxxxx", f"2026-01-{number + 1:02}T00:00:00Z", None, baseline, candidate, {check: past}
    )


def run_of(policy: Suite, slowdown: float = 1.01) -> Evidence:
    return measured(policy, Effect(slowdown=slowdown))


def last_baseline(evidence: Evidence) -> PastArm:
    """Named by its address: nothing else tells the two made-up servers of this run from one another."""
    own = past_arm(evidence.run.arms[Arm.BASELINE], evidence.run.environment)
    return replace(own, release=own.fingerprint)


def chain(evidence: Evidence, check: str, harms: list[float]) -> tuple[PastRun, ...]:
    """Promotions, oldest first, the last of which is this run's baseline."""
    releases = [*(arm(f"r{k}") for k in range(len(harms))), last_baseline(evidence)]
    return tuple(promoted(k, releases[k], releases[k + 1], harm, check) for k, harm in enumerate(harms))


def load_check(verdict: Verdict) -> CheckResult:
    return next(check for check in verdict.checks if check.metric == "ttft" and check.family == "load")


def creep_of(verdict: Verdict) -> CheckResult | None:
    return next((check for check in verdict.checks if check.id.startswith("creep:")), None)


def name_of(policy: Suite) -> str:
    return load_check(judge(policy, run_of(policy))).id


def judged(policy: Suite, harms: list[float], slowdown: float = 1.01) -> Verdict:
    evidence = run_of(policy, slowdown)
    return judge(policy, replace(evidence, history=chain(evidence, name_of(policy), harms)))


@pytest.mark.parametrize(("required", "outcome"), [(False, Outcome.WARN), (True, Outcome.BLOCK)])
def test_ten_losses_of_a_per_cent_are_found_that_each_stayed_inside_its_margin(
    required: bool, outcome: Outcome
) -> None:
    verdict = judged(suite(required=required), [0.01] * 9, 1.03)
    found = creep_of(verdict)
    assert load_check(verdict).outcome in (Outcome.PASS, Outcome.WARN)
    assert found is not None and found.outcome is Outcome.BLOCK
    assert found.harm is not None and found.harm == pytest.approx(0.09 + (load_check(verdict).harm or 0), abs=0.02)
    assert found.n == 10
    assert verdict.outcome is outcome


def test_as_many_equal_releases_have_not_crept() -> None:
    found = creep_of(judged(suite(required=True), [0.0] * 9, 1.0))
    assert found is not None and found.outcome is Outcome.PASS


def test_missing_link_is_said_and_settles_nothing() -> None:
    policy = suite(required=True)
    evidence, check = run_of(policy), name_of(policy)
    gone = judge(policy, replace(evidence, history=chain(evidence, check, [0.01] * 4)[:-1]))
    found = creep_of(gone)
    assert found is not None and found.outcome is Outcome.INCONCLUSIVE
    assert "no run promoted baseline" in found.reason
    half = (*chain(evidence, check, [0.01] * 4)[:1], *chain(evidence, check, [0.01] * 4)[2:])
    broken = creep_of(judge(policy, replace(evidence, history=half)))
    assert broken is not None and broken.outcome is Outcome.WARN
    assert any("no run promoted r2" in note for note in broken.notes)


@pytest.mark.parametrize(
    ("decided_at", "next_decided_at", "links"),
    [
        (None, None, 5),
        ("2026-01-03T00:00:00Z", None, 5),  # as the run began in which the release was the baseline
        ("2026-01-03T12:00:00Z", None, 3),
        ("2026-01-03T12:00:00Z", "2026-01-03T18:00:00Z", 3),
    ],
)
def test_a_release_came_by_no_promotion_that_was_decided_after_it_was_seen_in_service(
    decided_at: str | None, next_decided_at: str | None, links: int
) -> None:
    policy = suite(required=True)
    evidence = run_of(policy)
    whole = list(chain(evidence, name_of(policy), [0.01] * 4))
    whole[1] = replace(whole[1], decided_at=decided_at)
    whole[2] = replace(whole[2], decided_at=next_decided_at)
    history = tuple(sorted(whole, key=lambda run: run.promoted_at))
    found = creep_of(judge(policy, replace(evidence, history=history)))
    assert found is not None and found.n == links
    assert any("no run promoted r2" in note for note in found.notes) is (links == 3)


def test_without_history_nothing_changes() -> None:
    policy = suite()
    verdict = judge(policy, run_of(policy))
    assert creep_of(verdict) is None
    first = judge(suite(required=True), run_of(policy))
    assert (line := creep_of(first)) is not None and line.outcome is Outcome.WARN


@pytest.mark.parametrize("slowdown", [1.3, 1.1])
@pytest.mark.parametrize("required", [False, True])
def test_creep_makes_no_pass_of_anything(slowdown: float, required: bool) -> None:
    alone = judge(unwatched(), run_of(suite(), slowdown))
    better = judged(suite(required=required), [-0.05] * 9, slowdown)
    assert not alone.outcome.promotes
    assert better.outcome.severity >= alone.outcome.severity


def test_side_run_beside_a_slow_baseline_hides_no_link() -> None:
    policy = suite(required=True)
    evidence, check = run_of(policy, 1.03), name_of(policy)
    true = chain(evidence, check, [0.01] * 9)
    side = promoted(20, arm("sacrifice"), last_baseline(evidence), -0.5, check)
    for history in ((*true, side), (side, *true)):
        verdict = judge(policy, replace(evidence, history=history))
        found = creep_of(verdict)
        assert found is not None and found.n == 10
        assert verdict.outcome is Outcome.BLOCK


def test_required_creep_with_nothing_to_add_up_is_not_left_out() -> None:
    checks: list[dict[str, object]] = [{"metric": "goodput"}]
    policy = SuiteText(checks, gate={"creep": {"required": True}}).suite()
    verdict = judge(policy, run_of(policy))
    found = creep_of(verdict)
    assert found is not None and found.outcome is Outcome.INCONCLUSIVE
    assert verdict.outcome is Outcome.INCONCLUSIVE
    watched = SuiteText(checks).suite()
    assert judge(watched, run_of(watched)).outcome is Outcome.PASS


def attempt(number: int, baseline: PastArm, candidate: PastArm, outcome: Outcome) -> Attempt:
    return Attempt(f"01a1fc6d-{number:04}", "2026-01-01T00:00:00Z", None, baseline, candidate, outcome)


def test_baseline_that_took_anothers_place_unseen_settles_nothing_where_creep_is_required() -> None:
    policy = suite(required=True)
    evidence = run_of(policy)
    candidate = past_arm(evidence.run.arms[Arm.CANDIDATE], evidence.run.environment)
    other = attempt(1, arm("older"), candidate, Outcome.BLOCK)
    same = replace(other, baseline=last_baseline(evidence))
    for known, outcome in ((other, Outcome.INCONCLUSIVE), (same, Outcome.WARN)):
        found = creep_of(judge(policy, replace(evidence, attempts=(known,))))
        assert found is not None and found.outcome is outcome


def test_earlier_runs_of_the_same_two_that_were_not_promoted_are_told() -> None:
    policy = suite()
    evidence = run_of(policy)
    arms = [past_arm(evidence.run.arms[one], evidence.run.environment) for one in Arm]
    attempts = (
        attempt(1, arms[0], arms[1], Outcome.BLOCK),
        attempt(2, arms[0], arm("another"), Outcome.BLOCK),
        attempt(3, arms[0], arms[1], Outcome.INVALID),
        attempt(4, arms[0], arms[1], Outcome.INCONCLUSIVE),
    )
    plain, told = judge(policy, evidence), judge(policy, replace(evidence, attempts=attempts))
    assert plain.notes == tuple(note for note in told.notes if "not promoted" not in note)
    (note,) = [note for note in told.notes if "not promoted" in note]
    assert note.startswith("2 earlier runs of this candidate and baseline were not promoted (INCONCLUSIVE 01a1")
    assert "BLOCK 01a1fc6d-0001" in note
    assert told.outcome is plain.outcome
    many = tuple(attempt(k, arms[0], arms[1], Outcome.BLOCK) for k in range(7))
    assert any("and 2 more" in note for note in judge(policy, replace(evidence, attempts=many)).notes)
    assert any("1 earlier run of" in n for n in judge(policy, replace(evidence, attempts=attempts[:1])).notes)


def test_run_without_a_live_baseline_adds_nothing_up_and_says_so_where_it_must() -> None:
    for required in (False, True):
        policy = suite(required=required)
        evidence = run_of(policy)
        checks = judge(policy, evidence).checks[:1]
        arms = {Arm.CANDIDATE: evidence.run.arms[Arm.CANDIDATE]}
        lines = creep_checks(policy, replace(evidence, run=replace(evidence.run, arms=arms)), checks)
        assert [line.outcome for line in lines] == [Outcome.INCONCLUSIVE] * required


def test_nothing_is_added_up_unless_the_suite_says_so() -> None:
    policy = unwatched()
    evidence = run_of(policy, 1.01)
    history = chain(evidence, name_of(policy), [0.05] * 9)
    assert creep_of(judge(policy, replace(evidence, history=history))) is None
    assert creep_of(judge(suite(), replace(evidence, history=history))) is not None


def test_costs_add_up_and_bridge_no_gap_over_which_prices_may_have_moved() -> None:
    """Four promotions of 3 % inside a margin of 10 %, with this one's, are 13 % of the price."""
    policy = SuiteText([{"metric": COST, "margin": "10%"}], gate={"creep": {"required": True}}).suite()
    evidence = run_of(policy)
    way = chain(evidence, f"{COST}@c4", [0.03] * 4)
    found = creep_of(judge(policy, replace(evidence, history=way)))
    assert found is not None
    assert found.harm == pytest.approx(0.12 + math.log(1.01), abs=0.02)
    assert found.outcome is Outcome.BLOCK
    spread = NoiseSpread(COST, None, "c4", 0.01, 0.01, 10)
    profile = NoiseProfile(
        noise_key(evidence.run.arms[Arm.BASELINE], {}, "m"),
        "2025-12-20T00:00:00Z",
        "calibration",
        10,
        (spread,),
        engine_version=None,
    )
    here = last_baseline(evidence).hardware
    gap = tuple(replace(run, baseline=replace(run.baseline, hardware=here)) for run in way[:-1])
    broken = creep_of(judge(policy, replace(evidence, history=gap, noise=profile)))
    assert broken is not None
    assert not broken.outcome.promotes
    assert "no run promoted" in broken.reason
