"""Generated tasks against real sockets: each finds the server fault that it is for, and a sound server passes all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.command import benchgate, document
from tests.fakes.scripted_server import Received, ScriptedServer, Step, json_response

SUITE = """
suite: generated
deployments:
  sound: {url: "URL_A", model: scripted}
  other: {url: "URL_B", model: scripted}
baseline: sound
candidate: other
quality: {tasks: [recall_1k, stop_strings, round_trip], limit: 50}
gate:
  checks:
    - {metric: accuracy, task: recall_1k, margin: 15 points}
    - {metric: accuracy, task: stop_strings, margin: 15 points}
    - {metric: accuracy, task: round_trip, margin: 15 points}
"""


def solve(received: Received) -> str:
    """Return what a perfect model generates, before the server looks for stop strings."""
    text, _, question = received.prompt.rpartition("What is the access code of the ")
    if text:
        found = re.search(rf"of the {question.partition('?')[0]} is (\d+)\.", text)
        assert found is not None
        return found[1]
    return received.prompt.partition("\n")[2] or "Hello."  # to the readiness probe


def sound(received: Received) -> str:
    text = solve(received)
    for stop in (received.body or {}).get("stop") or []:
        text = text.partition(stop)[0]
    return text


def short_window(received: Received) -> str:
    """Lose the first half of a long prompt, as a sliding window does."""
    prompt = received.prompt
    kept = prompt[len(prompt) // 2 :] if len(prompt) > 2_000 else prompt
    body = {**(received.body or {}), "messages": [{"role": "user", "content": kept}]}
    try:
        return sound(Received(received.method, received.path, received.headers, body))
    except AssertionError:
        return "0000000"


def broken_bytes(received: Received) -> str:
    return "".join(char if ord(char) < 0x3000 else "\ufffd" for char in sound(received))


def serving(text_for: Callable[[Received], str], thinks_s: float) -> Callable[[Received], Iterator[Step]]:
    def respond(received: Received) -> Iterator[Step]:
        if received.path == "/v1/models":
            yield json_response({"object": "list", "data": [{"id": "scripted", "object": "model"}]})
            return
        yield thinks_s  # not the same in both arms: equal answers after equal times look cached
        message = {"role": "assistant", "content": text_for(received)}
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        yield json_response({"object": "chat.completion", "model": "scripted", "choices": [choice], "usage": usage})

    return respond


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "task"),
    [(sound, None), (solve, "stop_strings"), (short_window, "recall_1k"), (broken_bytes, "round_trip")],
    ids=["sound", "ignores stop strings", "short window", "broken detokeniser"],
)
def test_each_task_finds_its_fault(tmp_path: Path, candidate: Callable[[Received], str], task: str | None) -> None:
    with ScriptedServer(serving(sound, 0.01)) as one, ScriptedServer(serving(candidate, 0.06)) as other:
        (tmp_path / "suite.yaml").write_text(SUITE.replace("URL_A", one.url).replace("URL_B", other.url))
        result = benchgate(tmp_path, "run", "suite.yaml", "--format", "json")
    assert result.returncode == (0 if task is None else 10), result.stdout + result.stderr
    found = {check["id"]: check["outcome"] for check in document(result)["checks"]}
    assert [name for name, outcome in found.items() if outcome == "BLOCK"] == ([f"accuracy@{task}"] if task else []), (
        found
    )
