"""How well one arm answers by itself: whose rows count, what must be whole, and when an interval is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchgate.gate.evidence.intervals import count_limits
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, QualityObservation
from benchgate.sizing.candidates import answered_tasks, own_accuracy, tokens_per_correct
from benchgate.stats.meta import EstimateWithLimits
from benchgate.suite.loader import parse_suite
from tests.core.test_frontier import accuracy, answered, evals
from tests.core.test_sizing import SUITE

OURS, THEIRS = Arm.CANDIDATE, Arm.BASELINE
ASKED = {"gsm8k": 40}


def score(task: str, arm: Arm = OURS) -> MetricRow:
    return MetricRow(arm, "score", None, None, task, 0.4, 40, 0.3, 0.5)


def test_tasks_are_those_that_the_arm_itself_answered_and_is_right_or_wrong_in() -> None:
    overall = replace(accuracy("gsm8k", 0.9, 90), task=None)  # over all tasks
    rows = [accuracy("gsm8k", 0.8, 40), accuracy("arc", 0.7, 50, THEIRS), score("chrf"), overall]
    assert answered_tasks(rows, OURS) == ASKED
    assert answered_tasks(rows, THEIRS) == {"arc": 50}


def test_what_the_other_arm_answered_is_no_quality_of_ones_own() -> None:
    suite, theirs = evals("gsm8k"), accuracy("gsm8k", 0.9, 40, THEIRS)
    assert own_accuracy([theirs], suite, OURS, ASKED, []) == "task gsm8k was not answered whole on the candidate"
    both = own_accuracy([theirs, accuracy("gsm8k", 0.5, 40)], suite, OURS, ASKED, [])
    assert isinstance(both, EstimateWithLimits)
    assert both.value == pytest.approx(0.5)
    assert own_accuracy([theirs], suite, THEIRS, ASKED, []) != own_accuracy([theirs], suite, OURS, ASKED, [])


@pytest.mark.parametrize("n", [39, 41])
def test_a_share_of_other_items_than_were_asked_is_not_compared(n: int) -> None:
    found = own_accuracy([accuracy("gsm8k", 1.0, n)], evals("gsm8k"), OURS, ASKED, [])
    assert found == "task gsm8k was not answered whole on the candidate"


def test_a_task_scored_by_degrees_counts_as_answered_where_this_arm_has_its_score() -> None:
    suite, rows = evals("gsm8k", "chrf"), [accuracy("gsm8k", 0.8, 40)]
    found = own_accuracy([*rows, score("chrf")], suite, OURS, ASKED, [])
    assert isinstance(found, EstimateWithLimits)
    assert found.value == pytest.approx(0.8)
    for missing in (rows, [*rows, score("chrf", THEIRS)], [*rows, replace(score("chrf"), name="exact_ratio")]):
        assert own_accuracy(missing, suite, OURS, ASKED, []) == "task chrf was not answered whole on the candidate"


def test_a_suite_without_evals_has_no_quality() -> None:
    assert own_accuracy([], parse_suite(SUITE, "s"), OURS, ASKED, []) == "the suite has no evals"


@pytest.mark.parametrize("end", ["lower", "upper"])
def test_one_task_without_a_limit_leaves_the_mean_without_an_interval(end: str) -> None:
    open_ended = replace(accuracy("arc", 0.6, 50), **{end: None})  # type: ignore[arg-type]  # a field of it
    rows = [accuracy("gsm8k", 0.8, 40), open_ended]
    found = own_accuracy(rows, evals("gsm8k", "arc"), OURS, {**ASKED, "arc": 50}, [])
    assert isinstance(found, EstimateWithLimits)
    assert found.value == pytest.approx(0.7)
    assert found.limits is None


def in_clusters(one: QualityObservation, clusters: Sequence[str | None]) -> QualityObservation:
    items = tuple(replace(item, cluster=of) for item, of in zip(one.items, clusters, strict=True))
    return replace(one, items=items)


HALF = answered("gsm8k", [True, False] * 20, [10, 30] * 20)


def tokens(
    *observed: QualityObservation, asked: dict[str, int] | None = None, suite: str = "gsm8k"
) -> EstimateWithLimits | str:
    return tokens_per_correct(observed, evals(*suite.split()), OURS, asked or ASKED)


def test_only_the_answers_that_are_judged_are_counted() -> None:
    """Those of the other arm, and those of an arm that was asked once more, are of other requests."""
    cheap = answered("gsm8k", [True] * 40, [1] * 40)
    expected = tokens(HALF)
    assert isinstance(expected, EstimateWithLimits)
    assert tokens(HALF, replace(cheap, arm=THEIRS), replace(cheap, repeat=1)) == expected
    assert tokens(replace(cheap, arm=THEIRS)) == "the items of task gsm8k are not there"
    assert tokens(replace(cheap, repeat=1)) == "the items of task gsm8k are not there"


def test_more_items_than_were_asked_are_not_those_items() -> None:
    assert tokens(answered("gsm8k", [True] * 41, [1] * 41)) == "the items of task gsm8k are not there"


def test_an_answer_that_is_not_simply_right_is_none_of_the_right_ones() -> None:
    """Half right, and the rest scored by degrees or not at all: 20 tokens for each half."""
    items = tuple(replace(item, score=(1.0, 0.99, 1.0, None)[i % 4]) for i, item in enumerate(HALF.items))
    found = tokens(replace(HALF, items=items))
    assert isinstance(found, EstimateWithLimits)
    assert found.value == pytest.approx(40.0)


def test_tasks_have_equal_weight_and_a_group_is_one_of_them() -> None:
    """20 tokens an item in one task, 40 and 10 in the halves of the other (25); all of one right, a half of the other.

    22.5 tokens over 0.75.
    """
    observed = [
        answered("gsm8k", [True] * 40, [20] * 40),
        answered("mmlu/law", [True] * 10, [40] * 10),
        answered("mmlu/art", [False] * 10, [10] * 10),
    ]
    asked = {"gsm8k": 40, "mmlu/law": 10, "mmlu/art": 10}
    found = tokens(*observed, asked=asked, suite="gsm8k mmlu")
    assert isinstance(found, EstimateWithLimits)
    assert found.value == pytest.approx(22.5 / 0.75)


def test_nothing_generated_and_nothing_asked_are_no_cost_of_a_right_answer() -> None:
    assert tokens(answered("gsm8k", [True] * 40, [0] * 40)) == "nothing was generated"
    assert "no eval of the suite" in str(tokens_per_correct([HALF], evals("gsm8k"), OURS, {}))


def test_thirty_items_or_ten_clusters_give_an_interval_and_fewer_do_not() -> None:
    def has_interval(n: int, clusters: Sequence[str | None] | None = None) -> bool:
        one = answered("gsm8k", [True, False] * (n // 2), [10, 31] * (n // 2))
        found = tokens(one if clusters is None else in_clusters(one, clusters), asked={"gsm8k": n})
        assert isinstance(found, EstimateWithLimits)
        return found.limits is not None

    assert has_interval(30)
    assert not has_interval(28)
    assert has_interval(30, [f"c{i // 3}" for i in range(30)])
    assert not has_interval(36, [f"c{i // 4}" for i in range(36)])  # nine
    assert not has_interval(40, ["all"] * 40)


def test_one_task_of_too_few_items_leaves_the_whole_without_an_interval() -> None:
    few = answered("arc", [True, False], [10, 30])
    found = tokens(HALF, few, asked={**ASKED, "arc": 2}, suite="gsm8k arc")
    assert isinstance(found, EstimateWithLimits)
    assert found.limits is None


def test_items_that_do_not_differ_give_no_interval() -> None:
    found = tokens(answered("gsm8k", [True] * 40, [7] * 40))
    assert found == EstimateWithLimits(7.0, None)


def reach(found: EstimateWithLimits | str) -> float:
    assert isinstance(found, EstimateWithLimits)
    assert found.limits is not None
    return math.log(found.limits.upper / found.value)


def test_items_that_go_together_tell_less_than_as_many_alone() -> None:
    """Four of each cluster alike: a residual of ±30 in each of ten clusters instead of forty items.

    Of them the error is √(10/9 x 10 x 120²) / 40 = 10, over T = 20, times t(9) at 97.5 %: 2.2622.
    """
    right = [cluster % 2 == 0 for cluster in range(10) for _ in range(4)]
    one = answered("gsm8k", right, [10 if ok else 30 for ok in right])
    names = [f"c{cluster}" for cluster in range(10) for _ in range(4)]
    assert reach(tokens(in_clusters(one, names))) == pytest.approx(2.2622 * 10 / 20, rel=1e-3)
    assert reach(tokens(one)) == pytest.approx(2.0227 * 30 / math.sqrt(39) / 20, rel=1e-3)


def test_an_item_without_a_cluster_is_its_own_beside_those_that_have_one() -> None:
    """Two that go together and 38 alone are 39 clusters, as if each were named."""
    some = ["pair", "pair", *[None] * 38]
    named = ["pair", "pair", *[f"own {i}" for i in range(38)]]
    assert reach(tokens(in_clusters(HALF, some))) == pytest.approx(reach(tokens(in_clusters(HALF, named))))


def test_equal_clusters_of_two_tasks_of_a_group_are_one_as_in_the_checks() -> None:
    names = [f"c{i // 4}" for i in range(40)]  # those with a higher number are longer
    asked = {"mmlu/law": 40, "mmlu/art": 40}
    law, art = (
        in_clusters(answered(f"mmlu/{of}", [True, False] * 20, [10 + i // 4 for i in range(40)]), names)
        for of in ("law", "art")
    )
    other = in_clusters(art, [f"other {name}" for name in names])
    apart = reach(tokens(law, other, asked=asked, suite="mmlu"))
    assert reach(tokens(law, art, asked=asked, suite="mmlu")) > 1.4 * apart


def test_a_second_task_on_the_same_documents_makes_nothing_surer() -> None:
    right = [True, True, False, True] * 25
    alone, again = (answered(task, right, [1] * 100) for task in ("gsm8k", "arc"))
    items = zip(alone.items, again.items, strict=True)
    same = replace(again, items=tuple(replace(theirs, doc_hash=one.doc_hash) for one, theirs in items))
    limits = count_limits(75, 100)
    assert limits is not None
    rows = [replace(accuracy(task, 0.75, 100), lower=limits.lower, upper=limits.upper) for task in ("gsm8k", "arc")]
    suite, asked = evals("gsm8k", "arc"), answered_tasks(rows, OURS)
    apart, shared = (own_accuracy(rows, suite, OURS, asked, [alone, other]) for other in (again, same))
    assert isinstance(apart, EstimateWithLimits) and isinstance(shared, EstimateWithLimits)
    assert apart.limits is not None and shared.limits is not None
    assert shared.limits.lower <= limits.lower + 0.01 < apart.limits.lower
    assert shared.limits.upper >= limits.upper - 0.01 > apart.limits.upper
