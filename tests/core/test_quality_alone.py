"""What must not be hidden: the one task behind an average, the task nobody looks at, the eval that was cut off."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchgate.gate.checks.accuracy import PartTest, broken_parts
from benchgate.gate.comparison import compare
from benchgate.gate.evidence.items import Pairs, pair_units
from benchgate.gate.judge import judge
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
        assert "stopped early because a regression was certain, but no required check covers task b" in verdict.reason
    assert verdict_on([a, {**b, "margin": "99 points"}], list(tasks), tasks).outcome is Outcome.INCONCLUSIVE


# Which parts are looked at, by p-values that are said


def looked_at(
    units: Mapping[str, tuple[str, ...]], tasks: Mapping[str, Answers], p_values: Mapping[str, float]
) -> tuple[dict[str, bool], str | None]:
    """Return the parts by name, each with whether its clusters counted, and the warning about those that broke."""
    suite = suite_of([FLOOR], list(units))
    comparison = compare(evidence_of(suite, {name: (arm, arm) for name, arm in tasks.items()}))
    paired = pair_units(comparison, units)
    tested: dict[str, bool] = {}

    def test(one: Pairs) -> PartTest:
        tested[one.name] = one.clusters is not None
        p_value = p_values.get(one.name, 1.0)
        return PartTest(p_value, 1 - p_value, one.name)

    return tested, broken_parts(comparison, units, paired, 0.05, test)


FEW, MANY = (Answers([1.0] * 40, clusters=[str(i % count) for i in range(40)]) for count in (3, 20))
SMALL = Answers([1.0] * 40)


@pytest.mark.parametrize(
    ("units", "parts"),
    [
        ({"a": ("a",)}, []),  # which the check itself judges
        ({"a": ("a",), "b": ("b",)}, ["a", "b"]),
        ({"g": ("a", "b")}, ["a", "b"]),
        ({"g": ("a", "b", "one", "two")}, ["a", "b", "two"]),  # of one item alone nothing can be said
        ({"g": ("a", "b"), "c": ("c",)}, ["g", "c", "a", "b"]),
    ],
)
def test_every_part_of_an_average_is_looked_at(units: dict[str, tuple[str, ...]], parts: list[str]) -> None:
    tasks = {**dict.fromkeys("abc", SMALL), "one": Answers([1.0]), "two": Answers([1.0] * 2)}
    assert list(looked_at(units, tasks, {})[0]) == parts


@pytest.mark.parametrize(
    ("p_values", "said"),
    [
        ({"a": 0.025}, "a"),  # of two at 5 % together
        ({"a": 0.026}, None),
        ({"a": 0.026, "b": 0.024}, "b, a"),
        ({"a": 0.01, "b": 0.02}, "a, b"),
        ({}, None),
    ],
)
def test_parts_are_named_where_they_are_shown_to_have_broken_together(
    p_values: dict[str, float], said: str | None
) -> None:
    assert looked_at({"a": ("a",), "b": ("b",)}, dict.fromkeys("ab", SMALL), p_values)[1] == said


def test_the_three_worst_are_named_and_the_others_counted() -> None:
    names = "abcde"
    broken = {name: 0.001 * place for place, name in enumerate(names, start=1)}
    units = {name: (name,) for name in names}
    assert looked_at(units, dict.fromkeys(names, SMALL), broken)[1] == "a, b, c, 2 more likewise"
    three = {name: broken[name] for name in "abc"}
    assert looked_at(units, dict.fromkeys(names, SMALL), three)[1] == "a, b, c"


def test_a_part_of_few_clusters_is_looked_at_item_by_item() -> None:
    seen, _ = looked_at({"g": ("few", "many")}, {"few": FEW, "many": MANY}, {})
    assert seen == {"few": False, "many": True}
