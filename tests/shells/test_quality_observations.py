from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.plan.items import PlannedTask
from benchgate.quality.protocol import ItemAnswered, ItemScored, Ready, SpoolReader, SpoolWriter, TaskDone
from benchgate.quality.runner import TaskRecord

TASK = PlannedTask("t", {}, ({"id": "a"}, {"id": "b"}))


def answered(item_id: str, error: str | None = None) -> ItemAnswered:
    return ItemAnswered("t", item_id, None if error else "x", "stop", 1, 5, error, was_null=False, retries=0)


def scored(item_id: str, score: float = 1.0) -> ItemScored:
    return ItemScored("t", item_id, "doc", "prompt", "target", score)


def record(answered_ids: str, scored_ids: str) -> TaskRecord:
    return TaskRecord(TASK, {i: answered(i) for i in answered_ids}, {i: scored(i) for i in scored_ids})


def test_a_task_whose_every_row_was_answered_scored_and_counted_has_no_fault() -> None:
    assert record("ba", "ab").fault(TaskDone("t", 2)) is None


@pytest.mark.parametrize(
    ("answered_ids", "scored_ids", "effective_n"),
    [("ab", "ab", 1), ("ab", "ab", 3), ("a", "ab", 2), ("ab", "a", 2), ("ac", "ac", 2), ("", "", 0)],
)
def test_rows_that_lm_eval_dropped_added_or_swapped_are_a_fault(
    answered_ids: str, scored_ids: str, effective_n: int
) -> None:
    fault = record(answered_ids, scored_ids).fault(TaskDone("t", effective_n))
    assert fault is not None
    assert fault.startswith("lm-eval did not use exactly the 2 rows of the task")


def test_the_score_that_lm_eval_gave_a_failed_item_is_not_kept() -> None:
    failed = TaskRecord(TASK, {"a": answered("a", "HTTP 500: no"), "b": answered("b")}, {i: scored(i) for i in "ab"})
    a, b = failed.observation(Arm.CANDIDATE, None, {}).items
    assert (a.score, a.answer, a.error) == (None, None, "HTTP 500: no")
    assert (b.score, b.answer, b.error) == (1.0, "x", None)


def test_half_a_line_waits_for_its_end_and_no_line_is_lost_or_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "spool.jsonl"
    reader = SpoolReader(path)
    assert list(reader.new_events()) == []  # not there yet
    with SpoolWriter(path) as writer:
        writer.write(Ready(7, "0.4.13"), answered("a"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert list(reader.new_events()) == [Ready(7, "0.4.13")]
    path.write_bytes(whole)
    assert list(reader.new_events()) == [answered("a")]
    assert list(reader.new_events()) == []


def test_a_reader_interrupted_between_two_lines_goes_on_with_the_second(tmp_path: Path) -> None:
    path = tmp_path / "spool.jsonl"
    with SpoolWriter(path) as writer:
        writer.write(answered("a"), scored("a"))
    reader = SpoolReader(path)
    assert next(reader.new_events()) == answered("a")
    assert list(reader.new_events()) == [scored("a")]


@pytest.mark.parametrize(
    ("score", "expected"), [(0.5, "the score of a is 0.5, neither 0 nor 1"), (float("nan"), "nan")]
)
def test_a_task_that_is_right_or_wrong_and_scores_otherwise_is_a_fault(score: float, expected: str) -> None:
    odd = TaskRecord(TASK, {i: answered(i) for i in "ab"}, {"a": scored("a", score), "b": scored("b")})
    fault = odd.fault(TaskDone("t", 2))
    assert fault is not None
    assert expected in fault


def test_a_task_of_scores_in_between_takes_every_number_but_none_that_is_not_finite() -> None:
    task = replace(TASK, scale="continuous")
    between = TaskRecord(task, {i: answered(i) for i in "ab"}, {"a": scored("a", 0.5), "b": scored("b", -3.0)})
    assert between.fault(TaskDone("t", 2)) is None
    endless = TaskRecord(task, {i: answered(i) for i in "ab"}, {"a": scored("a", float("inf")), "b": scored("b")})
    assert endless.fault(TaskDone("t", 2)) == "the score of a is inf"
    assert [item.score for item in endless.items()] == [None, 1.0]


def test_of_an_item_asked_several_times_the_first_answer_is_shown_and_any_failure_counts() -> None:
    several = TaskRecord(TASK, scored={i: scored(i) for i in "ab"})
    for asking, error in enumerate([None, "HTTP 500: no", None]):
        several.take_answer(replace(answered("a", error), repetition=asking, retries=asking))
    several.take_answer(answered("b"))
    a, b = several.observation(Arm.BASELINE, None, {}, repeat=1).items
    assert (a.answer, a.error, a.score) == ("x", "HTTP 500: no", None)
    assert (b.error, b.score) == (None, 1.0)
    assert several.observation(Arm.BASELINE, None, {}).harness["retries"] == 3


def test_what_stands_in_the_answers_that_are_not_shown_is_counted() -> None:
    several = TaskRecord(replace(TASK, config={"repeats": 4}, scale="continuous"))
    for asking, (text, finish) in enumerate([("x", "stop"), ("", "stop"), ("x", "length"), (" ", "length")]):
        several.take_answer(replace(answered("a"), answer=text, finish_reason=finish, repetition=asking))
        several.take_answer(replace(answered("b"), finish_reason="length", repetition=asking))
    several.scored = {"a": replace(scored("a", 0.5), unread=[0, 3]), "b": scored("b")}  # b is right every time
    seen = several.observation(Arm.BASELINE, None, {})
    counted = {name: seen.harness[name] for name in ("askings_count", "empty_count", "unclear_count")}
    assert counted == {"askings_count": 8, "empty_count": 2, "unclear_count": 3}
    assert (seen.items[0].answer, seen.items[0].finish_reason) == ("x", "stop")
    once = TaskRecord(TASK, {"a": answered("a")}, {"a": scored("a")}).observation(Arm.BASELINE, None, {})
    assert "askings_count" not in once.harness


@pytest.mark.parametrize(("unread", "counted"), [([], 1), ([2], 1), ([0, 1], 3), ([0, 1, 2], 3)])
def test_repetition_that_is_cut_and_unread_counts_once_and_two_of_them_twice(unread: list[int], counted: int) -> None:
    several = TaskRecord(replace(TASK, config={"repeats": 3}, scale="continuous", rows=({"id": "a"},)))
    for number, finish in enumerate(["stop", "stop", "length"]):
        several.take_answer(replace(answered("a"), finish_reason=finish, repetition=number))
    several.scored = {"a": replace(scored("a", 0.0), unread=unread)}
    assert several.observation(Arm.BASELINE, None, {}).harness["unclear_count"] == counted


def test_items_carry_their_cluster_and_what_was_read_out_of_their_answer() -> None:
    task = replace(TASK, rows=({"id": "a", "page": 7}, {"id": "b", "page": 8}), cluster_key="page")
    read = replace(scored("a"), choice="forty")
    items = TaskRecord(task, {"a": answered("a")}, {"a": read}).observation(Arm.BASELINE, None, {}).items
    assert [(item.cluster, item.choice) for item in items] == [("7", "forty")]


def test_items_without_a_cluster_are_not_one_cluster() -> None:
    task = replace(TASK, rows=({"id": "a", "page": None}, {"id": "b", "page": None}), cluster_key="page")
    found = TaskRecord(task, {i: answered(i) for i in "ab"}, {i: scored(i) for i in "ab"})
    assert [item.cluster for item in found.items()] == [None, None]


def test_a_server_that_gives_most_items_one_probability_for_all_options_has_no_score() -> None:
    tied = TaskRecord(TASK, {i: replace(answered(i), tied=True) for i in "ab"}, {i: scored(i) for i in "ab"})
    assert tied.fault(TaskDone("t", 2)) is None  # nothing is missing
    fault = tied.observation(Arm.CANDIDATE, None, {}).fault  # also where an early end leaves items out
    assert fault is not None
    assert fault.startswith("2 of 2 items got the same log-probability for all their options")
    assert tied.observation(Arm.CANDIDATE, "it ended", {}).fault == "it ended"
    half = TaskRecord(TASK, {**tied.answered, "b": answered("b")}, tied.scored)
    assert half.observation(Arm.CANDIDATE, None, {}).fault is None
