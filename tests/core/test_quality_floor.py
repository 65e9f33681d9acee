"""The baseline asked once more: a floor that went wrong may not hide what the candidate flips."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
import pytest

from benchgate.gate.checks.flips import ExcessFlips, excess_flips, require_like_askings
from benchgate.gate.comparison import compare
from benchgate.gate.decision import CannotJudge
from benchgate.gate.judge import judge
from benchgate.model.verdict import CheckResult, Outcome, Verdict
from benchgate.stats.evals import ScorePairs
from tests.fakes.evals import Answers, Line, evidence_of, right_but, suite_of

FLIPS: Line = {"metric": "flips", "margin": "5 points", "required": True}
ACCURACY: Line = {"metric": "accuracy", "margin": "5 points"}
N = 400
HALF = [float(i % 2) for i in range(N)]
FLIPPED = [1 - score if i < 80 else score for i, score in enumerate(HALF)]  # 40 lost, 40 gained
WELL = Answers(right_but(N))


def verdict_on(baseline: Answers, again: Answers, candidate: Answers, *, margin: str = "5 points") -> Verdict:
    suite = suite_of([{**FLIPS, "margin": margin}, ACCURACY], ["t"], repeat_baseline=True)
    return judge(suite, evidence_of(suite, {"t": (baseline, candidate)}, {"t": again}))


def flips_of(verdict: Verdict) -> CheckResult:
    return next(check for check in verdict.checks if check.metric == "flips")


def noisy(share: float) -> list[float]:
    """A second asking that flips this share of the items, as many lost as gained."""
    return [1 - score if i < share * N else score for i, score in enumerate(HALF)]


@pytest.mark.parametrize(
    ("again", "says"),
    [
        (Answers(HALF[:320] + [0.0] * 80, answers=dict.fromkeys(range(320, N), "")), "asked once more, are empty"),
        (Answers(HALF, choices=["[invalid]"] * N), "asked once more, are cut short or unreadable"),
        (Answers([0.0] * N), "50.0 % of t right, and 0 % of the same when asked once more"),
        (Answers([1.0] * N), "50.0 % of t right, and 100 % of the same when asked once more"),
        (Answers(noisy(1.0)), "flips 100 % of its own answers: a candidate that flips every one could stay"),
    ],
)
def test_a_second_asking_that_went_wrong_is_no_floor(again: Answers, says: str) -> None:
    for candidate in (Answers(HALF), Answers(FLIPPED)):
        verdict = verdict_on(Answers(HALF), again, candidate)
        assert verdict.outcome is Outcome.INVALID
        assert says in flips_of(verdict).reason
        assert next(c for c in verdict.checks if c.metric == "accuracy").outcome is Outcome.PASS  # nothing to it


def test_a_candidate_and_a_second_asking_that_are_wrong_alike_do_not_pass() -> None:
    flips = flips_of(verdict_on(WELL, Answers([0.0] * N), Answers([0.0] * N)))
    assert flips.outcome is Outcome.INVALID


def test_a_few_odd_answers_and_noise_leave_an_honest_candidate_promoted() -> None:
    odd = Answers(right_but(N, 3, 4), answers={3: ""}, finish={4: "length"})
    assert verdict_on(WELL, odd, WELL).outcome is Outcome.PASS
    assert verdict_on(Answers(HALF), Answers(noisy(0.2)), Answers(HALF)).outcome is Outcome.PASS
    few = Answers([1.0] * 50), Answers(right_but(50, 7), answers={7: ""}), Answers([1.0] * 50)
    assert flips_of(verdict_on(*few, margin="15 points")).outcome is Outcome.PASS


def test_flips_still_block_over_a_sound_floor() -> None:
    assert flips_of(verdict_on(Answers(HALF), Answers(noisy(0.02)), Answers(FLIPPED))).outcome is Outcome.BLOCK


@pytest.mark.parametrize("clustered", [False, True])
def test_two_stored_runs_are_judged_by_the_same_weights_and_clusters_as_one(clustered: bool) -> None:
    """A small task that broke, and a passage and a half that broke, are no less so beside a stored run."""
    if clustered:
        passages = [f"passage {i // 100}" for i in range(2000)]
        arms = {"t": [Answers(right_but(2000, *range(lost)), clusters=passages) for lost in (0, 150)]}
    else:
        arms = {"small": [Answers([1.0] * 50), Answers([0.0] * 50)], "big": [Answers([1.0] * 2000)] * 2}
    suite = suite_of([{**FLIPS, "margin": "10 points"}], list(arms), repeat_baseline=True)
    again = {task: both[0] for task, both in arms.items()}
    calm = evidence_of(suite, {task: (both[0], both[0]) for task, both in arms.items()}, again, "a")
    judged = evidence_of(suite, {task: (both[0], both[1]) for task, both in arms.items()}, again, "b")
    own, stored = flips_of(judge(suite, judged)), flips_of(judge(suite, judged, calm))
    assert own.outcome is stored.outcome
    assert stored.outcome is (Outcome.INCONCLUSIVE if clustered else Outcome.BLOCK)
    assert stored.harm == pytest.approx(own.harm)


@pytest.mark.parametrize(("changed", "beside", "told"), [(8, 0, False), (9, 0, True), (9, 1, False), (10, 1, True)])
def test_two_askings_are_unlike_by_a_tenth_of_alpha_over_all_tasks(changed: int, beside: int, told: bool) -> None:
    """All of 9 that changed went one way: 2 * 2**-9 = 0.0039, and of 8 it is 0.0078; twice as much of two tasks."""
    right, again = np.ones(40), np.array(right_but(40, *range(changed)))
    others = {f"u{k}": ScorePairs(right, right) for k in range(beside)}
    for first, second in ((right, again), (again, right)):
        for askings in ({"t": ScorePairs(first, second), **others}, {**others, "t": ScorePairs(first, second)}):
            with pytest.raises(CannotJudge, match=" of t right, ") if told else nullcontext():
                require_like_askings(askings, 0.05)


def excess_of(units: Mapping[str, tuple[str, ...]], **arms: tuple[Answers, Answers]) -> ExcessFlips:
    """The excess over tasks of a group `g`, of which a sound baseline answers alike twice."""
    suite = suite_of([FLIPS], ["g"], repeat_baseline=True)
    tasks = {f"g/{name}": both for name, both in arms.items()}
    again = {task: both[0] for task, both in tasks.items()}
    return excess_flips(compare(evidence_of(suite, tasks, again)), units, 0.05)


def test_items_of_a_group_that_come_together_count_so_beside_a_task_whose_items_do_not() -> None:
    passages = [f"p{i // 10}" for i in range(200)]
    theirs, ours = Answers([1.0] * 200), Answers(right_but(200, *range(20)))
    together = theirs, ours
    grouped = Answers([1.0] * 200, clusters=passages), Answers(right_but(200, *range(20)), clusters=passages)
    plain = Answers([1.0] * 100), Answers([1.0] * 100)
    alone = tuple(Answers(one.scores, clusters=[f"i{i}" for i in range(100)]) for one in plain)
    for units in ({"g": ("g/a", "g/b")}, {"g": ("g/b", "g/a")}):
        mixed, none = excess_of(units, a=grouped, b=plain).excess, excess_of(units, a=together, b=plain).excess
        assert mixed.estimate == none.estimate == pytest.approx(20 / 300)
        clustered = excess_of(units, a=grouped, b=(alone[0], alone[1])).excess.limits
        assert (mixed.limits.lower, mixed.limits.upper) == pytest.approx((clustered.lower, clustered.upper), rel=1e-12)
        assert mixed.limits.upper > none.limits.upper + 0.01


def test_each_task_has_equal_weight_in_what_is_shown_of_flips() -> None:
    small = Answers([1.0] * 100), Answers(right_but(100, *range(20)))
    large = Answers([1.0] * 400), Answers([1.0] * 400)
    found = excess_of({"a": ("g/a",), "b": ("g/b",)}, a=small, b=large)
    assert (found.baseline, found.floor) == (0.0, 0.0)
    assert found.candidate == found.excess.estimate == pytest.approx(0.1)
