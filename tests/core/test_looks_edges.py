"""Which look holds, at its boundaries: nothing that was measured less, or by another suite, is allowed more."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

from benchgate.gate.comparison import blocks_measured, compare, look_of, stricter_look
from benchgate.gate.interim import ContinueLoad, StopLoad, limit_passed, next_step
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadEnd
from benchgate.model.verdict import Outcome, Waiver, Waivers
from benchgate.stats.sequential import obrien_fleming, repeated_p
from benchgate.suite.schema import Suite, measured_arms
from tests.fakes.drills import drill
from tests.fakes.measured import Effect, Noise, SuiteText, measured

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
NOTICED: Line = {"metric": "ttft", "margin": "10%", "required": False}
QUIET = Noise(cv=0.005)
QUICK = 20  # requests a block: what is counted here are blocks


def suite_with(*checks: Line, looks: tuple[int, ...] = (5, 10, 20), alpha: float = 0.05) -> Suite:
    suite = SuiteText(list(checks) or [TTFT], blocks=looks[-1], requests=QUICK, gate={"alpha": alpha}).suite()
    assert suite.load is not None
    return suite.model_copy(update={"load": suite.load.model_copy(update={"looks": looks if len(looks) > 1 else ()})})


def after(blocks: int, evidence: Evidence) -> Evidence:
    return replace(evidence, load=tuple(o for o in evidence.load if o.block < blocks))


def tail(suite: Suite, evidence: Evidence) -> float:
    look = look_of(suite, evidence)
    assert look is not None
    return look.alpha


def test_fractions_are_those_of_the_most_blocks() -> None:
    suite = suite_with()
    look = look_of(suite, measured(suite))
    assert look is not None
    assert look.fractions == (0.25, 0.5, 1.0)


def test_an_earlier_look_is_allowed_less_and_the_last_less_than_alpha() -> None:
    suite = suite_with()
    whole = measured(suite)
    tails = [tail(suite, after(blocks, whole)) for blocks in (4, 5, 9, 10, 19, 20)]
    assert tails[0] == tails[1] == tails[2] < tails[3] == tails[4] < tails[5] < 0.05
    # 1 - Phi of 3.358, 2.374 and 1.679
    assert [tails[0], tails[3], tails[5]] == pytest.approx([0.000393, 0.00879, 0.04658], rel=2e-3)


def test_a_look_keeps_why_the_load_ended() -> None:
    suite = suite_with()
    ended = LoadEnd(5, 20, "time")
    look = look_of(suite, replace(after(5, measured(suite)), ended=ended))
    assert look is not None
    assert look.ended == ended
    assert (look.description, look.last) == ("look 1 of 3, after 5 of at most 20 blocks", False)


def test_a_block_counts_only_where_every_arm_at_every_place_has_it() -> None:
    suite = drill(TTFT, blocks=4)
    whole = measured(suite)
    assert blocks_measured(suite, whole) == 4
    for stage in ("short", "long"):
        for arm in Arm:
            without = tuple(o for o in whole.load if (o.stage, o.arm, o.block) != (stage, arm, 2))
            assert blocks_measured(suite, replace(whole, load=without)) == 3
    assert blocks_measured(suite, replace(whole, load=())) == 0


def test_a_load_that_only_searches_has_no_block() -> None:
    suite = suite_with()
    assert suite.load is not None
    searching = suite.model_copy(update={"load": suite.load.model_copy(update={"sweep": ()})})
    assert blocks_measured(searching, measured(suite)) == 0
    assert blocks_measured(suite.model_copy(update={"load": None}), measured(suite)) == 0


def test_a_stored_reference_is_held_to_its_own_looks_and_to_the_policy_that_judges() -> None:
    here, there = suite_with(looks=(20,), alpha=0.01), suite_with(looks=(5, 20), alpha=0.2)
    reference = after(5, measured(there, run_id="early"))
    look = stricter_look(here, compare(measured(here), reference))
    assert look is not None
    assert (look.number, look.of, look.blocks) == (1, 2, 5)
    strict = suite_with(looks=(5, 20), alpha=0.01)
    assert look.alpha == tail(strict, reference) < tail(there, reference)


def test_the_look_that_allows_less_holds_whichever_run_it_is_of() -> None:
    suite = suite_with()
    whole = measured(suite)
    for judged, reference in ((5, 20), (20, 5)):
        look = stricter_look(suite, compare(after(judged, whole), after(reference, whole)))
        assert look is not None
        assert look.number == 1
    alone = stricter_look(suite, compare(after(10, whole)))
    assert alone is not None
    assert alone.number == 2


def test_two_runs_of_fixed_numbers_of_blocks_have_no_look() -> None:
    fixed = suite_with(looks=(20,))
    assert stricter_look(fixed, compare(measured(fixed))) is None
    assert stricter_look(fixed, compare(measured(fixed), measured(fixed))) is None


# Whether more is measured


def test_an_advisory_check_that_blocks_ends_no_load_while_a_required_one_is_open() -> None:
    suite = suite_with({**NOTICED, "metric": "e2e"}, {"metric": "error_rate", "max": "0.5%"})
    step = next_step(suite, after(5, measured(suite, Effect(slowdown=2.0), noise=QUIET)))
    assert isinstance(step, ContinueLoad)
    assert [check.metric for check in step.checks] == ["error_rate"]


def test_advisory_checks_alone_end_the_load_when_each_is_settled() -> None:
    suite = suite_with(NOTICED)
    slow = next_step(suite, after(5, measured(suite, Effect(slowdown=2.0), noise=QUIET)))
    assert isinstance(slow, StopLoad)
    assert (slow.reason, slow.checks[0].outcome) == ("decided", Outcome.BLOCK)
    loud = next_step(suite, after(5, measured(suite, noise=Noise(cv=0.3))))
    assert isinstance(loud, ContinueLoad)
    assert (loud.blocks, [check.id for check in loud.undecided]) == (10, [check.id for check in loud.checks])


def test_the_last_look_settles_even_what_is_open() -> None:
    suite = suite_with()
    loud = measured(suite, noise=Noise(cv=0.5))
    assert isinstance(next_step(suite, after(19, loud)), ContinueLoad)
    step = next_step(suite, loud)
    assert isinstance(step, StopLoad)
    assert (step.reason, step.checks[0].outcome) == ("last", Outcome.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("spent_s", "next_s", "passed"), [(60.0, 40.0, None), (60.0, 40.001, "time"), (0.0, 101.0, "time")]
)
def test_a_limit_of_time_is_passed_above_it_and_not_at_it(spent_s: float, next_s: float, passed: str | None) -> None:
    assert limit_passed(limited({"time_s": 100.0, "cost_usd": None}), spent_s, next_s) == passed


@pytest.mark.parametrize(("next_s", "passed"), [(300.0, None), (300.001, "cost")])
def test_a_limit_of_cost_counts_every_accelerator_of_both_deployments(next_s: float, passed: str | None) -> None:
    # 2 * $3 + 1 * $6 an hour: $12, so $2 last 600 s, of which 300 are spent.
    assert limit_passed(limited({"time_s": None, "cost_usd": 2.0}), 300.0, next_s) == passed


def test_without_a_limit_none_is_passed_and_without_a_price_any_cost_is() -> None:
    none = suite_with()
    assert limit_passed(none, 1e9, 1e9) is None
    assert limit_passed(none.model_copy(update={"load": None}), 1e9, 1e9) is None
    priced = limited({"time_s": None, "cost_usd": 2.0})
    for name in ("baseline", "candidate"):
        deployments = {**priced.deployments, name: priced.deployments[name].model_copy(update={"price": None})}
        assert limit_passed(priced.model_copy(update={"deployments": deployments}), 0.0, 1e-9) == "cost"


def test_time_is_told_before_cost_where_both_are_passed() -> None:
    both = limited({"time_s": 100.0, "cost_usd": 2.0})
    assert (limit_passed(both, 0.0, 100.0), limit_passed(both, 1e6, 1e6)) == (None, "time")


def test_a_deployment_that_is_measured_alone_is_paid_for_once() -> None:
    data = drill({"metric": "ttft", "max": "1s"}, blocks=20).to_stored()
    data["load"] |= {"looks": [5, 20], "limit": {"time_s": None, "cost_usd": 2.0}}
    data["deployments"]["one"] |= {"price": 6.0, "accelerators": 2}
    suite = Suite.from_stored(data)
    assert [limit_passed(suite, 0.0, seconds) for seconds in (600.0, 600.1)] == [None, "cost"]  # $12 an hour


def test_one_deployment_as_both_arms_is_paid_for_once() -> None:
    priced = limited({"time_s": None, "cost_usd": 2.0})
    twice = priced.model_copy(update={"candidate": "baseline"})
    assert len(measured_arms(twice)) == 2
    assert [limit_passed(twice, 0.0, seconds) for seconds in (1200.0, 1200.1)] == [None, "cost"]  # $6 an hour


def limited(limit: dict[str, float | None]) -> Suite:
    data = suite_with().to_stored()
    data["load"]["limit"] = limit
    data["deployments"]["baseline"] |= {"price": 3.0, "accelerators": 2}
    data["deployments"]["candidate"] |= {"price": 6.0, "accelerators": 1}
    return Suite.from_stored(data)


# The boundary itself


@pytest.mark.parametrize(
    ("fractions", "alpha", "last"),
    # C at which 1 - scipy.stats.multivariate_normal.cdf of all looks is alpha, by scipy.optimize.brentq
    [((0.25, 0.5, 1.0), 0.05, 1.67891), ((0.5, 1.0), 0.025, 1.97743), ((0.2, 0.4, 0.6, 0.8, 1.0), 0.025, 2.04008)],
)
def test_boundaries_to_four_digits(fractions: tuple[float, ...], alpha: float, last: float) -> None:
    boundary = obrien_fleming(fractions, alpha)
    assert boundary[-1] == pytest.approx(last, abs=2e-4)
    assert boundary == pytest.approx([boundary[-1] / fraction**0.5 for fraction in fractions])


def test_a_repeated_p_value_stays_inside_its_bounds() -> None:
    fractions = (0.25, 0.5, 1.0)
    for look in (1, 2, 3):
        for p_value in (0.0, 5e-324, 1e-12, 0.5, 1 - 1e-12, 1.0):
            assert p_value <= repeated_p(p_value, look, fractions) <= 1.0


# What is still to come, and what was already so


@pytest.mark.parametrize(
    ("later", "times"),
    [
        ([], 1),
        ([{"metric": "accuracy", "margin": "5 points"}], 2),  # of both tasks together
        ([{"metric": "accuracy", "margin": "5 points", "task": "each"}], 3),
        ([{"metric": "score", "margin": "5 points"}], 3),  # each, although it does not say so
        ([{"metric": "accuracy", "margin": "5 points", "task": "add"}], 2),
        ([{"metric": "shadow_excess", "margin": "5 points"}], 2),
        ([{"metric": "shadow_excess", "margin": "5 points", "required": False}], 1),
        ([{"metric": "shadow_excess", "margin": "5 points"}, {"metric": "flips", "margin": "9 points"}], 2),
    ],
)
def test_each_required_check_still_to_come_makes_a_block_of_the_load_harder(later: list[Line], times: int) -> None:
    suite = suite_with(TTFT, *later)
    seen = after(5, measured(suite, Effect(slowdown=1.15)))
    step = next_step(suite, replace(seen, quality=(), shadow=None))
    assert step is not None
    (check,) = step.checks
    assert check.p_value is not None and 0 < check.p_value < 0.1
    assert check.p_holm == pytest.approx(times * check.p_value)


def test_a_suite_without_evals_has_none_to_come() -> None:
    suite = suite_with(TTFT, {"metric": "shadow_excess", "margin": "5 points"}).model_copy(update={"quality": None})
    step = next_step(suite, replace(after(5, measured(suite, Effect(slowdown=1.15))), shadow=None))
    assert step is not None
    assert step.checks[0].p_value is not None
    assert step.checks[0].p_holm == pytest.approx(2 * step.checks[0].p_value)


@pytest.mark.parametrize(("block", "goes_on"), [(4, False), (5, True)])
def test_what_the_first_block_after_a_look_made_invalid_is_given_one_more(block: int, goes_on: bool) -> None:
    suite = suite_with()
    failing = measured(suite, baseline=Effect(failed=QUICK, failed_block=block), noise=QUIET)
    step = next_step(suite, after(10, failing))
    assert step is not None
    assert step.checks[0].outcome is Outcome.INVALID
    assert isinstance(step, ContinueLoad) is goes_on


@pytest.mark.parametrize(("days", "goes_on"), [(0, True), (-1, False)])
def test_a_waiver_tolerates_to_the_end_of_its_last_day(days: int, goes_on: bool) -> None:
    suite, today = suite_with(TTFT, {"metric": "error_rate", "max": "2%"}), date(2026, 3, 1)
    entry = Waiver(
        check="ttft-p50@c4", suite="made-up", deployment="candidate", ceiling="60%",
        expires=today + timedelta(days=days), owner="serving", issue="SRV-1", reason="known", approved_by="release",
    )  # fmt: skip
    slow = after(5, measured(suite, Effect(slowdown=1.5), noise=QUIET))
    assert isinstance(next_step(suite, slow, Waivers((entry,), today)), ContinueLoad) is goes_on
