"""How tasks are named in a suite and spelled in a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from benchgate.plan.items import PlannedTask, task_to_json
from benchgate.plan.schedule import make_plan, measurement_sha256
from benchgate.suite.quality import Quality
from benchgate.suite.schema import Suite

ROWS: tuple[dict[str, object], ...] = tuple({"id": f"r{n}", "question": str(n)} for n in range(4))
CONFIG: dict[str, object] = {
    "test_split": "test",
    "output_type": "generate_until",
    "filter_list": [{"name": "strict", "filter": []}, {"name": "loose", "filter": []}],
    "metric_list": [{"metric": "exact_match"}],
}
TASK = PlannedTask("t", CONFIG, ROWS, filter="strict")
FUNCTION = {"function": "utils.pick", "folder": "/srv/tasks", "sha256": "ab" * 32}


def quality(**keys: Any) -> Quality:
    return Quality.model_validate({"tasks": ["tasks/add.yaml"], **keys})


def test_a_task_of_which_nothing_more_is_said_is_stored_as_its_text() -> None:
    said = quality(tasks=["tasks/add.yaml", "gsm8k", {"task": "mmlu_pro", "few_shot": 5}])
    stored = said.model_dump(mode="json")
    assert stored["tasks"] == ["tasks/add.yaml", "gsm8k", {"task": "mmlu_pro", "few_shot": 5}]
    assert Quality.model_validate(stored, by_name=True, by_alias=False, context={"stored": True}) == said


def test_a_suite_that_uses_nothing_new_keeps_the_keys_it_had() -> None:
    assert sorted(quality().model_dump(mode="json")) == [
        "concurrency", "endpoint", "limit", "max_empty_ratio", "max_tokens", "tasks", "timeout_s",
    ]  # fmt: skip


def test_what_is_said_of_evals_survives_the_store() -> None:
    said = quality(
        tasks=[{"task": "gsm8k", "expect": {"min": "70%", "max": "90%"}, "max_tokens": "64 tokens"}],
        memory="2GiB", system="Be brief.", repeat_baseline=True, include=["mine"], fewshot_as_turns=False,
    )  # fmt: skip
    stored = said.model_dump(mode="json")
    assert (stored["memory_bytes"], stored["tasks"][0]["expect"]) == (2 * 1024**3, {"least": 0.7, "most": 0.9})
    assert Quality.model_validate(stored, by_name=True, by_alias=False, context={"stored": True}) == said


def test_tasks_are_called_by_their_files_stem_or_by_lm_evals_name() -> None:
    named = quality(tasks=["more/add.yaml", "mmlu_pro", "hendrycks.math"])
    assert named.names == ("add", "mmlu_pro", "hendrycks.math")
    found = {task: named.entry(task) for task in ("add", "mmlu_pro/mmlu_pro_law", "mmlu_pro_law")}
    assert [entry.task if entry else None for entry in found.values()] == ["more/add.yaml", "mmlu_pro", None]


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": "8"},
        {"memory": "1MiB"},
        {"few_shot": -1},
        {"concurrency": 1},
        {"tasks": [7]},
        {"tasks": [{"limit": 1}]},
        {"tasks": [{"task": "a", "limits": 1}]},
        {"tasks": [{"task": "a", "scale": "both"}]},
        {"repeat_baseline": "no"},
    ],
)
def test_other_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        quality(**wrong)


def test_a_task_that_uses_nothing_new_is_spelled_as_it_was() -> None:
    assert task_to_json(TASK) == {"name": "t", "config": CONFIG, "rows": ROWS}


def test_what_is_judged_otherwise_than_the_task_itself_says_is_spelled_out() -> None:
    other = replace(TASK, filter="loose", scale="continuous", cluster_key="question", system="Be brief.")
    told = task_to_json(other)
    assert {key: told[key] for key in told.keys() - {"name", "config", "rows"}} == {
        "filter": "loose", "scale": "continuous", "cluster_key": "question", "system": "Be brief.",
    }  # fmt: skip


def test_where_a_functions_module_lies_is_no_part_of_a_plan_and_what_it_says_is() -> None:
    here = replace(
        TASK, config={**CONFIG, "process_docs": FUNCTION, "metric_list": [{"metric": FUNCTION}]}, metric="pick"
    )
    there = replace(here, config={**here.config, "process_docs": {**FUNCTION, "folder": "/elsewhere"}})
    changed = replace(here, config={**here.config, "process_docs": {**FUNCTION, "sha256": "cd" * 32}})
    assert task_to_json(here) == task_to_json(there)
    assert task_to_json(here) != task_to_json(changed)
    assert "metric" not in task_to_json(here)  # a function's metric is called as it is


def test_rows_of_a_data_set_that_is_not_the_suites_are_spelled_by_their_digests() -> None:
    ids = tuple(f"t-{n}" for n in range(4))
    told = task_to_json(replace(TASK, ids=ids))["rows"]
    assert isinstance(told, list)
    assert [row["id"] for row in told] == list(ids)
    assert all(len(row["doc_sha256"]) == 64 for row in told)
    assert len({row["doc_sha256"] for row in told}) == 4


def test_a_task_cut_to_its_first_rows_still_draws_examples_from_all_of_them() -> None:
    drawing = replace(TASK, config={**CONFIG, "num_fewshot": 2, "fewshot_split": "test"}, ids=("a", "b", "c", "d"))
    cut = drawing.cut(1)
    assert (cut.rows, cut.item_ids, cut.shots) == (ROWS[:1], ("a",), ROWS[1:])
    assert TASK.cut(1).shots == ()
    assert TASK.cut(9) is TASK


def test_what_an_eval_process_may_use_and_what_is_expected_are_no_part_of_what_was_measured() -> None:
    def measured(**said: Any) -> str:
        suite = Suite.model_validate(
            {
                "suite": "s",
                "deployments": {"a": {"embedded": {}}, "b": {"embedded": {"weights": "q8_0"}}},
                "baseline": "a",
                "candidate": "b",
                "quality": {"tasks": [{"task": "add.yaml", **said.pop("task", {})}], **said},
                "gate": {"checks": [{"metric": "accuracy", "margin": "2 points"}]},
            }
        )
        return measurement_sha256(suite, make_plan(suite, [TASK]))

    plain = measured()
    assert measured(memory="2GiB") == plain
    assert measured(task={"expect": {"min": "1%", "max": "2%"}}) == plain
    assert measured(task={"few_shot": 1}) != plain
    assert measured(system="Be brief.") != plain
