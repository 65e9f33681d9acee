"""Clients that go away on purpose: after so many chunks, or at an instant. The server must see it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from benchgate.load.results import StageResult
from benchgate.load.workers import run_stage
from benchgate.model.request import ModelRequest, text_request
from benchgate.plan.model import ClientCancellation, PlannedClass, PlannedRequest, PlannedStage
from tests.fakes.scripted_server import (
    ABORT,
    CLOSE,
    DONE,
    LAST_CHUNK,
    Received,
    ScriptedServer,
    Step,
    answering,
    chunk,
    event,
    finish,
    json_response,
    role_event,
    stream_head,
    token,
)
from tests.shells.load_helpers import limits, target_at

LONG = ModelRequest("chat", {"messages": [{"role": "user", "content": "tell me everything"}]}, 1000)


def run(url: str, *requests: PlannedRequest, concurrency: int | None = 1) -> StageResult:
    rate_rps = None if concurrency is not None else 10.0
    return run_stage(
        target_at(url), PlannedStage("s", (PlannedClass("", concurrency, rate_rps, requests),)), limits=limits()
    )


def leaving(after_tokens: int | None = None, after_s: float | None = None, ask: ModelRequest = LONG) -> PlannedRequest:
    return PlannedRequest(0, None, ask, 1, leave=ClientCancellation(after_tokens, after_s))


class Talker:
    """Sends one token after the other and never ends; `gone` is set when it can send no more."""

    def __init__(self, tokens_at_once: int = 1) -> None:
        self.gone = threading.Event()
        self._piece = token("word ") * tokens_at_once

    def __call__(self, received: Received) -> Iterator[Step]:
        yield stream_head() + role_event()
        try:
            while True:
                yield self._piece
                yield 0.002
        finally:
            self.gone.set()


@pytest.mark.parametrize("tokens_at_once", [1, 3])
def test_client_leaves_after_so_many_chunks_and_the_server_notices(tokens_at_once: int) -> None:
    talker = Talker(tokens_at_once)
    with ScriptedServer(talker) as server:
        result = run(server.url, leaving(after_tokens=7))
        assert talker.gone.wait(10)
    left = result.only.left
    assert (len(result.requests), tuple(left.error), left.end_ns.tolist()) == (0, (None,), [-1])
    assert len(left.chunk_ns) >= 7  # what the last read brought counts too
    assert left.http_status.tolist() == [200]


def test_client_leaves_so_long_after_its_request_was_due() -> None:
    talker = Talker()
    with ScriptedServer(talker) as server:
        left = run(server.url, leaving(after_s=0.05)).only.left
        assert talker.gone.wait(10)
    assert (tuple(left.error), left.end_ns.tolist(), left.left.tolist()) == ((None,), [-1], [1])


def test_client_leaves_a_server_that_says_nothing() -> None:
    def respond(received: Received) -> Iterator[Step]:
        yield 60.0

    with ScriptedServer(respond) as server:
        left = run(server.url, leaving(after_s=0.02)).only.left
    assert (tuple(left.error), left.http_status.tolist(), len(left.chunk_ns)) == ((None,), [-1], 0)
    assert left.sent_ns.tolist() != [-1]


def test_answer_that_is_over_before_its_client_leaves_is_told_apart_too() -> None:
    """Else only the fast ones would count. The others of the stage are not touched."""
    other = PlannedRequest(1, None, LONG, 1)
    with ScriptedServer(answering(lambda received: "a b c")) as server:
        result = run(server.url, leaving(after_tokens=50), other)
        assert server.connections == 1  # nobody left
    assert (result.only.left.index.tolist(), result.requests.index.tolist()) == ([0], [1])
    assert result.only.left.finish_reason == ("stop",)


def test_failure_before_the_client_leaves_is_kept_but_not_counted() -> None:
    with ScriptedServer(lambda received: [json_response({"error": {"message": "no"}}, status=503)]) as server:
        result = run(server.url, leaving(after_tokens=5))
    assert (tuple(result.only.left.error), len(result.requests)) == (("http_5xx",), 0)


def test_slot_of_a_client_that_left_goes_on_over_a_fresh_connection() -> None:
    def respond(received: Received) -> Iterator[Step]:
        if received.prompt == "tell me everything":
            yield from Talker()(received)
        yield from answering(lambda _: "a b c")(received)

    other = PlannedRequest(1, None, text_request("chat", "short", 8), 1)
    with ScriptedServer(respond) as server:
        result = run(server.url, leaving(after_tokens=3), other)
        assert server.connections == 2
    assert (tuple(result.requests.error), result.requests.reconnects.tolist()) == ((None,), [0])


def test_client_of_a_response_counts_its_deltas() -> None:
    def respond(received: Received) -> Iterator[Step]:
        yield stream_head()
        for at in range(100):
            kind = "response.output_text.delta"
            yield chunk(f'event: {kind}\ndata: {{"type": "{kind}", "delta": "w{at}"}}\n\n'.encode())
            yield 0.002

    with ScriptedServer(respond) as server:
        left = run(server.url, leaving(after_tokens=4, ask=text_request("responses", "x", 100))).only.left
    assert (len(left.chunk_ns) >= 4, tuple(left.finish_reason)) == (True, (None,))


@pytest.mark.parametrize("framed", [True, False])
def test_client_of_bare_text_counts_its_pieces(framed: bool) -> None:
    """TorchServe's text has no events."""

    def respond(received: Received) -> Iterator[Step]:
        yield stream_head() if framed else b"HTTP/1.1 200 OK\r\n\r\n"
        for _ in range(100):
            yield chunk(b"word ") if framed else b"word "
            yield 0.02
        yield LAST_CHUNK if framed else CLOSE

    with ScriptedServer(respond) as server:
        left = run(server.url, leaving(after_tokens=4, ask=text_request("predictions", "x", 100))).only.left
    assert 4 <= len(left.chunk_ns) < 100
    assert left.end_ns.tolist() == [-1]


def test_window_and_shares_are_of_those_who_stayed() -> None:
    requests = [
        PlannedRequest(i, i * 10_000_000, LONG, 1, leave=ClientCancellation(None, 0.2) if i else None) for i in range(3)
    ]

    def respond(received: Received) -> Iterator[Step]:
        yield stream_head() + token("a")
        yield 0.02 if (received.body or {})["seed"] else 0
        yield finish("stop") + event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}) + DONE
        yield LAST_CHUNK
        yield ABORT

    with ScriptedServer(respond) as server:
        result = run(server.url, *requests, concurrency=None)
    assert result.requests.index.tolist() == [0]
    assert result.window_s == pytest.approx(result.requests.end_ns[0] / 1e9)
