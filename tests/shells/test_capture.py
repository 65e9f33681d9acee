"""`benchgate capture`: what it writes is replayed like tests/captures, and shows nobody's keys, names or addresses."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from benchgate.doctor.redaction import Redaction
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.telemetry.engine_metrics import read_page
from tests.e2e.command import here
from tests.fakes.certificates import CA, serving
from tests.fakes.replay import capture, read_exchange
from tests.fakes.scripted_server import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    Received,
    ScriptedServer,
    Step,
    answering,
    chunk,
    finish,
    json_response,
    role_event,
    token,
    usage,
)
from tests.shells.test_captures import check_exchange

KEY = "Key/with+odd=chars-0123456789"
PLACE = "gpu-17.tenant.example"


def captured(folder: Path, url: str, *options: str, key: str | None = None) -> str:
    environment = {} if key is None else {"SERVING_KEY": key}
    arguments = ("--api-key-env", "SERVING_KEY") if key is not None else ()
    ran = here(folder, "capture", url, "--output", "out", *arguments, *options, environment=environment)
    assert ran.returncode == 0, ran.stderr
    for path in (folder / "out").glob("*.http"):
        check_exchange(path)
    return ran.stdout


def test_transcript_of_the_practice_server_is_replayed_as_it_is(tmp_path: Path) -> None:
    with serve_sim(sim_settings(ttft_s=0.005, itl_s=0.002)) as sim:
        shown = captured(tmp_path, sim.url)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    streams = {"chat_stream", "chat_stream_usage", "chat_stream_ignore_eos", "completions_stream_usage"}
    assert {f"{name}.{kind}" for name in streams for kind in ("http", "arrivals.txt")} <= names
    assert {"models.http", "err_bad_model.http", "err_long_prompt.http", "version.http"} <= names
    assert read_page((tmp_path / "out/metrics_after_load.txt").read_text(), "tiny-llama").engine == "vllm"
    by_http = sorted(name for name, spec in ENDPOINTS.items() if not spec.by_grpc)
    assert f"dialect: vllm; endpoints: {', '.join(by_http)}" in shown
    assert {"transcriptions.http", "transcriptions_stream.http", "transcriptions_stream.arrivals.txt"} <= names
    assert '"file": "[audio/wav, 32044 bytes]"' in (tmp_path / "out/transcriptions.http").read_text()
    assert re.search(r"chat_stream_usage +200 .* reads; 16 tokens by usage, 16 events with output", shown)
    assert all(f"{path.stem} " in shown for path in (tmp_path / "out").glob("*.http"))


def echoing(received: Received) -> Iterator[Step]:
    """Repeat the key in headers, bodies, encodings and, a character at a time, in the text of a stream."""
    key = received.headers.get("authorization", "").removeprefix("Bearer ")
    host = f"{PLACE} 10.20.30.40 /srv/{PLACE}/models/ http://{PLACE}:8000/v1"
    spelled = [
        key,
        quote(key, safe=""),
        base64.b64encode(f"u:{key}".encode()).decode(),
        base64.b64encode(f"x{key}y".encode()).decode(),
        base64.urlsafe_b64encode(f"xx{key}".encode()).decode(),
        key.encode().hex(),
        json.dumps(key),
        host,
    ]
    body = received.body or {}
    if received.path == "/v1/models":
        entry = {"id": "m", "object": "model", "owned_by": "vllm", "root": f"/srv/{PLACE}/m", "max_model_len": 64}
        reply = json_response({"data": [entry, {"id": f"{key}-other", "owned_by": PLACE}]})
    elif received.path == "/metrics":
        labels = (f'model_name="m",pod="{PLACE}",key="{key}"', 'model_name="acme-secret-7b"')
        page = "".join(f"vllm:num_requests_running{{{one}}} 1\n" for one in labels).encode()
        reply = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page)
    elif received.path == "/version":
        reply = json_response({"version": "1.0", "key": key, "host": host, "nested": [{"address": spelled}]})
    elif body.get("model") != "m" or "frobnicate" in body or "messages" not in body:
        reply = json_response({"error": {"message": " ".join(spelled)}}, status=400)
    elif body.get("stream"):
        text = spelled[0] if "ignore_eos" in body else f"rain at {PLACE}"
        pieces = list(text) if "ignore_eos" in body else [text, " ".join(spelled)]
        yield f"HTTP/1.1 200 OK\r\nX-Key: {key}\r\ncontent-type: text/event-stream\r\n".encode()
        yield b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        yield role_event()
        yield from (token(piece) for piece in pieces)
        yield from (finish("stop"), usage(3, len(pieces)), DONE + LAST_CHUNK, CLOSE)
        return
    else:
        message = {"role": "assistant", "content": " ".join(spelled)}
        counts = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
        reply = json_response({"choices": [{"message": message, "finish_reason": "stop"}], "usage": counts})
    yield reply.replace(
        b"\r\n", f"\r\nset-cookie: {key}\r\nx-{re.sub('[^a-z0-9]', '-', key.lower())}: 1\r\n".encode(), 1
    )
    yield CLOSE


@pytest.mark.parametrize("key", [KEY, "plainkey0123"])
def test_server_that_echoes_the_key_everywhere_leaves_none_of_it(key: str, tmp_path: Path) -> None:
    with ScriptedServer(echoing) as server:
        shown = captured(tmp_path, server.url, "--model", "m", key=key)
        port = str(server.port)
    texts = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert {"models.http", "chat_nonstream.http", "chat_stream.http", "version.http", "metrics_after_load.txt"} <= set(
        texts
    )
    hidden = [key, quote(key, safe=""), key.encode().hex(), base64.b64encode(key.encode()).decode()[:-4]]
    hidden += [base64.b64encode(f"{pad}{key}".encode()).decode()[4:-4] for pad in ("x", "xx")]
    for name, text in {**texts, "what it printed": shown}.items():
        for part in (*hidden, PLACE, "10.20.30.40", "127.0.0.1", port, "set-cookie: ", "acme-secret-7b"):
            assert part.casefold() not in text.casefold(), (name, part)
    # A key that comes in pieces cannot be redacted in place.
    assert "chat_stream_ignore_eos.http" not in texts
    assert "chat_stream_ignore_eos    200  left out: it repeats a credential or a host name in pieces" in shown
    assert "2 headers left out" in shown


CREDENTIALS = [
    "Cookie: session={}; theme=dark",
    "Set-Cookie: sid={}; Path=/",
    "curl -u bob:{} url",
    "whsec_{}",
    "dop_v1_{}",
    "api_key={}",
    "x-api-key: {}",
    "Authorization: Basic {}",
    "github_pat_{}",
    "nvapi-{}",
    "gsk_{}",
    "r8_{}",
    "AIza{}",
    "eyJhbGciOiJIUzI1NiJ9.{}.c2lnbmF0dXJl",
    "BEARER {}",
    "Bearer   {}",
    "Bearer%20{}",
    "/v1/models?token={}&page=1",
]


@pytest.mark.parametrize("form", CREDENTIALS)
def test_credential_of_somebody_else_is_masked_in_every_usual_form(form: str) -> None:
    secret = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9v"
    text = f"für {form.format(secret)} ö".encode()
    shown = Redaction(Target(Arm.BASELINE, "http://h", "m", DIALECTS["openai"])).apply(text)
    assert secret.encode() not in shown
    assert len(shown) == len(text)
    assert shown.decode().startswith("für ") and shown.decode().endswith(" ö")


def test_counts_of_tokens_are_shown() -> None:
    text = b'max_tokens=100 {"max_tokens": 100, "completion_tokens": 12} tokens="7" vllm:prompt_tokens_total{key="m"} 3'
    assert Redaction(Target(Arm.BASELINE, "http://h", "m", DIALECTS["openai"])).apply(text) == text


def test_chunks_of_any_size_are_given_back_by_event_with_the_times_of_their_reads(tmp_path: Path) -> None:
    def respond(received: Received) -> Iterable[Step]:
        if not (received.body or {}).get("stream"):
            return [*answering(lambda asked: "one two")(received)]
        events = [role_event(), token("one"), token(" two"), finish("stop"), usage(2, 2)]
        raw = b"".join(event.partition(b"\r\n")[2].removesuffix(b"\r\n") for event in events) + b"data: [DONE]\n\n"
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        parts: list[Step] = [chunk(raw[:50]), 0.03, chunk(raw[50:300]), 0.03, chunk(raw[300:]) + LAST_CHUNK]
        return [head, 0.03, *parts, CLOSE]

    with ScriptedServer(respond) as server:
        captured(tmp_path, server.url, "--model", "scripted")
    recorded = read_exchange(tmp_path / "out/chat_stream.http")
    assert len(recorded.reads) == 3 and recorded.body.endswith(b"[DONE]\n\n")
    assert sum(size for _, size in recorded.reads) == len(recorded.wire())


def test_body_that_ends_with_the_connection_is_whole(tmp_path: Path) -> None:
    """Python's own HTTP server, which mlx_lm.server is, declares no length."""

    def respond(received: Received) -> Iterable[Step]:
        reply = b"".join(step for step in answering(lambda asked: "one two")(received) if isinstance(step, bytes))
        head, _, body = reply.partition(b"\r\n\r\n")
        if b"chunked" in head:
            parts = [part for part in re.split(rb"(?m)^[0-9a-f]+\r\n", body) if part.strip()]
            body = b"".join(part.removesuffix(b"\r\n") for part in parts)
        status = head.split()[1]
        return [b"HTTP/1.0 %b -\r\nServer: BaseHTTP/0.6 Python/3.12\r\n\r\n" % status, body, CLOSE]

    with ScriptedServer(respond) as server:
        captured(tmp_path, server.url, "--model", "scripted")
    assert read_exchange(tmp_path / "out/chat_stream_usage.http").body.endswith(b"[DONE]\n\n")


def test_unsafe_captures_are_refused(tmp_path: Path) -> None:
    with ScriptedServer(answering(lambda received: "one")) as server:
        short = here(tmp_path, "capture", server.url, "--api-key-env", "SHORT", environment={"SHORT": "abc"})
        (tmp_path / "out").mkdir()
        (tmp_path / "out/mine.txt").write_text("kept")
        there = here(tmp_path, "capture", server.url, "--output", "out")
    assert (short.returncode, there.returncode) == (2, 2)
    assert "fewer than 8 characters" in short.stderr
    assert "is there already" in there.stderr


def test_base_path_and_certificates_are_used_and_the_path_is_not_kept(tmp_path: Path) -> None:
    def respond(received: Received) -> Iterable[Step]:
        if not received.path.startswith("/tenant-42/v1/"):
            return [json_response({"detail": f"Not Found: {received.path}"}, status=404), CLOSE]
        inner = replace(received, path=received.path.removeprefix("/tenant-42"))
        return [*answering(lambda asked: f"one two of {received.path}")(inner), CLOSE]

    with ScriptedServer(respond, tls=serving()) as server:
        captured(tmp_path, f"{server.url}/tenant-42/v1", "--model", "scripted", "--ca", str(CA))
    texts = [path.read_text() for path in (tmp_path / "out").iterdir()]
    assert any(text.startswith("POST /v1/chat/completions\n") for text in texts)
    assert not any("tenant-42" in text for text in texts)


@pytest.mark.parametrize("knows_tokens", [True, False])
def test_transcript_of_llamacpp_has_the_log_probabilities_of_a_token(tmp_path: Path, knows_tokens: bool) -> None:
    def respond(received: Received) -> Iterable[Step]:
        if received.path == "/v1/models":
            return [capture("llamacpp-2026.10/models").wire(), CLOSE]
        if received.path == "/tokenize" and knows_tokens:
            return [json_response({"tokens": [1, 5, 18]}), CLOSE]
        if received.path == "/completion":
            assert (received.body or {})["prompt"] == [1, 5]
            assert (received.body or {})["logit_bias"][0][0] == 18
            return [capture("llamacpp-2026.10/completion_n_probs").wire(), CLOSE]
        return [*answering(lambda asked: "one two")(received), CLOSE]

    with ScriptedServer(respond) as server:
        captured(tmp_path, server.url, "--model", "tiny-llama")
    assert (tmp_path / "out/tokenize.http").exists()
    assert (tmp_path / "out/completion_n_probs.http").exists() is knows_tokens
