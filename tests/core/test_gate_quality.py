"""Evals through the whole gate: what is promoted, what is blocked, and what nobody may conclude from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.comparison import Comparison, compare
from benchgate.gate.judge import judge
from benchgate.gate.summary.figures import pooled_figures, task_figures
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.verdict import CheckResult, Outcome, Verdict
from tests.fakes.evals import Answers, Line, evidence_of, right_but, suite_of, wrong_first

ACCURACY: Line = {"metric": "accuracy", "margin": "2 points"}
EACH: Line = {"metric": "accuracy", "task": "each", "margin": "5 points"}
FLIPS: Line = {"metric": "flips", "margin": "5 points"}
SCORE: Line = {"metric": "score", "margin": "2 points"}
BY_DEGREES = {"scale": "continuous"}


def verdict_on(
    checks: list[Line], tasks: dict[str, tuple[Answers, Answers]], again: dict[str, Answers] | None = None
) -> Verdict:
    suite = suite_of(checks, list(tasks), **({"repeat_baseline": True} if again else {}))
    return judge(suite, evidence_of(suite, tasks, again))


def only(verdict: Verdict) -> CheckResult:
    (check,) = verdict.checks
    return check


def tripped(verdict: Verdict) -> list[str]:
    return [guard.id for guard in verdict.guards if guard.tripped]


def answers(*scores: float | None) -> Answers:
    return Answers(list(scores))


def losing(n: int, lost: int, gained: int = 0, wrong: int = 0) -> tuple[Answers, Answers]:
    """The candidate loses the first items and gains the next; the last ones nobody gets right."""
    theirs = right_but(n, *range(lost, lost + gained), *range(n - wrong, n))
    return Answers(theirs), Answers(right_but(n, *range(lost), *range(n - wrong, n)))


# accuracy


def test_unlike_tasks_count_alike_in_what_is_pooled() -> None:
    tasks = {"small": losing(100, 20), "large": losing(4000, 0)}
    check = only(verdict_on([ACCURACY], tasks))
    assert check.harm == pytest.approx(0.10)
    assert check.outcome is Outcome.BLOCK
    assert check.baseline == 1.0
    assert check.candidate == pytest.approx(0.9)
    assert "equal weight" in check.method


def test_a_large_task_cannot_drown_the_small_one_that_broke() -> None:
    # 12 of 60 lost are 0.6 points of all 2,060 items: over items together the margin of 2 points would hold.
    verdict = verdict_on([ACCURACY], {"small": losing(60, 12), "large": losing(2000, 0, 0)})
    assert verdict.outcome is Outcome.BLOCK


def test_an_average_that_holds_still_names_the_task_that_broke() -> None:
    tasks = {f"fine{i}": losing(1000, 0, 10) for i in range(9)} | {"broken": losing(1000, 60)}
    verdict = verdict_on([ACCURACY], tasks)
    assert verdict.outcome is Outcome.WARN
    assert "broken alone fell by 6.00 points" in verdict.reason


def test_items_of_few_passages_prove_less_than_items_that_stand_alone() -> None:
    clusters = [f"passage {i // 20}" for i in range(1000)]
    lost = right_but(1000, *range(10))  # all of one passage
    alone = verdict_on([ACCURACY], {"read": (Answers(right_but(1000)), Answers(lost))})
    assert alone.outcome is Outcome.WARN
    together = verdict_on(
        [ACCURACY], {"read": (Answers(right_but(1000), clusters=clusters), Answers(lost, clusters=clusters))}
    )
    check = only(together)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.method.endswith("t over clusters")
    assert any("1000 items in 50 clusters" in note for note in check.notes)


def of_group(tasks: dict[str, tuple[Answers, Answers]]) -> CheckResult:
    suite = suite_of([ACCURACY], ["g"])
    return only(judge(suite, evidence_of(suite, tasks)))


def test_a_group_of_different_documents_is_judged_item_by_item_and_one_of_shared_documents_by_document() -> None:
    well = Answers(right_but(200))
    apart = {"g/a": (well, well), "g/b": (well, well)}
    check = of_group(apart)
    assert "clusters" not in f"{check.method} {check.notes}"
    shared = replace(well, documents="shared")
    check = of_group({"g/a": (shared, shared), "g/b": (shared, shared)})
    assert check.method.endswith("t over clusters")
    assert any("400 items in 200 clusters" in note for note in check.notes)
    passages = replace(well, clusters=[f"passage {i // 4}" for i in range(200)])
    check = of_group({"g/a": (passages, passages), "g/b": (passages, passages)})
    assert any("400 items in 50 clusters" in note for note in check.notes)


def test_tasks_that_ask_the_same_documents_are_averaged_by_document() -> None:
    (kept, lost), limits = (Answers(right_but(200)), Answers(right_but(200, *range(4)))), []
    for documents in (None, "shared"):
        both = replace(kept, documents=documents), replace(lost, documents=documents)
        lines: list[Line] = [ACCURACY, {"metric": "accuracy", "min": "50%"}, {"metric": "flips", "margin": "9 points"}]
        suite = suite_of(lines, ["a", "b"], repeat_baseline=True)
        evidence = evidence_of(suite, {"a": both, "b": both}, {"a": both[0], "b": both[0]})
        accuracy, floor, flips = judge(suite, evidence).checks
        assert any("400 items in 200 clusters" in note for note in accuracy.notes) is (documents is not None)
        assert accuracy.upper is not None and floor.lower is not None and flips.upper is not None
        limits.append((accuracy.upper, -floor.lower, flips.upper))
    assert all(shared > apart + 0.001 for apart, shared in zip(*limits, strict=True))


def test_flips_and_floors_of_a_group_count_a_document_once() -> None:
    shared, other = Answers(right_but(200, *range(10)), documents="shared"), Answers(right_but(200, *range(10)))
    limits = []
    for one in (shared, other):
        lines: list[Line] = [{"metric": "flips", "margin": "9 points"}, {"metric": "accuracy", "min": "50%"}]
        suite = suite_of([*lines, ACCURACY], ["g"], repeat_baseline=True)
        tasks = {f"g/p{i}": (one, one) for i in range(4)}
        evidence = evidence_of(suite, tasks, {task: both[0] for task, both in tasks.items()})
        flips, floor, _ = judge(suite, evidence).checks
        assert flips.upper is not None
        assert floor.lower is not None
        limits.append((flips.upper, floor.lower))
    assert limits[0][0] > 2 * limits[1][0]
    assert limits[0][1] < limits[1][1]


def test_too_few_clusters_are_no_evidence_either_way() -> None:
    clusters = [f"passage {i % 9}" for i in range(900)]
    both = (Answers(right_but(900), clusters=clusters), Answers(wrong_first(900, 90), clusters=clusters))
    floor: Line = {"metric": "accuracy", "min": "50%"}
    for check in (ACCURACY, floor):
        verdict = verdict_on([check], {"read": both})
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert "come in only 9 clusters" in only(verdict).reason


def test_arms_that_cluster_otherwise_were_not_asked_the_same() -> None:
    clusters = [f"passage {i % 20}" for i in range(200)]
    both = (Answers(right_but(200), clusters=clusters), Answers(right_but(200), clusters=clusters[::-1]))
    verdict = verdict_on([ACCURACY], {"read": both})
    assert verdict.outcome is Outcome.INVALID
    assert "into different clusters" in verdict.reason


def test_every_finding_tells_what_was_lost_what_flipped_and_what_is_left() -> None:
    theirs = Answers([1.0] * 180 + [0.0] * 20, choices=["a"] * 180 + ["b"] * 20)
    ours = Answers([0.0] * 6 + [1.0] * 177 + [0.0] * 17, choices=["c"] * 6 + ["a"] * 177 + ["d"] * 12 + ["b"] * 5)
    notes = only(verdict_on([ACCURACY], {"t": (theirs, ours)})).notes
    assert notes[0] == "6 items lost, 3 gained, of 200"
    assert notes[1] == "4.50 % of the answers flipped; 12 more are wrong in another way"
    assert notes[2].startswith("recovery 98.3 % (95.")


def test_an_accuracy_floor_over_unlike_tasks_is_the_mean_of_the_tasks() -> None:
    check = only(
        verdict_on(
            [{"metric": "accuracy", "min": "80%"}], {"small": losing(100, 0, 0, 30), "large": losing(2000, 0, 0, 20)}
        )
    )
    assert check.candidate == pytest.approx((0.70 + 0.99) / 2)
    assert check.lower is not None and 0.80 < check.lower < 0.84


def test_a_group_of_tasks_is_judged_as_one_with_every_item_alike() -> None:
    suite = suite_of([EACH], ["mmlu", "add"])
    tasks = {"mmlu/law": losing(300, 40), "mmlu/math": losing(900, 0), "add": losing(300, 0)}
    verdict = judge(suite, evidence_of(suite, tasks))
    assert [check.id for check in verdict.checks] == ["accuracy@mmlu", "accuracy@add"]
    assert verdict.checks[0].harm == pytest.approx(40 / 1200)
    told = {"leaves": 3}
    law = tuple(replace(answers, harness=told) for answers in losing(300, 0))
    incomplete = evidence_of(
        suite, {"mmlu/law": (law[0], law[1]), "mmlu/math": (law[0], law[1]), "add": losing(300, 0)}
    )
    assert "2 of the 3 tasks of mmlu were run" in judge(suite, incomplete).reason
    leaf = suite_of([{**ACCURACY, "task": "mmlu/law"}], ["mmlu", "add"])
    assert judge(leaf, evidence_of(leaf, tasks)).checks[0].harm == pytest.approx(40 / 300)
    partly = evidence_of(suite, {"mmlu/law": losing(300, 0), "add": losing(300, 0)})
    dropped = tuple(o for o in partly.quality if o.task != "mmlu/law" or o.arm is Arm.BASELINE)
    assert judge(suite, replace(partly, quality=dropped)).outcome is Outcome.INVALID


# scores by degrees


def by_degrees(*, shift: float, spread: float = 0.05, n: int = 200, seed: int = 3) -> tuple[Answers, Answers]:
    generator = np.random.default_rng(seed)
    theirs = generator.uniform(0.3, 0.8, n)
    ours = theirs - generator.normal(shift, spread, n)
    return Answers(theirs.tolist(), harness=BY_DEGREES), Answers(ours.tolist(), harness=BY_DEGREES)


@pytest.mark.parametrize("score", [1e80, 1e308, -1e308])
def test_a_score_that_no_mean_can_be_made_of_is_no_evidence(score: float) -> None:
    theirs, ours = ([*(0.4, 0.6) * 20, one] for one in (-score, score))
    verdict = verdict_on([SCORE], {"a": (Answers(theirs, harness=BY_DEGREES), Answers(ours, harness=BY_DEGREES))})
    assert verdict.outcome is Outcome.INVALID
    assert f"a-40 was not scored on the baseline: {-score:g} is no score" in verdict.reason


@pytest.mark.parametrize(
    ("shift", "spread", "outcome"),
    [
        (0.0, 0.05, Outcome.PASS),
        (0.01, 0.03, Outcome.WARN),
        (0.05, 0.05, Outcome.BLOCK),
        (0.01, 0.3, Outcome.INCONCLUSIVE),
    ],
)
def test_a_score_is_judged_in_points_of_its_own_scale(shift: float, spread: float, outcome: Outcome) -> None:
    verdict = verdict_on([SCORE], {"summary": by_degrees(shift=shift, spread=spread)})
    assert verdict.outcome is outcome, verdict.reason
    assert only(verdict).id == "score@summary"


def test_each_metric_keeps_to_its_kind_of_task() -> None:
    tasks = {"summary": by_degrees(shift=0.0), "add": losing(400, 0)}
    both = verdict_on([SCORE, EACH], tasks)
    assert [check.id for check in both.checks] == ["score@summary", "accuracy@add"]
    assert both.outcome is Outcome.PASS
    forgotten = verdict_on([EACH], tasks)
    assert forgotten.outcome is Outcome.INVALID
    assert "scored by degrees" in forgotten.reason
    for line, says in (
        ({**SCORE, "task": "add"}, "have no score of another scale"),
        ({**ACCURACY, "task": "summary"}, "scored by degrees"),
    ):
        assert says in verdict_on([line], tasks).reason


def test_a_score_that_is_no_number_is_no_score() -> None:
    theirs, ours = by_degrees(shift=0.0)
    for value in (float("nan"), float("inf"), None):
        broken = replace(ours, scores=[value, *list(ours.scores)[1:]])
        verdict = verdict_on([SCORE], {"summary": (theirs, broken)})
        assert verdict.outcome is Outcome.INVALID
        assert "was not scored" in verdict.reason


def test_half_right_is_neither_right_nor_wrong_unless_it_was_said() -> None:
    verdict = verdict_on([ACCURACY], {"t": (answers(*[1.0] * 99, 0.5), answers(*[1.0] * 100))})
    assert verdict.outcome is Outcome.INVALID
    assert "neither right nor wrong" in verdict.reason


# flips


def flipping(n: int, own: int, candidate: int) -> tuple[dict[str, tuple[Answers, Answers]], dict[str, Answers]]:
    """A baseline that flips so many of its own, and a candidate that flips so many others: half lost, half gained."""
    theirs = [float(i % 2) for i in range(n)]
    again = [1 - score if i < own else score for i, score in enumerate(theirs)]
    ours = [1 - score if n - candidate <= i else score for i, score in enumerate(theirs)]
    return {"t": (Answers(theirs), Answers(ours))}, {"t": Answers(again)}


def test_flips_that_cancel_out_warn_and_never_block_unless_the_suite_asks() -> None:
    tasks, again = flipping(1000, 20, 120)
    accuracy: Line = {"metric": "accuracy", "margin": "5 points"}
    verdict = verdict_on([accuracy, FLIPS], tasks, again)
    assert [check.outcome for check in verdict.checks] == [Outcome.PASS, Outcome.BLOCK]
    assert verdict.outcome is Outcome.WARN
    assert verdict.checks[1].required is False
    asked = verdict_on([accuracy, {**FLIPS, "required": True}], tasks, again)
    assert asked.outcome is Outcome.BLOCK
    # x = 120/1000 + half of the 20 on which the baseline differs from itself; y = 20/1000
    assert asked.checks[1].harm == pytest.approx(0.12 + 0.01 - 0.02)


def test_flips_that_the_baseline_has_with_itself_are_not_held_against_the_candidate() -> None:
    theirs = [float(i % 2) for i in range(1000)]
    again = [1 - s if i < 120 else s for i, s in enumerate(theirs)]
    ours = [1 - s if 60 <= i < 180 else s for i, s in enumerate(theirs)]
    tasks = {"t": (Answers(theirs), Answers(ours))}
    check = verdict_on([{**FLIPS, "required": True}], tasks, {"t": Answers(again)}).checks[0]
    # 120 items differ from either baseline answer, and as many between these two
    assert check.harm == pytest.approx(0.0)
    assert (check.baseline, check.outcome) == (0.12, Outcome.PASS)


def test_excess_that_is_real_but_small_is_no_harm() -> None:
    tasks, again = flipping(1000, 0, 45)
    check = verdict_on([{**FLIPS, "required": True}], tasks, again).checks[0]
    assert check.lower is not None and check.lower > 0
    assert check.outcome is Outcome.INCONCLUSIVE  # 4.5 points, perhaps above 5
    assert check.p_holm is not None and check.p_holm < 0.01
    assert "probably a regression, but not shown to be beyond the margin of 5 points" in check.reason
    assert check.steps[-1].formula.endswith("regression 0.045 <= margin, which never blocks")
    tasks, again = flipping(1000, 0, 30)
    assert verdict_on([{**FLIPS, "required": True}], tasks, again).outcome is Outcome.PASS


def test_without_a_second_baseline_run_nobody_knows_what_a_flip_means() -> None:
    tasks, _ = flipping(100, 0, 0)
    suite = suite_of([ACCURACY, FLIPS], ["t"], repeat_baseline=True)
    verdict = judge(suite, evidence_of(suite, tasks))
    assert "was asked t only once" in verdict.checks[1].reason
    assert "repeat_baseline: true" in (verdict.checks[1].advice or "")
    assert verdict.checks[1].outcome is Outcome.INVALID


def test_two_stored_runs_are_compared_by_what_each_flips_more_than_its_own_baseline() -> None:
    tasks, again = flipping(1000, 20, 120)
    calm, calm_again = flipping(1000, 20, 0)
    suite = suite_of([{**FLIPS, "required": True}, {**ACCURACY, "margin": "9 points"}], ["t"], repeat_baseline=True)
    worse = judge(suite, evidence_of(suite, tasks, again, "b"), evidence_of(suite, calm, calm_again, "a"))
    assert worse.checks[0].outcome is Outcome.BLOCK
    # what is shown is what is compared: 0.01 - 0.02 beside one baseline, 0.13 - 0.02 beside the other
    shown = (worse.checks[0].baseline, worse.checks[0].candidate, worse.checks[0].harm)
    assert shown == pytest.approx((-0.01, 0.11, 0.12))
    alike = judge(suite, evidence_of(suite, tasks, again, "b"), evidence_of(suite, tasks, again, "a"))
    assert alike.outcome is Outcome.PASS


def test_a_repeat_is_never_what_is_judged() -> None:
    tasks = {"t": losing(300, 0)}
    broken = {"t": Answers([0.0] * 300, latency_ns=1, answers={i: "" for i in range(300)})}
    verdict = verdict_on([ACCURACY], tasks, broken)
    assert verdict.outcome is Outcome.PASS
    assert tripped(verdict) == []
    rows = metric_rows(evidence_of(suite_of([ACCURACY], ["t"]), tasks, broken))
    assert [row.value for row in rows if row.name == "accuracy"] == [1.0, 1.0]
    assert {(row.arm, row.value) for row in rows if row.name == "flips"} == {
        (Arm.CANDIDATE, 0.0),
        (Arm.BASELINE, 1.0),
    }


# figures


def figures(tasks: dict[str, tuple[Answers, Answers]], again: dict[str, Answers] | None = None) -> Comparison:
    suite = suite_of([ACCURACY], list(tasks))
    return compare(evidence_of(suite, tasks, again))


def test_figures_are_those_that_checks_decide_by() -> None:
    tasks = {"a": losing(200, 6, 2), "b": losing(400, 9, 3)}
    verdict = verdict_on([ACCURACY, {**ACCURACY, "task": "a"}], tasks)
    pooled, alone = (
        pooled_figures(figures(tasks), {"a": ("a",), "b": ("b",)}, 0.05),
        task_figures(figures(tasks), "a", 0.05),
    )
    for found, check in ((pooled, verdict.checks[0]), (alone, verdict.checks[1])):
        assert found.limits is not None
        assert (found.regression, found.limits.lower, found.limits.upper) == (check.harm, check.lower, check.upper)
    assert (alone.lost, alone.gained, alone.flips_ratio) == (6, 2, 0.04)
    assert alone.recovery_ratio == pytest.approx(194 / 198)


def test_figures_show_the_floor_only_where_the_baseline_was_asked_twice() -> None:
    tasks, again = flipping(1000, 20, 120)
    without, found = task_figures(figures(tasks), "t", 0.05), task_figures(figures(tasks, again), "t", 0.05)
    assert without.floor_ratio is None and without.excess_limits is None
    assert found.floor_ratio == 0.02
    assert found.excess_ratio == pytest.approx(0.11)


def test_figures_without_limits_are_still_figures() -> None:
    clusters = [f"passage {i % 5}" for i in range(100)]
    few = (Answers(right_but(100), clusters=clusters), Answers(right_but(100, 3), clusters=clusters))
    plenty = [f"passage {i % 20}" for i in range(100)]
    many = (Answers(right_but(100), clusters=plenty), Answers(right_but(100, 3), clusters=plenty))
    for tasks in ({"t": few}, {"t": many, "one": losing(1, 0)}):
        found = pooled_figures(figures(tasks), {task: (task,) for task in tasks}, 0.05)
        assert (found.limits, found.lost) == (None, 1)
        assert verdict_on([ACCURACY], tasks).outcome is Outcome.INCONCLUSIVE
