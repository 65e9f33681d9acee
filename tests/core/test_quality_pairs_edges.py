"""Items side by side: those of a group's tasks, those that stand twice, and those of evals that were stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.comparison import compare
from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence.items import Pairs, pair_unit
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.verdict import Outcome
from tests.fakes.evals import Answers, Line, evidence_of, suite_of

ACCURACY: Line = {"metric": "accuracy", "margin": "50 points"}
SUITE = suite_of([ACCURACY], ["t"])
WHOLE = Answers([1.0] * 60)
BY_DEGREES = {"scale": "continuous"}
STOPPED = {"stopped_early": True}


def group(*tasks: Answers) -> Pairs:
    evidence = evidence_of(suite_of([ACCURACY], ["g"]), {f"g/{i}": (one, one) for i, one in enumerate(tasks)})
    return pair_unit(compare(evidence), "g", tuple(f"g/{i}" for i in range(len(tasks))))


def test_items_of_a_task_without_clusters_stand_alone_beside_one_that_has_them() -> None:
    plain, grouped = Answers([1.0] * 5), Answers([1.0] * 6, clusters=["a", "b", "c"] * 2)
    assert group(plain, plain).clusters is None
    for tasks, many in (((plain, grouped), 8), ((grouped, plain, plain), 13), ((grouped, grouped), 3)):
        clusters = group(*tasks).clusters
        assert clusters is not None
        assert (len(clusters), len(set(clusters))) == (sum(len(one.scores) for one in tasks), many)


def test_of_a_group_everything_odd_of_any_task_is_kept() -> None:
    plain, cut = Answers([1.0] * 5, choices=["a"] * 5), Answers([0.0, 1.0], choices=["b", "a"], finish={0: "length"})
    both = group(plain, cut)
    assert (both.tasks, len(both), both.other_wrong, both.why_unclear) == (2, 7, 0, "cut short by the token limit")
    assert both.baseline_unclear.tolist() == both.candidate_unclear.tolist() == [False] * 5 + [True, False]
    assert group(plain, Answers([1.0])).other_wrong is None  # of whose answers nobody knows what they were
    scored, stopped = Answers([0.5] * 5, harness=BY_DEGREES), Answers([1.0] * 5, harness=STOPPED)
    assert (group(plain, scored).continuous, group(plain, plain).continuous) == (True, False)
    assert (group(plain, stopped).stopped, group(plain, plain).stopped) == (True, False)


def test_a_cluster_of_few_beside_a_task_without_any_leaves_both_open() -> None:
    few, plain = Answers([1.0] * 60, clusters=[str(i % 3) for i in range(60)]), Answers([1.0] * 90)
    for tasks in ({"t": (few, few), "u": (plain, plain)}, {"u": (plain, plain), "t": (few, few)}):
        suite = suite_of([ACCURACY], list(tasks))
        (check,) = judge(suite, evidence_of(suite, tasks)).checks
        assert check.outcome is Outcome.INCONCLUSIVE
        assert "only 3 clusters" in check.reason


@pytest.mark.parametrize("twice", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("harness", [{}, STOPPED])
def test_an_item_that_stands_twice_has_no_pair(twice: tuple[bool, bool], harness: dict[str, object]) -> None:
    evidence = evidence_of(SUITE, {"t": (replace(WHOLE, harness=harness),) * 2})
    quality = tuple(
        replace(one, items=(*one.items, one.items[0]), expected_n=61) if again else one
        for one, again in zip(evidence.quality, twice, strict=True)
    )
    with pytest.raises(CannotJudge, match="did not answer the same items"):
        pair_unit(compare(replace(evidence, quality=quality)), "t", ("t",))


def test_of_evals_that_were_stopped_the_items_that_both_answered_are_paired() -> None:
    theirs, ours = Answers([1.0] * 20, harness=STOPPED), Answers([0.0] * 12, harness=STOPPED)
    evidence = evidence_of(SUITE, {"t": (theirs, ours)})
    told = pair_unit(compare(evidence), "t", ("t",))
    assert (len(told), told.stopped, told.lost.sum()) == (12, True, 12)


@pytest.mark.parametrize("arm", Arm)
def test_a_task_that_an_arm_never_ran_or_that_failed_leaves_its_whole_group_without_a_result(arm: Arm) -> None:
    suite = suite_of([ACCURACY], ["g"])
    whole = evidence_of(suite, {"g/a": (WHOLE, WHOLE), "g/b": (WHOLE, WHOLE)})
    without = tuple(o for o in whole.quality if (o.task, o.arm) != ("g/b", arm))
    failed = tuple(replace(o, fault="went away") if (o.task, o.arm) == ("g/b", arm) else o for o in whole.quality)
    for quality, says in ((without, f"not run on the {arm.value}"), (failed, f"failed on the {arm.value}: went away")):
        for tasks in (("g/a", "g/b"), ("g/b", "g/a")):
            with pytest.raises(CannotJudge, match=says) as caught:
                pair_unit(compare(replace(whole, quality=quality)), "g", tasks)
            assert caught.value.outcome is Outcome.INVALID


def test_an_item_without_a_cluster_is_its_own_beside_items_that_have_one() -> None:
    clustered = Answers([1.0] * 4, clusters=["a", "a", "b", "None"])
    evidence = evidence_of(SUITE, {"t": (clustered, clustered)})
    quality = tuple(
        replace(
            one, items=(*one.items, *(replace(item, item_id=f"x{item.item_id}", cluster=None) for item in one.items))
        )
        for one in evidence.quality
    )
    whole = replace(evidence, quality=tuple(replace(one, expected_n=8) for one in quality))
    told = pair_unit(compare(whole), "t", ("t",))
    assert told.clusters is not None
    assert (len(told.clusters), len(set(told.clusters))) == (8, 7)
