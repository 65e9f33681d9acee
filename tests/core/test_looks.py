"""Looks at the load: what each may spend, when the load ends, and that ending early opens no door to a PASS."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from scipy.stats import t

from benchgate.gate.comparison import look_of
from benchgate.gate.decision import Estimate, Look, adjust_for_looks, decide
from benchgate.gate.interim import next_step
from benchgate.gate.judge import judge
from benchgate.model.run import Evidence, LoadEnd
from benchgate.model.verdict import ArithmeticStep, CheckResult, Outcome, Scale, Unit, Verdict
from benchgate.stats.distributions import Limits
from benchgate.stats.means import paired_t
from benchgate.stats.sequential import look_alphas
from benchgate.stats.trace import Trace
from benchgate.suite.schema import Suite
from tests.fakes.estimates import changed, estimate, seen_at
from tests.fakes.measured import Effect, Noise, SuiteText, measured

Line = dict[str, object]
LOOKS = (5, 10, 20)
FRACTIONS = (0.25, 0.5, 1.0)
TAILS = (0.000393, 0.00879, 0.04658)  # of z = 3.358, 2.374, 1.679
TTFT: Line = {"metric": "ttft", "margin": "10%"}
NOTICED: Line = {"metric": "ttft", "margin": "10%", "required": False}
ERRORS: Line = {"metric": "error_rate", "max": "2%"}
GOODPUT: Line = {"metric": "goodput"}
ACCURACY: Line = {"metric": "accuracy", "task": "each", "margin": "5 points"}
QUIET, LOUD = Noise(cv=0.005), Noise(cv=0.2)


def suite_with(*checks: Line, looks: tuple[int, ...] = LOOKS) -> Suite:
    text = SuiteText(checks=list(checks), blocks=max(looks))
    suite = text.suite()
    assert suite.load is not None
    return suite.model_copy(update={"load": suite.load.model_copy(update={"looks": looks if len(looks) > 1 else ()})})


def after(blocks: int, evidence: Evidence, ended: LoadEnd | None = None) -> Evidence:
    """What there was of the load after so many blocks."""
    return replace(evidence, load=tuple(o for o in evidence.load if o.block < blocks), ended=ended)


def ended_at(blocks: int, evidence: Evidence, why: Literal["decided", "invalid", "time"] = "decided") -> Evidence:
    return after(blocks, evidence, LoadEnd(blocks, 20, why))


def check_of(verdict: Verdict, name: str) -> CheckResult:
    return next(check for check in verdict.checks if check.metric == name)


def look(number: int) -> Look:
    return Look(number, 3, LOOKS[number - 1], 20, TAILS[number - 1], FRACTIONS)


def found(harm: float, lower: float, upper: float, p_value: float = 1e-6) -> Estimate:
    return estimate(Unit.SECONDS, Scale.LOG_RATIO, 0.05, value=harm, limits=Limits(lower, upper), p_value=p_value)


# What a look may spend


@pytest.mark.parametrize(("blocks", "number"), [(0, 1), (3, 1), (5, 1), (7, 1), (10, 2), (19, 2), (20, 3)])
def test_look_is_the_one_that_the_measured_blocks_have_reached(blocks: int, number: int) -> None:
    suite = suite_with(TTFT)
    seen = look_of(suite, after(blocks, measured(suite)))
    assert seen is not None
    assert (seen.number, seen.of, seen.blocks, seen.most) == (number, 3, LOOKS[number - 1], 20)
    assert seen.alpha == pytest.approx(TAILS[number - 1], rel=2e-3)
    assert seen.last is (number == 3)


def test_a_block_that_only_one_arm_has_is_not_measured_yet() -> None:
    suite = suite_with(TTFT)
    half = after(5, measured(suite))
    seen = look_of(suite, replace(half, load=half.load[:-1]))
    assert seen is not None
    assert seen.number == 1
    ten = after(10, measured(suite))
    seen = look_of(suite, replace(ten, load=ten.load[:-1]))
    assert seen is not None
    assert seen.number == 1


def test_a_fixed_number_of_blocks_has_no_looks() -> None:
    suite = suite_with(TTFT, looks=(20,))
    assert look_of(suite, measured(suite)) is None
    assert next_step(suite, measured(suite)) is None
    assert not any("look" in note for check in judge(suite, measured(suite)).checks for note in check.notes)


def test_a_suite_without_load_has_no_looks() -> None:
    suite = suite_with(ACCURACY).model_copy(update={"load": None})
    assert look_of(suite, measured(suite)) is None
    assert next_step(suite, measured(suite)) is None


@pytest.mark.parametrize(
    ("blocks", "requests", "needed"), [(20, 15, 306), (20, 16, None), (10, 47, 472), (10, 48, None), (5, 150, 781)]
)
def test_a_high_quantile_needs_requests_by_what_the_look_may_spend(
    blocks: int, requests: int, needed: int | None
) -> None:
    """The least n with 0.99^n <= the look's own tail, which is more than the 299 of one look at 5 %."""
    line: Line = {"metric": "ttft", "statistic": "p99", "max": "1s"}
    suite = SuiteText([line, ERRORS], blocks=20, requests=requests).suite()
    assert suite.load is not None
    suite = suite.model_copy(update={"load": suite.load.model_copy(update={"looks": LOOKS})})
    check = judge(suite, ended_at(blocks, measured(suite))).checks[0]
    if needed is None:
        assert check.outcome is Outcome.PASS
        return
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.reason == f"p99 has no upper limit from {blocks * requests} requests"
    assert check.advice == f"measure at least {needed} requests in this stage over all blocks"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_limits_are_those_of_the_looks_own_tail(number: int) -> None:
    blocks = LOOKS[number - 1]
    suite, fixed = suite_with(TTFT), suite_with(TTFT, looks=(blocks,))
    whole = measured(suite)
    seen = check_of(judge(suite, after(blocks, whole)), "ttft")
    once = check_of(judge(fixed, after(blocks, whole)), "ttft")
    assert seen.harm == once.harm
    assert seen.harm is not None and seen.upper is not None and once.upper is not None
    wider = t.ppf(1 - TAILS[number - 1], blocks - 1) / t.ppf(0.95, blocks - 1)
    assert (seen.upper - seen.harm) / (once.upper - seen.harm) == pytest.approx(wider, rel=2e-3)
    assert seen.p_value is not None and once.p_value is not None
    assert seen.p_value > once.p_value
    share = {1: "0.0393 %", 2: "0.879 %", 3: "4.66 %"}[number]
    assert seen.notes[0] == f"look {number} of 3, after {blocks} of at most 20 blocks; limits at {share}"


def test_what_is_measured_once_keeps_its_alpha() -> None:
    suite, fixed = suite_with(TTFT, ERRORS, ACCURACY), suite_with(TTFT, ERRORS, ACCURACY, looks=(5,))
    lossy = Effect(wrong=tuple(range(6)))
    here, there = (
        [check for check in judge(one, after(5, measured(one, lossy))).checks if check.metric == "accuracy"]
        for one in (suite, fixed)
    )
    assert [(check.lower, check.upper, check.p_value) for check in here] == [
        (check.lower, check.upper, check.p_value) for check in there
    ]
    assert not any("look" in note for check in here for note in check.notes)


def test_shares_and_bounds_are_held_to_the_look_as_well() -> None:
    suite, fixed = suite_with(ERRORS, GOODPUT), suite_with(ERRORS, GOODPUT, looks=(5,))
    failing = Effect(failed=1)
    for name in ("error_rate", "goodput"):
        seen = check_of(judge(suite, after(5, measured(suite, failing))), name)
        once = check_of(judge(fixed, after(5, measured(fixed, failing))), name)
        assert seen.lower is not None and once.lower is not None
        assert seen.upper is not None and once.upper is not None
        assert seen.lower < once.lower
        assert seen.upper > once.upper


def test_of_two_stored_runs_the_look_that_allows_less_holds() -> None:
    suite = suite_with(TTFT, ERRORS)
    early, late = after(5, measured(suite, run_id="early")), measured(suite, run_id="late", noise=Noise(seed=3))
    for judged, reference in ((early, late), (late, early)):
        check = check_of(judge(suite, judged, reference), "ttft")
        assert check.notes[0].startswith("look 1 of 3, after 5 of at most 20 blocks")
    assert check_of(judge(suite, late, late), "ttft").notes[0].startswith("look 3 of 3")


def test_a_reference_that_ended_early_is_no_looser_beside_a_fixed_number_of_blocks() -> None:
    suite, fixed = suite_with(TTFT, ERRORS), suite_with(TTFT, ERRORS, looks=(20,))
    early = after(5, measured(suite, run_id="early"))
    check = check_of(judge(fixed, measured(fixed, run_id="late"), early), "ttft")
    assert check.notes[0].startswith("look 1 of 3")


def test_the_arithmetic_tells_of_the_repeated_p_value() -> None:
    plain = seen_at(found(0.0, -0.01, 0.01, p_value=0.5), look(1))
    assert plain.trace.steps == []
    told = seen_at(changed(found(0.0, -0.01, 0.01, p_value=0.03), trace=Trace([ArithmeticStep("a", "", "b")])), look(2))
    assert told.p_value is not None and told.p_value > 0.03
    assert told.trace.steps[-1].value == f"{told.p_value:.6g}"
    assert "look 2 of 3" in told.trace.steps[-1].what


def test_a_change_either_way_pays_for_both_sides() -> None:
    # Of two sides, each crosses its boundary half as often: at a boundary of half the tail, alpha is met again.
    half = look_alphas(FRACTIONS, 0.025)[1]
    both = seen_at(changed(found(0.0, -0.01, 0.01, p_value=2 * half), two_sided=True), look(2))
    assert both.p_value == pytest.approx(0.05, abs=1e-6)
    assert seen_at(found(0.0, -0.01, 0.01, p_value=1.0), look(2)).p_value == 1.0
    without = seen_at(changed(found(0.0, 0.0, 0.0), p_value=None), look(2))
    assert without.p_value is None


# When a look blocks


@pytest.mark.parametrize("number", [1, 2])
def test_shown_harm_inside_the_margin_waits_for_the_last_look(number: int) -> None:
    harm = found(harm=0.049, lower=0.03, upper=0.06)
    assert decide(seen_at(harm, look(number)), 0.001, 0.05, 0.8) is Outcome.INCONCLUSIVE
    assert decide(seen_at(harm, look(3)), 0.001, 0.05, 0.8) is Outcome.BLOCK
    assert decide(harm, 0.001, 0.05, 0.8) is Outcome.BLOCK


@pytest.mark.parametrize("harm", [0.05, 0.08, math.inf])
def test_harm_at_the_margin_or_beyond_blocks_at_any_look(harm: float) -> None:
    seen = seen_at(found(harm=harm, lower=0.01, upper=0.2), look(1))
    assert decide(seen, 0.05, 0.05, 0.8) is Outcome.BLOCK
    assert decide(seen, 0.0501, 0.05, 0.8) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("harm", "outcome"), [(-0.04, Outcome.INCONCLUSIVE), (-0.06, Outcome.BLOCK)])
def test_a_change_either_way_is_held_to_the_margin_by_its_size(harm: float, outcome: Outcome) -> None:
    seen = changed(seen_at(found(harm=harm, lower=-0.09, upper=-0.01), look(1)), two_sided=True)
    assert decide(seen, 0.001, 0.05, 0.8) is outcome


def test_a_bound_that_is_shown_to_be_broken_blocks_at_any_look() -> None:
    broken = changed(found(harm=0.2, lower=0.15, upper=0.3), scale=Scale.ABSOLUTE, margin=0.1, breach=True)
    assert decide(seen_at(broken, look(1)), 0.001, 0.05, 0.8) is Outcome.BLOCK
    slow = changed(broken, lower_is_worse=True, value=0.05, limits=Limits(0.01, 0.09))
    assert decide(seen_at(slow, look(1)), 0.001, 0.05, 0.8) is Outcome.BLOCK


def test_harm_inside_the_margin_at_a_first_look_says_how_many_blocks_there_may_still_be() -> None:
    suite = suite_with(TTFT, ERRORS)
    slower = Effect(slowdown=1.09)
    check = check_of(judge(suite, ended_at(5, measured(suite, slower, noise=QUIET), "time")), "ttft")
    assert check.outcome is Outcome.INCONCLUSIVE
    assert (
        "probably a regression, but not shown to be beyond the margin of 10 % after 5 of at most 20 blocks"
        in check.reason
    )
    assert "`load.limit.time` ended the load" in check.reason
    assert check.advice is not None and "measure more blocks (a higher `load.limit.time`)" in check.advice


def test_what_is_still_open_says_what_would_settle_it() -> None:
    suite = suite_with(NOTICED, ERRORS)
    loud = measured(suite, noise=LOUD)
    settled, whole = (check_of(judge(suite, one), "ttft") for one in (ended_at(5, loud), loud))
    assert "after 5 of at most 20 blocks, where the load ended because the required" in settled.reason
    assert settled.advice is not None and settled.advice.endswith("fix any that blocked, or require this one")
    assert "after all 20 blocks" in whole.reason
    assert whole.advice is not None and "one more look in `load.looks`" in whole.advice


def number_named(check: CheckResult) -> int:
    found = re.search(r"about ([\d,]+) in all would settle it", check.advice or "")
    assert found is not None, check.advice
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize("cv", [0.05, 0.12, 0.3])
def test_a_number_named_after_a_first_look_is_what_a_later_look_would_take(cv: float) -> None:
    suite = suite_with(NOTICED, ERRORS)
    check = check_of(judge(suite, ended_at(5, measured(suite, noise=Noise(cv=cv)))), "ttft")
    assert check.outcome is Outcome.INCONCLUSIVE and check.upper is not None and check.harm is not None
    value, spread = check.harm, (check.upper - check.harm) * math.sqrt(5) / t.ppf(1 - TAILS[0], 4)

    def settled(blocks: int, alpha: float) -> bool:
        return bool(value + t.ppf(1 - alpha, blocks - 1) * spread / math.sqrt(blocks) < math.log(1.1))

    at_looks = [blocks for blocks, alpha in zip(LOOKS[1:], TAILS[1:], strict=True) if settled(blocks, alpha)]
    beyond = (blocks for blocks in range(21, 10_000) if settled(blocks, TAILS[-1]))
    expected = at_looks[0] if at_looks else next(beyond)
    assert number_named(check) == pytest.approx(expected, abs=1)
    assert {0.05: expected == 10, 0.12: expected == 20, 0.3: expected > 20}[cv]


def test_a_number_of_requests_named_after_a_first_look_is_what_a_later_look_would_take() -> None:
    # No miss in 300 requests leaves 2.6 % open at the alpha of the first look, in 600 at that of the second 0.8 %.
    suite = suite_with(TTFT, {**ERRORS, "required": False})
    check = check_of(judge(suite, ended_at(5, measured(suite, noise=QUIET))), "error_rate")
    assert check.upper == pytest.approx(1 - TAILS[0] ** (1 / 300), rel=1e-2)
    assert number_named(check) == 600
    few = suite_with(TTFT, {**ERRORS, "max": "0.2%", "required": False})
    check = check_of(judge(few, ended_at(5, measured(few, noise=QUIET))), "error_rate")
    assert number_named(check) == pytest.approx(math.log(TAILS[-1]) / math.log(1 - 0.002), rel=1e-3)


# How often it errs


def ends(harms: np.ndarray, alpha: float = 0.05, margin: float = math.log1p(0.05)) -> list[Outcome]:
    """How simulated gates end, one row of paired differences each, by the shipped limits, p-values and rule."""
    tails = look_alphas(FRACTIONS, alpha)
    outcomes = []
    for row in harms:
        outcome = Outcome.INCONCLUSIVE
        for number, blocks in enumerate(LOOKS, start=1):
            one = paired_t(row[:blocks][np.isfinite(row[:blocks])], tails[number - 1])
            if one is None:
                continue  # fewer than two blocks are left
            seen = estimate(Unit.SECONDS, Scale.LOG_RATIO, margin)
            seen.value, seen.limits, seen.p_value = one.mean, one.limits, one.p_value
            adjust_for_looks(seen, Look(number, 3, blocks, 20, tails[number - 1], FRACTIONS))
            outcome = decide(seen, seen.p_value, alpha, 0.8)
            if outcome is not Outcome.INCONCLUSIVE:
                break
        outcomes.append(outcome)
    return outcomes


def drawn(gates: int, slower: float, seed: int, cv: float = 0.04) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(gates, 20))
    return math.log1p(slower) + math.sqrt(2) * cv * noise


@pytest.mark.parametrize(
    ("slower", "promoted", "blocked"),
    # 40,000 gates of a simulation of its own, with the same boundaries
    [(0.0, 0.980, 0.015), (0.025, 0.565, 0.401), (0.05, 0.0507, 0.944), (0.10, 0.0, 1.0)],
)
def test_gates_err_as_often_as_they_promise(slower: float, promoted: float, blocked: float) -> None:
    gates = 1000
    outcomes = ends(drawn(gates, slower, seed=int(1000 * slower)))
    for share, wanted in (
        (np.mean([one.promotes for one in outcomes]), promoted),
        (np.mean([one is Outcome.BLOCK for one in outcomes]), blocked),
    ):
        assert share == pytest.approx(wanted, abs=0.001 + 3.5 * math.sqrt(wanted * (1 - wanted) / gates))


def test_blocks_left_out_for_the_clients_sake_promote_no_more_at_the_margin() -> None:
    gates = 1000
    harms = drawn(gates, 0.05, seed=77)
    harms[np.random.default_rng(8).random(harms.shape) < 0.1] = math.nan
    promoted = np.mean([one.promotes for one in ends(harms)])
    assert promoted <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / gates)
