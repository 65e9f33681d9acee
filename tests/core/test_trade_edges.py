"""A gain pays for a cost only where it is that very gain: of its metric, at its place, by a plain margin."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchgate.gate.decide import judge
from benchgate.gate.trading import traded
from benchgate.model.verdict import CheckResult, Outcome
from benchgate.stats.limits import Limits
from benchgate.suite.schema import Suite
from benchgate.suite.trade import Trade
from tests.core.test_gate_trade import COST, TRADE, TTFT, cost_check, finding, run_of, suite_of

NOT_JUDGED = "not traded: a gain in ttft of 20 % could not be judged"


def test_a_gain_buys_its_own_margin_and_not_that_of_the_check_on_top() -> None:
    """18 % dearer: more than the 15 % that a gain buys, and less than those and the check's own 5 % together."""
    assert cost_check(suite_of(), 0.7, 1.18).outcome is Outcome.BLOCK


def test_a_bound_on_the_same_metric_does_not_hide_the_gain_beside_it() -> None:
    suite = suite_of({"metric": "ttft", "max": "10s"}, TTFT)
    assert cost_check(suite, 0.7, 1.10).outcome is Outcome.WARN


@pytest.mark.parametrize(
    "other",
    [
        {"metric": "ttft", "max": "10s"},  # it judges no gain
        {**TTFT, "min_abs": "1ms"},  # what it takes for no harm is no gain either
        {**TTFT, "direction": "either"},  # whose harm has no side
        {"metric": "tpot", "margin": "10%"},
    ],
)
def test_only_a_plain_margin_on_the_metric_shows_a_gain(other: dict[str, object]) -> None:
    found = cost_check(suite_of(other), 0.7, 1.10)
    assert found.outcome is Outcome.BLOCK
    assert NOT_JUDGED in found.notes


def over_two_stages(*, faster_at: str) -> CheckResult:
    """The check of the cost at c8 of a candidate that costs 10 % more there, with a gain of 30 % at one stage."""
    asked = suite_of({**TTFT, "stage": "c4"}, {**TTFT, "stage": "c8"}).to_stored()
    asked["load"]["sweep"].append({**asked["load"]["sweep"][0], "name": "c8"})
    asked["gate"]["checks"][0]["stage"] = "c8"
    suite = Suite.from_stored(asked)
    fast, level = run_of(suite, 0.7, 1.10), run_of(suite, 1.0, 1.10)
    load = tuple(quick if quick.stage == faster_at else slow for quick, slow in zip(fast.load, level.load, strict=True))
    run = fast.run if faster_at == "c8" else level.run  # at the price that makes tokens at c8 cost so much
    return next(one for one in judge(suite, replace(fast, run=run, load=load)).checks if one.metric == COST)


def test_a_gain_at_another_stage_buys_nothing() -> None:
    assert over_two_stages(faster_at="c8").outcome is Outcome.WARN
    elsewhere = over_two_stages(faster_at="c4")
    assert elsewhere.outcome is Outcome.BLOCK
    assert "not traded: a gain in ttft of 20 % is not shown" in elsewhere.notes


def test_a_fifth_more_throughput_is_six_fifths_of_it() -> None:
    """ln 1.2 is 0.18232; a fifth less time would be ln 0.8 = -0.22314."""
    trade = Trade.model_validate({**TRADE, "for": "output_throughput"})
    assert traded(finding(-0.1824), trade).shown
    assert not traded(finding(-0.1822), trade).shown


def test_more_blocks_may_show_a_gain_only_where_the_limits_reach_that_far() -> None:
    """Down to ln 0.8, which is -0.22314, or not so far."""
    trade = Trade.model_validate(TRADE)
    found = [traded(finding(0.1, limits=Limits(low, 0.1)), trade) for low in (-0.2232, -0.2230, math.nan)]
    assert [one.shown for one in found] == [False, False, False]
    assert [one.open for one in found] == [True, False, False]
