"""The burn of an error budget and what is spent of it: the rule, the policy for a blown one, and no door to a PASS."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date, timedelta

import pytest
from scipy.stats import beta

from benchgate.gate.comparison import Comparison, compare
from benchgate.gate.error_budget import burn_checks, spent_checks
from benchgate.gate.interim import ContinueLoad, StopLoad, next_step
from benchgate.gate.judge import judge
from benchgate.model.run import BudgetReading, Evidence, LoadEnd
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Verdict, Waiver, Waivers
from benchgate.report.checks import find_check, render_explanation
from benchgate.report.document import Terms
from benchgate.suite.error_budget import ErrorBudget
from benchgate.suite.schema import Suite
from tests.fakes.drills import drill, seen
from tests.fakes.evidence import check as any_check
from tests.fakes.measured import HEALTHY, Effect, Noise, SuiteText, measured

Line = dict[str, object]
ERRORS: Line = {"metric": "error_rate", "max": "50%"}
TTFT: Line = {"metric": "ttft", "margin": "10%"}
NOTICED: Line = {"metric": "ttft", "margin": "1%", "required": False}
QUIET = Noise(cv=0.002)
WAIVER = Waiver(
    check="ttft-p50@c4", suite="made-up", deployment="candidate", ceiling="60%", owner="serving", issue="S-1",
    expires=date(2026, 4, 1), reason="known", approved_by="release",
)  # fmt: skip


def with_budget(suite: Suite, **said: object) -> Suite:
    budget = {"objective": "99.5%", "window": "30d", "spent": "0%", "stage": "c4"} | said
    return suite.model_copy(update={"error_budget": ErrorBudget.model_validate(budget)})


def budgeted(*checks: Line, blocks: int = 8, **said: object) -> Suite:
    return with_budget(SuiteText(list(checks or (ERRORS,)), blocks=blocks).suite(), **said)


def spent(ratio: float) -> BudgetReading:
    return BudgetReading(ratio, "the suite itself", "2026-01-01T00:00:00.000Z")


def run_of(suite: Suite, candidate: Effect = HEALTHY, *, ratio: float | None = 0.1) -> Evidence:
    evidence = measured(suite, candidate, noise=QUIET)
    return replace(evidence, budget_spent=None if ratio is None else spent(ratio))


def line_of(verdict: Verdict, name: str = "error_budget_burn@c4") -> CheckResult:
    return next(check for check in verdict.checks if check.id == name)


@pytest.mark.parametrize(
    ("objective", "failed", "outcome", "burn"),
    [
        ("99.5%", 0, Outcome.PASS, 0.0),
        ("90%", 3, Outcome.PASS, 0.5),  # of 60 in each of 8 blocks
        ("95%", 3, Outcome.PASS, 1.0),
        ("99.5%", 1, Outcome.WARN, 10 / 3),
        ("99.5%", 4, Outcome.INCONCLUSIVE, 40 / 3),
        ("99.9%", 1, Outcome.INCONCLUSIVE, 50 / 3),
        ("99.5%", 9, Outcome.BLOCK, 30.0),
        ("90%", 60, Outcome.WARN, 10.0),  # nothing can burn 14.4 times what lets a tenth fail
    ],
)
def test_burn_is_the_share_that_failed_over_what_the_objective_lets(
    objective: str, failed: int, outcome: Outcome, burn: float
) -> None:
    suite = budgeted({"metric": "error_rate", "max": "99%"}, objective=objective)
    line = line_of(judge(suite, run_of(suite, Effect(failed=failed))))
    assert line.outcome is outcome, line.reason
    assert line.harm == line.candidate == pytest.approx(burn)
    assert (line.required, line.margin, line.n, line.n_unit, line.title) == (
        True, 14.4, 480, "requests", "Error budget burn at c4",
    )  # fmt: skip


def test_limits_are_those_of_the_share() -> None:
    none = line_of(judge(suite := budgeted(), run_of(suite)))
    assert none.upper == pytest.approx((1 - 0.05 ** (1 / 480)) / 0.005)
    some = line_of(judge(suite, run_of(suite, Effect(failed=9))))
    # Korn and Graubard's: 480 requests of 8 equal blocks are worth as many times (t(0.95, 479) / t(0.95, 7))^2.
    worth = 480 * (1.6480448 / 1.8945786) ** 2
    assert some.lower == pytest.approx(beta.ppf(0.05, 0.15 * worth, 0.85 * worth + 1) / 0.005, rel=1e-5)
    assert some.upper == pytest.approx(beta.ppf(0.95, 0.15 * worth + 1, 0.85 * worth) / 0.005, rel=1e-5)


def test_line_says_how_long_a_budget_lasts_and_what_to_look_at() -> None:
    suite = budgeted()
    line = line_of(judge(suite, run_of(suite, Effect(failed=1))))
    assert "holds the bound of at most 14.4x, but at that rate a budget for 30 days is spent in 9 days" in line.reason
    assert line.advice == "find out what fails at c4 before production's requests do"
    assert line.notes == ("8 of 480 requests failed; the objective of 99.5 % allows 0.5 % of them",)
    unsure = line_of(judge(suite, run_of(suite, Effect(failed=4))))
    assert unsure.advice is not None and unsure.advice.startswith("measure more requests: about ")


def test_goodput_counts_requests_that_are_not_good() -> None:
    suite = budgeted(metric="goodput", objective="50%")
    slow = line_of(judge(suite, run_of(suite, Effect(slowdown=5))))  # 250 ms and more, by an slo of 200
    assert (slow.harm, slow.outcome) == (2.0, Outcome.WARN)
    assert "480 of 480 requests were not good" in slow.notes[0]
    assert line_of(judge(suite, run_of(suite))).harm == 0


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [(0.0, Outcome.PASS), (0.8, Outcome.PASS), (0.81, Outcome.WARN), (0.999, Outcome.WARN), (1.0, Outcome.WARN)],
)
def test_what_is_spent_warns_beyond_four_fifths(ratio: float, outcome: Outcome) -> None:
    suite = budgeted()
    verdict = judge(suite, run_of(suite, ratio=ratio))
    line = line_of(verdict, "error_budget")
    assert (line.outcome, verdict.outcome) == (outcome, outcome), verdict.reason
    assert (line.harm, line.margin, line.required) == (ratio, 1.0, True)
    assert line.notes == ("by the suite itself, read at 2026-01-01T00:00:00.000Z",)


def test_value_that_the_run_has_not_is_never_nothing_spent() -> None:
    suite = budgeted()
    verdict = judge(suite, run_of(suite, ratio=None))
    assert verdict.outcome is line_of(verdict, "error_budget").outcome is Outcome.INVALID
    assert "is not known: the run did not read it" in verdict.reason
    assert line_of(verdict, "error_budget").candidate is None


@pytest.mark.parametrize(
    ("checks", "effect", "first"),
    [
        ((ERRORS,), Effect(failed=1), "Error budget burn at c4 is WARN"),  # it burns too fast itself
        ((ERRORS, TTFT), Effect(slowdown=1.05), "Time to first token p50 at c4 is WARN"),  # inside its margin
        ((ERRORS, NOTICED), Effect(slowdown=1.05), "Time to first token p50 at c4 is BLOCK"),  # advisory
    ],
)
def test_blown_budget_blocks_what_is_no_clean_pass(checks: tuple[Line, ...], effect: Effect, first: str) -> None:
    suite = budgeted(*checks)
    before, after = (judge(suite, run_of(suite, effect, ratio=ratio)) for ratio in (0.5, 1.12))
    assert (before.outcome, after.outcome) == (Outcome.WARN, Outcome.BLOCK)
    line = line_of(after, "error_budget")
    assert line.reason == (
        "112 % of the error budget of 99.5 % over 30 days is spent: it is blown, and the candidate is no clean PASS "
        f"({first}); by policy (`when_blown: block`) nothing risky is promoted then"
    )
    assert "candidate must not be promoted: Error budget spent in production: 112 %" in after.reason
    assert line.advice == "promote a candidate that passes every check, or wait until the budget has recovered"
    assert after.next_step == line.advice
    lenient = with_budget(suite, when_blown="warn")
    warned = judge(lenient, run_of(lenient, effect, ratio=1.12))
    assert (warned.outcome, line_of(warned, "error_budget").outcome) == (Outcome.WARN, Outcome.WARN)
    assert "`when_blown: warn`" in line_of(warned, "error_budget").reason


def test_waived_check_is_no_clean_pass() -> None:
    suite = budgeted(ERRORS, TTFT)
    waivers = Waivers((WAIVER,), date(2026, 3, 1))
    before, after = (
        judge(suite, run_of(suite, Effect(slowdown=1.3), ratio=ratio), waivers=waivers) for ratio in (0.5, 1.0)
    )
    assert (before.outcome, after.outcome) == (Outcome.WARN, Outcome.BLOCK)
    assert "Time to first token p50 at c4 is WAIVED" in line_of(after, "error_budget").reason
    late = Waivers((WAIVER,), date(2026, 4, 1) + timedelta(days=1))
    assert judge(suite, run_of(suite, Effect(slowdown=1.3), ratio=0.5), waivers=late).outcome is Outcome.BLOCK


@pytest.mark.parametrize(
    ("check", "outcome"),
    [
        (replace(any_check(outcome=Outcome.PASS), p_holm=0.05), Outcome.BLOCK),  # harm that the check's rule lets pass
        (replace(any_check(outcome=Outcome.PASS), p_holm=0.0501), Outcome.WARN),
        (replace(any_check(outcome=Outcome.PASS), p_holm=None), Outcome.WARN),
        (replace(any_check(outcome=Outcome.PASS), p_holm=0.01, scale=Scale.ABSOLUTE), Outcome.WARN),
        (replace(any_check(outcome=Outcome.PASS), p_holm=0.01, family="history"), Outcome.WARN),
        (replace(any_check(outcome=Outcome.INCONCLUSIVE), p_holm=0.01, required=False), Outcome.BLOCK),
        (replace(any_check(outcome=Outcome.INCONCLUSIVE), p_holm=0.4, required=False), Outcome.WARN),
        (replace(any_check(outcome=Outcome.INCONCLUSIVE), p_holm=0.4, waiver=WAIVER), Outcome.BLOCK),
        (replace(any_check(outcome=Outcome.INVALID), required=False), Outcome.BLOCK),
        (replace(any_check(outcome=Outcome.BLOCK), p_holm=0.01, required=False, scale=Scale.ABSOLUTE), Outcome.BLOCK),
    ],
)
def test_harm_that_is_shown_is_a_risk_whatever_its_check_makes_of_it(check: CheckResult, outcome: Outcome) -> None:
    (line,) = spent_checks(budgeted(), spent(1.0), (any_check("other"), check), Outcome.PASS)
    assert line.outcome is outcome
    assert ("is shown to lose" in line.reason) is (outcome is Outcome.BLOCK and check.outcome is Outcome.PASS)


def test_several_risks_are_counted_and_none_is_said_of_none() -> None:
    risks = [any_check(name, Outcome.WARN) for name in ("a", "b", "c")]
    (line,) = spent_checks(budgeted(), spent(2.0), risks, Outcome.WARN)
    assert "(TTFT p50 at c4 is WARN, and 2 more)" in line.reason
    (bare,) = spent_checks(budgeted(), spent(2.0), (), Outcome.WARN)
    assert (bare.outcome, "no clean PASS; by policy" in bare.reason) == (Outcome.BLOCK, True)


@pytest.mark.parametrize("outcome", [Outcome.BLOCK, Outcome.INVALID, Outcome.INCONCLUSIVE])
def test_what_is_not_promoted_anyhow_keeps_its_own_reason(outcome: Outcome) -> None:
    (line,) = spent_checks(budgeted(), spent(1.5), (any_check(outcome=outcome),), outcome)
    assert line.outcome is Outcome.WARN
    assert "not promoted for other reasons" in line.reason


@pytest.mark.parametrize("effect", [HEALTHY, Effect(failed=1), Effect(failed=40), Effect(slowdown=1.3), Effect(late=9)])
def test_no_verdict_is_better_for_a_budget(effect: Effect) -> None:
    checks: list[Line] = [{"metric": "error_rate", "max": "5%"}, TTFT, NOTICED]
    plain = SuiteText(checks).suite()
    evidence = run_of(plain, effect)
    alone = judge(plain, evidence)
    own = {check.id: (check.outcome, check.p_holm, check.lower, check.upper) for check in alone.checks}
    for ratio, objective, when_blown in ((None, "80%", "warn"), (0.0, "99.5%", "block"), (3.0, "80%", "warn")):
        suite = with_budget(plain, objective=objective, when_blown=when_blown)
        reading = None if ratio is None else spent(ratio)
        verdict = judge(suite, replace(evidence, budget_spent=reading))
        assert verdict.outcome.severity >= alone.outcome.severity
        assert {c.id: (c.outcome, c.p_holm, c.lower, c.upper) for c in verdict.checks if c.id in own} == own


def test_budget_alone_judges_nobody() -> None:
    suite = budgeted({"metric": "error_rate", "max": "50%", "required": False})
    verdict = judge(suite, run_of(suite))
    assert [check.outcome for check in verdict.checks] == [Outcome.PASS] * 3
    assert verdict.outcome is Outcome.INVALID


def test_suite_without_a_budget_has_no_line() -> None:
    suite = SuiteText([ERRORS]).suite()
    assert [check.id for check in judge(suite, run_of(suite, ratio=2.0)).checks] == ["error_rate@c4:slo"]


def test_guard_that_spoils_shares_spoils_the_burn() -> None:
    suite = budgeted()
    comparison = compare(run_of(suite, Effect(failed=30)))
    guard = GuardResult("load-as-planned", True, "a worker was lost", "run it again", ("load",))
    (line,) = burn_checks(suite, comparison, (guard,))
    assert (line.outcome, line.reason, line.advice) == (Outcome.INVALID, "a worker was lost", "run it again")
    for harmless in (
        replace(guard, tripped=False),
        replace(guard, invalidates=("quality",)),
        replace(guard, invalidates=()),
    ):
        assert burn_checks(suite, comparison, (harmless,))[0].outcome is Outcome.BLOCK
    speed = replace(guard, invalidates=("speed",))
    assert burn_checks(suite, comparison, (speed,))[0].outcome is Outcome.BLOCK  # failures are no speed
    of_goodput = with_budget(suite, metric="goodput")
    assert burn_checks(of_goodput, comparison, (speed,))[0].outcome is Outcome.INVALID


def test_evidence_that_cannot_carry_it_is_invalid() -> None:
    suite = budgeted()
    evidence = run_of(suite)
    one_block = replace(evidence, load=tuple(o for o in evidence.load if o.block == 0))
    nowhere = with_budget(suite, stage="c5")
    for judged, seen_by, told in (
        (suite, one_block, "was not measured in two blocks"),
        (nowhere, evidence, "its stage was not measured"),
    ):
        (line,) = burn_checks(judged, compare(seen_by), ())
        assert (line.outcome, line.candidate, line.p_value) == (Outcome.INVALID, None, None)
        assert told in line.reason and line.advice
        assert line.id == ("error_budget_burn" if judged is nowhere else "error_budget_burn@c4")


def test_failures_of_the_candidate_alone_count() -> None:
    suite = budgeted()
    evidence = measured(suite, HEALTHY, Effect(failed=30), noise=QUIET)
    (line,) = burn_checks(suite, compare(evidence), ())
    assert line.harm == 0


def classes() -> Suite:
    text = drill({"metric": "error_rate", "max": "90%"}).to_stored()
    names = {"chat": {"concurrency": 2, "requests": 40}, "reports": {"concurrency": 2, "requests": 40}}
    background = {"concurrency": 8, "background": True}
    text["load"]["sweep"] = [{"name": "mix", "classes": {**names, "batch": background}, "requests": 80}]
    return Suite.from_stored(text)


def of_classes(effects: dict[str, Effect]) -> Comparison:
    evidence = seen(drill(ERRORS, stages=("chat", "reports", "batch")), effects)
    return compare(replace(evidence, load=tuple(replace(o, stage=f"mix/{o.stage}") for o in evidence.load)))


def test_each_class_of_traffic_has_a_line_and_they_share_one_error() -> None:
    suite = with_budget(classes(), stage="mix", objective="90%")
    lines = burn_checks(suite, of_classes({"reports": Effect(failed=8)}), ())
    assert {line.stage: line.harm for line in lines} == pytest.approx({"mix/chat": 0, "mix/reports": 2, "mix/batch": 0})
    steep = with_budget(classes(), stage="mix", objective="99%")
    found = burn_checks(steep, of_classes({"reports": Effect(failed=14)}), ())
    reports = next(line for line in found if line.stage == "mix/reports")
    assert reports.p_value is not None and reports.p_holm == pytest.approx(3 * reports.p_value)
    good = with_budget(classes(), stage="mix", objective="90%", metric="goodput")
    assert len(burn_checks(good, of_classes({}), ())) == 2  # nobody says what is good in the background
    named = with_budget(classes(), stage="mix/batch", objective="90%", metric="goodput")
    (batch,) = burn_checks(named, of_classes({}), ())
    assert batch.id == "error_budget_burn@mix/batch"


def test_stage_unsaid_is_the_only_one() -> None:
    suite = budgeted(stage=None)
    assert line_of(judge(suite, run_of(suite))).outcome is Outcome.PASS
    gate = suite.gate.model_copy(update={"operating": "c4"})
    two = suite.model_copy(update={"gate": gate, "load": drill(ERRORS, stages=("c1", "c4")).load})
    assert [line.stage for line in burn_checks(two, compare(run_of(two)), ())] == ["c4"]


def looked_at(suite: Suite) -> Suite:
    assert suite.load is not None
    return suite.model_copy(update={"load": suite.load.model_copy(update={"looks": (5, 10, 20)})})


def after(blocks: int, evidence: Evidence) -> Evidence:
    return replace(evidence, load=tuple(o for o in evidence.load if o.block < blocks))


def test_load_goes_on_until_the_burn_is_settled_and_ends_where_it_blocks() -> None:
    suite = looked_at(budgeted(blocks=20))
    for failed, kind, told in ((0, StopLoad, "PASS"), (4, ContinueLoad, "INCONCLUSIVE"), (20, StopLoad, "BLOCK")):
        step = next_step(suite, after(5, run_of(suite, Effect(failed=failed))))
        assert isinstance(step, kind)
        assert [check.outcome for check in step.checks if check.id == "error_budget_burn@c4"] == [told]
    plain = suite.model_copy(update={"error_budget": None})
    assert isinstance(next_step(plain, after(5, run_of(plain, Effect(failed=4)))), StopLoad)


def test_limits_at_a_look_are_its_own() -> None:
    suite = looked_at(budgeted(blocks=20))
    line = line_of(judge(suite, after(5, run_of(suite))))
    assert line.limits_alpha == pytest.approx(0.000393, rel=2e-3)
    assert line.upper == pytest.approx((1 - (line.limits_alpha or 0) ** (1 / 300)) / 0.005)
    assert line.notes[0].startswith("look 1 of 3")
    whole = line_of(judge(budgeted(blocks=20), run_of(budgeted(blocks=20))))
    assert whole.limits_alpha is None


def test_number_named_after_a_first_look_is_what_a_later_look_would_take() -> None:
    # No failure in 300 requests leaves a share of 2.6 % open at the alpha of the first look, in 600 at that of the
    # second 0.8 %; an objective of 99.9 % alarms at 1.44 %.
    suite = looked_at(budgeted(TTFT, ERRORS, blocks=20, objective="99.9%"))
    evidence = after(5, run_of(suite))
    line = line_of(judge(suite, replace(evidence, ended=LoadEnd(5, 20, "time"))))
    assert line.outcome is Outcome.INCONCLUSIVE
    assert line.advice == "measure more requests: about 600 in all would settle it (a higher `load.limit.time`)"


def test_line_left_open_says_that_a_decided_check_ended_the_load() -> None:
    suite = looked_at(budgeted(TTFT, ERRORS, blocks=20))
    evidence = after(5, run_of(suite, Effect(failed=4, slowdown=2)))
    line = line_of(judge(suite, replace(evidence, ended=LoadEnd(5, 20, "decided"))))
    assert line.outcome is Outcome.INCONCLUSIVE
    assert "where the load ended because the required checks were decided" in line.reason
    assert line.advice is not None and "the load ended once the required checks were decided" in line.advice


def test_numbers_can_be_done_again() -> None:
    suite = budgeted()
    verdict = judge(suite, run_of(suite, Effect(failed=9), ratio=1.12))
    line = line_of(verdict)
    told = {step.what: step for step in line.steps}
    assert float(told["burn"].value) == pytest.approx(line.harm)
    assert told["burn"].formula == "0.15 / 0.005"
    assert float(told["burn at the upper limit"].value) == pytest.approx(line.upper, rel=1e-7)
    assert told["outcome"].value == "BLOCK"
    spent_line = find_check(verdict, "error_budget")
    text = render_explanation(verdict, spent_line)
    assert " = 1.12\n" in text and "candidate is not promoted for other reasons = WARN\n" in text
    assert all(step.value for check in verdict.checks for step in check.steps)


def test_other_policy_for_the_budget_is_another_policy() -> None:
    suite = budgeted()
    evidence = run_of(suite)
    evidence = replace(evidence, run=replace(evidence.run, suite=suite.to_stored()))
    verdict = judge(suite, evidence)
    looser = with_budget(suite, when_blown="warn")
    assert not Terms(policy=suite).policy_replaced(evidence.run, verdict)
    assert Terms(policy=looser).policy_replaced(evidence.run, judge(looser, evidence))


@pytest.mark.parametrize("ratio", [-0.01, math.nan, math.inf, -math.inf])
def test_reading_that_nobody_can_have_spent_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        spent(ratio)
