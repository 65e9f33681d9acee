"""What a server shows of itself to a few requests: who it is, what it answers, and what stands in the way."""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate
from typing import Any

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.request import Endpoint
from benchgate.targets.address import Route
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.discovery import Trial, Trouble, list_models, try_completion
from tests.fakes.certificates import CA, serving
from tests.fakes.scripted_server import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    Received,
    ScriptedServer,
    Step,
    answering,
    event,
    finish,
    json_response,
    role_event,
    stream_head,
    token,
    usage,
)

KEY = "sk-0123456789abcdef"


def target(url: str, *, model: str = "scripted", key: str | None = None, ca: str | None = None) -> Target:
    return Target(Arm.BASELINE, url, model, DIALECTS["vllm"], key, route=Route(ca=ca))


def streamed(*steps: Step) -> Trial:
    with ScriptedServer(lambda received: [stream_head(), role_event(), *steps]) as server:
        return try_completion(target(server.url), "chat", stream=True, within_s=2)


def listed(*entries: Any, headers: str = "") -> bytes:
    head, _, body = json_response({"data": list(entries)}).partition(b"\r\n\r\n")
    return head + headers.encode() + b"\r\n\r\n" + body


def test_server_is_known_by_the_models_it_lists_and_its_clock_by_its_date() -> None:
    ahead = f"\r\nDate: {formatdate(time.time() + 3600, usegmt=True)}"
    models = listed({"id": "a", "owned_by": "vllm"}, {"id": "b\n", "owned_by": "vllm"}, {"id": 7}, headers=ahead)
    with ScriptedServer(lambda received: [models]) as server:
        found = list_models(target(server.url))
    assert (found.fault, found.models, found.engine) == (None, ("a", "b"), "vllm")
    assert found.clock_ahead_s is not None and 3590 < found.clock_ahead_s < 3610
    assert len(server.requests) == 1


@pytest.mark.parametrize("step", [listed(headers="\r\nDate: yesterday"), json_response({"detail": "no"}, status=404)])
def test_server_without_a_list_is_there_all_the_same(step: bytes) -> None:
    with ScriptedServer(lambda received: [step]) as server:
        found = list_models(target(server.url))
    assert (found.fault, found.models, found.engine, found.clock_ahead_s) == (None, (), "openai", None)


def test_certificate_tells_its_end_and_one_that_nobody_trusts_is_no_connection() -> None:
    with ScriptedServer(answering(lambda received: "hi"), tls=serving()) as server:
        url = f"https://localhost:{server.port}"
        trusted, strange = list_models(target(url, ca=CA)), list_models(target(url))
    assert trusted.fault is None and trusted.models == ("scripted",)
    assert trusted.certificate_ends_s is not None and trusted.certificate_ends_s > time.time()
    assert strange.fault is not None and strange.fault.trouble is Trouble.TLS
    assert "certificate" in strange.fault.reason.lower()


@pytest.mark.parametrize(
    ("steps", "trouble", "reason"),
    [
        ([json_response({"error": f"bad key {KEY}"}, status=401)], Trouble.AUTH, "HTTP 401: bad key [redacted]"),
        ([CLOSE], Trouble.AWAY, "disconnected"),
    ],
)
def test_refusal_to_list_is_told_without_the_key(steps: list[Step], trouble: Trouble, reason: str) -> None:
    with ScriptedServer(lambda received: steps) as server:
        fault = list_models(target(server.url, key=KEY)).fault
    assert fault is not None and fault.trouble is trouble and reason in fault.reason


def test_whole_answer_has_its_tokens_and_finish_reason() -> None:
    with ScriptedServer(answering(lambda received: "one two three")) as server:
        for endpoint in ("chat", "completions"):
            found = try_completion(target(server.url), endpoint, stream=False)
            assert (found.fault, found.output_tokens, found.finish_reason, found.events) == (None, 3, "stop", 1)
    assert len(server.requests) == 2


def test_answer_gives_the_name_of_its_model() -> None:
    with ScriptedServer(answering(lambda received: "one")) as server:
        assert try_completion(target(server.url), "chat", stream=False).model == "scripted"


@pytest.mark.parametrize(
    ("named", "read"), [("small", "small"), (f"m-{KEY}", None), ("two\nlines", None), ("", None), (7, None)]
)
def test_name_of_a_model_that_holds_the_key_or_is_no_line_is_not_read(named: object, read: str | None) -> None:
    whole = json_response({"model": named, "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})
    chunk = event({"model": named, "choices": [{"delta": {"content": "a"}}]})
    with ScriptedServer(lambda received: [whole]) as server:
        assert try_completion(target(server.url, key=KEY), "chat", stream=False).model == read
    with ScriptedServer(lambda received: [stream_head(), chunk, DONE, LAST_CHUNK]) as server:
        assert try_completion(target(server.url, key=KEY), "chat", stream=True).model == read


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_stream_tells_its_pace(endpoint: Endpoint) -> None:
    with ScriptedServer(answering(lambda received: "one two three")) as server:
        found = try_completion(target(server.url), endpoint, stream=True)
    assert (found.fault, found.output_tokens, found.finish_reason, found.events) == (None, 3, "stop", 3)
    assert found.first_s is not None and found.whole_s is not None and found.pace_s is not None
    assert found.pace_s == pytest.approx((found.whole_s - found.first_s) / 2)


def test_stream_is_over_at_its_done_whatever_the_connection_does() -> None:
    found = streamed(token("a"), token("b"), finish("length"), usage(3, 2), DONE, 30.0, LAST_CHUNK)
    assert (found.output_tokens, found.finish_reason, found.events) == (2, "length", 2)


def test_what_a_stream_does_not_tell_is_not_made_up() -> None:
    bare = streamed(token("a"), token("b"), DONE, LAST_CHUNK)
    assert (bare.output_tokens, bare.finish_reason, bare.pace_s) == (None, None, None)
    odd = streamed(token("a"), finish("content_filter"), usage(3, 1), DONE, LAST_CHUNK)
    assert (odd.output_tokens, odd.finish_reason, odd.pace_s) == (1, None, None)


def test_stream_of_thoughts_that_nobody_is_shown_is_an_answer_cut_at_its_limit() -> None:
    unseen = streamed(finish("length"), usage(3, 32), DONE, LAST_CHUNK)
    assert (unseen.fault, unseen.output_tokens, unseen.finish_reason, unseen.events) == (None, 32, "length", 0)


def test_stream_of_parts_and_of_other_words_is_read_as_they_are_meant() -> None:
    parts = event({"choices": [{"delta": {"content": [{"type": "text", "text": "a"}]}}]})
    found = streamed(parts, finish("MAX_TOKENS"), usage(3, 1), DONE, LAST_CHUNK)
    assert (found.fault, found.finish_reason, found.events) == (None, "length", 1)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([DONE, LAST_CHUNK], "without any output"),
        ([finish("length"), DONE, LAST_CHUNK], "without any output"),
        ([token("a"), event({"error": {"message": f"out of memory {KEY}"}}), LAST_CHUNK], "out of memory"),
    ],
)
def test_stream_that_is_no_answer_is_odd(steps: list[Step], reason: str) -> None:
    fault = streamed(*steps).fault
    assert fault is not None and fault.trouble is Trouble.ODD and reason in fault.reason


def dripping(received: Received) -> Iterable[Step]:
    yield stream_head()
    for _ in range(500):
        yield event({"choices": []})
        yield 0.01


def test_stream_that_never_says_anything_is_left() -> None:
    with ScriptedServer(dripping) as server:
        found = try_completion(target(server.url), "chat", stream=True, within_s=1.0)
    assert found.fault is not None and "without any output" in found.fault.reason


@pytest.mark.parametrize(
    ("status", "body", "trouble"),
    [
        (404, {"error": {"message": "no such model"}}, Trouble.MODEL),
        (403, {"error": "not you"}, Trouble.AUTH),
        (422, {"detail": "unknown field"}, Trouble.REFUSED),
        (200, {"error": {"message": "engine died"}}, Trouble.ODD),
        (200, {"choices": []}, Trouble.ODD),
        (200, [], Trouble.ODD),
    ],
)
def test_every_kind_of_refusal_has_its_name(status: int, body: object, trouble: Trouble) -> None:
    with ScriptedServer(lambda received: [json_response(body, status=status)]) as server:
        fault = try_completion(target(server.url), "chat", stream=False).fault
    assert fault is not None and fault.trouble is trouble


def test_other_endpoints_are_asked_as_they_want_to_be() -> None:
    with ScriptedServer(lambda received: [json_response({"results": [{"index": 0, "score": 0.5}]})]) as server:
        assert try_completion(target(server.url), "rerank", stream=False).fault is None
    (asked,) = server.requests
    assert asked.body is not None and asked.body["query"] and len(asked.body["documents"]) == 2
