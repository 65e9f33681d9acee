"""Right-sizing where a run has less than the others: fewer tasks, no cost of its baseline, nothing at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.model.deployment import Arm
from benchgate.sizing.candidates import StoredRun
from benchgate.sizing.frontier import CheapestOption, FrontierPosition, FrontierStatus
from benchgate.stats.meta import EstimateWithLimits
from tests.core.test_right_sizing import (
    BASE,
    OURS,
    right_sizing,
    row,
    slow_hour,
    stored,
    with_rows,
)


def in_parts(one: StoredRun, *arms: Arm) -> StoredRun:
    """The same run, of whose task `add` two parts were observed: the second one on these arms alone."""
    of_add = [found for found in one.rows if found.task == "add"]
    rest = [found for found in one.rows if found.task != "add"]
    first = [replace(found, task="add/one") for found in of_add]
    second = [replace(found, task="add/two") for found in of_add if found.arm in arms]
    return replace(one, rows=[*rest, *first, *second])


@pytest.mark.parametrize("answered", [(), (BASE,)], ids=["on neither arm", "on the baseline alone"])
@pytest.mark.parametrize("is_newest", [True, False])
def test_a_part_of_a_task_that_any_run_was_asked_is_missed_in_the_others(
    answered: tuple[Arm, ...], is_newest: bool
) -> None:
    whole, less = in_parts(stored("q8"), *Arm), in_parts(stored("q4", price=0.1), *answered)
    found = right_sizing([less, whole] if is_newest else [whole, less])
    assert row(found, "q4").quality == "task add/two was not answered whole on the candidate"
    assert row(found, "q4").stand == FrontierPosition(FrontierStatus.NOT_COUNTED)
    assert isinstance(row(found, "q8").quality, EstimateWithLimits)


def test_the_baseline_of_the_table_is_one_whose_cost_counts() -> None:
    late = {"tripped": True, "spoils": ["speed"], "reason": "the client was late"}
    spoiled = replace(stored("q4"), verdict={"outcome": "BLOCK", "guards": [late], "checks": []})
    found = right_sizing([spoiled, stored("q8")])
    (base,) = [one for one in found.rows if one.arm is BASE]
    assert isinstance(base.usd, EstimateWithLimits)
    assert base.run.id == row(found, "q8").run.id
    assert row(found, "q4").usd == "the client was late"
    assert row(found, "q4").share == "the client was late"
    assert found.cheapest == CheapestOption("q8", ())
    alone = right_sizing([spoiled])
    assert [(one.usd, one.share) for one in alone.rows] == [("the client was late",) * 2] * 2


def test_rows_stand_with_the_baseline_first_and_then_by_cost_with_what_has_none_last() -> None:
    some = [
        stored("dear", price=3.0),
        stored("free", price=None),
        stored("slim", price=0.5),
        stored("Bare", price=None),
    ]
    names = [one.name for one in right_sizing(some).rows]
    assert names == ["f16 (baseline)", "slim", "dear", "Bare", "free"]


def test_two_runs_of_one_candidate_are_told_apart_by_what_each_is_called() -> None:
    old = with_rows(stored("q4", label="old"), lambda _: 0.5, "usd_", OURS)
    found = right_sizing([stored("q4", label="new"), old, stored("q8")])
    assert {one.name for one in found.rows if one.arm is OURS} == {"q4 (new)", "q4 (old)", "q8"}
    assert found.cheapest == CheapestOption("q4 (old)", ())


def test_one_that_passes_beside_another_baseline_than_the_others_is_told_and_not_named() -> None:
    other = stored("q4", price=0.1)
    dear = replace(other.run.arms[BASE], price_usd_per_hour=9.0)
    other = replace(other, run=replace(other.run, arms={**other.run.arms, BASE: dear}))
    found = right_sizing([stored("q8", "BLOCK"), other])
    assert (found.cheapest, found.saving) == (None, None)
    why = "none that can be compared passes: 1 BLOCK; what passes cannot be compared with them: q4"
    assert found.why_none == why


@pytest.mark.parametrize("outcome", ["PASS", "WARN", "BLOCK", "INCONCLUSIVE", "INVALID"])
def test_only_what_its_verdict_lets_through_is_the_cheapest(outcome: str) -> None:
    found = right_sizing([stored("q8"), stored("q4", outcome, price=0.1)])
    assert row(found, "q4").passes is (outcome in ("PASS", "WARN"))
    assert found.cheapest == CheapestOption("q4" if outcome in ("PASS", "WARN") else "q8", ())


def test_what_the_baseline_cost_is_told_beside_the_candidate_it_stood_beside() -> None:
    found = right_sizing([stored("q8", price=1.5), slow_hour("q4", 1.4, price=1.2)])
    assert "by dollars it is q8, and against the baseline beside each q4" in str(found.why_none)
    assert "itself costs $2.27 beside the one and $3.17 beside the other" in str(found.why_none)


def test_what_the_baseline_alone_was_asked_is_missed_in_its_candidate() -> None:
    found = right_sizing([in_parts(stored("q8"), BASE)])
    assert row(found, "q8").quality == "task add/two was not answered whole on the candidate"
