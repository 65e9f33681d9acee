"""Servers that answer without an answer: from the wire to the verdict, INVALID with the reason, and never a score."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import Outcome, Verdict
from benchgate.quality.runner import evaluate
from tests.fakes.evals import suite_of
from tests.fakes.measured import measured
from tests.fakes.scripted_server import Received, ScriptedServer, Step, json_response
from tests.shells.quality_helpers import settings, target, tasks_of

pytest_plugins = ["tests.shells.quality_surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")

ROWS = 40
THINKS_S = 0.003  # what answers at once, and the same on both arms, is taken for a cache
TASK = """\
task: TASK
dataset_path: json
dataset_kwargs: {data_files: {test: TASK.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "TASK {{number}}"
doc_to_target: "{{number}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 16, temperature: 0.0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""


def said(text: str | None, reason: str = "stop") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return json_response({"object": "chat.completion", "choices": [choice]})


FAULTS: Mapping[str, tuple[bytes, str]] = {
    "silent": (said(None, "length"), "100.0% of the candidate's answers to silent are empty"),
    "choiceless": (json_response({"object": "chat.completion"}), "items failed, the first with"),
    "cut": (said("1 2 3 4", "length"), "40 of the 40 lost items were cut short by the token limit"),
    "error": (json_response({"error": {"message": "CUDA out of memory"}}), "CUDA out of memory"),
}
"""What a candidate's server sends for every row of a task of that name, and what must be said of it."""


def number(received: Received) -> str:
    return received.prompt.split()[-1]


def right(received: Received) -> Iterable[Step]:
    return [THINKS_S, said(number(received))]


def wrong_by_task(received: Received) -> Iterable[Step]:
    return [
        THINKS_S,
        next((body for name, (body, _) in FAULTS.items() if name in received.prompt), said(number(received))),
    ]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> tuple[QualityObservation, ...]:
    """Both arms on every task, and on one that both answer right."""
    folder = tmp_path_factory.mktemp("tasks")
    names = [*FAULTS, "sound"]
    for name in names:
        (folder / f"{name}.yaml").write_text(TASK.replace("TASK", name))
        rows = [json.dumps({"id": f"{name}{i}", "number": str(i + 100)}) for i in range(ROWS)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    tasks = tasks_of(folder, *(f"{name}.yaml" for name in names))
    with ScriptedServer(right) as baseline, ScriptedServer(wrong_by_task) as candidate:
        targets = {
            Arm.BASELINE: target(Arm.BASELINE, baseline.url), Arm.CANDIDATE: target(Arm.CANDIDATE, candidate.url)
        }  # fmt: skip
        return tuple(evaluate(targets, tasks, settings(), folder / "work"))


def verdict_on(observed: tuple[QualityObservation, ...], task: str, *, arms_swapped: bool = False) -> Verdict:
    suite = suite_of([{"metric": "accuracy", "margin": "10 points"}], [task])
    of_task = [o for o in observed if o.task == task]
    if arms_swapped:
        of_task = [replace(o, arm=o.arm.other) for o in of_task]
    return judge(suite, replace(measured(suite), quality=tuple(of_task)))


@pytest.mark.parametrize("task", FAULTS)
def test_a_server_without_answers_has_no_score(observed: tuple[QualityObservation, ...], task: str) -> None:
    verdict = verdict_on(observed, task)
    assert verdict.outcome is Outcome.INVALID
    assert FAULTS[task][1] in verdict.reason
    assert verdict.checks[0].outcome is Outcome.INVALID


@pytest.mark.parametrize("task", FAULTS)
def test_a_baseline_without_answers_promotes_nobody(observed: tuple[QualityObservation, ...], task: str) -> None:
    assert verdict_on(observed, task, arms_swapped=True).outcome is Outcome.INVALID


def test_servers_that_answer_are_judged(observed: tuple[QualityObservation, ...]) -> None:
    verdict = verdict_on(observed, "sound")
    assert verdict.checks[0].candidate == 1.0
    assert verdict.outcome is Outcome.PASS, verdict.reason
