"""How much an answer says is counted after the stage; what nobody asked for in it is a protocol fault."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.load.decode.body import RawBody
from benchgate.load.http.exchange import Failure, Response
from benchgate.load.http.parser import Head
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass, RequestRecord
from benchgate.model.request import Endpoint, ModelRequest
from benchgate.targets.dialect import DIALECTS, Target
from tests.fakes.streams import reads_of
from tests.shells.load_helpers import content_of, decode

pytestmark = pytest.mark.usefixtures("compiled_and_not")

Event = dict[str, Any]
CHAT = ModelRequest("chat", {}, 8)
DOCUMENT = ModelRequest("chat", {}, 8, stream=False)
RESPONSES = ModelRequest("responses", {}, 8)
TOOLS: Event = {"tools": [{"type": "function", "function": {"name": "f"}}]}
DONE = b"data: [DONE]\n\n"


def sse(*events: Event, ascii_only: bool = True) -> list[bytes]:
    return [f"data: {json.dumps(event, ensure_ascii=ascii_only)}\n\n".encode() for event in events]


def delta(index: int | None = 0, reason: str | None = None, model: str = "m", **fields: object) -> Event:
    choice: Event = {"delta": fields, "finish_reason": reason}
    return {"id": "1", "model": model, "choices": [choice if index is None else {"index": index, **choice}]}


def said(name: str, piece: str) -> Event:
    fields: Event = {name: piece}
    return delta(**fields)


STOP = delta(reason="stop")


def record_of(
    reads: Sequence[bytes],
    ask: ModelRequest = CHAT,
    *,
    status: int = 200,
    fault: Failure | None = None,
    target: Target | None = None,
    secret: str | None = None,
) -> RequestRecord:
    """The record of an answer in chunks, each of which came with a read of its own."""
    chunks = [b"%x\r\n%b\r\n" % (len(data), data) for data in reads if data] + [b"0\r\n\r\n"]
    marks = array("q", [number for at_ns, chunk in enumerate(chunks) for number in (at_ns, len(chunk))])
    body = RawBody(b"".join(chunks), marks, chunked=True)
    response = Response(1, 99, Head("HTTP/1.1", status, {}), body, whole=fault is None, fault=fault)
    return decode(0, 0, 0, response, ask=ask, target=target, secret=secret)


def counts(record: RequestRecord) -> tuple[int | None, int | None, int | None]:
    return record.answer_chars, record.reasoning_chars, record.tool_calls


def content(reads: Sequence[bytes], ask: ModelRequest = CHAT) -> tuple[int | None, int | None, int | None]:
    """The counts of an answer that is a success."""
    record = record_of(reads, ask)
    assert record.error is None, record.error_detail
    return counts(record)


def streamed(*deltas: Event, ascii_only: bool = True) -> list[bytes]:
    return [*sse(*deltas, STOP, ascii_only=ascii_only), DONE]


def document(message: Event, **others: object) -> list[bytes]:
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return [json.dumps({"id": "1", "model": "m", "choices": [choice], **others}).encode()]


PIECES = ("A b", "", " c\n", 'd"e\\f', "é", "\u200b\ufeff", "漢字 かな", "🙂", "\t", "</think>")


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("name", ["content", "reasoning_content", "reasoning"])
def test_visible_characters_of_a_stream_are_counted(name: str, ascii_only: bool) -> None:
    reads = streamed(delta(role="assistant", content=""), *(said(name, p) for p in PIECES), ascii_only=ascii_only)
    visible = 2 + 1 + 5 + 1 + 4 + 1 + 8
    expected = (visible, 0, 0) if name == "content" else (0, visible, 0)
    assert content(reads) == expected
    assert content([b"".join(reads)]) == expected  # as a gateway merges events


CALLED = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}


@pytest.mark.parametrize(
    ("first", "visible"),
    [
        ({"content": "A"}, True),
        ({"content": " "}, False),
        ({"content": "\u200b"}, False),
        ({"content": "\n"}, False),
        ({"content": " A"}, True),
        ({"reasoning_content": "\n"}, False),
        ({"reasoning_content": "Hm"}, True),
        ({"refusal": "no"}, True),
        (CALLED, True),
    ],
)
def test_the_first_piece_may_be_blank(first: Event, visible: bool) -> None:
    """Whatever comes after it, and whether reads are taken by themselves, skipped or merged."""
    for after in (
        [said("content", "B")] * 3,
        [said("content", " ")] * 3,
        [said("reasoning", "B"), said("content", " ")],
    ):
        reads = streamed(delta(role="assistant", content=""), delta(**first), *after)
        asks = ModelRequest("chat", {}, 8, fields={"tools": [{"type": "function", "function": {"name": "f"}}]})
        assert record_of(reads, asks).first_visible is visible
        assert record_of([b"".join(reads)], asks).first_visible is visible


def test_the_first_piece_of_other_shapes_may_be_blank() -> None:
    for text, visible in ((" a", True), (" ", False)):
        blocks = [
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": one}}
            for one in (text, "b")
        ]
        assert record_of(sse(*blocks), ModelRequest("messages", {}, 8)).first_visible is visible
        parts = [{"type": "response.output_text.delta", "delta": one} for one in (text, "b")]
        assert record_of(sse(*parts), ModelRequest("responses", {}, 8)).first_visible is visible
        tokens = [{"token": {"text": one, "special": False}} for one in (text, "b")]
        assert record_of(sse(*tokens), ModelRequest("generate", {}, 8)).first_visible is visible
        outputs = [{"model_name": "m", "model_version": "1", "text_output": one} for one in (text, "b", "c")]
        assert record_of(sse(*outputs), ModelRequest("triton-generate", {}, 8)).first_visible is visible
        assert record_of(document({"content": text}), DOCUMENT).first_visible is visible


def test_output_without_text_begins_with_nothing_visible_or_blank() -> None:
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "redacted_thinking", "data": "x"}}
    assert record_of(sse(block), ModelRequest("messages", {}, 8)).first_visible is None
    vectors = json.dumps({"data": [{"index": 0, "embedding": [0.5]}]}).encode()
    assert record_of([vectors], ModelRequest("embeddings", {}, None, stream=False)).first_visible is None
    assert record_of(streamed(), status=500).first_visible is None


def test_visible_characters_of_other_shapes_are_counted() -> None:
    completion = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("a ", "bc")]
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
    assert content([*sse(*completion, last), DONE], ModelRequest("completions", {}, 8)) == (3, 0, 0)
    whole = json.dumps({"choices": [{"text": "a bc", "finish_reason": "length"}]}).encode()
    assert content([whole], ModelRequest("completions", {}, 8, stream=False)) == (3, 0, 0)
    assert content(document({"content": "a b", "reasoning_content": "hm", "refusal": "no"}), DOCUMENT) == (4, 2, 0)
    assert content(streamed(delta(refusal="I can't"))) == (6, 0, 0)
    assert content(streamed(delta(content=[{"type": "text", "text": "a b"}]))) == (2, 0, 0)
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm "}]}, {"type": "text", "text": "a"}]
    assert content(streamed(delta(content=thinking))) == (1, 2, 0)
    assert content(streamed(delta(reasoning_details=[{"type": "reasoning.text", "text": "hm"}]))) == (0, 2, 0)


def test_reasoning_under_two_names_is_counted_once() -> None:
    both = delta(reasoning="hm", reasoning_content="hm", reasoning_details=[{"type": "reasoning.text", "text": "hm"}])
    assert content(streamed(both, both)) == (0, 4, 0)


def call(index: int, **function: str) -> Event:
    return delta(tool_calls=[{"index": index, "function": function}])


def test_names_and_arguments_of_calls_are_counted_once_per_call() -> None:
    asked = replace(CHAT, fields=TOOLS)
    pieces = [call(0, name="f", arguments=""), call(0, arguments='{"a": '), call(0, arguments="1}"), call(1, name="gh")]
    assert content(streamed(*pieces), asked) == (1 + 7 + 2, 0, 2)
    calls = [{"function": {"name": "f", "arguments": '{"a": 1}'}}, {"function": {"name": "gh", "arguments": ""}}]
    whole = document({"content": None, "tool_calls": calls})
    assert content(whole, replace(asked, stream=False)) == (1 + 7 + 2, 0, 2)
    older = [delta(function_call={"name": "f", "arguments": ""}), delta(function_call={"arguments": "{}"})]
    assert content(streamed(*older), replace(CHAT, fields={"functions": [{"name": "f"}]})) == (3, 0, 1)


@pytest.mark.parametrize("ids", [("a", "b", "c"), ("a", "", ""), ("", "b", "b"), ("a", "a", "a")])
def test_deltas_of_one_call_are_one_call_whatever_ids_they_carry(ids: tuple[str, ...]) -> None:
    functions = {"name": "f", "arguments": ""}, {"arguments": '{"a": '}, {"arguments": "1}"}
    pieces = [
        delta(tool_calls=[{"index": 0, **({"id": one} if one else {}), "function": function}])
        for one, function in zip(ids, functions, strict=True)
    ]
    assert content(streamed(*pieces), replace(CHAT, fields=TOOLS)) == (1 + 7, 0, 1)


def test_calls_that_all_count_themselves_as_the_first_are_told_apart_by_id_and_name() -> None:
    calls = [{"index": 0, "id": one, "function": {"name": "f", "arguments": "{}"}} for one in "ab"]
    assert content(streamed(*(delta(tool_calls=[one]) for one in calls)), replace(CHAT, fields=TOOLS)) == (6, 0, 2)


def response_events(*events: Event) -> list[bytes]:
    last = {"type": "response.completed", "response": {"model": "m", "status": "completed"}}
    return sse(*events, last)


def test_visible_characters_of_responses_are_counted() -> None:
    events = [
        {"type": "response.reasoning_text.delta", "delta": "hm hm"},
        {"type": "response.output_text.delta", "delta": "A b"},
        {"type": "response.refusal.delta", "delta": "no"},
    ]
    assert content(response_events(*events), RESPONSES) == (4, 4, 0)
    item = {"type": "function_call", "name": "f", "arguments": ""}
    calls: list[Event] = [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "{}"},
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, "arguments": "{}"}},
    ]
    offer = replace(RESPONSES, fields={"tools": [{"type": "function", "name": "f"}]})
    assert content(response_events(*calls), offer) == (3, 0, 1)
    assert record_of(response_events(*calls), offer).chunk_ns == (1,)
    for arguments, visible in (("{}", 3), ("", 1)):  # without deltas
        whole_call = {**calls[2], "item": {**item, "arguments": arguments}}
        for events in ([calls[0], whole_call], [{**whole_call, "type": calls[0]["type"]}, whole_call]):
            assert content(response_events(*events), offer) == (visible, 0, 1)
            assert len(record_of(response_events(*events), offer).chunk_ns) == 1
    output: list[Event] = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "A b"}, {"type": "refusal", "refusal": "no"}]},
        {**item, "arguments": "{}"},
    ]
    whole = json.dumps({"status": "completed", "output": output}).encode()
    assert content([whole], replace(offer, stream=False)) == (4 + 3, 2, 1)


def test_tool_of_the_servers_own_is_no_call() -> None:
    search = {"type": "web_search_call", "id": "ws", "status": "completed"}
    remote = {"type": "mcp_call", "name": "look", "arguments": "{}"}
    text = {"type": "response.output_text.delta", "delta": "A"}
    events = [{"type": "response.output_item.added", "output_index": 0, "item": item} for item in (search, remote)]
    assert content(response_events(*events, text), RESPONSES) == (1, 0, 0)
    message = {"type": "message", "content": [{"type": "output_text", "text": "A"}]}
    whole = json.dumps({"status": "completed", "output": [search, remote, message]}).encode()
    assert content([whole], replace(RESPONSES, stream=False)) == (1 + 6, 0, 0)


def test_blank_and_looping_answers_are_told_from_others() -> None:
    blank = record_of(streamed(*[delta(content=" \u200b\n")] * 40))
    assert (*counts(blank), blank.redundancy_percent) == (0, 0, 0, None)
    assert (blank.output_tokens, blank.error) == (40, None)
    loop = record_of(streamed(*[delta(content="!!")] * 40))
    assert loop.answer_chars == 80
    assert (loop.redundancy_percent or 0) > 90
    thought = record_of(streamed(*[delta(reasoning_content="wait, ")] * 40))
    assert (thought.answer_chars, thought.reasoning_chars) == (0, 200)
    assert (thought.redundancy_percent or 0) > 90
    assert record_of(streamed(delta(content="!" * 23))).redundancy_percent is None
    assert record_of(streamed(delta(content="!" * 24))).redundancy_percent == 79


def test_answer_that_was_cut_says_what_had_come() -> None:
    lost = Failure(ErrorClass.STREAM_BROKEN, "reset")
    cut = record_of(sse(delta(content="A b"), delta(content="c"), delta(content="d")), fault=lost)
    assert (cut.error, *counts(cut), cut.answer_model) == (ErrorClass.STREAM_BROKEN, 4, 0, 0, "m")
    started = {"type": "response.created", "response": {"id": "r", "model": "m"}}
    told = sse(started, {"type": "response.output_text.delta", "delta": "A b"})
    cut = record_of(told, RESPONSES, fault=lost)
    assert (cut.error, *counts(cut), cut.answer_model) == (ErrorClass.STREAM_BROKEN, 2, 0, 0, "m")
    assert counts(record_of([], fault=lost)) == (0, 0, 0)


@pytest.mark.parametrize("status", [204, 400, 503])
def test_answer_that_is_none_is_not_counted(status: int) -> None:
    record = record_of(streamed(delta(content="A")), status=status)
    assert (*counts(record), record.redundancy_percent, record.answer_model) == (None, None, None, None, None)
    unsent = decode(0, 0, 0, Response(None, 9, fault=Failure(ErrorClass.CONNECT, "refused")))
    assert counts(unsent) == (None, None, None)


@pytest.mark.parametrize("endpoint", ["embeddings", "rerank"])
def test_numbers_say_nothing_that_could_be_counted(endpoint: Endpoint) -> None:
    ask = ModelRequest(endpoint, {"input": "a", "documents": ["a"]}, None, stream=False)
    found = {"data": [{"embedding": [1.0]}], "results": [{"index": 0, "relevance_score": 1.0}], "model": "e"}
    record = record_of([json.dumps(found).encode()], ask)
    assert (record.error, *counts(record), record.redundancy_percent) == (None, None, None, None, None)


# ---- the name of the model


def test_name_of_the_model_is_the_first_one_that_the_answer_gives() -> None:
    events = [delta(content=text, model=name) for text, name in (("a", "x/y"), ("b", "x/y"), ("c", "z"))]
    assert record_of(streamed(*events)).answer_model == "x/y"
    assert record_of(streamed(delta(content="a", model=""))).answer_model == "m"
    assert record_of(document({"content": "a"}), DOCUMENT).answer_model == "m"
    assert (
        record_of(response_events({"type": "response.output_text.delta", "delta": "a"}), RESPONSES).answer_model == "m"
    )
    nameless = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "model": 3}
    assert record_of([json.dumps(nameless).encode()], DOCUMENT).answer_model is None


def test_name_of_the_model_is_short_printable_and_without_credentials() -> None:
    def name(told: str) -> str | None:
        return record_of(document({"content": "a"}, model=told), DOCUMENT, secret="sk-1").answer_model

    assert name("a\x1b[31m\nb") == "a [31m b"
    assert name("\x1b\n") is None
    assert name("m sk-1") == "m [redacted]"
    assert len(name("x" * 500) or "") == 200


# ---- what nobody asked for

UNOFFERED = "a tool call, although no tools were offered"
SECOND = "output in choice 1, although one choice was requested"


def target(leave_out: tuple[str, ...] = (), **extra: object) -> Target:
    return Target(Arm.CANDIDATE, "http://h", "m", replace(DIALECTS["openai"], extra=extra, leave_out=leave_out))


CALLS: list[tuple[ModelRequest, list[bytes]]] = [
    (CHAT, streamed(delta(content="A"), call(0, name="f"))),
    (CHAT, streamed(delta(function_call={"name": "f"}))),
    (DOCUMENT, document({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]})),
    (DOCUMENT, document({"content": "A", "function_call": {"name": "f", "arguments": "{}"}})),
    (
        RESPONSES,
        response_events({"type": "response.output_text.delta", "delta": "A"})[:1]
        + response_events({"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}}),
    ),
    (
        replace(RESPONSES, stream=False),
        [json.dumps({"status": "completed", "output": [{"type": "function_call", "name": "f"}]}).encode()],
    ),
]


@pytest.mark.parametrize(("ask", "reads"), CALLS)
def test_call_of_a_tool_that_nobody_offered_is_a_protocol_fault(ask: ModelRequest, reads: list[bytes]) -> None:
    for asked in (ask, replace(ask, fields={"tools": []}), replace(ask, fields={"tool_choice": "none"})):
        record = record_of(reads, asked, target=target())
        assert (record.error, record.error_detail, record.tool_calls) == (ErrorClass.PROTOCOL, UNOFFERED, 1)
    withheld = record_of(reads, replace(ask, fields=TOOLS), target=target(leave_out=("tools",)))
    assert withheld.error_detail == UNOFFERED


@pytest.mark.parametrize(("ask", "reads"), CALLS)
def test_call_is_fine_where_the_suite_or_the_deployment_offers_tools(ask: ModelRequest, reads: list[bytes]) -> None:
    for asked, at in (
        (replace(ask, fields=TOOLS), target()),
        (replace(ask, fields=TOOLS), None),
        (replace(ask, fields={"functions": [{"name": "f"}]}), None),
        (ask, target(**TOOLS)),
    ):
        assert record_of(reads, asked, target=at).error is None


def test_pieces_of_a_call_that_say_nothing_are_no_call() -> None:
    nothings: list[Event] = [
        {"tool_calls": []},
        {"tool_calls": [{"index": 0, "function": {"name": ""}}]},
        {"function_call": None},
    ]
    for nothing in nothings:
        assert content(streamed(delta(content="A", **nothing), delta(content="B", **nothing))) == (2, 0, 0)


def choices(*indexes: int | None) -> list[bytes]:
    return streamed(*(delta(index, content=f"piece {place}") for place, index in enumerate(indexes)))


def whole_choices(*indexes: int | None) -> list[bytes]:
    rows = [{"message": {"content": "a"}, "finish_reason": "stop"} for _ in indexes]
    placed = [row if index is None else {"index": index, **row} for index, row in zip(indexes, rows, strict=True)]
    return [json.dumps({"choices": placed}).encode()]


OTHERS: list[tuple[ModelRequest, list[bytes]]] = [
    (CHAT, choices(0, 1)),
    (CHAT, choices(0, 0, 0, 1, 0, 1, 1)),
    (CHAT, choices(1, 1, 1)),
    (CHAT, [b"".join(choices(0, 1))]),
    (DOCUMENT, whole_choices(0, 1)),
    (DOCUMENT, whole_choices(None, None)),
    (ModelRequest("completions", {}, 8), [*sse({"choices": [{"index": 1, "text": "a"}]}, STOP), DONE]),
]


@pytest.mark.parametrize(("ask", "reads"), OTHERS)
def test_output_in_a_choice_that_nobody_asked_for_is_a_protocol_fault(ask: ModelRequest, reads: list[bytes]) -> None:
    for asked in (ask, replace(ask, fields={"n": 1})):
        record = record_of(reads, asked, target=target())
        assert (record.error, record.error_detail) == (ErrorClass.PROTOCOL, SECOND)


def test_choice_without_an_index_is_the_first_and_one_without_output_is_none() -> None:
    assert content(choices(None, None)) == (12, 0, 0)
    empty = delta(1, role="assistant", content="")
    assert content(streamed(delta(content="A"), empty, delta(1, reason="stop"))) == (1, 0, 0)


# ---- however it came

TEXTS = st.sampled_from(
    ["", "a", " ", "\n", '"', "\\", "\u200b", "é", "🙂", "\ud83d", "\ude42", "\x00", "漢", "!" * 40]
)
NAMES = st.sampled_from(["content", "reasoning_content", "reasoning", "refusal"])


@st.composite
def deltas(draw: st.DrawFn) -> Event:
    index = draw(st.sampled_from([0, 0, 0, 0, None, 1]))
    model = draw(st.sampled_from(["m", "m", "m", "n"]))
    if draw(st.integers(0, 6)) == 0:
        return call(draw(st.integers(0, 1)), **draw(st.dictionaries(st.sampled_from(["name", "arguments"]), TEXTS)))
    return delta(index, model=model, **draw(st.dictionaries(NAMES, TEXTS, min_size=1, max_size=2)))


@given(st.lists(st.tuples(deltas(), st.integers(1, 4)), max_size=6), st.booleans(), st.data())
def test_an_answer_says_the_same_however_its_bytes_came(
    made: list[tuple[Event, int]], ascii_only: bool, data: st.DataObject
) -> None:
    events = [event for event, times in made for _ in range(times)]
    reads = [part.encode("utf-8", "surrogatepass") for part in _written(events, ascii_only)]
    separate, merged = record_of(reads), record_of([b"".join(reads)])
    cut = record_of(data.draw(reads_of(b"".join(reads))))
    for other in (merged, cut):
        assert counts(other) == counts(separate)
        assert (other.redundancy_percent, other.answer_model) == (separate.redundancy_percent, separate.answer_model)
        assert (other.error, other.error_detail) == (separate.error, separate.error_detail)


def _written(events: list[Event], ascii_only: bool) -> list[str]:
    return [f"data: {json.dumps(event, ensure_ascii=ascii_only)}\n\n" for event in [*events, STOP]] + [
        "data: [DONE]\n\n"
    ]


WHOLE_TEXTS = st.sampled_from(["", "a", " b", "\n", '"', "\\", "\\n", "\u200b", "é", "🙂", "漢 字"])


@given(st.lists(WHOLE_TEXTS, min_size=3, max_size=30), st.booleans())
def test_texts_of_like_events_are_the_texts_that_were_sent(texts: list[str], ascii_only: bool) -> None:
    body = b"".join(streamed(*(delta(content=text) for text in texts), ascii_only=ascii_only))
    assert content_of(RawBody.of([(5, body)]), CHAT).text == "".join(texts)
    events = [(5, event) for event in streamed(*(delta(content=text) for text in texts), ascii_only=ascii_only)]
    assert content_of(RawBody.of(events), CHAT).text == "".join(texts)


def test_characters_cut_between_like_events_stay_what_they_are_alone() -> None:
    """Bytes of one character in two events are no character, as when the events are read one by one."""
    halves = [b'data: {"choices":[{"delta":{"content":"' + half + b'"}}]}\n\n' for half in (b"\xe2\x82", b"\xac")]
    reads = [*(halves * 4), *sse(STOP), DONE]
    assert record_of(reads).answer_chars == record_of([b"".join(reads)]).answer_chars == 8
