"""Tasks that are generated from a fixed seed: recall by length, stop strings, and a round trip of the detokeniser."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import SuiteError
from benchgate.model.deployment import sha256_of
from benchgate.plan.items import PlannedTask
from benchgate.quality.tasks.loading import load_tasks
from benchgate.suite.quality import Quality


def load(*tasks: object, **more: Any) -> tuple[PlannedTask, ...]:
    return load_tasks(Path(), Quality.model_validate({"tasks": list(tasks), **more}))


def test_the_family_of_recall_is_a_group_of_its_lengths() -> None:
    tasks = load("recall")
    assert [task.name for task in tasks] == [f"recall/recall_{size}" for size in ("1k", "2k", "4k", "8k", "16k", "32k")]
    assert {task.leaves for task in tasks} == {6}
    for task, tokens in zip(tasks, (1, 2, 4, 8, 16, 32), strict=True):
        lengths = [len(str(row["prompt"])) for row in task.rows]
        assert 4_000 * tokens <= min(lengths) and max(lengths) < 4_000 * tokens + 400


def test_a_code_is_asked_for_once_and_hidden_at_every_depth() -> None:
    [task] = load("recall_4k")
    depths = []
    for row in task.rows:
        text, question = str(row["prompt"]).rsplit("\n\n", 1)
        holder = question.removeprefix("What is the access code of the ").partition("?")[0]
        assert text.count(f"The access code of the {holder} is {row['answer']}.") == 1
        assert text.count(f"of the {holder} is") == 1 and text.count("The access code of the") == row["codes"]
        depths.append(text.index(str(row["answer"])) / len(text))
    assert min(depths) < 0.03 and max(depths) > 0.96 and {row["codes"] for row in task.rows} == {1, 4}


def test_rows_are_the_same_everywhere() -> None:
    digests = {task.name: sha256_of(task.rows)[:12] for task in load("recall_1k", "stop_strings", "round_trip")}
    assert digests == {"recall_1k": "8ad513f40195", "stop_strings": "c807f6c5a32e", "round_trip": "27560680f4a7"}
    for task in load("recall", "stop_strings", "round_trip"):
        assert len({row["prompt"] for row in task.rows}) == len(task.rows) == len(set(task.item_ids))


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("8617380", ["8617380"]),
        ("It is 8617380.", ["8617380"]),
        ("8617380777777", []),
        ("12345678", []),
        ("861738", []),
    ],
)
def test_a_number_that_is_longer_than_a_code_is_no_code(answer: str, read: list[str]) -> None:
    [task] = load("recall_1k")
    filters: Any = task.config["filter_list"]
    assert re.findall(filters[0]["filter"][0]["regex_pattern"], answer) == read


def test_an_answer_ends_right_before_its_stop_string() -> None:
    [task] = load("stop_strings")
    settings = task.config["generation_kwargs"]
    assert isinstance(settings, dict)
    [stop] = settings["until"]
    for row in task.rows:
        line = str(row["prompt"]).partition("\n")[2]
        assert line.partition(stop)[0] == row["answer"] and line.partition(stop)[2]


def test_texts_to_repeat_have_what_a_detokeniser_breaks() -> None:
    [task] = load("round_trip")
    texts = "".join(str(row["answer"]) for row in task.rows)
    assert all(str(row["prompt"]).endswith(f"\n{row['answer']}") for row in task.rows)
    assert "\u200d" in texts and "\n\n" in texts and "   " in texts and "\t" in texts
    assert any(unicodedata.combining(char) for char in texts) and "\ufffd" not in texts


def test_keys_of_the_suite_hold_for_generated_tasks() -> None:
    [task] = load({"task": "recall_1k", "max_tokens": 9, "cluster": "codes"})
    assert task.config["generation_kwargs"] == {"until": [], "max_gen_toks": 9, "temperature": 0}
    assert (task.cluster_key, task.metric, task.filter, task.scale) == ("codes", "exact_match", "code", "binary")
    with pytest.raises(SuiteError, match="recall_1k: it has no examples to show"):
        load("recall_1k", few_shot=2)


@pytest.mark.parametrize("task", ["stop_strings", "round_trip"])
def test_text_to_repeat_is_only_asked_for_in_a_chat(task: str) -> None:
    with pytest.raises(SuiteError, match=rf"quality\.tasks\[0\]: {task}: .* write `endpoint: chat`"):
        load(task, endpoint="completions")
    assert [found.name for found in load(task)] == [task]
    assert len(load("recall_1k", endpoint="completions")) == 1  # whose answer is found in a continuation
