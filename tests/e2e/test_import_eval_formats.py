"""`benchgate run --samples` with evals of inspect_ai and NeMo Evaluator: judged, stored and judged again alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import document, here, latest_evidence
from tests.shells.test_eval_formats import log, sample, written

pytestmark = pytest.mark.beside  # nothing is measured

JSON = ("--format", "json")
SUITE = """
suite: elsewhere
deployments:
  f16: {url: "http://gpu-1.example:8000", model: org/f16}
  q2_k: {url: "http://gpu-2.example:8000", model: org/q2_k}
baseline: f16
candidate: q2_k
quality: {tasks: [TASK]}
gate: {checks: [{metric: CHECK, margin: 5 points}]}
"""
SIDES = ("--samples", "baseline=f16", "candidate=q2_k")
N = 120


def suite(folder: Path, task: str, check: str = "accuracy") -> None:
    (folder / "suite.yaml").write_text(SUITE.replace("TASK", task).replace("CHECK", check))


def inspect_arms(folder: Path, wrong: int, epochs: int = 1, **candidate: Any) -> None:
    """Write a log of each arm; the candidate gets the first `wrong` items wrong."""
    for arm, missed in (("f16", 0), ("q2_k", wrong)):
        samples = [
            sample(f"i{n:03}", epoch, "I" if n % 20 == 19 or n < missed else "C")
            for n in range(N)
            for epoch in range(1, epochs + 1)
        ]
        found = log(samples, epochs=epochs)
        found["eval"] |= {"model": f"vllm/org/{arm}", "eval_id": arm, **(candidate if arm == "q2_k" else {})}
        (folder / arm).mkdir()
        written(folder / arm, found)


def nemo_arms(folder: Path, wrong: int) -> None:
    """Write a bundle of each arm with scores in between."""
    for arm, missed in (("f16", 0), ("q2_k", wrong)):
        rows = [
            {"problem_idx": n, "repeat": 0, "reward": 0.1 if n < missed else 0.5 + n % 5 / 10, "model_response": "x",
             "expected_answer": str(n), "scoring_details": {}, "metadata": {}}
            for n in range(N)
        ]  # fmt: skip
        mean = round(sum(float(str(row["reward"])) for row in rows) / N, 4)
        (folder / arm).mkdir()
        (folder / arm / "results.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        bundle = {
            "run_id": f"eval-{arm}", "timestamp": "2026-01-02T03:04:05+00:00", "sdk_version": "0.3.0",
            "config": {"model": f"org/{arm}", "temperature": 0.0},
            "benchmark": {"name": "capitals", "samples": N, "repeats": 1, "scores": {"mean_reward": {"value": mean}}},
            "n_results": N,
        }  # fmt: skip
        (folder / arm / f"eval-{arm}.json").write_text(json.dumps(bundle))


@pytest.mark.parametrize(("wrong", "outcome", "code"), [(0, "PASS", 0), (40, "BLOCK", 10)])
def test_logs_of_inspect_ai_are_judged_and_stored(tmp_path: Path, wrong: int, outcome: str, code: int) -> None:
    suite(tmp_path, "capitals")
    inspect_arms(tmp_path, wrong)
    result = here(tmp_path, "run", "suite.yaml", *SIDES, *JSON)
    assert (result.returncode, document(result)["outcome"]) == (code, outcome), result.stderr
    again = here(tmp_path, "gate", "@latest", *JSON)
    assert (again.returncode, again.stdout) == (code, result.stdout)
    facts = [arm.facts for arm in latest_evidence(tmp_path).run.arms.values()]
    assert all(len(str(one["samples_sha256"]["capitals"])) == 64 for one in facts)  # type: ignore[index]


@pytest.mark.parametrize(("wrong", "outcome"), [(0, "PASS"), (60, "BLOCK")])
@pytest.mark.parametrize("tool", ["inspect_ai", "NeMo Evaluator"])
def test_epochs_and_scores_in_between_are_judged_by_score(tmp_path: Path, tool: str, wrong: int, outcome: str) -> None:
    suite(tmp_path, "capitals", "score")
    if tool == "inspect_ai":
        inspect_arms(tmp_path, wrong, epochs=2)
    else:
        nemo_arms(tmp_path, wrong)
    result = here(tmp_path, "run", "suite.yaml", *SIDES, *JSON)
    assert document(result)["outcome"] == outcome, result.stdout + result.stderr


def test_a_failed_sample_makes_its_task_invalid(tmp_path: Path) -> None:
    suite(tmp_path, "capitals")
    inspect_arms(tmp_path, 0)
    [path] = (tmp_path / "q2_k").iterdir()
    found = json.loads(path.read_text())
    found["samples"][7]["error"] = {"message": "the server hung up", "traceback": ""}
    path.write_text(json.dumps(found))
    result = here(tmp_path, "run", "suite.yaml", *SIDES)
    assert result.returncode == 12, result.stderr
    assert "the server hung up" in result.stdout


def test_arms_that_were_evaluated_in_other_ways_are_not_compared(tmp_path: Path) -> None:
    suite(tmp_path, "capitals")
    inspect_arms(tmp_path, 0, packages={"inspect_ai": "0.3.100"})
    result = here(tmp_path, "run", "suite.yaml", *SIDES)
    assert "guard same-harness" in result.stdout, result.stdout + result.stderr


def test_a_folder_of_several_tools_or_of_none_is_refused(tmp_path: Path) -> None:
    suite(tmp_path, "capitals")
    inspect_arms(tmp_path, 0)
    (tmp_path / "f16" / "results.yml").write_text("results: {}\n")
    result = here(tmp_path, "run", "suite.yaml", *SIDES)
    assert (result.returncode, "holds results of inspect_ai and NeMo Evaluator" in result.stderr) == (2, True)
    for file in (tmp_path / "f16").iterdir():
        file.unlink()
    result = here(tmp_path, "run", "suite.yaml", *SIDES)
    assert (result.returncode, "no log of inspect_ai and no bundle of NeMo Evaluator" in result.stderr) == (2, True)
