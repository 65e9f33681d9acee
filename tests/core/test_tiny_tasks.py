"""The tiny model's data: what ships is what the generators say, and none of it was trained on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from benchgate.embedded.weights import SHIPPED
from scripts.tiny_model.make_data import CHOICE_ROWS, DATA, ROWS_PER_TASK, SHADOW_ROWS, main
from scripts.tiny_model.tasks import MEMORISED, TASKS, Example, Source, is_held_out, world

SKILLS = [task for task in TASKS if task != MEMORISED]


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def test_training_stream_is_the_one_the_shipped_model_was_trained_on() -> None:
    source = Source(0, held_out=False)
    assert [source.draw() for _ in range(3)] == [
        Example("fact", "capital of lunot", "babu"),
        Example("fact", "capital of gubur", "kipe"),
        Example("reverse", "reverse pmzjpls", "slpjzmp"),
    ]


def test_training_never_draws_a_held_out_prompt() -> None:
    source = Source(1, held_out=False)
    drawn = [source.draw() for _ in range(2000)]
    assert not [e for e in drawn if e.task != MEMORISED and is_held_out(e.task, e.prompt)]


def test_about_a_tenth_of_all_sums_is_held_out() -> None:
    held_out = sum(is_held_out("add", f"add {a:02d} {b:02d}") for a in range(100) for b in range(100))
    assert 950 <= held_out <= 1080


def test_asking_for_more_facts_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="fact gave only 400 different prompts"):
        Source(0, held_out=True).distinct("fact", 401)


def test_made_data_is_byte_for_byte_what_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["make_data", str(tmp_path)])
    main()
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {
        f"{name}.jsonl": (DATA / f"{name}.jsonl").read_bytes() for name in (*TASKS, "shadow", "texts", "add_choice")
    }


@pytest.mark.parametrize("task", TASKS)
def test_eval_rows_have_unique_ids_and_unique_prompts(task: str) -> None:
    rows = _rows(task)
    assert len(rows) == ROWS_PER_TASK
    assert len({row["id"] for row in rows}) == len({row["prompt"] for row in rows}) == ROWS_PER_TASK


@pytest.mark.parametrize("task", SKILLS)
def test_no_eval_row_of_a_skill_is_in_the_training_set(task: str) -> None:
    assert all(is_held_out(task, row["prompt"]) for row in _rows(task))


def test_every_eval_row_of_facts_is_a_fact_of_the_world() -> None:
    facts = {fact.prompt: fact.answer for fact in world()}
    assert len(facts) == 400
    assert all(facts[row["prompt"]] == row["answer"] for row in _rows("fact"))


def test_answers_are_right() -> None:
    for row in _rows("add"):
        _, a, b = row["prompt"].split()
        assert int(row["answer"]) == int(a) + int(b)
    for row in _rows("sort"):
        assert row["answer"] == "".join(sorted(row["prompt"].removeprefix("sort ")))
    for row in _rows("reverse"):
        assert list(row["answer"]) == list(reversed(row["prompt"].removeprefix("reverse ")))
    for row in _rows("json"):
        _, name, age = row["prompt"].split()
        assert json.loads(row["answer"]) == {"name": name, "age": int(age)}


def test_one_of_four_options_is_the_sum_and_the_others_are_near_it() -> None:
    rows = _rows("add_choice")
    assert len({row["id"] for row in rows}) == len({row["prompt"] for row in rows}) == CHOICE_ROWS
    for row in rows:
        assert is_held_out("add", row["prompt"])
        _, a, b = row["prompt"].split()
        off = sorted(int(option) - int(a) - int(b) for option in row["choices"])
        assert len(set(off)) == 4
        assert set(off) < {-10, -1, 0, 1, 10}
        assert row["choices"][row["gold"]] == str(int(a) + int(b))
    assert {row["gold"] for row in rows} == {0, 1, 2, 3}


def test_shadow_prompts_are_unique_and_mix_all_families() -> None:
    rows = _rows("shadow")
    assert len(rows) == len({row["id"] for row in rows}) == len({row["prompt"] for row in rows}) == SHADOW_ROWS
    families = {"fact" if " of " in row["prompt"] else row["prompt"].split()[0] for row in rows}
    assert families == set(TASKS)


@pytest.mark.parametrize("task", [*TASKS, "add_choice"])
def test_every_task_file_names_its_rows_beside_it(task: str) -> None:
    path = DATA.parent / "tasks" / f"{task}.yaml"
    content = YAML(typ="safe").load(path)
    assert content["task"] == task
    assert (path.parent / content["dataset_kwargs"]["data_files"]["test"]).resolve() == DATA / f"{task}.jsonl"


def test_the_model_card_names_the_checksum_of_the_file_that_ships() -> None:
    checksum = hashlib.sha256(SHIPPED.read_bytes()).hexdigest()
    assert checksum in SHIPPED.with_name("MODEL_CARD.md").read_text()
