"""`benchgate run --samples`: what lm-eval wrote elsewhere is judged as if asked here, and nothing else passes for it.

The files are real: lm-eval itself asks the embedded model once, in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchgate.embedded.server import serve
from benchgate.errors import SuiteError
from benchgate.model.deployment import Arm
from benchgate.quality.import_results import read_arm
from benchgate.suite.deployment import Embedded
from benchgate.suite.quality import Quality
from tests.e2e.command import STORE, document, here, latest_evidence

pytestmark = pytest.mark.beside


ROOT = Path(__file__).parents[2]
TASKS = ROOT / "suites" / "tasks"
ROWS = 60
LM_EVAL = """
import sys
from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

out, *arms = sys.argv[1:]
manager = TaskManager(include_path=".", include_defaults=False)
for arm in arms:
    name, url = arm.split("=")
    tracker = EvaluationTracker(output_path=f"{out}/{name}")
    asked = dict(base_url=f"{url}/v1/chat/completions", model=name, num_concurrent=8, tokenizer_backend=None)
    results = simple_evaluate(
        model="local-chat-completions", model_args=asked, tasks=["add", "fact"], task_manager=manager, limit=ROWS,
        apply_chat_template=True, log_samples=True, bootstrap_iters=0, evaluation_tracker=tracker,
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task in results["configs"]:
        tracker.save_results_samples(task_name=task, samples=samples[task])
"""
SUITE = """
suite: elsewhere
deployments:
  f16: {url: "http://gpu-1.example:8000", model: f16}
  q2_k: {url: "http://gpu-2.example:8000", model: q2_k}
baseline: f16
candidate: q2_k
quality: {tasks: [add, fact], limit: 60}
gate: {checks: [{metric: accuracy, margin: 5 points}, {metric: accuracy, task: each, margin: 8 points}]}
"""
SIDES = ("--samples", "baseline=f16", "candidate=q2_k")
JSON = ("--format", "json")
ASKED = Quality.model_validate({"tasks": ["add", "fact"], "limit": ROWS})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what lm-eval wrote of both arms, and a suite for it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(folder / "cache"),
        "OPENAI_API_KEY": "none",
    }
    with (
        serve(Embedded(), name="f16", cache_dir=folder / "weights") as baseline,
        serve(Embedded(weights="q2_k"), name="q2_k", cache_dir=folder / "weights") as candidate,
    ):
        arms = (f"f16={baseline.url}", f"q2_k={candidate.url}")
        subprocess.run(
            [sys.executable, "-c", LM_EVAL.replace("ROWS", str(ROWS)), str(folder), *arms],
            cwd=TASKS, env={**os.environ, **quiet}, check=True, capture_output=True, timeout=240,
        )  # fmt: skip
    (folder / "suite.yaml").write_text(SUITE)
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """The same, to spoil."""
    for part in ("f16", "q2_k"):
        shutil.copytree(made / part, tmp_path / part)
    shutil.copy(made / "suite.yaml", tmp_path)
    return tmp_path


def samples(folder: Path, arm: str, task: str = "add") -> Path:
    [found] = (folder / arm).glob(f"**/samples_{task}_*.jsonl")
    return found


def results(folder: Path, arm: str) -> Path:
    [found] = (folder / arm).glob("**/results_*.json")
    return found


def changed(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Rewrite the lines of a file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in change(rows)), encoding="utf-8")


def told(folder: Path, arm: str, **changes: object) -> None:
    """Rewrite parts of an arm's results, and let them fit its samples as these are now."""
    path = results(folder, arm)
    found = json.loads(path.read_text(encoding="utf-8"))
    for task in ("add", "fact"):
        rows = [json.loads(line) for line in samples(folder, arm, task).read_text(encoding="utf-8").splitlines()]
        hashes = "".join(row["doc_hash"] + row["prompt_hash"] + row["target_hash"] for row in rows)
        found["task_hashes"][task] = hashlib.sha256(hashes.encode()).hexdigest()
        judged = [row["exact_match"] for row in rows if row["filter"] == "none"]
        found["results"][task]["exact_match,none"] = sum(judged) / len(judged)
    path.write_text(json.dumps({**found, **changes}), encoding="utf-8")


def test_broken_weights_asked_elsewhere_are_blocked_here_and_the_run_is_kept(copy: Path) -> None:
    result = here(copy, "run", "suite.yaml", *SIDES, "--label", "theirs", "--report", "report.html", *JSON)
    assert result.returncode == 10, result.stderr
    said = document(result)
    assert {check["id"]: check["outcome"] for check in said["checks"]}["accuracy"] == "BLOCK"
    evidence = latest_evidence(copy)
    asked = [(seen.task, seen.arm, len(seen.items)) for seen in evidence.quality]
    assert asked == [(task, arm, ROWS) for arm in Arm for task in ("add", "fact")]
    assert evidence.run.arms[Arm.CANDIDATE].facts["model"] == "q2_k"
    again = here(copy, "gate", "theirs", *JSON)
    assert (again.returncode, again.stdout) == (10, result.stdout)
    assert "BLOCK" in (copy / "report.html").read_text()
    held = here(
        copy, "verify", "report.html.intoto.json", "--report", "report.html", "--suite", "suite.yaml", "--store", STORE
    )
    assert (held.returncode, "does not hold" in held.stdout) == (10, False), held.stdout
    report = (copy / "report.html").read_bytes()
    (copy / "report.html").write_bytes(report[:-2] + b" \n")
    assert here(copy, "verify", "report.html.intoto.json", "--report", "report.html").returncode == 12


def test_waivers_are_applied_to_an_import_as_to_a_run(copy: Path) -> None:
    suite = copy / "suite.yaml"
    suite.write_text(SUITE.replace(", {metric: accuracy, task: each, margin: 8 points}", ""))
    (copy / "waivers.yaml").write_text(
        "waivers:\n  - {suite: elsewhere, check: accuracy, deployment: q2_k, ceiling: 60 points, "
        f"expires: {datetime.now(UTC).date() + timedelta(days=9)}, owner: serving, issue: SRV-1, "
        "reason: a trial, approved_by: release}\n"
    )
    assert here(copy, "run", "suite.yaml", *SIDES).returncode == 10
    waived = here(copy, "run", "suite.yaml", *SIDES, "--waivers", "waivers.yaml", *JSON)
    assert (waived.returncode, document(waived)["outcome"]) == (0, "WARN"), waived.stdout
    again = here(copy, "gate", "@latest", "--waivers", "waivers.yaml", *JSON)
    assert (again.returncode, again.stdout) == (0, waived.stdout)


def test_items_keep_what_lm_eval_knew_of_them(copy: Path) -> None:
    here(copy, "run", "suite.yaml", *SIDES)
    assert (copy / ".benchgate" / latest_evidence(copy).run.id / "verdict.intoto.json").is_file()
    seen = latest_evidence(copy).quality[0]
    row = json.loads(samples(copy, "f16").read_text(encoding="utf-8").splitlines()[0])
    item = seen.items[0]
    assert item.item_id == row["doc"]["id"]
    assert (item.answer, item.score) == (row["resps"][0][0], row["exact_match"])
    assert item.prompt_hash == hashlib.sha256(row["arguments"]["gen_args_0"]["arg_0"][0].encode()).hexdigest()
    assert (item.latency_ns, item.finish_reason) == (None, None)  # lm-eval does not tell
    assert seen.harness["lm_eval"] and seen.harness["num_fewshot"] == 0


def test_one_file_for_each_arm_is_enough_for_one_task(copy: Path) -> None:
    (copy / "suite.yaml").write_text(SUITE.replace("[add, fact]", "[add]"))
    sides = ("--samples", f"baseline={samples(copy, 'f16')}", f"candidate={samples(copy, 'q2_k')}")
    result = here(copy, "run", "suite.yaml", *sides, *JSON)
    assert result.returncode == 10, result.stderr


def test_the_order_of_the_lines_is_of_no_matter(copy: Path) -> None:
    straight = document(here(copy, "run", "suite.yaml", *SIDES, *JSON))
    changed(samples(copy, "q2_k"), lambda rows: rows[::-1])
    told(copy, "q2_k")  # lm-eval's hash is over the lines in their order
    shuffled = document(here(copy, "run", "suite.yaml", *SIDES, *JSON))
    assert [c["harm"] for c in shuffled["checks"]] == [c["harm"] for c in straight["checks"]]


def test_of_several_filters_one_is_judged(copy: Path) -> None:
    """After a second filter every answer is wrong: unnamed, the first is judged; named, the other."""

    def with_second(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*rows, *({**row, "filter": "strict", "exact_match": 0.0} for row in rows)]

    for arm in ("f16", "q2_k"):
        changed(samples(copy, arm), with_second)
        told(copy, arm)
    here(copy, "run", "suite.yaml", *SIDES)
    first = latest_evidence(copy).quality[0]
    assert len(first.items) == ROWS and sum(item.score or 0 for item in first.items) > ROWS / 2
    (copy / "suite.yaml").write_text(SUITE.replace("[add, fact]", "[{task: add, filter: strict}, fact]"))
    here(copy, "run", "suite.yaml", *SIDES)
    assert {item.score for item in latest_evidence(copy).quality[0].items} == {0.0}


def edited(**changes: object) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """The third line with other values."""
    return lambda rows: [*rows[:2], {**rows[2], **changes}, *rows[3:]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (edited(doc={"id": "add-0003", "prompt": "add 1 1"}), ":3: `doc_hash` is not the hash of the doc"),
        (edited(target="7"), ":3: `target_hash` is not the hash of the target"),
        (edited(arguments={"gen_args_0": {"arg_0": ["else"]}}), ":3: `prompt_hash` is not the hash of the prompt"),
        (edited(doc_id=0), ":3: `doc_id` 0 stands on line 1 already"),
        (edited(exact_match=None), ":3: exact_match is null, which is no score"),
        (edited(exact_match=[1, 2]), ":3: exact_match is [1, 2], which is no score"),
        (edited(metrics=["bleu"]), ":3: the item has no 'exact_match'; its metrics are 'bleu'"),
        (edited(metrics=[]), ":3: `metrics` names no metric"),
        (edited(filter=7), ":3: `filter` is 7, and not a text"),
        (lambda rows: rows[:-1], f"holds {ROWS - 1} items of the filter 'none', and its results speak of {ROWS}"),
        (lambda rows: rows[::-1], "its lines are not those that its results were made of"),
        (edited(exact_match=0.0), "the mean of exact_match over its items is"),
        (lambda rows: [], "the file has no samples"),
    ],
    ids=[
        "other doc", "other target", "other prompt", "twice", "no score", "a list", "other metric", "no metric",
        "no filter", "one missing", "other order", "other score", "empty",
    ],
)  # fmt: skip
def test_a_file_that_is_not_as_lm_eval_wrote_it_is_refused_at_its_line(
    copy: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], says: str
) -> None:
    changed(samples(copy, "f16"), change)
    with pytest.raises(SuiteError) as refused:
        read_arm(Arm.BASELINE, copy / "f16", ASKED)
    assert samples(copy, "f16").name in str(refused.value) and says in str(refused.value)


def test_a_line_that_is_no_json_is_named(copy: Path) -> None:
    path = samples(copy, "q2_k")
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    result = here(copy, "run", "suite.yaml", *SIDES)
    assert (result.returncode, f":{ROWS}: not JSON" in result.stderr) == (2, True), result.stderr
    assert not (copy / ".benchgate").exists()


def test_arms_that_were_asked_in_other_ways_are_not_compared(copy: Path) -> None:
    told(copy, "q2_k", lm_eval_version="0.4.9")
    result = here(copy, "run", "suite.yaml", *SIDES)
    assert result.returncode in (10, 12), result.stderr
    assert "guard same-harness" in result.stdout, result.stdout


def test_arms_that_answered_other_items_are_not_compared(copy: Path) -> None:
    doc = {"id": "add-9999", "prompt": "add 1 1", "answer": "2"}
    other = {"doc": doc, "doc_hash": hashlib.sha256(json.dumps(doc, indent=2).encode()).hexdigest()}
    for task in ("add", "fact"):
        changed(samples(copy, "q2_k", task), edited(**other))
    told(copy, "q2_k")
    result = here(copy, "run", "suite.yaml", *SIDES)
    assert (result.returncode, "did not answer the same items" in result.stdout) == (12, True), result.stdout


@pytest.mark.parametrize(
    ("sides", "says"),
    [
        (("baseline=q2_k", "candidate=f16"), "holds answers of the model 'q2_k'"),
        (("baseline=f16", "candidate=f16"), "hold samples of the very same run"),
        (("baseline=nowhere", "candidate=q2_k"), "nowhere: is not there"),
        (("baseline=.", "candidate=q2_k"), "has no samples_*.jsonl"),
        (("f16", "q2_k"), "--samples f16 q2_k: expected a folder of each arm"),
        (("baseline=f16", "candidate=q2_k", "--resume"), "--resume is of a run that sends requests"),
    ],
)
def test_the_wrong_folder_is_told(copy: Path, sides: tuple[str, ...], says: str) -> None:
    result = here(copy, "run", "suite.yaml", "--samples", *sides)
    assert (result.returncode, says in result.stderr) == (2, True), result.stderr


def test_two_models_that_answered_alike_are_two(copy: Path) -> None:
    for task in ("add", "fact"):
        shutil.copy(samples(copy, "f16", task), samples(copy, "q2_k", task))
    told(copy, "q2_k")
    result = here(copy, "run", "suite.yaml", *SIDES, *JSON)
    assert {check["outcome"] for check in document(result)["checks"]} == {"PASS"}, result.stdout
    assert any("`promote` refuses this run" in note for note in document(result)["notes"])


def test_a_run_given_twice_is_one_whatever_the_order_of_its_lines_and_the_name_of_its_model(copy: Path) -> None:
    shutil.rmtree(copy / "q2_k")
    shutil.copytree(copy / "f16", copy / "q2_k")
    changed(samples(copy, "q2_k"), lambda rows: rows[::-1])
    told(copy, "q2_k", model_name="q2_k")
    result = here(copy, "run", "suite.yaml", *SIDES)
    assert (result.returncode, "hold samples of the very same run" in result.stderr) == (2, True), result.stderr


def test_samples_without_their_results_are_not_judged(copy: Path) -> None:
    """Every score made right: without the results that would contradict them, nothing does."""
    for arm in ("f16", "q2_k"):
        results(copy, arm).unlink()
    for task in ("add", "fact"):
        changed(samples(copy, "q2_k", task), lambda rows: [{**row, "exact_match": 1.0} for row in rows])
    result = here(copy, "run", "suite.yaml", *SIDES)
    assert (result.returncode, "there is no results_*.json of its date" in result.stderr) == (2, True), result.stderr


def test_a_task_without_samples_is_told_with_those_that_have_some(copy: Path) -> None:
    (copy / "suite.yaml").write_text(SUITE.replace("[add, fact]", "[add, gsm8k]"))
    result = here(copy, "run", "suite.yaml", *SIDES)
    assert result.returncode == 2
    assert "there are no samples of the task 'gsm8k'; there are those of add, fact" in result.stderr


def test_what_an_import_cannot_answer_is_named_at_its_place(copy: Path) -> None:
    load = "load: {workload: {input: 8 tokens, output: 8 tokens}, sweep: [{stage: a, concurrency: 1, requests: 2}]}"
    text = SUITE.replace("gate:", f"{load}\ngate:").replace("checks: [", "checks: [{metric: error_rate, max: 20%}, ")
    text = text.replace("limit: 60", "stop_early: true")
    (copy / "suite.yaml").write_text(text)
    result = here(copy, "run", "suite.yaml", *SIDES)
    assert result.returncode == 2
    for place in (
        "suite.yaml:9:1: load: needs a live run",
        "suite.yaml:10:",
        "checks[0].metric: error_rate needs a live run",
        "suite.yaml:8:31: quality.stop_early: needs a live run",
    ):
        assert place in result.stderr, result.stderr
