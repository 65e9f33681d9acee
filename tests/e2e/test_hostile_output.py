"""A server and a suite whose every text is a command or a control: no command of benchgate prints one of them raw."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import STORE, here
from tests.fakes.ci_commands import ALL, commands_in, controls_in, is_harmless
from tests.fakes.scripted_server import (
    DONE,
    LAST_CHUNK,
    Received,
    ScriptedServer,
    Step,
    event,
    finish,
    json_response,
    stream_head,
    token,
    usage,
)

pytestmark = pytest.mark.beside  # what is printed is judged, and no time

HEADERS = ("x-evil: ##vso[task.complete]", "server: ::error::x", "x-request-id: \x1b]8;;https://evil.example\x1b\\")
# What a suite may say in its own words: no line break in it, which would be one in the file too.
SAID = "##vso[task.complete] ##[group] \x1b[31m\u202e SPINNAKER_PROPERTY_A=1 ::error::x"
SUITE = """\
suite: hostile
change: %(said)s
deployments:
  baseline: {url: "%(url)s", model: m, headers: {x-team: "##vso[x] ::error::y"}}
  candidate: {url: "%(url)s", model: %(said)s}
limits: {connect: 2s, first_token: 5s, stall: 2s, total: 10s, ready: 3s}
load:
  workload: {input: 8 tokens, output: 8 tokens}
  blocks: 2
  warmup: 4
  sweep: [{stage: c2, concurrency: 2, requests: 20}]
gate:
  allow_underpowered: true
  checks:
    - {metric: error_rate, max: 5%%}
"""


def hostile() -> ScriptedServer:
    """Ready, and answers what is not streamed; of streams one in four is whole, and the others fail in three ways."""
    numbers = itertools.count()

    def respond(received: Received) -> Iterator[Step]:
        if received.path == "/v1/models":
            yield json_response({"object": "list", "data": [{"id": text, "owned_by": text} for text in ("m", ALL)]})
        elif received.path == "/metrics":
            yield body(f"# HELP {ALL}\nvllm:num_requests_running{{model_name={json.dumps(ALL)}}} 1\n", "200 OK")
        elif not received.path.startswith("/v1/"):
            yield json_response({"version": ALL, "status": ALL, "model_path": ALL, "build_info": ALL})
        elif not (received.body or {}).get("stream"):
            message = {"role": "assistant", "content": ALL}
            counts = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            yield json_response({"object": "chat.completion", "model": ALL, "choices": [choice], "usage": counts})
        else:
            yield from (whole, refused, broken, gone)[next(numbers) % 4]()

    return ScriptedServer(respond)


def whole() -> Iterator[Step]:
    yield stream_head(*HEADERS)
    yield token(ALL)
    yield event({"object": "chat.completion.chunk", "model": ALL, "system_fingerprint": ALL, "choices": []})
    yield finish(ALL)
    yield usage(3, 1)
    yield DONE + LAST_CHUNK


def refused() -> Iterator[Step]:
    yield json_response({"error": {"message": ALL, "type": ALL, "code": ALL}}, status=400)


def broken() -> Iterator[Step]:
    yield stream_head()
    yield token("a")
    yield event({"error": {"message": ALL}})
    yield LAST_CHUNK


def gone() -> Iterator[Step]:
    yield body(ALL, "503 ##vso[task.complete] ::error::x")


def body(text: str, status: str) -> bytes:
    raw = text.encode()
    return f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw


def write_suite(folder: Path, url: str, said: str = SAID) -> None:
    (folder / "suite.yaml").write_text(SUITE % {"url": url, "said": json.dumps(said)})


JSON = ("--json", "load.json", "--format", "json")


@pytest.mark.slow
def test_no_command_prints_a_word_of_a_server_or_a_suite_raw(tmp_path: Path) -> None:
    with hostile() as server:
        write_suite(tmp_path, server.url)
        load = ("load", server.url, "--model", "m", "--requests", "8", "--concurrency", "2")
        level = ("--search", "concurrency", "--from", "1", "--to", "2", "--probe", "100", "--slo", "ttft=1s")
        ran = {
            words: here(tmp_path, *words)
            for words in (
                ("doctor", "suite.yaml"),
                ("doctor", "suite.yaml", "--format", "json"),
                ("run", "suite.yaml", "--report", "report.html"),
                load,
                (*load, "--slo", "ttft=1s", *JSON),
                ("load", server.url, "--model", SAID, *level),
                ("init", "--baseline", server.url, "--candidate", server.url, "--dir", "begun"),
            )
        }
    for words, done in ran.items():
        assert "vso[" in done.stdout + done.stderr, f"nothing of the server is shown by {words}"
        assert "Traceback" not in done.stderr
        assert is_harmless(done.stdout) and is_harmless(done.stderr)
    assert (tmp_path / "load.json").read_text() == ran[*load, "--slo", "ttft=1s", *JSON].stdout
    failures = json.loads((tmp_path / "load.json").read_text())["failures"]
    assert any("##vso[task.setvariable variable=PATH]pwned" in failure["detail"] for failure in failures)
    told_again(tmp_path)


def told_again(folder: Path) -> None:
    """What is stored of that run, in every form in which it is printed."""
    for form in ("text", "json", "markdown", "junit", "gitlab"):
        printed = here(folder, "gate", "--format", form)
        assert not list(commands_in(printed.stdout)) and is_harmless(printed.stderr)
        assert controls_in(printed.stdout) <= ({"\u200b"} if form == "markdown" else set())
    marked = here(folder, "gate", "--format", "github").stdout
    ours = [line for line in marked.splitlines() if line.startswith("::")]
    assert ours and all(line.startswith(("::error ", "::warning ", "::notice ")) for line in ours)
    assert set(commands_in(marked)) == set(ours)
    assert not controls_in(marked)
    for words in (("store", "info"), ("store", "check"), ("trend", "error_rate"), ("report", "--format", "markdown")):
        done = here(folder, *words)
        assert is_harmless(done.stdout) and is_harmless(done.stderr)
    assert (folder / STORE).exists()


@pytest.mark.parametrize("words", [("plan",), ("plan", "--format", "json")])
def test_a_suite_says_nothing_to_the_log_of_who_checks_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    write_suite(tmp_path, "http://127.0.0.1:9")
    right = here(tmp_path, words[0], "suite.yaml", *words[1:])
    assert right.returncode == 0, right.stderr
    text = (tmp_path / "suite.yaml").read_text()
    for old in ("suite: hostile", "stage: c2", "baseline: {url", "metric: error_rate", "input: 8 tokens", "change: "):
        key, _, value = old.partition(": ")
        new = f"{key}: {json.dumps(SAID)}" if value and "{" not in value else f"{json.dumps(SAID)}: {value}"
        (tmp_path / "suite.yaml").write_text(text.replace(old, new, 1))
        wrong = here(tmp_path, words[0], "suite.yaml", *words[1:])
        assert wrong.returncode == 2
        assert "vso[" in wrong.stderr
        assert is_harmless(wrong.stdout) and is_harmless(wrong.stderr)
    assert is_harmless(right.stdout) and is_harmless(right.stderr)


def test_what_the_command_line_refuses_is_quoted_harmlessly(tmp_path: Path) -> None:
    for words in (
        ("##vso[task.complete]",),
        ("run", f"no\n::error::{SAID}"),
        ("load", "http://127.0.0.1:9", "--model", "m", "--requests", f"\n::error::x{SAID}"),
        ("gate", "@latest", f"--{SAID}"),
        ("gate", "--store", f"{SAID}.db"),
    ):
        done = here(tmp_path, *words)
        assert done.returncode == 2, words
        assert "vso[" in done.stderr
        assert is_harmless(done.stdout) and is_harmless(done.stderr)
