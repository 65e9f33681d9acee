"""Prices of two days, where runs were measured alone or are paid by the token."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from benchgate.gate.comparison import UntiedRuns, compare
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome
from tests.core.test_gate_cost import HOSTED, OUTPUT, QUIET, hosted, with_arm
from tests.core.test_priced_between import of_list, repriced
from tests.fakes.apart import Line, alone, check_of, known
from tests.fakes.measured import SuiteText, measured

COST: Line = {"metric": OUTPUT, "margin": "5%"}


def paid(evidence: Evidence, usd: float) -> Evidence:
    arms = {arm: replace(one, price_usd_per_hour=usd) for arm, one in evidence.run.arms.items()}
    return replace(evidence, run=replace(evidence.run, arms=arms))


def test_price_that_moved_between_two_runs_measured_alone_is_nothing_that_either_did() -> None:
    def check(now: float, then: float) -> CheckResult:
        return check_of(paid(alone(seed=2), now), known(paid(alone(), then)), COST)

    moved = check(2.0, 4.0)
    assert moved.outcome is Outcome.INVALID
    assert "($4/h on 2026-01-01 and $2/h on 2026-01-01)" in moved.reason
    assert "of no one price list" not in check(4.0, 4.0).reason


def test_a_baseline_that_was_not_measured_ties_nothing_and_may_have_any_price() -> None:
    now, then = paid(alone(seed=2), 4.0), paid(alone(), 4.0)
    dear = {**now.run.arms, Arm.BASELINE: replace(now.run.arms[Arm.BASELINE], price_usd_per_hour=9.0)}
    comparison = compare(replace(now, run=replace(now.run, arms=dear)), then)
    assert isinstance(comparison, UntiedRuns)
    assert repriced(comparison) is None


def test_token_prices_that_moved_between_two_runs_are_told_one_by_one() -> None:
    """By one suite both candidates are called the same, so its own price list says nothing of the other day."""
    suite = SuiteText([COST]).suite()
    now, then = (hosted(measured(suite, noise=QUIET), Arm.CANDIDATE, {**HOSTED, "output": usd}) for usd in (2.0, 4.0))
    found = repriced(compare(now, then))
    assert found is not None
    assert found.outcome is Outcome.INVALID
    told = "$0.5/M of cached input, $1/M of input, ${}/M of output on 2026-01-01"
    assert f"({told.format(4)} and {told.format(2)})" in found.reason
    assert repriced(compare(now, now)) is None


def test_a_run_without_a_baseline_is_tied_to_no_other_by_what_its_baseline_cost() -> None:
    one = paid(measured(SuiteText([COST]).suite(), noise=QUIET), 4.0)
    other = replace(one, run=replace(one.run, arms={Arm.CANDIDATE: one.run.arms[Arm.CANDIDATE]}))
    for comparison in (compare(one, other), compare(other, one)):
        found = repriced(comparison)
        assert found is not None
        assert "its cost ties nothing together" in found.reason


def on(evidence: Evidence, *names: str) -> Evidence:
    """Whose candidate's server tells of these accelerators."""
    return with_arm(evidence, Arm.CANDIDATE, facts={"accelerator_names": list(names)})


def test_one_name_at_one_price_on_unlike_accelerators_is_of_no_one_price_list() -> None:
    """Both suites say the same of the name, and it stood for two things."""
    evidence = measured(SuiteText([COST]).suite(), noise=QUIET)
    small = of_list(evidence, "small", small=2.0)
    found = repriced(compare(on(small, "H200"), on(small, "A100")))
    assert found is not None
    assert found.outcome is Outcome.INVALID
    for told, untold in ((on(small, "H200"), small), (on(small, "H200"), on(small))):
        assert repriced(compare(told, untold)) is None


def test_one_price_of_accelerators_of_two_kinds_is_of_no_one_price_list() -> None:
    """By what the suites say: the price of the one may have been another on the day of the other."""
    evidence = measured(SuiteText([COST]).suite(), noise=QUIET)

    def of_kind(name: str, accelerator: str) -> Evidence:
        one = of_list(evidence, name, **{name: 2.0})
        suite: dict[str, Any] = deepcopy(dict(one.run.suite))
        suite["deployments"][name]["accelerator"] = accelerator
        return replace(one, run=replace(one.run, suite=suite))

    alike = repriced(compare(of_kind("small", "h200"), of_kind("large", "h200")))
    unlike = repriced(compare(of_kind("small", "h200"), of_kind("large", "a100")))
    assert alike is None
    assert unlike is not None
    assert unlike.outcome is Outcome.INVALID


def test_a_price_that_this_version_cannot_read_the_suite_of_is_of_no_one_price_list() -> None:
    evidence = measured(SuiteText([COST]).suite(), noise=QUIET)

    def of_tomorrow(name: str) -> Evidence:
        one = of_list(evidence, name, small=2.0, large=2.0)
        suite: dict[str, Any] = deepcopy(dict(one.run.suite))
        suite["deployments"][name]["chiplets"] = 4
        return replace(one, run=replace(one.run, suite=suite))

    now, then = of_tomorrow("large"), of_list(evidence, "small", small=2.0, large=2.0)
    for comparison in (compare(now, then), compare(then, now)):
        found = repriced(comparison)
        assert found is not None
        assert found.outcome is Outcome.INVALID
        assert "this version of benchgate cannot read" in found.reason
