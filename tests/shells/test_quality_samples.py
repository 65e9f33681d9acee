"""Samples that lm-eval wrote elsewhere: options, clusters, ids, and which files of a folder belong to which run."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import SuiteError
from benchgate.model.deployment import Arm
from benchgate.quality.imported import read_arm
from benchgate.quality.sample_files import find_files
from benchgate.quality.samples import Judged, Wanted, judged, parse_samples
from benchgate.suite.quality import TaskEntry

DATE = "2026-01-02T03-04-05.000006"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def line(doc_id: int, doc: dict[str, Any], score: float = 1.0, **more: Any) -> dict[str, Any]:
    """One line as lm-eval 0.4 writes it, of a text that was asked for."""
    prompt, target = f"ask {doc_id}", "yes"
    return {
        "doc_id": doc_id, "doc": doc, "target": target,
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": []}}},
        "resps": [["Yes!"]], "filtered_resps": ["yes"], "filter": "none", "metrics": ["acc"], "acc": score,
        "doc_hash": sha256(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": sha256(prompt), "target_hash": sha256(target), **more,
    }  # fmt: skip


def options(*logprobs: str) -> dict[str, Any]:
    """What stands in a line of a task of options, whose texts are a, b, c, …"""
    scored = [[value, "False"] for value in logprobs]
    texts = {f"gen_args_{i}": {"arg_0": f"ask {0}", "arg_1": f" {'abcd'[i]}"} for i in range(len(logprobs))}
    return {"arguments": texts, "resps": [[one] for one in scored], "filtered_resps": scored}


def read(*rows: dict[str, Any], **wanted: str) -> Judged:
    samples, problems = parse_samples("\n".join(map(json.dumps, rows)), "s.jsonl")
    assert problems == []
    found, problems = judged(samples, Wanted("t", **wanted), "s.jsonl")
    assert found is not None, problems
    return found


def test_of_options_the_likeliest_is_the_answer_and_their_number_the_chance() -> None:
    found = read(line(0, {"q": "x"}, **options("-3.5", "-0.25", "-9.0", "-inf")))
    assert (found.items[0].answer, found.items[0].choice, found.chance) == (" b", " b", 0.25)


def test_a_text_is_an_answer_and_what_was_read_out_of_it_the_choice() -> None:
    found = read(line(0, {"q": "x"}))
    assert (found.items[0].answer, found.items[0].choice, found.chance) == ("Yes!", "yes", None)


def test_documents_without_an_id_of_their_own_go_by_their_place_and_hash() -> None:
    same = {"q": "twice"}
    found = read(line(3, same), line(1, same))
    assert [item.item_id for item in found.items] == [f"t-{n}-{found.items[0].doc_hash[:12]}" for n in (1, 3)]


def test_ids_of_their_own_are_kept_where_each_has_another() -> None:
    assert [item.item_id for item in read(line(1, {"id": "b"}), line(0, {"id": "a"})).items] == ["a", "b"]
    assert [item.item_id[:3] for item in read(line(1, {"id": "a"}), line(0, {"id": "a"})).items] == ["t-0", "t-1"]


def test_a_cluster_is_what_the_document_says() -> None:
    found = read(line(0, {"passage": 7}), line(1, {"passage": 8}), cluster="passage")
    assert [item.cluster for item in found.items] == ["7", "8"]


def test_a_cluster_that_a_document_lacks_is_told_at_its_line() -> None:
    samples, _ = parse_samples("\n".join(map(json.dumps, [line(0, {"passage": 7}), line(1, {"q": 1})])), "s.jsonl")
    found, [problem] = judged(samples, Wanted("t", cluster="passage"), "s.jsonl")
    assert found is None and str(problem) == "s.jsonl:2: its document has no 'passage' to cluster by"


def test_a_filter_that_is_not_there_is_told_with_those_that_are() -> None:
    samples, _ = parse_samples(json.dumps(line(0, {"q": 1})), "s.jsonl")
    _, [problem] = judged(samples, Wanted("t", filter="strict-match"), "s.jsonl")
    assert "no filter is called 'strict-match'; there are 'none'" in str(problem)


def written(folder: Path, task: str, *rows: dict[str, Any], date: str = DATE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{task}_{date}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_group_is_its_tasks_each_by_itself(tmp_path: Path) -> None:
    inside = {"mmlu": ["mmlu_stem", "mmlu_law"], "mmlu_stem": ["mmlu_physics", "mmlu_biology"]}
    (tmp_path / f"results_{DATE}.json").write_text(json.dumps({"results": {}, "group_subtasks": inside}))
    for task in ("mmlu_physics", "mmlu_biology", "mmlu_law"):
        written(tmp_path, task, line(0, {"q": task}))
    seen = read_arm(Arm.CANDIDATE, tmp_path, [TaskEntry(task="mmlu")]).observations
    assert [one.task for one in seen] == ["mmlu/mmlu_physics", "mmlu/mmlu_biology", "mmlu/mmlu_law"]
    assert {one.harness["leaves"] for one in seen} == {3}


def test_a_folder_with_the_folder_of_one_model_is_that_models(tmp_path: Path) -> None:
    path = written(tmp_path / "org__model", "gsm8k", line(0, {"q": 1}))
    assert find_files(tmp_path).samples == {"gsm8k": path}


def test_the_task_of_a_file_is_in_its_name_whatever_underscores_it_has(tmp_path: Path) -> None:
    path = written(tmp_path, "mmlu_pro_computer_science", line(0, {"q": 1}))
    assert find_files(path).samples == {"mmlu_pro_computer_science": path}


@pytest.mark.parametrize(
    ("metric", "says"),
    [("word_perplexity", "of word_perplexity less is better"), ("my_score", "is not known without its results_*.json")],
)
def test_a_metric_that_could_be_read_the_wrong_way_round_is_refused(tmp_path: Path, metric: str, says: str) -> None:
    row = line(0, {"q": 1}, metrics=[metric], **{metric: 0.5})
    with pytest.raises(SuiteError, match=re.escape(says)):
        read_arm(Arm.BASELINE, written(tmp_path, "t", row), [TaskEntry(task="t")])


@pytest.mark.parametrize("places", [("a", "b"), ("", "")], ids=["two models", "twice"])
def test_two_runs_in_one_folder_are_not_guessed_between(tmp_path: Path, places: tuple[str, str]) -> None:
    for number, place in enumerate(places):
        written(tmp_path / place, "gsm8k", line(0, {"q": 1}), date=f"2026-01-0{number + 1}T00-00-00.0")
    with pytest.raises(SuiteError, match=r"several runs|of the same task"):
        find_files(tmp_path)
