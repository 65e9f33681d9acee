"""Checks of evals over evidence that is not whole: none of it is taken for an equal candidate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.checks import accuracy
from benchgate.gate.checks.flips import excess_flips
from benchgate.gate.checks.shadow import excess_of_rows
from benchgate.gate.comparison import compare
from benchgate.gate.decision import CannotJudge, Estimate, Rule
from benchgate.gate.evidence.items import pair_units
from benchgate.gate.guards.load import failures_judged
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome, Scale, Unit
from benchgate.stats.proportions import clopper_pearson
from tests.fakes.evals import Answers, Line, evidence_of, right_but, suite_of, wrong_first
from tests.fakes.guards import TELEMETRY, of_run
from tests.fakes.shadow_rows import N, different, item, range_of

CHECKS: list[Line] = [{"metric": "flips", "margin": "5 points", "required": True}]
SUITE = suite_of(CHECKS, ["t"], repeat_baseline=True)
ONES = [1.0] * 60
WHOLE = Answers(ONES)
UNITS = {"t": ("t",)}


def run(baseline: Answers = WHOLE, candidate: Answers = WHOLE, again: Answers | None = WHOLE) -> Evidence:
    return evidence_of(SUITE, {"t": (baseline, candidate)}, {"t": again} if again is not None else None)


def found(evidence: Evidence, reference: Evidence | None = None) -> tuple[Outcome, str] | None:
    """The problem with its flips; None where there is none."""
    try:
        excess_flips(compare(evidence, reference), UNITS, 0.05)
    except CannotJudge as cannot:
        return cannot.outcome, cannot.reason
    return None


def without(arm: Arm) -> Evidence:
    whole = run()
    return replace(whole, quality=tuple(o for o in whole.quality if o.arm is not arm or o.repeat))


STOPPED = {"stopped_early": True}
NOT_WHOLE = [
    (without(Arm.BASELINE), Outcome.INVALID, "not run on both arms"),
    (without(Arm.CANDIDATE), Outcome.INVALID, "not run on both arms"),
    (run(again=None), Outcome.INVALID, "asked t only once"),
    (run(candidate=Answers(ONES, fault="went away")), Outcome.INVALID, "went away"),
    (run(again=Answers(ONES, fault="went away")), Outcome.INVALID, "went away"),
    (run(candidate=Answers(ONES[1:], expected_n=60)), Outcome.INVALID, "only 59 of 60 items"),
    (
        run(*[Answers([0.5] * 60, harness={"scale": "continuous"})] * 3),
        Outcome.INVALID,
        "not simply right or wrong",
    ),
    (
        run(Answers(ONES, harness=STOPPED), Answers(ONES, harness=STOPPED), Answers(ONES, harness=STOPPED)),
        Outcome.INCONCLUSIVE,
        "stopped early",
    ),
    (run(Answers([]), Answers([]), Answers([])), Outcome.INCONCLUSIVE, "stopped early"),
    (
        run(*(Answers(ONES, clusters=["a", "b"] * 30) for _ in range(3))),
        Outcome.INCONCLUSIVE,
        "too few clusters",
    ),
]


@pytest.mark.parametrize(("evidence", "outcome", "says"), NOT_WHOLE)
def test_flips_of_a_task_that_is_not_whole_are_unknown(evidence: Evidence, outcome: Outcome, says: str) -> None:
    problem = found(evidence)
    assert problem is not None
    assert (problem[0], says in problem[1]) == (outcome, True)


@pytest.mark.parametrize(("evidence", "outcome", "says"), NOT_WHOLE)
def test_flips_beside_a_run_that_is_not_whole_are_unknown(evidence: Evidence, outcome: Outcome, says: str) -> None:
    assert found(run()) is None
    assert found(run(), run()) is None
    assert found(run(), evidence) is not None


def test_flips_of_no_task_are_unknown() -> None:
    with pytest.raises(CannotJudge) as caught:
        excess_flips(compare(run()), {}, 0.05)
    assert caught.value.outcome is Outcome.INVALID


def test_the_excess_of_rows_some_prompts_is_the_difference_of_the_two_shares() -> None:
    rows = tuple([*range_of(different, 0, 30), *range_of(item, 30, N)])
    ours, own, excess = excess_of_rows(rows, 0.05)
    assert ours == pytest.approx(0.1)
    assert own == 0.0
    assert excess is not None
    assert excess.estimate == pytest.approx(0.1)
    assert np.isfinite([excess.limits.lower, excess.limits.upper]).all()


def test_without_a_load_nothing_was_served_or_failed() -> None:
    assert of_run(run(), SUITE, *TELEMETRY) == []
    assert not failures_judged(run(), SUITE).tripped


# Accuracy and scores

BY_DEGREES = {"scale": "continuous"}
SCORE: Line = {"metric": "score", "margin": "2 points"}
ACCURACY: Line = {"metric": "accuracy", "margin": "2 points"}
FLOOR: Line = {"metric": "accuracy", "min": "50%"}


def check_of(line: Line, tasks: dict[str, tuple[Answers, Answers]]) -> CheckResult:
    suite = suite_of([line], list(tasks))
    (check,) = judge(suite, evidence_of(suite, tasks)).checks
    return check


@pytest.mark.parametrize("line", [ACCURACY, FLOOR, {**SCORE, "task": "t"}])
def test_what_was_not_run_on_an_arm_or_has_no_item_is_no_result(line: Line) -> None:
    for theirs, ours, says in (
        (WHOLE, Answers(ONES, fault="went away"), "t failed on the candidate: went away"),
        (Answers(ONES, fault="went away"), WHOLE, "t failed on the baseline: went away"),
        (Answers([]), Answers([]), "there are no items in t"),
    ):
        check = check_of(line, {"t": (theirs, ours)})
        assert (check.outcome, check.lower, check.upper, check.p_value) == (Outcome.INVALID, None, None, None)
        assert says in check.reason


def test_without_a_task_there_is_nothing_to_judge() -> None:
    with pytest.raises(CannotJudge, match="no eval task of this kind was run") as caught:
        pair_units(compare(run()), {})
    assert caught.value.outcome is Outcome.INVALID


def test_a_floor_that_one_item_alone_would_have_to_carry_is_left_open() -> None:
    """A task of one item beside larger ones has no spread of its own, so the mean of all has none that is known."""
    right, wrong = (Answers([value] * 40) for value in (1.0, 0.0))
    for ours in (right, wrong):
        one = replace(ours, scores=ours.scores[:1])
        check = check_of(FLOOR, {"t": (right, ours), "one": (replace(right, scores=[1.0]), one)})
        assert check.outcome is Outcome.INCONCLUSIVE
        assert (check.lower, check.upper, check.p_value) == (0.0, 1.0, 1.0)
    alone = check_of(FLOOR, {"one": (replace(right, scores=[1.0]), replace(right, scores=[1.0]))})
    assert alone.outcome is Outcome.INCONCLUSIVE  # of one item Clopper and Pearson know that it is above 5 %


@pytest.mark.parametrize(
    ("right", "cut", "outcome"),
    [
        (285, 0, Outcome.PASS),
        (285, 15, Outcome.PASS),  # shown to hold whatever was cut
        (272, 0, Outcome.INCONCLUSIVE),
        (272, 2, Outcome.INCONCLUSIVE),  # as open as it would be without
        (272, 20, Outcome.INVALID),  # would hold
        (255, 2, Outcome.BLOCK),
        (255, 20, Outcome.INVALID),  # would not be shown to miss it
        (200, 20, Outcome.BLOCK),
    ],
)
def test_a_floor_is_judged_where_cut_answers_do_not_decide(right: int, cut: int, outcome: Outcome) -> None:
    ours = Answers([0.0] * (300 - right) + [1.0] * right, finish=dict.fromkeys(range(cut), "length"))
    check = check_of({**FLOOR, "min": "90%"}, {"t": (Answers([1.0] * 300), ours)})
    assert check.outcome is outcome
    assert (f"{cut} of the wrong answers were cut short" in check.reason) is (outcome is Outcome.INVALID)
    assert check.n == 300
    assert check.candidate == pytest.approx(right / 300)


def test_a_floor_of_items_that_come_together_is_not_that_of_as_many_that_stand_alone() -> None:
    """17 of 20 passages right: of items that stand alone Clopper and Pearson's lower limit is 83 %."""
    scores = [0.0 if i < 150 else 1.0 for i in range(1000)]
    for clusters, outcome in ((None, Outcome.PASS), ([str(i // 50) for i in range(1000)], Outcome.INCONCLUSIVE)):
        arm = Answers(scores, clusters=clusters)
        assert check_of({**FLOOR, "min": "60%"}, {"t": (arm, arm)}).outcome.promotes
        assert check_of({**FLOOR, "min": "80%"}, {"t": (arm, arm)}).outcome.promotes is (outcome is Outcome.PASS)
        twice = {"t": (arm, arm), "u": (arm, arm)}
        assert check_of({**FLOOR, "min": "81%"}, twice).outcome.promotes is (outcome is Outcome.PASS)


@pytest.mark.parametrize(
    ("passages", "outcome"), [(10, Outcome.INCONCLUSIVE), (58, Outcome.INCONCLUSIVE), (59, Outcome.PASS)]
)
def test_passages_that_are_all_right_show_no_more_than_as_many_items(passages: int, outcome: Outcome) -> None:
    """A floor of 95 % allows one passage in 20 to be wrong throughout: of 58 none may be among them."""
    arm = Answers([1.0] * 20 * passages, clusters=[str(i // 20) for i in range(20 * passages)])
    check = check_of({**FLOOR, "min": "95%"}, {"t": (arm, arm)})
    assert check.outcome is outcome
    assert check.lower == pytest.approx(0.05 ** (1 / passages))


def test_items_that_come_together_in_one_task_count_so_beside_a_task_of_as_many_that_do_not() -> None:
    """92.5 % of 2,000 items, of which a half are 20 passages: of all by themselves the lower limit is above 91 %."""
    together = Answers([0.0 if i < 150 else 1.0 for i in range(1000)], clusters=[str(i // 50) for i in range(1000)])
    plain, alone = Answers([1.0] * 1000), replace(together, clusters=None)
    for ours, outcome in ((alone, Outcome.PASS), (together, Outcome.INCONCLUSIVE)):
        for tasks in ({"t": (ours, ours), "u": (plain, plain)}, {"u": (plain, plain), "t": (ours, ours)}):
            check = check_of({**FLOOR, "min": "90%"}, tasks)
            assert check.outcome.promotes is (outcome is Outcome.PASS)
            assert check.candidate == pytest.approx(0.925)


def test_a_value_that_uses_up_most_of_what_a_floor_allows_warns() -> None:
    for right, outcome in ((2745, Outcome.WARN), (2790, Outcome.PASS)):  # 8.5 and 7 of the 10 % that may be wrong
        arm = Answers([0.0] * (3000 - right) + [1.0] * right)
        check = check_of({**FLOOR, "min": "90%"}, {"t": (arm, arm)})
        assert check.outcome is outcome
        assert check.harm == pytest.approx(right / 3000)


def test_scores_by_degrees_reach_no_floor_of_right_answers() -> None:
    arm = Answers([1.0] * 90 + [0.5] * 10, harness=BY_DEGREES)
    check = check_of(FLOOR, {"t": (arm, arm)})
    assert (check.outcome, check.upper) == (Outcome.INVALID, None)
    assert "scored by degrees" in check.reason


def test_scores_of_several_tasks_have_no_mean_and_one_item_has_no_spread() -> None:
    scores = Answers([0.4, 0.6, 0.9] * 20, harness=BY_DEGREES)
    evidence = evidence_of(suite_of([SCORE], ["t", "u"]), {"t": (scores, scores), "u": (scores, scores)})
    found = Estimate(Rule(Unit.COUNT, Scale.DIFFERENCE), 0.02)
    with pytest.raises(CannotJudge) as caught:
        accuracy.score_against_baseline(found, compare(evidence), {"t": ("t",), "u": ("u",)}, 0.05, 1)
    assert caught.value.outcome is Outcome.INVALID
    assert (found.baseline, found.candidate, found.limits) == (None, None, None)
    one = Answers([0.5], harness=BY_DEGREES)
    check = check_of(SCORE, {"t": (one, one)})
    assert (check.outcome, check.upper) == (Outcome.INCONCLUSIVE, None)
    two = Answers([0.5, 0.6], harness=BY_DEGREES)
    assert "one item alone" not in check_of(SCORE, {"t": (two, two)}).reason


def test_a_baseline_has_something_to_lose_only_where_its_lower_limit_is_beyond_the_margin() -> None:
    theirs, ours = Answers(right_but(60, *range(50))), Answers([0.0] * 60)
    comparison = compare(evidence_of(SUITE, {"t": (theirs, ours)}))
    lower = clopper_pearson(10, 60, 0.05).lower
    for margin, refused in ((lower, True), (lower + 1e-6, True), (lower - 1e-6, False)):
        found = Estimate(Rule(Unit.RATIO, Scale.DIFFERENCE), margin)
        with found.keeping_problems():
            accuracy.accuracy_against_baseline(found, comparison, UNITS, 0.05)
        assert (found.problem is not None and "only 10 of 60" in found.problem.reason) is refused
        assert (found.limits is None) is refused


@pytest.mark.parametrize("line", [{**ACCURACY, "margin": "20 points"}, {**FLOOR, "min": "5%"}])
def test_one_task_that_was_stopped_early_leaves_an_average_of_several_open(line: Line) -> None:
    stopped = Answers([1.0] * 200, harness=STOPPED, expected_n=300)
    for tasks in ({"t": (WHOLE, WHOLE), "u": (stopped, stopped)}, {"u": (stopped, stopped), "t": (WHOLE, WHOLE)}):
        check = check_of(line, tasks)
        assert (check.outcome, check.n) == (Outcome.INCONCLUSIVE, 260)
        assert "stopped" in check.reason


def test_scores_of_few_clusters_are_left_open() -> None:
    scores = [0.6 + i % 7 / 100 for i in range(180)]
    for clusters, known in ((9, False), (10, True)):
        arm = Answers(scores, harness=BY_DEGREES, clusters=[str(i % clusters) for i in range(180)])
        check = check_of({**SCORE, "margin": "50 points"}, {"t": (arm, arm)})
        assert check.outcome is (Outcome.PASS if known else Outcome.INCONCLUSIVE)
        assert (check.upper is not None) is known


@pytest.mark.parametrize("by_degrees", [False, True])
def test_harm_that_is_shown_and_stays_near_the_margin_is_no_breach(by_degrees: bool) -> None:
    theirs, ours = Answers([1.0] * 400), Answers(right_but(400, *range(20)))
    line: Line = {"metric": "accuracy", "margin": "4 points"}
    if by_degrees:
        theirs, ours = (
            Answers([(value or 0) * 0.9 for value in one.scores], harness=BY_DEGREES) for one in (theirs, ours)
        )
        line = {"metric": "score", "margin": "4 points"}
    assert check_of(line, {"t": (theirs, ours)}).outcome is Outcome.BLOCK
    breach = check_of({**line, "block_when": "breach"}, {"t": (theirs, ours)})
    assert breach.outcome is Outcome.INCONCLUSIVE
    assert breach.p_value is not None and 0.05 < breach.p_value < 0.6


def test_a_score_has_something_to_lose_only_where_its_lower_limit_is_beyond_the_margin() -> None:
    low = Answers([i % 7 / 100 for i in range(500)], harness=BY_DEGREES)  # 0.0299, from 0.0284 to 0.0314
    for margin, refused in (("2.8 points", False), ("2.9 points", True), ("3.1 points", True)):
        check = check_of({**SCORE, "margin": margin}, {"t": (low, low)})
        assert (check.outcome is Outcome.INVALID and "mean score on t is only 0.0299" in check.reason) is refused


def test_one_large_task_makes_no_others_of_those_that_the_baseline_cannot_do() -> None:
    """All of 400 items and 1 of 50 on each of 39 tasks: 19 % of the items, and 4.5 % of a task on average."""
    large, small = Answers([1.0] * 400), Answers(right_but(50, *range(1, 50)))
    tasks = {"all": (large, large)} | {f"t{i}": (small, small) for i in range(39)}
    nothing = {task: (both[0], replace(both[0], scores=[0.0] * len(both[0].scores))) for task, both in tasks.items()}
    for candidate in (tasks, nothing):
        check = check_of({**ACCURACY, "margin": "9 points"}, candidate)
        assert check.outcome is Outcome.INVALID
        assert "gets only 4.45 % of the items of each task on average right" in check.reason
    suite = suite_of([{**ACCURACY, "margin": "9 points"}], list(tasks))
    assert judge(suite, evidence_of(suite, nothing)).outcome is Outcome.INVALID
    assert check_of({**ACCURACY, "margin": "4 points"}, nothing).outcome is Outcome.BLOCK


@pytest.mark.parametrize(("right", "outcome"), [(2900, Outcome.PASS), (2850, Outcome.INVALID)])
def test_a_baseline_has_as_much_to_lose_as_it_is_above_guessing(right: int, outcome: Outcome) -> None:
    """Its lower limit is 0.75 points lower, 28.25 % or 27.75 % of 10,000 items, and guessing gives 25 %."""
    baseline = Answers(wrong_first(10_000, 10_000 - right), harness={"chance": 0.25})
    check = check_of({**ACCURACY, "margin": "3 points"}, {"t": (baseline, baseline)})
    assert check.outcome is outcome
    if outcome is Outcome.INVALID:
        assert "gets only 2850 of 10000 items right: a candidate that guesses (25.0 %) would stay" in check.reason


def test_room_above_guessing_is_that_of_items_and_of_the_mean_over_tasks() -> None:
    """Three tasks are 30 %, 60 % and 60 % right, the first with nine items in ten; guessing gives 25 %."""
    most = Answers(wrong_first(9000, 6300), harness={"chance": 0.25})
    able = Answers(wrong_first(500, 200), harness={"chance": 0.25})
    tasks = {"most": (most, most), "a": (able, able), "b": (able, able)}
    assert check_of({**ACCURACY, "margin": "7 points"}, tasks).outcome is Outcome.PASS
    assert check_of({**ACCURACY, "margin": "8 points"}, tasks).outcome is Outcome.INVALID
    near = Answers(wrong_first(500, 360), harness={"chance": 0.25})
    large = Answers([1.0] * 9000, harness={"chance": 0.25})
    tasks = {"large": (large, large)} | {f"t{i}": (near, near) for i in range(9)}
    check = check_of({**ACCURACY, "margin": "11 points"}, tasks)
    assert "gets only 35.2 % of the items of each task on average right: a candidate that guesses" in check.reason
    unknown = replace(near, harness={})  # nothing is known to be guessed there
    tasks = {"large": (large, large)} | {f"t{i}": (unknown, unknown) for i in range(9)}
    assert check_of({**ACCURACY, "margin": "11 points"}, tasks).outcome is Outcome.PASS


def test_chances_of_a_group_count_by_its_items() -> None:
    """A quarter of the items is guessed by half, the others not at all: 12.5 %. The lower limit is 26.3 % of 400."""
    some, none = Answers(wrong_first(100, 20), harness={"chance": 0.5}), Answers(wrong_first(300, 260))
    for margin, outcome in (("13 points", Outcome.PASS), ("14 points", Outcome.INVALID)):
        suite = suite_of([{**ACCURACY, "margin": margin}], ["g"])
        [check] = judge(suite, evidence_of(suite, {"g/a": (some, some), "g/b": (none, none)})).checks
        assert check.outcome is outcome
        said = "gets only 120 of 400 items right: a candidate that guesses (12.5 %) would stay" in check.reason
        assert said is (outcome is Outcome.INVALID)


# Flips


def flips(
    theirs: Answers, ours: Answers, again: Answers, margin: str = "5 points", reference: Evidence | None = None
) -> CheckResult:
    suite = suite_of([{**CHECKS[0], "margin": margin}], ["t"], repeat_baseline=True)
    return judge(suite, evidence_of(suite, {"t": (theirs, ours)}, {"t": again}), reference).checks[0]


def test_flips_beyond_the_margin_block_and_where_a_breach_is_asked_for_only_shown_ones_do() -> None:
    half = Answers([float(i % 2) for i in range(1000)])

    def outcome(flipped: int, **asked: object) -> Outcome:
        line = {**CHECKS[0], **asked}
        suite = suite_of([line], ["t"], repeat_baseline=True)
        ours = replace(half, scores=[1 - (s or 0) if i < flipped else s for i, s in enumerate(half.scores)])
        return judge(suite, evidence_of(suite, {"t": (half, ours)}, {"t": half})).checks[0].outcome

    assert [outcome(flipped) for flipped in (20, 45, 60, 100)] == [
        Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.BLOCK, Outcome.BLOCK
    ]  # fmt: skip
    assert [outcome(flipped, block_when="breach") for flipped in (20, 60, 100)] == [
        Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.BLOCK
    ]  # fmt: skip


def test_flips_of_a_single_item_are_left_open() -> None:
    one = Answers([1.0])
    check = flips(one, one, one)
    assert (check.outcome, check.reason.endswith("there are too few items")) == (Outcome.INCONCLUSIVE, True)
    reference = evidence_of(SUITE, {"t": (one, one)}, {"t": one}, "earlier")
    beside = flips(one, one, one, reference=reference)
    assert (beside.outcome, beside.reason.endswith("there are too few items")) == (Outcome.INCONCLUSIVE, True)


@pytest.mark.parametrize(
    ("n", "own", "margin", "says"),
    [
        (400, 0, "5 points", None),
        (20, 10, "5 points", "flips 50.0 % of its own answers, and of so few items it may be more"),
        (400, 280, "5 points", "flips 70.0 % of its own answers: a candidate"),
        (20, 0, "70 points", None),
        (20, 0, "85 points", "flips 0 % of its own answers, and of so few items it may be more"),
    ],
)
def test_a_floor_leaves_room_for_flips_beyond_the_margin(n: int, own: int, margin: str, says: str | None) -> None:
    half = [float(i % 2) for i in range(n)]
    again = Answers([1 - score if i < own else score for i, score in enumerate(half)])
    check = flips(Answers(half), Answers(half), again, margin)
    assert (check.outcome is Outcome.INVALID) is (says is not None)
    assert says is None or says in check.reason


def test_two_runs_that_asked_other_items_are_not_compared_by_their_flips() -> None:
    fewer = replace(WHOLE, scores=ONES[:50])
    reference = evidence_of(SUITE, {"t": (fewer, fewer)}, {"t": fewer}, "earlier")
    problem = found(run(), reference)
    assert problem == (Outcome.INVALID, "the two runs did not ask the same items")


def test_a_floor_that_went_wrong_in_the_other_run_is_no_floor_either() -> None:
    half = Answers([float(i % 2) for i in range(400)])
    for again, invalid in ((half, False), (Answers([0.0] * 400), True)):
        reference = evidence_of(SUITE, {"t": (half, half)}, {"t": again}, "earlier")
        check = flips(half, half, half, reference=reference)
        assert (check.outcome is Outcome.INVALID) is invalid
        assert not invalid or "when asked once more" in check.reason


@pytest.mark.parametrize(("clusters", "known"), [(9, False), (10, True)])
def test_flips_of_few_clusters_are_left_open(clusters: int, known: bool) -> None:
    arm = Answers([float(i % 2) for i in range(400)], clusters=[str(i % clusters) for i in range(400)])
    check = flips(arm, arm, arm, "50 points")
    assert (check.upper is not None) is known
    assert check.outcome.promotes is known
