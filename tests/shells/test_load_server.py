"""The server of `benchgate load`: its only model, and the key that is sent to it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from benchgate.cli.load import _Display
from benchgate.errors import TargetError, UsageError
from benchgate.load.live import LiveFigures
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import run_load_test
from tests.fakes import quick_command
from tests.fakes.scripted_server import Received, ScriptedServer, Step, json_response
from tests.shells.load_helpers import WHOLE

CANARY = "sk-canary-0f-somebody"
ONE = ["--concurrency", "1", "--requests", "1", "--workers", "1", "--warmup", "0"]


def serving(*models: str) -> ScriptedServer:
    def respond(received: Received) -> Iterable[Step]:
        if received.path == "/v1/models":
            return [json_response({"data": [{"id": model} for model in models]})]
        return [WHOLE]

    return ScriptedServer(respond)


def load(server: ScriptedServer, *words: str) -> quick_command.Told:
    return quick_command.told("load", server.url, "--engine", "openai", *ONE, *words)


def test_the_only_model_of_a_server_needs_no_name() -> None:
    with serving("chat-7b") as server:
        result = load(server, "--format", "json")
        sent = [received.body for received in server.requests if received.method == "POST"]
    assert json.loads(result.stdout)["model"] == "chat-7b"
    assert sent and all(body is not None and body["model"] == "chat-7b" for body in sent)


@pytest.mark.parametrize(
    ("models", "says"),
    [
        (("a", "b"), "serves 2 models: a, b; name the model with --model"),
        ((), "does not list its models; name the model"),
    ],
)
def test_none_and_several_models_are_refused_before_anything_is_measured(models: tuple[str, ...], says: str) -> None:
    with serving(*models) as server:
        with pytest.raises(UsageError, match=says):
            load(server)
        assert {received.method for received in server.requests} == {"GET"}


def test_a_server_that_is_down_is_refused_at_once() -> None:
    with pytest.raises(TargetError, match=r"cannot be reached: Connection refused; start the server, or"):
        run_load_test(LoadOptions.parse(url="http://127.0.0.1:9", engine="openai", concurrency=1, requests=1))


def test_the_customary_key_is_sent_and_named_but_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    with serving("m") as server:
        result = load(server, "--format", "json")
        sent = {received.headers.get("authorization") for received in server.requests}
    assert sent == {f"Bearer {CANARY}"}
    assert "benchgate: API key from OPENAI_API_KEY" in result.stderr
    assert CANARY not in result.output


def test_a_named_key_and_a_header_replace_the_customary_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.setenv("OTHER", "sk-other")
    for words, key in ((("--api-key-env", "OTHER"), "Bearer sk-other"),
                       (("--header", "authorization:${env:OTHER}"), "sk-other")):  # fmt: skip
        with serving("m") as server:
            result = load(server, *words)
            assert {received.headers.get("authorization") for received in server.requests} == {key}
        assert "OPENAI_API_KEY" not in result.stderr


@pytest.mark.parametrize(
    ("url", "more", "is_sent"),
    [
        ("https://api.example.com/v1", {}, True),
        ("http://127.0.0.1:8000", {}, True),
        ("localhost:8000", {}, True),
        ("http://[::1]:8000", {}, True),
        ("http://192.168.1.7:8000", {}, True),
        ("unix:/run/server.sock", {}, True),
        ("http://api.example.com", {}, False),
        ("http://gpu:8000", {}, False),
        ("http://localhost.example.com", {}, False),
        ("http://8.8.8.8", {}, False),
        ("http://[::ffff:8.8.8.8]", {}, False),
        ("http://169.254.169.254", {}, False),
        ("http://192.168.1.7:8000", {"proxy": "http://proxy:3128"}, False),
        ("http://gpu:8000", {"api_key_env": "OPENAI_API_KEY"}, True),
    ],
)
def test_the_customary_key_goes_only_where_nobody_on_the_way_can_read_it(
    monkeypatch: pytest.MonkeyPatch, url: str, more: dict[str, Any], is_sent: bool
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    options = LoadOptions.parse(url=url, model="m", concurrency=1, requests=1, **more)
    assert options.api_key == (CANARY if is_sent else None)
    assert CANARY not in repr(options)


def test_a_key_that_stays_here_is_reported() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OPENAI_API_KEY", CANARY)
        patched.setattr("benchgate.load.standalone.run.require_listener", lambda options: None)
        result = quick_command.told("load", "http://no-such-host.invalid", "--model", "m", "--engine", "openai", *ONE)
    assert "OPENAI_API_KEY is not sent to http://no-such-host.invalid" in result.stderr


FIGURES = LiveFigures(
    elapsed_s=12.3, ended=480, failed=3, in_flight=16, requests_per_s=8.0, ttft_p50_s=0.153, tpot_p50_s=None
)


@pytest.mark.parametrize(
    ("duration_s", "requests", "left"), [(60.0, None, " (48 s left)"), (None, 640, " (20 s left)")]
)
def test_figures_of_a_load_under_way_are_one_line(duration_s: float | None, requests: int | None, left: str) -> None:
    shown: list[str] = []
    display = _Display(duration_s, requests, shown.append)
    display.watch("warm-up", FIGURES)
    display.watch("load", FIGURES)
    rest = "16 in flight, 480 done, 8.00/s, 3 failed, TTFT 153 ms"
    assert shown == [f"warm-up: 12 s, {rest}", f"load: 12 s{left}, {rest}"]


def test_without_a_terminal_the_figures_are_a_line_every_15_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = iter([100.0, 101.0, 115.0, 115.0, 120.0, 131.0, 131.0])
    monkeypatch.setattr("benchgate.cli.load.time.monotonic", lambda: next(now_s))
    display = _Display(60.0, None)
    for _ in range(4):
        display.watch("load", FIGURES)
    assert capsys.readouterr().err.count("benchgate: load: 12 s") == 2


def test_a_load_is_watched_from_its_warm_up_on() -> None:
    phases: list[str] = []
    with ScriptedServer(lambda received: [1.2, WHOLE]) as server:
        typed: dict[str, Any] = {"url": server.url, "model": "m", "engine": "openai", "workers": "1", "warmup": "2"}
        options = LoadOptions.parse(**typed, concurrency=2, requests=2)
        run_load_test(options, watch=lambda phase, figures: phases.append(phase))
    assert list(dict.fromkeys(phases)) == ["warm-up", "load"]
