"""Runs that are set side by side: what keeps them apart, and what is told of them, either way round."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.sizing.candidates import StoredRun
from benchgate.sizing.candidates import compare_candidates as as_stored
from benchgate.sizing.frontier import CheapestOption
from benchgate.sizing.operating_point import OUTPUT
from benchgate.stats.meta import EstimateWithLimits
from benchgate.suite.error_budget import ErrorBudget
from benchgate.suite.schema import Suite
from tests.core.test_right_sizing import BASE, DAY, OURS, right_sizing, row, stored, with_rows


def with_suite(one: StoredRun, **changes: Any) -> StoredRun:
    return replace(one, run=replace(one.run, suite={**one.run.suite, **changes}))


def with_slo(one: StoredRun, **changes: float) -> StoredRun:
    suite = Suite.from_stored(one.run.suite)
    assert suite.slo is not None
    return with_suite(
        one, slo=suite.model_copy(update={"slo": suite.slo.model_copy(update=changes)}).to_stored()["slo"]
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda one: with_slo(one, ttft_s=9.0), "their SLOs differ"),
        (lambda one: with_slo(one, target_ratio=0.5), "their SLOs differ"),
        (lambda one: replace(one, run=replace(one.run, measurement_sha256="b" * 64)), "their plans differ"),
    ],
    ids=["a slower answer is good", "fewer must be good", "another load"],
)
def test_runs_that_were_asked_something_else_have_no_table_in_common(
    changed: Callable[[StoredRun], StoredRun], says: str
) -> None:
    one, other = stored("q8"), changed(stored("q4", price=0.1))
    for some in ([one, other], [other, one]):
        with pytest.raises(UsageError, match=says):
            right_sizing(some)


def baseline_right(one: StoredRun, change: Callable[[MetricRow], MetricRow]) -> StoredRun:
    """The same run with other rows of how well its baseline answers."""
    rows = [change(found) if found.arm is BASE and found.name == "accuracy" else found for found in one.rows]
    return replace(one, rows=rows)


def test_a_baseline_that_answers_otherwise_sets_its_run_apart_whichever_is_the_better() -> None:
    worse = with_rows(stored("q4"), lambda _: 0.8, "accuracy", BASE)
    for first, second in ((worse, stored("q8")), (stored("q8"), worse)):
        assert "does not answer as that of" in str(row(right_sizing([first, second]), second.short).apart)


def test_baselines_that_are_not_shown_to_answer_otherwise_set_no_run_apart() -> None:
    unsure = baseline_right(stored("q4"), lambda found: replace(found, value=0.8 * found.value, lower=None, upper=None))
    near = baseline_right(stored("q6"), lambda found: replace(found, value=0.99 * found.value))
    assert [one.apart for one in right_sizing([stored("q8"), unsure, near]).rows] == [None] * 4


def with_lax_gate(one: StoredRun) -> StoredRun:
    suite = Suite.from_stored(one.run.suite)
    lax = suite.model_copy(update={"gate": suite.gate.model_copy(update={"alpha": 0.1})})
    return with_suite(one, gate=lax.to_stored()["gate"])


def with_other_deployment(one: StoredRun) -> StoredRun:
    suite: dict[str, Any] = deepcopy(dict(one.run.suite))
    suite["deployments"]["q4"]["model"] = "another"
    return with_suite(one, **suite)


@pytest.mark.parametrize("changed", [with_lax_gate, with_other_deployment])
def test_another_policy_or_deployment_in_the_suite_is_told(changed: Callable[[StoredRun], StoredRun]) -> None:
    told = right_sizing([stored("q8"), changed(stored("q4"))]).notes
    assert [note.split(":")[0] for note in told] == ["the suite of q4 is not that of q8"]


@pytest.mark.parametrize("key", ["cpu", "machine", "cpus", "os"])
def test_load_that_came_from_another_machine_is_told(key: str) -> None:
    there = stored("q4")
    there = replace(there, run=replace(there.run, environment={**there.run.environment, key: "another"}))
    assert "q4 was measured from another machine than q8" in right_sizing([stored("q8"), there]).notes


def test_a_right_answer_costs_its_output_tokens_whatever_good_ones_cost() -> None:
    """36 and 37 of 40 right and two tokens each, at half of what a million output tokens cost before."""
    half = with_rows(stored("q4"), lambda _: 0.5, OUTPUT, OURS)
    found, whole = (row(right_sizing([one]), "q4") for one in (half, stored("q4")))
    assert isinstance(whole.usd, EstimateWithLimits)
    assert isinstance(found.usd_per_correct, EstimateWithLimits)
    assert found.usd == whole.usd
    assert found.usd_per_correct.value == pytest.approx(whole.usd.value / 2 / 1e6 * 2 * 80 / 73)


def test_of_several_waivers_the_one_that_ended_first_is_told() -> None:
    checks = [
        {"id": name, "required": True, "waiver": {"outcome": "BLOCK", "expires": f"2026-01-0{day}"}}
        for name, day in (("ttft", 8), ("accuracy", 7), ("goodput", 9))
    ]
    verdict = {"outcome": "WARN", "guards": [], "checks": checks}
    (found,) = [
        one for one in right_sizing([replace(stored("q4"), verdict=verdict)], as_of=DAY).rows if one.arm is OURS
    ]
    assert found.held_back == "its check accuracy is BLOCK: its waiver held until 2026-01-07"


def test_runs_without_a_candidate_or_a_baseline_are_called_by_their_side() -> None:
    one = stored("q4")
    bare = replace(one, run=replace(one.run, arms={}))
    assert [bare.called(arm) for arm in Arm] == ["baseline", "candidate"]


def paid_otherwise(one: StoredRun, **terms: Any) -> StoredRun:
    """The same run, whose baseline was paid so."""
    dear = replace(one.run.arms[BASE], **terms)
    return replace(one, run=replace(one.run, arms={**one.run.arms, BASE: dear}))


@pytest.mark.parametrize(
    "terms",
    [{"price_usd_per_hour": 9.0}, {"token_prices": {"input": 1.0, "cached_input": 1.0, "output": 4.0}}],
    ids=["by the hour", "by the token"],
)
def test_a_baseline_that_is_paid_otherwise_sets_its_run_apart(terms: dict[str, Any]) -> None:
    found = right_sizing([stored("q8"), paid_otherwise(stored("q4"), **terms)])
    assert row(found, "q4").apart == "its baseline is paid by another price than that of q8"


def test_how_a_baseline_is_used_sets_its_run_apart_only_where_costs_are_as_used() -> None:
    one = paid_otherwise(stored("q4"), price_terms={"overhead_ratio": 0.25, "utilisation_ratio": 1.0})
    assert row(right_sizing([stored("q8"), one]), "q4").apart is None
    as_used = row(right_sizing([stored("q8"), one], in_use=True), "q4")
    assert as_used.apart == "its baseline is paid by another price than that of q8"


def test_a_run_without_a_verdict_has_no_outcome() -> None:
    one = replace(stored("q4"), verdict=None)
    assert (one.outcome, one.waived) == (None, ())


def with_budget(one: StoredRun, objective: str) -> StoredRun:
    budget = {"objective": objective, "window": "30d", "spent": "20%"}
    return with_suite(one, error_budget=ErrorBudget.model_validate(budget).model_dump(mode="json", by_alias=False))


def test_what_production_may_still_lose_is_part_of_what_a_run_is_held_to() -> None:
    """By its own suite, or by the policy that it was judged by instead, where that has one."""
    plain, strict, lax = stored("q4"), with_budget(stored("q4"), "99.9%"), with_budget(stored("q4"), "90%")
    assert len({one.judged_by for one in (plain, strict, lax)}) == 3
    policies = [Suite.from_stored(one.run.suite) for one in (plain, strict)]
    by_plain, by_strict = ([replace(one, policy=policy) for one in (strict, lax)] for policy in policies)
    assert [one.judged_by for one in by_plain] == [strict.judged_by, lax.judged_by]
    assert [one.judged_by for one in by_strict] == [strict.judged_by] * 2


def said_by(one: StoredRun, **prices: float) -> StoredRun:
    """The same run by a suite that says such prices."""
    suite: dict[str, Any] = dict(one.run.suite)
    like = suite["deployments"]["q4"]
    listed = {name: {**like, "price": usd} for name, usd in prices.items()}
    return with_suite(one, deployments={**suite["deployments"], **listed})


def test_candidates_of_two_price_lists_do_not_stand_beside_each_other() -> None:
    """q8 was priced in January and costs less than half by June, when q4 was: which is the cheaper nobody measured."""
    then = said_by(stored("q8", price=0.9, started_at="2026-01-02T01:00:00Z"), q8=0.9, q4=1.0)
    now = said_by(stored("q4", price=0.6, started_at="2026-06-02T01:00:00Z"), q8=0.4, q4=0.6)
    found = as_stored([now, then])
    assert "($0.9/h on 2026-01-02 and $0.6/h on 2026-06-02)" in str(row(found, "q8").apart)
    assert str(row(found, "q8").apart).endswith("let one suite say what it and that of q4 cost, and measure both by it")
    assert (found.cheapest, found.why_none) == (None, "q4 passes, and nothing can be compared with it")


def test_candidates_of_which_both_suites_say_one_price_stand_beside_each_other_whatever_the_day() -> None:
    prices = {"q8": 0.9, "q4": 0.6}
    then, now = (
        said_by(stored(name, price=prices[name], started_at=f"2026-{month}-02T01:00:00Z"), **prices)
        for name, month in (("q8", "01"), ("q4", "06"))
    )
    assert as_stored([now, then]).cheapest == CheapestOption("q4", ())
    untold = said_by(stored("q8", price=0.9), q8=0.9)
    assert as_stored([now, untold]).cheapest is None  # what q4 cost on its day nobody says


def test_a_candidate_without_a_cost_is_of_no_price_list() -> None:
    found = right_sizing([stored("free", price=None), stored("q8", price=0.9), stored("q4", price=0.6)])
    assert [one.apart for one in found.rows] == [None] * 4
    assert found.cheapest == CheapestOption("q4", ())
