"""Answers that say nothing: how many of them are too many, of which items, and on which arm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.evidence.items import is_empty, too_many
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.verdict import GuardResult, Outcome
from tests.fakes.evals import Answers, evidence_of, observation, right_but, suite_of
from tests.fakes.guards import one_of_evals

WELL = Answers(right_but(300))
EMPTY, READABLE = "answers-not-empty", "answers-readable"


def guard(name: str, allowed: str, *tasks: tuple[Answers, Answers]) -> GuardResult:
    """What a guard says of a group of these tasks, where so many empty answers are allowed."""
    suite = suite_of([{"metric": "accuracy", "margin": "9 points"}], ["t"], max_empty_ratio=allowed)
    return one_of_evals(name, evidence_of(suite, {f"t/{i}": arms for i, arms in enumerate(tasks)}), suite)


def empty(n: int, count: int, *, failed: int = 0) -> Answers:
    """n items, the first so many of them answered with nothing, the last so many not answered at all."""
    scores: list[float | None] = [0.0] * count + [1.0] * (n - count - failed) + [None] * failed
    return Answers(scores, answers=dict.fromkeys(range(count), " \n"))


def cut(n: int, count: int) -> Answers:
    """n items, the first so many of them wrong and cut short."""
    return Answers(right_but(n, *range(count)), finish=dict.fromkeys(range(count), "length"))


@pytest.mark.parametrize(
    ("odd", "n", "allowed", "found"),
    [
        (0, 50, 0.0, False),
        (1, 50, 0.0, True),
        (0.25, 50, 0.0, True),  # one asking of four
        (2, 50, 0.01, False),
        (2.25, 50, 0.01, True),
        (3, 300, 0.01, False),
        (4, 300, 0.01, True),
        (30, 300, 0.10, False),
        (31, 300, 0.10, True),
        (2, 2, 1e-9, False),
    ],
)
def test_odd_answers_are_too_many_beyond_the_allowed_share_and_beyond_two(
    odd: float, n: int, allowed: float, found: bool
) -> None:
    assert too_many(odd, n, allowed) is found


def test_an_answer_that_was_never_kept_is_empty() -> None:
    (item,) = observation("t", Arm.BASELINE, Answers([1.0])).items
    assert not is_empty(item)
    assert is_empty(replace(item, answer=None)) and is_empty(replace(item, answer="\t "))


@pytest.mark.parametrize(
    ("n", "few", "many", "differ"), [(300, 0, 3, False), (300, 0, 4, True), (300, 20, 23, False), (300, 20, 24, True),
                                     (100, 0, 2, False), (100, 0, 3, True)],
)  # fmt: skip
def test_arms_whose_rates_of_empty_answers_differ_did_not_do_the_same_task(
    n: int, few: int, many: int, differ: bool
) -> None:
    for arms in ((empty(n, few), empty(n, many)), (empty(n, many), empty(n, few))):
        found = guard(EMPTY, "50%", arms)
        assert found.tripped is differ
        assert found.invalidates == (("quality",) if differ else ())
        assert ("rates of empty answers to t differ" in found.reason) is differ


def test_empty_answers_that_differ_promote_nobody_even_where_so_many_are_allowed() -> None:
    suite = suite_of([{"metric": "accuracy", "margin": "9 points"}], ["t"], max_empty_ratio="10%")
    verdict = judge(suite, evidence_of(suite, {"t": (WELL, empty(300, 9))}))
    assert verdict.outcome is Outcome.INVALID
    assert [guard.id for guard in verdict.guards if guard.tripped] == [EMPTY]
    same = judge(suite, evidence_of(suite, {"t": (empty(300, 9), empty(300, 9))}))
    assert same.outcome is Outcome.PASS


@pytest.mark.parametrize("arm", [0, 1])
def test_items_that_failed_are_no_part_of_the_share(arm: int) -> None:
    """3 empty ones of 50 answered are too many; of 300 they would not be."""
    odd = empty(300, 3, failed=250)
    found = guard(EMPTY, "1%", (odd, WELL) if arm == 0 else (WELL, odd))
    assert found.tripped
    assert "6.0% of the" in found.reason


def test_the_tasks_of_a_group_are_counted_together() -> None:
    two = empty(100, 2)
    assert not guard(EMPTY, "1%", (two, two)).tripped
    assert guard(EMPTY, "1%", (two, two), (two, two)).tripped
    assert not guard(READABLE, "1%", (cut(100, 2), WELL)).tripped
    assert guard(READABLE, "1%", (cut(100, 2), WELL), (cut(100, 2), WELL)).tripped


def test_a_task_of_which_nothing_came_back_has_no_share() -> None:
    nothing = empty(30, 0, failed=30)
    for arms in ((nothing, WELL), (WELL, nothing), (nothing, nothing)):
        assert not guard(EMPTY, "1%", arms).tripped
        assert not guard(READABLE, "1%", arms).tripped
        by_degrees = tuple(replace(one, harness={"scale": "continuous"}) for one in arms)
        assert not guard(READABLE, "1%", (by_degrees[0], by_degrees[1])).tripped


def test_a_candidate_that_rambles_is_judged_and_a_baseline_that_does_measures_the_limit() -> None:
    assert not guard(READABLE, "1%", (WELL, cut(300, 150))).tripped
    found = guard(READABLE, "1%", (cut(300, 150), WELL))
    assert (found.tripped, found.invalidates) == (True, ("quality",))


def test_of_scores_by_degrees_either_arm_and_a_difference_count() -> None:
    def by_degrees(count: int) -> Answers:
        return Answers([0.5] * 300, finish=dict.fromkeys(range(count), "length"), harness={"scale": "continuous"})

    cases = ((0, 3, "1%", False), (0, 4, "1%", True), (2, 4, "1%", True), (0, 3, "50%", False), (0, 4, "50%", True))
    for few, many, allowed, tripped in cases:
        for theirs, ours in ((few, many), (many, few)):
            found = guard(READABLE, allowed, (by_degrees(theirs), by_degrees(ours)))
            assert found.tripped is tripped
            assert not tripped or "% of the candidate's answers to t are cut short" in found.reason


@pytest.mark.parametrize("arm", [0, 1])
def test_of_evals_made_elsewhere_without_finish_reasons_nobody_knows_whether_an_answer_was_cut(arm: int) -> None:
    arms = [WELL, WELL]
    arms[arm] = replace(WELL, finish={0: None}, harness={"imported": True})
    found = guard(READABLE, "1%", (arms[0], arms[1]))
    assert not found.tripped
    assert "whether any was cut is not known" in found.reason
    recorded = replace(WELL, harness={"imported": True})
    assert all("not known" not in guard(READABLE, "1%", (one, one)).reason for one in (WELL, recorded))


@pytest.mark.parametrize(("askings", "tripped"), [(40, True), (0, False), (None, False), ("40", False)])
def test_a_count_of_askings_speaks_only_where_there_were_some(askings: object, tripped: bool) -> None:
    told = Answers(right_but(40), harness={"empty_count": 40, "askings_count": askings})
    assert guard(EMPTY, "1%", (told, told)).tripped is tripped
