"""From what lm-eval logs of an item to its score and its choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchgate.plan.items import PlannedTask
from benchgate.quality.choices import chosen_option
from benchgate.quality.protocol import ItemScored
from benchgate.quality.worker import mean_scores, score_items

TASK = PlannedTask("t", {}, ({"id": "a"}, {"id": "b"}))
UNREAD = "[invalid]"
PICK = PlannedTask("t", {}, ({"id": "a"},), metric="acc_norm", output_type="multiple_choice")


class Built:
    """What of lm-eval's task the scores need."""

    def aggregation(self) -> dict[str, Any]:
        return {"kept": lambda items: sum(items[0]) / len(items[0]), "bleu": lambda items: 34.0}

    def doc_to_choice(self, doc: dict[str, Any]) -> list[str]:
        return list(doc["options"])


def sample(filtered: Sequence[Any] = ("x",), doc: dict[str, Any] | None = None, **metrics: object) -> dict[str, Any]:
    hashes = {"doc_hash": "d", "prompt_hash": "p", "target_hash": "t"}
    return {"doc_id": 0, "doc": doc, "filtered_resps": list(filtered), "metrics": list(metrics), **hashes, **metrics}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"exact_match": 1.0}, 1.0),
        ({"exact_match": True, "other": 0.2}, 1.0),
        ({"kept": [True, False, True, True]}, 0.75),
        ({"bleu": ("reference", "answer")}, 0.34),
        ({"bleu": 0.34}, 0.34),  # of a task's own code
        ({"bleu_max": 34.0}, 0.34),
    ],
)
def test_the_judged_metric_of_one_item_is_a_number_between_0_and_1(metrics: dict[str, Any], expected: float) -> None:
    [line] = score_items(replace(TASK, metric=next(iter(metrics))), Built(), [sample(**metrics)])
    assert (line.item_id, line.score, line.choice) == ("a", expected, "x")


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"f1": 1.0, "em": 0.0}, "t gives no metric 'exact_match'; it gives f1, em"),
        ({"exact_match": "yes"}, "its metric exact_match is 'yes', which is no number"),
    ],
)
def test_what_is_no_score_ends_the_eval_with_the_reason(metrics: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        score_items(TASK, Built(), [sample(**metrics)])


def test_an_item_that_its_task_gives_no_score_has_none_and_the_others_keep_theirs() -> None:
    samples = [sample(exact_match=float("nan")), {**sample(exact_match=1.0), "doc_id": 1}]
    for unread in ((), {0}):
        none, other = score_items(TASK, Built(), samples, unread)
        assert math.isnan(none.score) and other.score == 1.0


def test_metric_that_is_the_only_one_of_its_task_may_give_its_value_under_another_name() -> None:
    task = replace(TASK, metric="pass_at_k", config={"metric_list": [{"metric": "pass_at_k"}]})
    metrics: dict[str, Any] = {"pass@1": 1.0}
    [line] = score_items(task, Built(), [sample(**metrics)])
    assert line.score == 1.0


@pytest.mark.parametrize(
    "config",
    [{}, {"metric_list": [{"metric": "exact_match"}], "process_results": {"function": "own.score"}},
     {"metric_list": [{"metric": "exact_match"}, {"metric": "f1"}]}],
)  # fmt: skip
def test_another_metric_never_takes_the_place_of_the_judged_one(config: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="t gives no metric 'exact_match'; it gives f1"):
        score_items(replace(TASK, config=config), Built(), [sample(f1=1.0)])


@pytest.mark.parametrize(
    ("filtered", "expected"),
    [(["yes"], "yes"), ([["def f(): pass"]], "def f(): pass"), ([["a", "b"]], None), ([], None)],
)
def test_the_choice_is_what_the_filter_read_out_of_the_answer(filtered: list[Any], expected: str | None) -> None:
    [line] = score_items(TASK, Built(), [sample(filtered, exact_match=0.0)])
    assert line.choice == expected


def test_an_unread_answer_has_no_other_choice_than_the_mark_and_no_read_one_has_it() -> None:
    given = [sample(["yes"], exact_match=0.0), sample([UNREAD], exact_match=0.0)]
    assert [line.choice == UNREAD for line in score_items(TASK, Built(), given)] == [False, False]
    assert [line.choice for line in score_items(TASK, Built(), given, unread={0})] == [UNREAD, UNREAD]


def test_a_long_choice_is_kept_by_its_digest() -> None:
    [one], [other] = (score_items(TASK, Built(), [sample(["x" * 300 + end], exact_match=0.0)]) for end in "ab")
    assert one.choice is not None
    assert one.choice.startswith("sha256:")
    assert one.choice != other.choice


def test_the_option_chosen_is_that_of_the_judged_metric() -> None:
    options, logprobs = ["no", "certainly", "ja\u00e4"], [-2.0, -4.0, -2.5]
    assert chosen_option("acc", options, logprobs) == 0
    assert chosen_option("acc_norm", options, logprobs) == 1  # by its nine letters
    assert chosen_option("acc_bytes", ["no", "\u00e4\u00e4"], [-2.0, -3.0]) == 1  # four bytes
    assert chosen_option("acc_mutual_info", ["no", "yes"], [-2.0, -3.0, -1.0, -4.0]) == 1
    doc = {"options": options}
    [line] = score_items(PICK, Built(), [sample([(value, False) for value in logprobs], doc, acc=0.0, acc_norm=1.0)])
    assert (line.score, line.choice) == (1.0, "certainly")


def test_an_option_that_is_spelt_like_the_mark_of_an_unread_answer_is_read() -> None:
    doc = {"options": ["[valid]", UNREAD]}
    [line] = score_items(PICK, Built(), [sample([(-2.0, False), (-1.0, False)], doc, acc=0.0, acc_norm=0.0)])
    assert line.choice is not None
    assert line.choice.startswith("sha256:")


def test_askings_of_one_item_are_one_score() -> None:
    lines = [
        [ItemScored("t", "a", "d", "p", "t", score, choice)]
        for score, choice in ((1.0, "x"), (0.0, "y"), (0.0, UNREAD))
    ]
    [mean] = mean_scores(lines)
    assert mean.score == pytest.approx(1 / 3)
    assert (mean.choice, mean.unread) == ("x", [2])
