"""The embedded server on real weights: it answers, and it never outlives who started it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from benchgate.embedded import server as server_module
from benchgate.embedded.server import EmbeddedServer, serve
from benchgate.embedded.weights import weights_file
from benchgate.errors import EmbeddedError
from benchgate.load.workers import run_stage
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.request import Endpoint, text_request
from benchgate.plan.model import PlannedRequest, PlannedStage
from benchgate.suite.deployment import Embedded
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Target

DATA = Path(__file__).parents[2] / "suites" / "data"
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


def _get(server: EmbeddedServer, path: str, body: object = None) -> str:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=PATIENCE_S)
    try:
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        return response.read().decode()
    finally:
        connection.close()


def _answer(server: EmbeddedServer, prompt: str) -> str:
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 48}
    answer = json.loads(_get(server, "/v1/chat/completions", body))
    return str(answer["choices"][0]["message"]["content"])


def _prompts(count: int) -> list[str]:
    return [json.loads(line)["prompt"] for line in (DATA / "shadow.jsonl").read_text().splitlines()[:count]]


def _is_gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that nobody collected has ended too."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return False


def _eventually(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if holds():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("weights", ["f16", "q8_0"])
def test_served_weights_answer_rightly(weights: str, cache: Path) -> None:
    with serve(Embedded.model_validate({"weights": weights}), name=weights, cache_dir=cache) as server:
        assert server.alive()
        assert _answer(server, "add 53 16") == "69"
        assert _answer(server, "reverse esyv") == "vyse"


def test_two_bit_weights_load_and_generate(cache: Path) -> None:
    with serve(Embedded(weights="q2_k"), name="q2_k", cache_dir=cache) as server:
        assert any(_answer(server, prompt) for prompt in _prompts(3))


def test_added_layers_change_no_answer(cache: Path) -> None:
    prompts = _prompts(40)
    with (
        serve(Embedded(weights="q8_0"), name="plain", cache_dir=cache) as plain,
        serve(Embedded(weights="q8_0", extra_layers=6), name="padded", cache_dir=cache) as padded,
    ):
        assert plain.url != padded.url
        assert [_answer(padded, p) for p in prompts] == [_answer(plain, p) for p in prompts]


def test_settings_reach_the_engine(cache: Path) -> None:
    spec = Embedded(slots=3, context_tokens=512, extra_layers=1)
    with serve(spec, name="settings", cache_dir=cache) as server:
        properties = json.loads(_get(server, "/props"))
        model = json.loads(_get(server, "/v1/models"))["data"][0]
        metrics = _get(server, "/metrics")
    assert properties["total_slots"] == 3
    assert properties["default_generation_settings"]["n_ctx"] == 512
    assert model["id"] == server.model == "benchgate-tiny"
    assert "llamacpp:tokens_predicted_total" in metrics


def test_a_repeated_prompt_is_computed_again(cache: Path) -> None:
    body = {"prompt": "add 11 22", "max_tokens": 2, "temperature": 0}
    with serve(Embedded(slots=1), name="cacheless", cache_dir=cache) as server:
        timings = [json.loads(_get(server, "/v1/completions", body))["timings"] for _ in range(2)]
    assert [t["cache_n"] for t in timings] == [0, 0]


def test_the_process_ends_with_the_block_even_when_the_body_raises(cache: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        serve(Embedded(), name="raising", cache_dir=cache) as server,
    ):
        raise ZeroDivisionError
    assert not server.alive()
    assert _is_gone(server.pid)


def test_a_server_that_died_is_seen_as_dead(cache: Path) -> None:
    with serve(Embedded(), name="mortal", cache_dir=cache) as server:
        os.kill(server.pid, signal.SIGKILL)
        assert _eventually(lambda: not server.alive())


PARENT = """
import os, sys, time
from pathlib import Path
from benchgate.embedded.server import serve
from benchgate.suite.deployment import Embedded

folder = Path(sys.argv[1])
with serve(Embedded(), name="orphan", cache_dir=folder, log_dir=folder) as server:
    forked = os.fork() if sys.argv[2] == "fork" else None
    if forked == 0:
        time.sleep(60)  # holds every descriptor of its parent, and outlives it
        os._exit(0)
    print(server.pid, forked or "", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_killed_parent_leaves_no_orphan(how: str, cache: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(cache), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        served, *forked = map(int, parent.stdout.readline().split())
        parent.kill()
        parent.wait()
        assert _eventually(lambda: _is_gone(served))
        for pid in forked:
            os.kill(pid, signal.SIGKILL)


def test_ctrl_c_in_the_terminal_reaches_only_benchgate(cache: Path) -> None:
    with serve(Embedded(), name="session", cache_dir=cache) as server:
        assert os.getpgid(server.pid) != os.getpgid(0)
        assert os.getsid(server.pid) != os.getsid(0)


def test_a_model_file_that_the_engine_cannot_read_fails_with_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = weights_file("q5_0", 0, tmp_path)
    path.write_bytes(path.read_bytes()[:200_000])
    monkeypatch.setattr(server_module, "weights_file", lambda *_made: path)
    with (
        pytest.raises(
            EmbeddedError, match=r"(?s)'damaged' did not start.*exited with status 1.*corrupted or incomplete"
        ),
        serve(Embedded(weights="q5_0"), name="damaged", cache_dir=tmp_path),
    ):
        pytest.fail("a damaged model was served")


def test_the_log_is_kept_where_a_folder_is_given(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with serve(Embedded(), name="kept", cache_dir=cache, log_dir=tmp_path / "logs"):
        pass
    with serve(Embedded(), name="dropped", cache_dir=cache):
        assert list((tmp_path / "temporary").glob("dropped-*.log"))
    assert len(list((tmp_path / "logs").glob("kept-*.log"))) == 1
    assert not list((tmp_path / "temporary").glob("*.log"))


def test_an_engine_that_does_not_get_ready_is_an_error_with_what_it_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_complaint", lambda _url, _timeout_s: "HTTP 503: b'Loading model'")
    with (
        pytest.raises(EmbeddedError, match="completed no request in time; the last try: HTTP 503"),
        serve(Embedded(), name="slow", cache_dir=cache, timeout_s=2.0),
    ):
        pytest.fail("a server that completes nothing was called ready")


def test_messages_of_a_real_engine_are_its_chat_answers(cache: Path) -> None:
    prompts = _prompts(4)
    ways: list[tuple[Endpoint, bool]] = [("chat", True), ("messages", True), ("messages", False)]
    found: dict[tuple[Endpoint, bool], RequestColumns] = {}
    with serve(Embedded(weights="q8_0", slots=1), name="messages", cache_dir=cache) as server:
        target = Target(Arm.BASELINE, server.url, server.model, DIALECTS["llamacpp"])
        for endpoint, stream in ways:
            asks = [replace(text_request(endpoint, text, 12, ignore_eos=False), stream=stream) for text in prompts]
            planned = tuple(PlannedRequest(index, None, ask, index) for index, ask in enumerate(asks))
            found[endpoint, stream] = run_stage(
                target, PlannedStage.of("s", 1, None, planned), limits=Limits()
            ).requests
    chat = found["chat", True]
    for rows in found.values():
        assert list(rows.error) == [None] * len(prompts), rows.error_detail
        assert rows.output_tokens.tolist() == chat.output_tokens.tolist()
        assert rows.input_tokens.tolist() == chat.input_tokens.tolist()
        assert rows.answer_chars.tolist() == chat.answer_chars.tolist()
        assert list(rows.finish_reason) == list(chat.finish_reason)
    streamed = found["messages", True]
    assert np.diff(streamed.chunk_start).tolist() == np.diff(chat.chunk_start).tolist()
