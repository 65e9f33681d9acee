"""quality-smoke: what has collapsed ends it within a few dozen items, and what is sound goes all the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchgate.model.deployment import Arm
from tests.e2e.command import document, here, latest_evidence
from tests.fakes.scripted_server import Received, ScriptedServer, answering

pytestmark = pytest.mark.beside


SUITES = Path(__file__).parents[2] / "suites"
TASKS = ("add", "reverse", "sort", "json", "fact")
ROWS = [json.loads(line) for task in TASKS for line in (SUITES / "data" / f"{task}.jsonl").read_text().splitlines()]
ANSWERS = {row["prompt"]: row["answer"] for row in ROWS}
ALLOWED_ITEMS = 60


def right(received: Received) -> str:
    """What the task wants; a word to whoever only looks whether the server is there."""
    return str(ANSWERS.get(received.prompt, "ready"))


def mostly_garbage(received: Received) -> str:
    """Right in one of five: what is left of a model whose weights were loaded wrongly."""
    answer = right(received)
    return answer if sum(received.prompt.encode()) % 5 == 0 else answer[::-1] + "?"


def judged(
    folder: Path, candidate: Callable[[Received], str], limit: int = 50
) -> tuple[dict[str, Any], dict[Arm, int]]:
    """The shipped suite against two servers: its verdict, and how many of its prompts each server was asked."""
    with ScriptedServer(answering(right)) as ours, ScriptedServer(answering(candidate)) as theirs:
        text = (SUITES / "quality-smoke.yaml").read_text(encoding="utf-8")
        own = text.replace("{embedded: {weights: f16}}", f'{{url: "{ours.url}", model: m}}')
        own = own.replace("{embedded: {weights: q8_0}}", f'{{url: "{theirs.url}", model: m}}')
        assert own.count("url:") == 2
        own = own.replace("tasks/", f"{SUITES}/tasks/").replace("limit: 50", f"limit: {limit}")
        (folder / "smoke.yaml").write_text(own)
        result = here(folder, "run", "smoke.yaml", "--format", "json")
        asked = {
            arm: sum(received.prompt in ANSWERS for received in server.requests)
            for arm, server in ((Arm.BASELINE, ours), (Arm.CANDIDATE, theirs))
        }
    assert result.stdout, result.stderr
    return document(result), asked


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[Arm, int]]:
    folder = tmp_path_factory.mktemp("collapsed")
    return folder, *judged(folder, mostly_garbage)


Collapsed = tuple[Path, dict[str, Any], dict[Arm, int]]


def test_a_collapsed_model_is_blocked_within_sixty_items(collapsed: Collapsed) -> None:
    _, said, asked = collapsed
    assert said["outcome"] == "BLOCK", said["reason"]
    assert 0 < asked[Arm.CANDIDATE] <= ALLOWED_ITEMS and asked[Arm.BASELINE] == asked[Arm.CANDIDATE]


def test_what_was_asked_by_then_is_stored_with_the_check_that_ended_it(collapsed: Collapsed) -> None:
    folder, _, asked = collapsed
    quality = latest_evidence(folder).quality
    assert {(seen.task, seen.arm) for seen in quality} == {(task, arm) for task in TASKS for arm in Arm}
    for arm in Arm:
        assert sum(len(seen.items) for seen in quality if seen.arm is arm) == asked[arm]
    assert {seen.expected_n for seen in quality} == {50}
    assert {seen.fault for seen in quality} == {None}
    stopped = [seen.harness["stopped_early"] for seen in quality]
    assert all(isinstance(told, dict) and told["by"] == "accuracy" for told in stopped)


def test_the_store_alone_gives_the_same_verdict(collapsed: Collapsed) -> None:
    folder, said, _ = collapsed
    assert document(here(folder, "gate", "--format", "json")) == said


def test_no_part_of_an_eval_that_ended_early_passes(collapsed: Collapsed) -> None:
    _, said, _ = collapsed
    assert {check["outcome"] for check in said["checks"]} <= {"BLOCK", "INCONCLUSIVE"}


def test_a_sound_model_is_asked_everything(tmp_path: Path) -> None:
    said, asked = judged(tmp_path, right, limit=20)
    assert said["outcome"] == "PASS", said["reason"]
    assert asked == {Arm.BASELINE: 100, Arm.CANDIDATE: 100}
