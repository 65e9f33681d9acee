"""Evals that end early: whom the items so far speak of, and what may never be stopped for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchgate.gate.checks.accuracy import certain_regression
from benchgate.gate.judge import judge
from benchgate.model.verdict import CheckResult, Outcome
from benchgate.stats.sequential import anytime_p
from tests.fakes.evals import Answers, Line, evidence_of, right_but, suite_of

EACH: Line = {"metric": "accuracy", "task": "each", "margin": "5 points"}
POOLED: Line = {"metric": "accuracy", "margin": "5 points"}
SCORE: Line = {"metric": "score", "margin": "5 points"}
STOPPED = {"stopped_early": {"items": 40}}
BY_DEGREES = {"scale": "continuous", **STOPPED}
WELL = (Answers(right_but(60)), Answers(right_but(60)))
LOST = (Answers(right_but(60)), Answers(right_but(60, *range(50))))


def found(checks: list[Line], names: list[str], tasks: dict[str, tuple[Answers, Answers]]) -> str | None:
    """The check that the items of these tasks so far show harm by."""
    suite = suite_of(checks, names)
    seen = evidence_of(suite, tasks).quality
    return certain_regression(suite, {task: (seen[2 * i].items, seen[2 * i + 1].items) for i, task in enumerate(tasks)})


def scores(value: float, n: int = 40) -> Answers:
    return Answers([value] * n, harness=BY_DEGREES)


def stopped(theirs: Answers, ours: Answers, line: Line = SCORE) -> CheckResult:
    suite = suite_of([line], ["t"])
    verdict = judge(suite, evidence_of(suite, {"t": (theirs, ours)}))
    assert not verdict.outcome.promotes
    return verdict.checks[0]


def test_a_limit_of_what_was_lost_at_first_is_never_above_the_loss_of_all_items() -> None:
    known = {"stopped_early": {"items": 500}}
    theirs, ours = (Answers(right_but(500, *range(lost)), harness=known) for lost in (0, 8))
    check = stopped(theirs, ours, {**EACH, "margin": "2 points"})
    assert check.outcome is Outcome.BLOCK  # the first eight in a row show it, whatever follows
    assert check.harm == check.lower == pytest.approx(8 / 500)
    assert "not shown to stay inside the margin of 2 points" in check.reason


def test_nothing_is_stopped_for_while_an_item_of_any_task_has_no_pair() -> None:
    assert found([EACH], ["t", "u"], {"t": LOST, "u": WELL}) == "accuracy@t"
    unanswered = (WELL[0], Answers([None, *[1.0] * 59]))
    assert found([EACH], ["t", "u"], {"t": LOST, "u": unanswered}) is None


def test_a_group_speaks_only_where_it_is_one_task() -> None:
    one, two = {"mmlu/law": LOST}, {"mmlu/law": LOST, "mmlu/math": LOST}
    assert found([EACH], ["mmlu"], one) == "accuracy@mmlu"
    assert found([EACH], ["mmlu"], two) is None
    assert found([{**EACH, "task": "mmlu"}], ["mmlu"], two) is None
    assert found([{**EACH, "task": "mmlu/law"}], ["mmlu"], two) == "accuracy@mmlu/law"


def test_a_check_with_a_minimum_ends_nothing() -> None:
    floor: Line = {"metric": "accuracy", "task": "t", "min": "90%"}
    assert found([floor], ["t"], {"t": LOST}) is None
    assert found([floor, EACH], ["t"], {"t": LOST}) == "accuracy@t"


def test_the_how_to_whose_one_check_is_of_a_group_promises_no_early_end() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/mmlu-pro.md").read_text(encoding="utf-8")
    line: Line = {"metric": "accuracy", "task": "mmlu_pro", "margin": "2 points"}
    assert "{metric: accuracy, task: mmlu_pro, margin: 2 points}" in page
    assert found([line], ["mmlu_pro"], {"mmlu_pro/law": LOST, "mmlu_pro/math": LOST}) is None
    assert "stop_early" not in page


def test_beside_a_group_of_several_tasks_a_named_one_still_speaks_and_an_average_does_not() -> None:
    tasks = {"big/a": WELL, "big/b": WELL, "mmlu/law": LOST}
    assert found([{**EACH, "task": "mmlu"}], ["big", "mmlu"], tasks) == "accuracy@mmlu"
    assert found([POOLED], ["big", "mmlu"], tasks) is None
    assert found([POOLED], ["big", "mmlu"], {"big/a": LOST, "mmlu/law": LOST}) == "accuracy"


def test_a_task_that_was_not_asked_yet_shows_nothing() -> None:
    assert found([{**EACH, "task": "u"}], ["t", "u"], {"t": LOST}) is None
    assert found([EACH], ["t"], {"t": (Answers([]), Answers([]))}) is None
    assert found([EACH], ["t"], {}) is None


def test_each_kind_of_score_is_stopped_for_by_its_own_check_alone() -> None:
    degrees = (Answers([0.9] * 60), Answers([0.1] * 60))
    assert found([SCORE], ["t"], {"t": degrees}) == "score@t"
    assert found([{**EACH, "task": "t"}], ["t"], {"t": degrees}) is None
    assert found([{**SCORE, "task": "t"}], ["t"], {"t": LOST}) is None
    assert found([{**EACH, "metric": "flips", "required": True}], ["t"], {"t": LOST}) is None


def test_an_average_is_stopped_for_by_what_all_of_its_tasks_lose() -> None:
    assert found([POOLED], ["t", "u"], {"t": LOST, "u": LOST}) == "accuracy"
    won = (LOST[1], LOST[0])
    assert found([POOLED], ["t", "u"], {"t": LOST, "u": won}) is None


def test_scores_of_another_range_have_no_such_evidence() -> None:
    assert found([SCORE], ["t"], {"t": (Answers([90.0] * 60), Answers([10.0] * 60))}) is None
    check = stopped(scores(90.0), scores(10.0))
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "stopped early (t)" in check.reason


@pytest.mark.parametrize(("ours", "outcome"), [(0.1, Outcome.BLOCK), (0.88, Outcome.INCONCLUSIVE)])
def test_a_score_that_was_stopped_early_blocks_or_says_nothing(ours: float, outcome: Outcome) -> None:
    check = stopped(scores(0.9), scores(ours))
    assert (check.outcome, check.n) == (outcome, 40)
    assert check.method.startswith("betting")
    assert (check.candidate, check.baseline) == pytest.approx((ours, 0.9))


def test_a_margin_that_allows_everything_leaves_what_was_stopped_open() -> None:
    assert stopped(scores(1.0), scores(0.0), {**SCORE, "margin": "100 points"}).outcome is Outcome.INCONCLUSIVE
    assert stopped(scores(1.0), scores(0.0), {**SCORE, "margin": "150 points"}).outcome is Outcome.INCONCLUSIVE


def test_evals_that_were_stopped_before_their_first_item_say_nothing() -> None:
    nothing = Answers([], expected_n=60, harness=STOPPED)
    check = stopped(nothing, nothing, EACH)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert (check.n, check.baseline, check.harm) == (0, None, None)


def test_what_is_shown_is_the_most_harm_that_the_items_refute() -> None:
    theirs, ours = right_but(40), right_but(40, *range(0, 40, 2), 1, 3, 5, 7)
    check = stopped(
        Answers(theirs, expected_n=90, harness=STOPPED), Answers(ours, expected_n=90, harness=STOPPED), EACH
    )
    assert check.outcome is Outcome.BLOCK
    assert check.harm == pytest.approx(24 / 40)
    assert check.upper == 1.0
    differences = np.array(theirs) - np.array(ours)
    assert check.lower is not None and 0.05 < check.lower < 24 / 40
    assert anytime_p(differences, check.lower) <= 0.05 < anytime_p(differences, check.lower + 3e-6)
    assert check.p_value == pytest.approx(anytime_p(differences, 0.05))
    assert check.notes == ("stopped early, after 40 items of each task: a regression was certain",)


def test_losses_that_are_forgiven_leave_the_check_invalid_and_shown_ones_block_all_the_same() -> None:
    def check(cut: int) -> CheckResult:
        ours = Answers(
            right_but(40, *range(36)), expected_n=90, harness=STOPPED, finish=dict.fromkeys(range(cut), "length")
        )
        return stopped(Answers(right_but(40), expected_n=90, harness=STOPPED), ours, EACH)

    assert check(0).outcome is check(10).outcome is Outcome.BLOCK
    assert check(36).outcome is Outcome.INVALID
    assert "the loss is made by answers cut short by the token limit" in check(36).reason
