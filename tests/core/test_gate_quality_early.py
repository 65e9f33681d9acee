"""Evals that were stopped early: what they may decide, and what stops them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchgate.gate.checks.accuracy import certain_regression
from benchgate.gate.judge import judge
from benchgate.model.verdict import Outcome, Unit
from tests.core.test_gate_quality import ACCURACY, BY_DEGREES, EACH, answers, losing, only, verdict_on
from tests.fakes.evals import Answers, Line, evidence_of, suite_of

# stopped early


def stopped(n: int, lost: int, *, expected: int = 500) -> tuple[Answers, Answers]:
    theirs, ours = losing(n, lost)
    known = {"stopped_early": {"items": n}}
    return (
        replace(theirs, expected_n=expected, harness=known),
        replace(ours, expected_n=expected, harness=known),
    )


def test_evals_that_were_stopped_early_can_block_and_do_nothing_else() -> None:
    blocked = verdict_on([EACH], {"t": stopped(40, 30)})
    assert blocked.outcome is Outcome.BLOCK
    assert "stopped early, after 40 items" in only(blocked).notes[0]
    both = verdict_on([ACCURACY], {"t": stopped(40, 30), "u": stopped(40, 30)})
    assert (only(both).n, "80 items)" in both.reason) == (80, True)
    assert verdict_on([EACH], {"t": stopped(400, 0)}).outcome is Outcome.INCONCLUSIVE
    floor: Line = {"metric": "accuracy", "min": "5%"}
    for line in (floor, {**EACH, "block_when": "breach"}):
        assert verdict_on([line], {"t": stopped(400, 0)}).outcome is Outcome.INCONCLUSIVE


def test_what_cannot_be_judged_is_shown_as_it_was_measured() -> None:
    check = only(verdict_on([EACH], {"t": stopped(40, 1)}))
    assert (check.outcome, check.n, check.baseline, check.candidate) == (Outcome.INCONCLUSIVE, 40, 1.0, 39 / 40)
    assert "show no regression beyond the margin" in check.reason
    clustered = Answers([1.0] * 100, clusters=[str(i % 3) for i in range(100)])
    few = verdict_on([ACCURACY], {"t": (clustered, clustered)})
    assert (only(few).n, only(few).baseline, only(few).harm) == (100, 1.0, None)
    assert "Accuracy over all tasks: the items of t come in only 3 clusters" in few.reason
    by_points = replace(answers(*[40.0] * 50), harness=BY_DEGREES)
    scale = only(verdict_on([ACCURACY], {"t": (by_points, by_points)}))
    assert (scale.outcome, scale.unit, scale.candidate) == (Outcome.INVALID, Unit.COUNT, 40.0)


def test_only_both_arms_stopped_together_are_stopped() -> None:
    theirs, ours = stopped(40, 30)
    alone = replace(ours, harness={})
    assert verdict_on([EACH], {"t": (theirs, alone)}).outcome is Outcome.INVALID


def test_what_a_run_is_stopped_for_is_what_the_gate_then_blocks() -> None:
    checks: list[Line] = [EACH, {**ACCURACY, "margin": "3 points"}]
    suite = suite_of(checks, ["a", "b"], stop_early=True)
    generator = np.random.default_rng(9)
    theirs = {task: (generator.random(200) < 0.95).astype(float).tolist() for task in "ab"}
    ours = {task: (generator.random(200) < 0.20).astype(float).tolist() for task in "ab"}
    known = {"stopped_early": True}
    asked, found, evidence = 0, None, evidence_of(suite, {})
    while found is None and asked < 200:
        asked += 5
        tasks = {
            task: (
                Answers(theirs[task][:asked], expected_n=200, harness=known),
                Answers(ours[task][:asked], expected_n=200, harness=known),
            )
            for task in "ab"
        }
        evidence = evidence_of(suite, tasks)
        by_task = {
            task: (evidence.quality[2 * i].items, evidence.quality[2 * i + 1].items) for i, task in enumerate("ab")
        }
        found = certain_regression(suite, by_task)
    assert asked <= 30  # of each of two tasks
    verdict = judge(suite, evidence)
    assert verdict.outcome is Outcome.BLOCK
    assert next(check for check in verdict.checks if check.id == found).outcome is Outcome.BLOCK


def test_nothing_is_stopped_for_an_equal_candidate_or_by_an_advisory_check() -> None:
    suite = suite_of([EACH, {**ACCURACY, "required": False}], ["a"])
    evidence = evidence_of(suite, {"a": losing(200, 2, 2)})
    items = {"a": (evidence.quality[0].items, evidence.quality[1].items)}
    assert certain_regression(suite, items) is None
    advisory = suite_of([{**EACH, "required": False}, {"metric": "accuracy", "min": "1%"}], ["a"])
    broken = evidence_of(advisory, {"a": losing(100, 90)})
    assert certain_regression(advisory, {"a": (broken.quality[0].items, broken.quality[1].items)}) is None


def test_losses_that_the_token_limit_made_stop_nothing_and_block_nothing() -> None:
    theirs, ours = stopped(60, 50)
    cut = replace(ours, finish={i: "length" for i in range(50)})
    suite = suite_of([EACH], ["t"])
    evidence = evidence_of(suite, {"t": (theirs, cut)})
    assert certain_regression(suite, {"t": (evidence.quality[0].items, evidence.quality[1].items)}) is None
    verdict = judge(suite, evidence)
    assert verdict.outcome is Outcome.INVALID
    assert "cut short by the token limit" in verdict.reason


def test_a_run_is_stopped_only_for_what_many_checks_together_cannot_take_back() -> None:
    tasks = {name: losing(12, 7 if name == "t0" else 0) for name in (f"t{i}" for i in range(12))}
    found: dict[int, str | None] = {}
    for checks in ([{**EACH, "task": "t0"}], [EACH]):
        suite = suite_of(checks, list(tasks))
        evidence = evidence_of(suite, tasks)
        found[len(found)] = certain_regression(
            suite,
            {task: (evidence.quality[2 * i].items, evidence.quality[2 * i + 1].items) for i, task in enumerate(tasks)},
        )
    assert found == {0: "accuracy@t0", 1: None}


def test_a_group_that_was_stopped_early_has_no_order_of_its_items_and_shows_nothing() -> None:
    suite = suite_of([EACH], ["mmlu"])
    verdict = judge(suite, evidence_of(suite, {"mmlu/law": stopped(40, 39), "mmlu/math": stopped(40, 39)}))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    alone = suite_of([{**EACH, "task": "mmlu/law"}], ["mmlu"])
    evidence = evidence_of(alone, {"mmlu/law": stopped(40, 39), "mmlu/math": stopped(40, 39)})
    assert judge(alone, evidence).outcome is Outcome.BLOCK


def test_a_task_by_degrees_stops_nothing_that_is_judged_by_accuracy_even_if_its_scores_are_0_or_1() -> None:
    suite = suite_of([{**ACCURACY, "margin": "2 points"}], ["a", "b"], stop_early=True)
    seen = evidence_of(suite, {"a": losing(400, 0), "b": losing(400, 60)}).quality
    items = {"a": (seen[0].items, seen[1].items), "b": (seen[2].items, seen[3].items)}
    assert certain_regression(suite, items) == "accuracy"
    assert certain_regression(suite, items, {"b"}) is None
