"""Dollars that say less beside others than they seem to: which are not counted, and what the others are told with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchgate.cost.frontier import Cheapest
from benchgate.gate.alike_runs import StoredRun
from benchgate.gate.doubts import doubts_of_candidate
from benchgate.model.deployment import Arm
from benchgate.report.frontier import frontier_document, frontier_text, last_line
from benchgate.stats.recovered import Figure
from tests.core.test_right_sizing import BASE, HALF_USED, OURS, right_sizing, row, stored


def with_arm(one: StoredRun, arm: Arm, **told: Any) -> StoredRun:
    changed = replace(one.run.arms[arm], **told)
    return replace(one, run=replace(one.run, arms={**one.run.arms, arm: changed}))


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (
            {"facts": {"accelerator_names": ["NVIDIA H200"] * 8}},
            "it is paid for 1 accelerator, and its server tells of 8",
        ),
        (
            {"facts": {"accelerator_names": ["NVIDIA H200"]}, "price_entry": {"accelerator": "A100"}},
            "it has the price of accelerator A100, and its server tells of NVIDIA H200",
        ),
    ],
    ids=["one of eight", "another kind"],
)
def test_a_price_of_something_else_than_what_ran_is_no_cost(told: dict[str, Any], says: str) -> None:
    found = right_sizing([with_arm(stored("q8", price=0.5), OURS, **told), stored("q4", price=0.6)])
    assert row(found, "q8").usd == f"its price is not of what ran: {says}"
    assert found.cheapest == Cheapest("q4", ())
    assert f"q8 has no cost: its price is not of what ran: {says}." in frontier_text(found)


def test_a_baseline_that_is_paid_for_more_than_it_has_is_told_beside_it() -> None:
    eight = {"facts": {"accelerator_names": ["H200"] * 4}, "accelerators": 8}
    found = right_sizing([with_arm(stored("q8"), BASE, **eight)])
    (doubt,) = row(found, "f16 (baseline)").doubts
    assert doubt == "it is paid for 8 accelerators, and its server tells of 4, so the others may seem cheaper beside it"
    assert row(found, "q8").doubts == ()


def test_tokens_of_another_vocabulary_are_told_with_the_cheapest() -> None:
    large, small = stored("q8", price=1.2), stored("q4", price=0.6)
    some = [with_arm(large, OURS, facts={"n_vocab": 152064}), with_arm(small, OURS, facts={"n_vocab": 32000})]
    found = right_sizing(some)
    doubt = "its vocabulary may be another than that of q8, so as many tokens are other texts"
    assert row(found, "q4").doubts == (doubt,)
    assert row(found, "q8").doubts == (doubt.replace("q8", "q4"),)
    assert last_line(found).startswith("The cheapest that passes is q4 (PASS, doubtful): ")
    assert f"q4 costs what does not compare as it seems: {doubt}." in frontier_text(found)
    assert {row["name"]: row["doubts"] for row in _rows(found)}["q4"] == [doubt]
    assert "doubtful" not in frontier_text(right_sizing([some[0]]))  # the baseline tells of none


def _rows(found: Any) -> Any:
    return frontier_document(found)["rows"]


def test_one_that_idles_more_than_the_others_is_told_where_costs_are_at_full_use() -> None:
    idle = with_arm(stored("q8", price=0.5), OURS, price_terms={**HALF_USED, "utilisation_ratio": 0.05})
    found = right_sizing([idle, stored("q4", price=0.6)])
    (doubt,) = row(found, "q8").doubts
    assert doubt.startswith("20 times the cost at full use is paid for q8 as it is used, 1 times for f16, and the cost")
    assert row(found, "q4").doubts == ()
    assert row(right_sizing([idle], in_use=True), "q8").doubts == ()


@pytest.mark.parametrize("kept", [True, False], ids=["no price", "no deployment"])
def test_one_with_no_cost_to_be_held_against_is_in_no_doubt(kept: bool) -> None:
    one = stored("q8")
    unpriced = {BASE: replace(one.run.arms[BASE], price_usd_per_hour=None)} if kept else {}
    alone = replace(one, run=replace(one.run, arms={OURS: one.run.arms[OURS], **unpriced}))
    assert doubts_of_candidate(alone, [alone], in_use=False) == ()


def test_one_that_idles_less_than_the_baseline_is_held_against_the_others_too() -> None:
    uses = {"q8": 0.25, "q4": 0.5}
    some = [
        with_arm(
            with_arm(stored(name), OURS, price_terms={**HALF_USED, "utilisation_ratio": use}),
            BASE,
            price_terms={**HALF_USED, "utilisation_ratio": 0.1},
        )
        for name, use in uses.items()
    ]
    found = right_sizing(some)
    assert "4 times the cost at full use is paid for q8 as it is used, 2 times for q4" in row(found, "q8").doubts[0]
    assert row(found, "q4").doubts == ()
    assert isinstance(row(found, "q8").usd, Figure)
