"""The figures of an eval where some of them are not to be had: none of them is taken for a good one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.comparison import Comparison, compare
from benchgate.gate.decision import CannotJudge
from benchgate.gate.judge import judge
from benchgate.gate.summary.figures import pooled_figures, task_figures
from benchgate.model.verdict import Outcome
from tests.fakes.evals import Answers, Line, evidence_of, right_but, suite_of

ACCURACY: Line = {"metric": "accuracy", "margin": "2 points"}
BY_DEGREES = {"scale": "continuous"}


def compared(tasks: dict[str, tuple[Answers, Answers]], again: dict[str, Answers] | None = None) -> Comparison:
    return compare(evidence_of(suite_of([ACCURACY], list(tasks)), tasks, again))


def test_items_that_cannot_be_paired_have_no_figures() -> None:
    tasks = {"t": (Answers([1.0] * 40), Answers([1.0] * 40, fault="went away")), "u": (Answers([1.0]), Answers([1.0]))}
    for units in ({"t": ("t",)}, {"u": ("u",), "t": ("t",)}, {"never asked": ("never asked",)}):
        with pytest.raises(CannotJudge) as caught:
            pooled_figures(compared(tasks), units, 0.05)
        assert caught.value.outcome is Outcome.INVALID
    assert task_figures(compared(tasks), "u", 0.05).n == 1


def test_no_item_has_no_figures() -> None:
    tasks = {"t": (Answers([]), Answers([])), "u": (Answers([1.0]), Answers([1.0]))}
    no_units: dict[str, tuple[str, ...]] = {}
    for units in ({"t": ("t",)}, {"u": ("u",), "t": ("t",)}, no_units):
        with pytest.raises(CannotJudge, match=r"there are no items|no eval task of this kind"):
            pooled_figures(compared(tasks), units, 0.05)


def test_a_baseline_that_may_be_near_nothing_leaves_no_limits_of_what_is_left() -> None:
    both = Answers([1.0, 0.0])
    suite = suite_of([ACCURACY], ["t"])
    (check,) = judge(suite, evidence_of(suite, {"t": (both, both)})).checks
    assert "recovery 100 %" in check.notes
    surer = Answers(right_but(200))
    (check,) = judge(suite, evidence_of(suite, {"t": (surer, surer)})).checks
    assert any(note.startswith("recovery 100 % (98.7 to 101") for note in check.notes)


def test_scores_of_several_scales_or_of_one_item_have_no_limits() -> None:
    scores = Answers([0.2, 0.4, 0.9, 0.7], harness=BY_DEGREES)
    worse = Answers([0.1, 0.3, 0.7, 0.5], harness=BY_DEGREES)
    tasks = {"t": (scores, worse), "u": (scores, worse)}
    alone = task_figures(compared(tasks), "t", 0.05)
    assert alone.limits is not None and alone.limits.lower < alone.regression < alone.limits.upper
    assert alone.method != "none"
    both = pooled_figures(compared(tasks), {"t": ("t",), "u": ("u",)}, 0.05)
    one = {"t": (Answers([0.5], harness=BY_DEGREES), Answers([0.25], harness=BY_DEGREES))}
    for found, harm in ((both, 0.15), (task_figures(compared(one), "t", 0.05), 0.25)):
        assert (found.limits, found.method) == (None, "none")
        assert found.regression == pytest.approx(harm)
        assert (found.continuous, found.lost, found.gained, found.flips_ratio) == (True, None, None, None)


def test_what_was_stopped_early_has_no_limits() -> None:
    stopped = {"stopped_early": True}
    tasks = {"t": (Answers([1.0] * 40, harness=stopped), Answers([0.0] * 40, harness=stopped))}
    found = task_figures(compared(tasks), "t", 0.05)
    assert (found.stopped, found.limits, found.regression) == (True, None, 1.0)


def test_a_second_asking_that_failed_is_no_floor_and_takes_the_other_figures_from_nobody() -> None:
    whole = Answers([1.0] * 40)
    tasks = {"t": (whole, whole)}
    for again, floor in ((whole, 0.0), (replace(whole, fault="went away"), None)):
        found = task_figures(compared(tasks, {"t": again}), "t", 0.05)
        assert (found.floor_ratio, found.lost, found.baseline) == (floor, 0, 1.0)
    partly = compared({**tasks, "u": (whole, whole)}, {"t": whole})
    assert pooled_figures(partly, {"t": ("t",), "u": ("u",)}, 0.05).floor_ratio is None


def test_clusters_are_counted_over_tasks_that_have_them_and_items_over_those_that_have_none() -> None:
    grouped = Answers([1.0] * 60, clusters=[str(i % 12) for i in range(60)])
    plain = Answers([1.0] * 7)
    tasks = {"t": (grouped, grouped), "u": (plain, plain)}
    assert pooled_figures(compared(tasks), {"t": ("t",), "u": ("u",)}, 0.05).clusters == 12 + 7
    assert task_figures(compared(tasks), "u", 0.05).clusters is None


def test_answers_that_say_nothing_are_counted_on_each_arm_and_wrong_ones_only_where_all_were_kept() -> None:
    theirs = Answers(right_but(40, 0, 1), choices=["x", "x", *["a"] * 38], finish={0: "length"})
    ours = Answers(right_but(40, 0, 1, 2), choices=["y", "x", "z", *["a"] * 37], finish={0: "length", 2: "length"})
    silent = Answers(right_but(40, 5))
    tasks = {"t": (theirs, ours), "u": (silent, silent)}
    found = task_figures(compared(tasks), "t", 0.05)
    assert (found.cut, found.other_wrong, found.lost, found.gained) == ((1, 2), 1, 1, 0)
    both = pooled_figures(compared(tasks), {"t": ("t",), "u": ("u",)}, 0.05)
    assert (both.cut, both.other_wrong, both.lost) == ((1, 2), None, 1)
    assert both.flips_ratio == pytest.approx(1 / 80)
