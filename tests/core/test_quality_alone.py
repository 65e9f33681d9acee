"""What must not be hidden: the one task behind an average, the task nobody looks at, the eval that was cut off."""

from __future__ import annotations

import pytest

from benchgate.gate.decide import judge
from benchgate.model.verdict import Outcome, Verdict
from tests.fakes.evals import Answers, Line, evidence_of, right_but, suite_of

WELL = Answers(right_but(200))
FLOOR: Line = {"metric": "accuracy", "min": "90%"}
BY_DEGREES = {"scale": "continuous"}


def verdict_on(checks: list[Line], names: list[str], tasks: dict[str, tuple[Answers, Answers]]) -> Verdict:
    suite = suite_of(checks, names)
    return judge(suite, evidence_of(suite, tasks))


def tripped(verdict: Verdict) -> list[str]:
    return [guard.id for guard in verdict.guards if guard.tripped]


def test_a_floor_over_many_tasks_names_the_one_that_misses_it() -> None:
    tasks = {f"t{i}": (WELL, WELL) for i in range(29)}
    assert verdict_on([FLOOR], [*tasks, "last"], {**tasks, "last": (WELL, WELL)}).outcome is Outcome.PASS
    verdict = verdict_on([FLOOR], [*tasks, "last"], {**tasks, "last": (WELL, Answers([0.0] * 200))})
    assert verdict.outcome is Outcome.WARN
    assert "but last alone reaches only 0 %" in verdict.reason


@pytest.mark.parametrize("line", [{"metric": "accuracy", "task": "each", "margin": "2 points"}, FLOOR])
def test_a_group_names_the_one_of_its_tasks_that_broke(line: Line) -> None:
    tasks = {f"mmlu/leaf{i}": (WELL, WELL) for i in range(56)}
    verdict = verdict_on([line], ["mmlu"], {**tasks, "mmlu/law": (WELL, Answers(right_but(200, *range(120))))})
    assert verdict.outcome is Outcome.WARN
    assert "mmlu/law alone" in verdict.reason


def test_a_group_that_is_scored_by_degrees_does_so_too() -> None:
    scores = [0.5 + i % 7 / 20 for i in range(200)]
    whole, gone = Answers(scores, harness=BY_DEGREES), Answers([0.1] * 200, harness=BY_DEGREES)
    tasks = {f"long/{i}": (whole, whole) for i in range(9)}
    verdict = verdict_on([{"metric": "score", "margin": "20 points"}], ["long"], {**tasks, "long/qa": (whole, gone)})
    assert verdict.outcome is Outcome.WARN
    assert "long/qa alone fell by 54.9 points" in verdict.reason


def test_no_more_than_three_are_named() -> None:
    tasks = {f"t{i}": (WELL, Answers(right_but(200, *range(100 + i)))) for i in range(5)}
    well = {f"w{i}": (WELL, WELL) for i in range(30)}
    verdict = verdict_on([{"metric": "accuracy", "margin": "20 points"}], [*tasks, *well], {**tasks, **well})
    assert "t4 alone fell by 52.0 points, t3 alone fell by 51.5 points" in verdict.reason
    assert "2 more likewise" in verdict.reason


def test_a_score_that_has_hardly_anything_to_lose_proves_nothing() -> None:
    low = Answers([i % 7 / 100 for i in range(500)], harness=BY_DEGREES)
    nothing = Answers([0.0] * 500, harness=BY_DEGREES)
    line: Line = {"metric": "score", "margin": "5 points"}
    verdict = verdict_on([line], ["bleu"], {"bleu": (low, nothing)})
    assert verdict.outcome is Outcome.INVALID
    assert "mean score on bleu is only 0.0299: a candidate that scores nothing could stay inside" in verdict.reason
    small: Line = {"metric": "score", "margin": "1 points"}
    assert verdict_on([small], ["bleu"], {"bleu": (low, nothing)}).outcome is Outcome.BLOCK
    negative = Answers(
        [-2 + i % 7 / 100 for i in range(500)], harness=BY_DEGREES
    )  # log-probabilities, of which 0 is best
    assert verdict_on([line], ["lp"], {"lp": (negative, negative)}).outcome is not Outcome.INVALID


def test_a_required_check_leaves_no_task_to_one_that_is_advisory() -> None:
    by_degrees = Answers([0.9] * 200, harness=BY_DEGREES), Answers([0.0] * 200, harness=BY_DEGREES)
    accuracy: Line = {"metric": "accuracy", "margin": "5 points"}
    score: Line = {"metric": "score", "margin": "5 points"}
    tasks = {"a": (WELL, WELL), "s": by_degrees}
    advisory = verdict_on([accuracy, {**score, "required": False}], list(tasks), tasks)
    assert advisory.outcome is Outcome.INVALID
    assert "the answers to s are scored by degrees" in advisory.reason
    named = verdict_on([{**accuracy, "task": "a"}, {**score, "required": False}], list(tasks), tasks)
    assert named.outcome is Outcome.WARN  # so it was said
    assert verdict_on([accuracy, score], list(tasks), tasks).outcome is Outcome.BLOCK
    alone = verdict_on([score], ["a"], {"a": (WELL, Answers([0.0] * 200))})
    assert alone.outcome is Outcome.INVALID
    assert "the answers to a are right or wrong" in alone.reason


def test_what_was_stopped_for_harm_is_promoted_by_no_other_policy() -> None:
    stopped = {"stopped_early": {"items": 20}}
    tasks = {
        "a": (WELL, WELL),
        "b": (
            Answers([1.0] * 20, expected_n=200, harness=stopped),
            Answers([0.0] * 20, expected_n=200, harness=stopped),
        ),
    }
    a: Line = {"metric": "accuracy", "task": "a", "margin": "5 points"}
    b: Line = {**a, "task": "b"}
    own = verdict_on([a, b], list(tasks), tasks)
    assert (own.outcome, tripped(own)) == (Outcome.BLOCK, [])
    for others in ([a], [a, {**b, "required": False}]):
        verdict = verdict_on(others, list(tasks), tasks)
        assert verdict.outcome is Outcome.INVALID
        assert "stopped early because harm was certain, and no required check looks at task b" in verdict.reason
    assert verdict_on([a, {**b, "margin": "99 points"}], list(tasks), tasks).outcome is Outcome.INCONCLUSIVE
