"""Good answers in the words of servers and gateways that do not spell everything as OpenAI does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchgate.errors import TargetError
from benchgate.load.decode.record import progress_of
from benchgate.load.http.exchange import Failure, Progress, Response
from benchgate.load.http.parser import Head
from benchgate.model.records import ErrorClass, RequestRecord
from benchgate.model.request import ModelRequest
from benchgate.targets.answers import ToolCall, finish_reason, missing_choice, read_answer
from tests.shells.load_helpers import content_of, decode
from tests.shells.test_load_validity import is_valid

CHAT = ModelRequest("chat", {}, 8)
RESPONSES = ModelRequest("responses", {}, 8)
DONE = b"data: [DONE]\n\n"


def event(data: object, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(data)}\n\n".encode()


def piece(text: str, reason: object = None, **beside: object) -> bytes:
    return event({"id": "c-1", "choices": [{"delta": {"content": text}, "finish_reason": reason}], **beside})


def delta(**fields: object) -> bytes:
    return event({"choices": [{"delta": fields, "finish_reason": None}]})


def stop(reason: object = "stop") -> bytes:
    return event({"choices": [{"delta": {}, "finish_reason": reason}]})


def response(*reads: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """They come at 10, 20, 30, …"""
    body = [(10 * at, data) for at, data in enumerate(reads, start=1)]
    return Response(0, 999, Head("HTTP/1.1", 200, dict(headers or {})), body, whole=True)


def read(*reads: bytes, ask: ModelRequest = CHAT) -> RequestRecord:
    return decode(0, 0, 0, response(*reads), ask=ask)


def document(message: dict[str, object], reason: object = "stop") -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": reason}]}).encode()


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        *[(word, "stop") for word in ("stop", "STOP", "eos", "eos_token", "stop_sequence", "end_turn", "COMPLETE")],
        *[(word, "length") for word in ("length", "max_tokens", "MAX_TOKENS", "model_length")],
        *[(word, "tool_calls") for word in ("tool_calls", "tool_use", "function_call")],
        *[(word, None) for word in (None, "", " ", "null")],
        *[(word, word) for word in ("abort", "error", "content_filter", "SAFETY", "stopped?")],
    ],
)
def test_reasons_are_told_in_three_words_and_unknown_ones_as_they_are(told: object, meant: str | None) -> None:
    assert finish_reason(told) == meant


@pytest.mark.parametrize("none_yet", ["", "null"], ids=["TGI's completions", "KoboldCpp"])
def test_reason_that_is_no_word_ends_nothing(none_yet: str) -> None:
    texts = [event({"choices": [{"text": text, "finish_reason": none_yet}]}) for text in "abcdef"]
    record = read(*texts, event({"choices": [{"text": "g", "finish_reason": "eos_token"}]}), DONE)
    assert (record.error, record.finish_reason, len(record.chunk_ns), record.end_ns) == (None, "stop", 7, 70)
    cut = read(*texts, DONE)
    assert cut.error is ErrorClass.STREAM_BROKEN
    assert "without a finish reason" in str(cut.error_detail)


def test_reason_with_every_chunk_is_one_with_the_last() -> None:
    record = read(piece("a", "stop"), piece("b", "stop"), piece("c", "length"), DONE)
    assert (record.error, record.finish_reason, record.chunk_ns, record.end_ns) == (None, "length", (10, 20, 30), 30)


def test_reason_with_every_chunk_ends_nothing_without_the_last_mark() -> None:
    """Else an answer that was cut, or a server that hangs, would be a success at its last chunk."""
    chunks = (piece("a", "stop"), piece("b", "stop"))
    assert read(*chunks).error is ErrorClass.STREAM_BROKEN
    lost = replace(response(*chunks), whole=False, fault=Failure(ErrorClass.TIMEOUT, "no further output came"))
    assert decode(0, 0, 0, lost).error is ErrorClass.TIMEOUT
    assert decode(0, 0, 0, replace(lost, body=[*lost.body, (30, DONE)])).error is None
    assert progress_of(response(*chunks).body) == Progress(20, finished=False)
    assert progress_of(response(piece("a"), piece("b", "stop")).body) == Progress(20, finished=True)


@pytest.mark.parametrize(
    "reads",
    [
        (piece("a"), piece("b", "stop"), piece("c")),
        (piece("a"), piece("b", "stop"), piece("c", "stop")),
        (piece("a", "stop"), piece("b")),
        (piece("a"), stop(), piece("b"), stop()),
    ],
)
def test_output_after_the_reason_of_an_answer_is_a_failure(reads: tuple[bytes, ...]) -> None:
    record = read(*reads, DONE)
    assert (record.error, record.error_detail) == (ErrorClass.PROTOCOL, "output after the finish reason")


@pytest.mark.parametrize("reasons", [("stop", "abort"), ("abort", "stop"), ("stop", "error")])
def test_reason_that_is_no_success_is_not_taken_back(reasons: tuple[str, str]) -> None:
    record = read(piece("a"), *map(stop, reasons), DONE)
    assert record.error is ErrorClass.STREAM_BROKEN
    assert record.finish_reason in {"abort", "error"}


def test_the_end_is_where_the_reason_first_came() -> None:
    assert read(piece("a"), stop(), stop(), event({"choices": [], "usage": {"completion_tokens": 1}})).end_ns == 20


@pytest.mark.parametrize(
    "beat",
    [
        b"data:\n\n",
        b"data: \n\n",
        b"data:  \n\n",
        b"event: ping\ndata: 12:00:03\n\n",
        b"event: ping\ndata: {}\n\n",
        b"event: heartbeat\ndata:\n\n",
        b": ping\n\n",
    ],
)
def test_heartbeats_are_no_events_of_the_answer(beat: bytes) -> None:
    record = read(beat, piece("a"), beat, piece("b"), beat, stop(), DONE)
    assert (record.error, record.chunk_ns, record.end_ns) == (None, (20, 40), 60)
    assert read(beat, beat).error is not None  # and no answer by themselves
    ended = event({"type": "response.completed", "response": {"status": "completed"}})
    said = event({"type": "response.output_text.delta", "delta": "a"})
    assert read(beat, said, beat, ended, ask=RESPONSES).error is None


def test_what_is_no_json_and_no_heartbeat_is_a_failure() -> None:
    assert read(piece("a"), b"data: 12:00:03\n\n", stop(), DONE).error is ErrorClass.PROTOCOL
    for name in (b"response.output_text.delta", b"server_error", b"chunk"):
        broken = b"event: " + name + b"\ndata: {\n\n"
        assert read(broken, ask=RESPONSES).error is ErrorClass.PROTOCOL
        assert read(piece("a"), broken, stop(), DONE).error is ErrorClass.PROTOCOL
    assert read(piece("a"), b"event: error\ndata:\n\n", stop(), DONE).error is ErrorClass.STREAM_BROKEN


@pytest.mark.parametrize(
    "failed",
    [
        event({"error": {}}),
        event({"code": 500, "msg": "out of memory"}),
        event({"type": "server_error"}, "error"),
        event({"message": "out of memory"}),
    ],
)
def test_errors_of_a_response_are_those_of_a_chat(failed: bytes) -> None:
    said = event({"type": "response.output_text.delta", "delta": "a"})
    ended = event({"type": "response.completed", "response": {"status": "completed"}})
    assert read(said, failed, ended, ask=RESPONSES).error is ErrorClass.STREAM_BROKEN
    assert read(said, event({"type": "keepalive", "error": None}), ended, ask=RESPONSES).error is None


@pytest.mark.parametrize("reason", [["max_tokens"], {"max_tokens": 1}, 7])
def test_reason_of_a_response_that_is_no_text_is_one_that_nobody_knows(reason: object) -> None:
    said = event({"type": "response.output_text.delta", "delta": "a"})
    ended = event({"type": "response.incomplete", "response": {"incomplete_details": {"reason": reason}}})
    assert read(said, ended, ask=RESPONSES).error is ErrorClass.STREAM_BROKEN


@pytest.mark.parametrize(
    "nothing",
    [
        {"tool_calls": [{"function": {"name": None, "arguments": {}}}]},
        {"tool_calls": {}},
        {"function_call": {"name": "", "arguments": {}}},
    ],
)
def test_call_that_says_nothing_is_no_output(nothing: dict[str, object]) -> None:
    assert read(delta(**nothing), stop(), DONE).error is ErrorClass.EMPTY
    assert missing_choice({"choices": [{"message": nothing, "finish_reason": "stop"}]}) == "an empty answer"


@pytest.mark.parametrize("mark", [b"data: [DONE] \n\n", b"data:[DONE]\n\n", b"data: [DONE]\t\n\n"])
def test_blanks_around_the_last_mark_do_not_count(mark: bytes) -> None:
    assert read(piece("a"), stop(), mark).error is None


@pytest.mark.parametrize("nothing", [None, "", {}, False, []])
def test_error_that_says_nothing_beside_an_answer_is_none(nothing: object) -> None:
    record = read(piece("a", error=nothing), piece("b", error=nothing), stop(), DONE)
    assert (record.error, len(record.chunk_ns)) == (None, 2)


@pytest.mark.parametrize("nothing", ["", {}, False, []])
def test_error_that_says_nothing_by_itself_is_one(nothing: object) -> None:
    assert read(piece("a"), event({"error": nothing}), stop(), DONE).error is ErrorClass.STREAM_BROKEN


@pytest.mark.parametrize(
    "refused", [{"code": 500, "msg": "out of memory"}, {"code": 429}, {"status": "error", "msg": "out of memory"}]
)
def test_refusal_under_other_names_is_an_error_where_no_answer_stands_beside_it(refused: dict[str, object]) -> None:
    record = read(piece("a"), event(refused), stop(), DONE)
    assert record.error is ErrorClass.STREAM_BROKEN
    assert str(refused.get("msg", "an error without a message")) in str(record.error_detail)
    assert read(piece("a", **refused), event({"code": 200, "status": "ok"}), stop(), DONE).error is None


TEXT = [{"type": "text", "text": "a"}]
THINKING = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]


def test_parts_of_a_content_are_output_and_what_is_thought_in_them_is_reasoning() -> None:
    """As Mistral's reasoning models send them."""
    record = read(delta(content=THINKING), delta(content=[]), delta(content=TEXT), stop(), DONE)
    assert (record.error, record.chunk_ns, record.first_answer_ns) == (None, (10, 30), 30)
    assert content_of(response(delta(content=THINKING), delta(content=TEXT)).body, CHAT).text == "a"
    assert read_answer("chat", 200, document({"content": [*THINKING, *TEXT]})).text == "a"
    assert read_answer("chat", 200, document({"content": THINKING})).text is None
    reasoning = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}]
    record = read(delta(content=reasoning), delta(content=[{"type": "reasoning", "text": "hm"}]), stop(), DONE)
    assert (record.chunk_ns, record.first_answer_ns) == ((10, 20), None)


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}, False),
        ({"refusal": "I can't"}, True),
        ({"function_call": {"name": "f", "arguments": ""}}, True),
        ({"tool_calls": {"index": 0, "function": {"name": "f", "arguments": {"a": 1}}}}, True),
    ],
    ids=["OpenRouter, MiniMax", "OpenAI", "OpenAI before", "TGI"],
)
def test_output_under_other_names_starts_the_clock(fields: dict[str, object], answers: bool) -> None:
    record = read(
        delta(**fields), stop(), DONE, ask=ModelRequest("chat", {}, 8, fields={"tools": [{"type": "function"}]})
    )
    assert (record.error, record.chunk_ns, record.first_answer_ns) == (None, (10,), 10 if answers else None)


def test_call_that_is_an_object_is_a_call() -> None:
    call = {"index": 0, "function": {"name": "f", "arguments": {"a": 1}}}
    offer = ModelRequest("chat", {}, 8, fields={"tools": [{"type": "function", "function": {"name": "f"}}]})
    assert is_valid(offer, content_of(response(delta(tool_calls=call)).body, offer)) is True
    assert read_answer("chat", 200, document({"content": None, "tool_calls": call}, "tool_calls")).calls == (
        ToolCall("f", '{"a": 1}'),
    )


@pytest.mark.parametrize(
    ("parameters", "valid"),
    [
        ({"type": "object", "properties": {}}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, False),
        (None, True),
    ],
)
def test_empty_arguments_are_those_of_a_tool_that_needs_none(parameters: object, valid: bool) -> None:
    function = {"name": "f"} if parameters is None else {"name": "f", "parameters": parameters}
    offer = ModelRequest("chat", {}, 8, fields={"tools": [{"type": "function", "function": function}]})
    call = {"index": 0, "function": {"name": "f", "arguments": ""}}
    assert is_valid(offer, content_of(response(delta(tool_calls=[call])).body, offer)) is valid


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ({"type": "response.done", "response": {"status": "completed"}}, None),
        ({"type": "response.completed", "response": {}}, None),
        ({"type": "response.done", "response": {}}, ErrorClass.STREAM_BROKEN),
        ({"type": "response.failed", "response": {}}, ErrorClass.STREAM_BROKEN),
        ({"type": "response.cancelled", "response": {}}, ErrorClass.STREAM_BROKEN),
        ({"type": "response.completed", "response": {"status": "failed"}}, ErrorClass.STREAM_BROKEN),
    ],
)
def test_response_ends_as_its_status_says_or_else_its_last_event(last: object, error: ErrorClass | None) -> None:
    said = event({"type": "response.output_text.delta", "delta": "a"})
    assert read(said, event(last), ask=RESPONSES).error is error


@pytest.mark.parametrize("coding", ["none", "identity", "None"])
def test_coding_that_is_none_is_none(coding: str) -> None:
    assert Head("HTTP/1.1", 200, {"content-encoding": coding}).coded is None
    assert Head("HTTP/1.1", 200, {"content-encoding": f"{coding}, br"}).coded == "br"


def test_evals_take_the_same_reasons() -> None:
    assert read_answer("chat", 200, document({"content": "a"}, "end_turn")).finish_reason == "stop"
    with pytest.raises(TargetError, match="finish reason: ''"):
        read_answer("chat", 200, document({"content": "a"}, ""))
