"""What counts as an answer at each endpoint, streamed or in one piece."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from benchgate.load.decode.body import RawBody
from benchgate.load.decode.messages import read_messages_document
from benchgate.load.http.exchange import Failure, Response
from benchgate.load.http.parser import Head
from benchgate.model.records import ErrorClass, RequestColumns, RequestRecord, TokenSource
from benchgate.model.request import Endpoint, ModelRequest
from benchgate.model.request_metrics import succeeded, ttft_s
from benchgate.targets.answers import read_answer
from tests.shells.load_helpers import content_of, decode

EPOCH = 1000


def asked(endpoint: Endpoint, content: Mapping[str, object] | None = None, *, stream: bool = False) -> ModelRequest:
    return ModelRequest(endpoint, content or {}, 8, stream=stream)


def response(reads: Sequence[bytes], *, fault: Failure | None = None, left: bool = False) -> Response:
    """The reads arrive at 110, 120, 130, …"""
    return Response(
        sent_ns=EPOCH + 100,
        over_ns=EPOCH + 999,
        head=Head("HTTP/1.1", 200, {}),
        body=[(EPOCH + 110 + 10 * at, data) for at, data in enumerate(reads)],
        whole=fault is None and not left,
        fault=fault,
        left=left,
    )


def read(
    ask: ModelRequest, *reads: bytes, fault: Failure | None = None, left: bool = False, leaves: bool = False
) -> RequestRecord:
    return decode(7, 90, EPOCH, response(reads, fault=fault, left=left), ask=ask, leaves=leaves)


def document(ask: ModelRequest, data: object) -> RequestRecord:
    return read(ask, json.dumps(data).encode())


def event(data: object, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(data)}\n\n".encode()


def chat_document(message: object, reason: object = "stop", **more: object) -> dict[str, object]:
    return {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": reason}], **more}


USAGE = {"prompt_tokens": 5, "completion_tokens": 3}


def test_answer_in_one_piece_begins_where_it_ends() -> None:
    raw = json.dumps(chat_document({"role": "assistant", "content": "A B C"}, usage=USAGE)).encode()
    record = read(asked("chat"), raw[:10], raw[10:])
    assert (record.chunk_ns, record.first_answer_ns, record.end_ns) == ((120,), 120, 120)
    assert (record.output_tokens, record.token_source, record.input_tokens) == (3, TokenSource.USAGE, 5)
    assert (record.finish_reason, record.error) == ("stop", None)


def test_completions_document_carries_text() -> None:
    record = document(asked("completions"), {"choices": [{"text": "x", "finish_reason": "length"}], "usage": USAGE})
    assert (record.chunk_ns, record.finish_reason, record.error) == ((110,), "length", None)


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (b"", ErrorClass.EMPTY, "empty body"),
        (b"<html>", ErrorClass.PROTOCOL, "no JSON document: <html>"),
        (b"data: {}\n\n", ErrorClass.PROTOCOL, "a stream of events where one JSON document was requested"),
        (b'{"choices": []}', ErrorClass.PROTOCOL, "without choices"),
        (b'{"error": {"message": "no memory"}}', ErrorClass.STREAM_BROKEN, "no memory"),
        (b'{"choices": [{"message": {"content": "A"}, "error": {"message": "cut"}}]}', ErrorClass.STREAM_BROKEN, "cut"),
        (b'{"choices": [{"message": {"content": "A", "error": {"message": "cut"}}}]}', ErrorClass.STREAM_BROKEN, "cut"),
        (
            b'{"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}',
            ErrorClass.EMPTY,
            "without any output",
        ),
        (b'{"choices": [{"message": {"content": "A"}}]}', ErrorClass.STREAM_BROKEN, "without a finish reason"),
        (
            b'{"choices": [{"message": {"content": "A"}, "finish_reason": "abort"}]}',
            ErrorClass.STREAM_BROKEN,
            "'abort'",
        ),
    ],
)
def test_document_that_is_no_whole_answer_is_a_failure(body: bytes, error: ErrorClass, said: str) -> None:
    record = read(asked("chat"), body)
    assert record.error is error
    assert said in (record.error_detail or "")


def test_document_that_the_connection_did_not_bring_whole_is_a_failure() -> None:
    fault = Failure(ErrorClass.STREAM_BROKEN, "the server closed the connection in the middle of the response")
    record = read(asked("chat"), json.dumps(chat_document({"content": "A"})).encode(), fault=fault)
    assert record.error is ErrorClass.STREAM_BROKEN


REASONED = [
    event({"choices": [{"delta": {"reasoning_content": "hm"}}]}),
    event({"choices": [{"delta": {"reasoning": "hm"}}]}),
    event({"choices": [{"delta": {"content": "A"}}]}),
    event({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
]


def test_first_output_is_reasoning_and_the_first_answer_is_not() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 2}, "prompt_tokens_details": {"cached_tokens": 0}}
    record = read(asked("chat", stream=True), *REASONED, event({"choices": [], "usage": {**USAGE, **details}}))
    assert (record.chunk_ns, record.first_answer_ns) == ((110, 120, 130), 130)
    assert (record.output_tokens, record.reasoning_tokens, record.cached_tokens) == (3, 2, 0)


def test_answer_that_is_all_reasoning_never_began() -> None:
    record = read(asked("chat", stream=True), *REASONED[:2], REASONED[3])
    assert (record.chunk_ns, record.first_answer_ns, record.error) == ((110, 120), None, None)
    assert (record.reasoning_tokens, record.cached_tokens) == (None, None)


def test_cached_part_of_a_prompt_is_read_where_llama_cpp_tells_it() -> None:
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": {"cache_n": 4}}
    usage = event({"choices": [], "usage": {**USAGE, "prompt_tokens_details": None}})
    assert read(asked("chat", stream=True), REASONED[2], event(last), usage).cached_tokens == 4


# The responses API.


def delta(kind: str, text: str, **more: object) -> bytes:
    return event({"type": f"response.{kind}.delta", "delta": text, **more}, f"response.{kind}.delta")


def ended(status: str, **more: object) -> bytes:
    usage = {"input_tokens": 5, "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 1}}
    whole = {"id": "r", "status": status, "usage": usage, **more}
    return event({"type": f"response.{status}", "response": whole}, f"response.{status}")


CREATED = event({"type": "response.created", "response": {"id": "r", "status": "in_progress", "error": None}})
STREAMED = asked("responses", stream=True)


def test_stream_of_a_response_is_timed_by_its_deltas() -> None:
    text = [
        delta("reasoning_text", "hm"),
        delta("output_text", ""),
        delta("output_text", "A"),
        delta("output_text", "B"),
    ]
    record = read(STREAMED, CREATED, *text, ended("completed"), b"data: what follows does not count\n\n")
    assert (record.chunk_ns, record.first_answer_ns, record.end_ns) == ((120, 140, 150), 140, 160)
    assert (record.input_tokens, record.output_tokens, record.reasoning_tokens) == (5, 3, 1)
    assert (record.finish_reason, record.error) == ("stop", None)


def test_call_of_a_tool_is_output_of_a_response() -> None:
    offer = replace(STREAMED, fields={"tools": [{"type": "function", "name": "f"}]})
    record = read(offer, delta("function_call_arguments", "{}"), ended("completed"))
    assert (record.chunk_ns, record.first_answer_ns, record.error) == ((110,), 110, None)


@pytest.mark.parametrize(
    ("last", "finish", "error", "said"),
    [
        (ended("incomplete", incomplete_details={"reason": "max_output_tokens"}), "length", None, ""),
        (
            ended("incomplete", incomplete_details={"reason": "content_filter"}),
            "content_filter",
            ErrorClass.STREAM_BROKEN,
            "'content_filter'",
        ),
        (ended("failed", error={"message": "no memory"}), None, ErrorClass.STREAM_BROKEN, "no memory"),
        (event({"type": "error", "message": "no memory"}, "error"), None, ErrorClass.STREAM_BROKEN, "no memory"),
        (event({"type": "response.x.delta", "errors": ["no memory"]}), None, ErrorClass.STREAM_BROKEN, "no memory"),
        (event({"type": "response.output_text.done"}), None, ErrorClass.STREAM_BROKEN, "without a finish reason"),
        (b"data: {\n\n", None, ErrorClass.PROTOCOL, "not a JSON object"),
    ],
)
def test_end_of_a_response_says_whether_it_is_whole(
    last: bytes, finish: str | None, error: ErrorClass | None, said: str
) -> None:
    record = read(STREAMED, CREATED, delta("output_text", "A"), last)
    assert (record.finish_reason, record.error) == (finish, error)
    assert said in (record.error_detail or "")


def test_response_in_one_piece_is_read_item_by_item() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    message = {"type": "message", "content": [{"type": "output_text", "text": "A"}]}
    whole = {"id": "r", "status": "completed", "usage": {"input_tokens": 5, "output_tokens": 3}}
    record = document(asked("responses"), {**whole, "output": [thought, message]})
    assert (record.chunk_ns, record.first_answer_ns, record.output_tokens, record.error) == ((110,), 110, 3, None)
    thinking = document(asked("responses"), {**whole, "output": [thought]})
    assert (thinking.chunk_ns, thinking.first_answer_ns, thinking.error) == ((110,), None, None)
    empty = document(asked("responses"), {**whole, "output": []})
    assert empty.error is ErrorClass.EMPTY


# Messages.


def message(kind: str, **content: object) -> bytes:
    return event({"type": kind, **content}, kind)


def block(kind: str, **content: object) -> bytes:
    return message("content_block_start", index=0, content_block={"type": kind, **content})


def piece(kind: str, **content: object) -> bytes:
    return message("content_block_delta", index=0, delta={"type": kind, **content})


def stopped(reason: str | None, **usage: object) -> bytes:
    return message("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


STARTED = message(
    "message_start",
    message={"id": "m1", "model": "m", "content": [], "usage": {"input_tokens": 4, "output_tokens": 1}},
)
TO_MESSAGES = asked("messages", stream=True)


def test_stream_of_a_message_is_timed_by_its_deltas_and_counted_by_its_last_usage() -> None:
    thought = [block("thinking", thinking=""), piece("thinking_delta", thinking="hm")]
    text = [block("text", text=""), piece("text_delta", text=""), piece("text_delta", text="A")]
    signed, ping = piece("signature_delta", signature="x"), message("ping")
    details = {"thinking_tokens": 1}
    last = stopped(
        "end_turn", output_tokens=3, cache_read_input_tokens=2, input_tokens=4, output_tokens_details=details
    )
    record = read(TO_MESSAGES, STARTED, ping, *thought, signed, *text, last, message("message_stop"), b"data: x\n\n")
    assert (record.chunk_ns, record.first_answer_ns, record.end_ns) == ((140, 180), 180, 190)
    assert (record.input_tokens, record.cached_tokens, record.output_tokens) == (6, 2, 3)
    assert record.reasoning_tokens == 1
    short = read(TO_MESSAGES, STARTED, *text, stopped("end_turn", output_tokens=3, cache_read_input_tokens=2))
    assert short.input_tokens == 4  # as `message_start` had it
    assert (record.finish_reason, record.answer_model, record.error) == ("stop", "m", None)


@pytest.mark.parametrize(
    ("last", "input_tokens"),
    [
        ({}, 105),
        ({"input_tokens": 10}, 105),  # repeated without the cache
        ({"input_tokens": 0}, 105),
        ({"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 5}, 95),
        ({"input_tokens": 120}, 120),
    ],
)
def test_input_of_a_message_keeps_its_cached_part(last: dict[str, int], input_tokens: int) -> None:
    first = {"input_tokens": 10, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output_tokens": 1}
    begun = message("message_start", message={"id": "m1", "model": "m", "content": [], "usage": first})
    text = [block("text", text=""), piece("text_delta", text="A")]
    ended = stopped("end_turn", output_tokens=3, **last)
    record = read(TO_MESSAGES, begun, *text, ended, message("message_stop"))
    assert (record.input_tokens, record.output_tokens) == (input_tokens, 3)
    assert record.cached_tokens == last.get("cache_read_input_tokens", 90)


@pytest.mark.parametrize(
    ("usage", "input_tokens"),
    [
        ({"input_tokens": 10, "cache_read_input_tokens": 90}, 100),
        ({"input_tokens": 0, "cache_read_input_tokens": 90, "cache_creation_input_tokens": None}, 90),
        ({"input_tokens": 10}, 10),
        ({"input_tokens": 0, "cache_read_input_tokens": 0}, None),
        ({"cache_read_input_tokens": 90}, None),
    ],
)
def test_input_of_a_message_is_the_same_for_a_load_and_a_request(
    usage: dict[str, object], input_tokens: int | None
) -> None:
    document: dict[str, object] = {
        "type": "message", "content": [{"type": "text", "text": "A"}], "stop_reason": "end_turn", "usage": usage,
    }  # fmt: skip
    body = json.dumps(document).encode()
    assert read_messages_document([(1, body)]).input_tokens == input_tokens
    assert read_answer("messages", 200, body).input_tokens == input_tokens


def test_call_in_a_message_is_output_with_its_name_and_its_arguments() -> None:
    offer = replace(TO_MESSAGES, fields={"tools": [{"type": "function", "function": {"name": "f"}}]})
    call = [block("tool_use", id="c", name="f", input={}), piece("input_json_delta", partial_json="{}")]
    record = read(offer, STARTED, *call, stopped("tool_use", output_tokens=2), message("message_stop"))
    assert (record.finish_reason, record.tool_calls, record.valid, record.error) == ("tool_calls", 1, True, None)
    assert read(TO_MESSAGES, STARTED, *call, stopped("tool_use")).error is ErrorClass.PROTOCOL  # nobody offered it


@pytest.mark.parametrize(("written", "valid"), [(('{"x"', ": 1}"), True), (('{"x"', ":"), False)])
def test_arguments_of_a_call_in_a_message_are_put_together_and_judged(written: tuple[str, ...], valid: bool) -> None:
    offer = replace(TO_MESSAGES, fields={"tools": [{"type": "function", "function": {"name": "f"}}]})
    call = [block("tool_use", id="c", name="f", input={})]
    call += [piece("input_json_delta", partial_json=one) for one in written]
    record = read(offer, STARTED, *call, stopped("tool_use"), message("message_stop"))
    assert (record.valid, record.error) == (valid, None)


@pytest.mark.parametrize(
    ("last", "error", "said"),
    [
        ([stopped("max_tokens")], None, ""),
        ([stopped("refusal")], ErrorClass.STREAM_BROKEN, "'content_filter'"),
        ([stopped(None), message("message_stop")], ErrorClass.STREAM_BROKEN, "without a finish reason"),
        ([message("message_stop")], ErrorClass.STREAM_BROKEN, "without a finish reason"),
        ([stopped("end_turn"), piece("text_delta", text="B")], ErrorClass.PROTOCOL, "output after"),
        (
            [message("error", error={"type": "overloaded_error", "message": "no room"})],
            ErrorClass.STREAM_BROKEN,
            "room",
        ),
        ([b"event: error\ndata: no room\n\n"], ErrorClass.STREAM_BROKEN, "no room"),
        ([b'data: {"detail": "no room"}\n\n'], ErrorClass.STREAM_BROKEN, "no room"),
        ([b"data: {\n\n"], ErrorClass.PROTOCOL, "not a JSON object"),
    ],
)
def test_end_of_a_message_says_whether_it_is_whole(last: list[bytes], error: ErrorClass | None, said: str) -> None:
    record = read(TO_MESSAGES, STARTED, block("text", text=""), piece("text_delta", text="A"), *last)
    assert record.error is error
    assert said in (record.error_detail or "")


def test_message_in_one_piece_is_read_block_by_block() -> None:
    blocks = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "A"}]
    whole = {"id": "m1", "stop_reason": "end_turn", "usage": {"input_tokens": 5, "output_tokens": 3}}
    record = document(asked("messages"), {**whole, "content": blocks})
    assert (record.chunk_ns, record.first_answer_ns, record.output_tokens, record.error) == ((110,), 110, 3, None)
    assert (record.answer_chars, record.reasoning_chars) == (1, 2)
    assert document(asked("messages"), {**whole, "content": []}).error is ErrorClass.EMPTY


# TGI.

TO_TGI = asked("generate", {"prompt": "x"}, stream=True)


def token_event(text: str, *, special: bool = False, **end: object) -> bytes:
    token = {"id": 1, "text": text, "logprob": -0.1, "special": special}
    return event({"index": 1, "token": token, "generated_text": None, "details": None, **end}).replace(b": ", b":", 1)


def test_stream_of_tgi_is_timed_by_its_tokens_and_ended_by_its_details() -> None:
    details = {"finish_reason": "eos_token", "generated_tokens": 3, "input_length": 5}
    last = token_event("</s>", special=True, generated_text="AB", details=details)
    record = read(TO_TGI, token_event("A"), b":\n\n", token_event("B"), last)
    assert (record.chunk_ns, record.end_ns, record.answer_chars) == ((110, 130), 140, 2)
    assert (record.input_tokens, record.output_tokens, record.finish_reason) == (5, 3, "stop")
    assert record.error is None


@pytest.mark.parametrize(
    ("last", "error", "said"),
    [
        (b"", ErrorClass.STREAM_BROKEN, "without a finish reason"),
        (token_event("B", generated_text="AB"), ErrorClass.STREAM_BROKEN, "without a finish reason"),
        (event({"error": "no room", "error_type": "overloaded"}), ErrorClass.STREAM_BROKEN, "no room"),
        (event({"message": "no room"}), ErrorClass.STREAM_BROKEN, "no room"),
    ],
)
def test_stream_of_tgi_without_its_details_is_a_failure(last: bytes, error: ErrorClass, said: str) -> None:
    record = read(TO_TGI, token_event("A"), last)
    assert record.error is error
    assert said in (record.error_detail or "")


# Triton, KServe and TorchServe: the end of the body is the end of the answer.

TO_TRITON, TO_TORCHSERVE = asked("triton-generate", stream=True), asked("predictions", stream=True)
CHUNKED = {"transfer-encoding": "chunked"}


def text_output(text: object, **more: object) -> bytes:
    return event({"model_name": "m", "model_version": "1", "text_output": text, **more})


def framed(
    ask: ModelRequest, *reads: bytes, head: Mapping[str, str] = CHUNKED, fault: Failure | None = None
) -> RequestRecord:
    """The answer in reads, each of them a chunk unless the head says otherwise."""
    chunked = head is CHUNKED
    pieces = [b"%x\r\n%b\r\n" % (len(data), data) for data in reads] + [b"0\r\n\r\n"] if chunked else reads
    body = replace(RawBody.of([(EPOCH + 110 + 10 * at, data) for at, data in enumerate(pieces)]), chunked=chunked)
    answer = replace(response([], fault=fault), head=Head("HTTP/1.1", 200, head), body=body)
    return decode(7, 90, EPOCH, answer, ask=ask)


def test_stream_of_triton_is_whole_when_its_body_is() -> None:
    record = framed(TO_TRITON, text_output("A"), text_output(["B"]), text_output(""))
    assert (record.chunk_ns, record.end_ns, record.finish_reason) == ((110, 120), 130, "stop")
    assert (record.output_tokens, record.token_source, record.input_tokens) == (2, TokenSource.CHUNKS, None)
    assert (record.answer_model, record.error) == ("m", None)


def test_end_and_tokens_that_vllm_in_triton_states_are_its_own() -> None:
    stated = [("A", "None", 1), ("BC", "length", 2)]
    events = [text_output(text, finish_reason=reason, num_output_tokens=n) for text, reason, n in stated]
    record = framed(TO_TRITON, *events)
    assert (record.finish_reason, record.output_tokens, record.token_source) == ("length", 3, TokenSource.USAGE)
    assert framed(TO_TRITON, text_output("A", finish_reason="abort")).error is ErrorClass.STREAM_BROKEN


CUT = Failure(ErrorClass.STREAM_BROKEN, "the server closed the connection in the middle of the response")


@pytest.mark.parametrize(
    ("ask", "first", "broken"),
    [
        (TO_TRITON, text_output("A"), event({"error": "no room"})),
        (TO_TORCHSERVE, b"A", b'{"code": 503, "type": "InternalServerException", "message": "no room"}'),
    ],
)
def test_answer_without_a_stated_end_is_a_failure_when_its_body_is_not_whole(
    ask: ModelRequest, first: bytes, broken: bytes
) -> None:
    assert framed(ask, first).error is None
    assert framed(ask, first, fault=CUT).error_detail == CUT.detail
    assert "no room" in (framed(ask, first, broken).error_detail or "")
    unframed = framed(ask, first, head={})  # ends with the connection, wherever that was cut
    assert unframed.error is ErrorClass.STREAM_BROKEN
    assert framed(ask).error is ErrorClass.EMPTY


def test_chunks_of_torchserve_are_output_and_may_cut_a_character() -> None:
    raw = "größe".encode()
    record = framed(TO_TORCHSERVE, raw[:3], raw[3:], b" b")
    assert (record.chunk_ns, record.answer_chars, record.output_tokens) == ((110, 120, 130), 6, 3)


def test_tensors_of_text_are_the_answer_of_kserve() -> None:
    def infer(*outputs: object) -> RequestRecord:
        raw = json.dumps({"model_name": "m", "outputs": outputs}).encode()
        return framed(asked("infer"), raw, head={"content-length": str(len(raw))})

    record = infer({"name": "o", "datatype": "BYTES", "shape": [1, 2], "data": [["A", "B"]]})
    assert (record.chunk_ns, record.answer_chars, record.tokenless, record.output_tokens) == ((110,), 2, True, 0)
    assert record.error is None
    assert infer({"name": "o", "datatype": "FP32", "data": [1.0]}).error is ErrorClass.PROTOCOL
    assert infer({"name": "o", "datatype": "BYTES", "data": [""]}).error is ErrorClass.EMPTY
    assert document(asked("infer"), {"error": "no room"}).error is ErrorClass.STREAM_BROKEN


# Numbers.

TWO = asked("embeddings", {"input": ["a", "b"]})


def embedded(*vectors: object) -> dict[str, object]:
    rows = [{"index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return {"object": "list", "data": rows, "usage": {"prompt_tokens": 5, "total_tokens": 5}}


def test_embedding_is_a_success_without_tokens_and_is_timed_by_its_end() -> None:
    record = document(TWO, embedded([0.5, 1], [0, -1.5]))
    assert (record.error, record.tokenless, record.output_tokens, record.input_tokens) == (None, True, 0, 5)
    columns = RequestColumns.pack([record])
    assert succeeded(columns).all()
    assert ttft_s(columns) == pytest.approx([20e-9])


def test_embedding_in_base64_is_read_too() -> None:
    def coded(*numbers: float) -> str:
        return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()

    assert document(TWO, embedded(coded(0.5, 1), coded(0, 2))).error is None
    assert document(TWO, embedded(coded(0.5, 1), coded(0, float("nan")))).error is ErrorClass.PROTOCOL


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (embedded([1.0]), "1 embeddings, not the 2 requested"),
        (embedded([1.0], []), "not a list of finite numbers"),
        (embedded([1.0], [float("nan")]), "not a list of finite numbers"),
        (embedded([1.0], ["1.0"]), "not a list of finite numbers"),
        (embedded([1.0], [10**400]), "not a list of finite numbers"),
        (embedded([1.0], [1.0, 2.0]), "different lengths"),
        ({"data": [{"index": 0, "embedding": [1.0]}] * 2}, "indexes"),
        ({"data": []}, "without data"),
        ({"object": "list"}, "without data"),
    ],
)
def test_embedding_that_is_none_is_a_failure(data: object, said: str) -> None:
    record = document(TWO, data)
    assert record.error is ErrorClass.PROTOCOL
    assert said in (record.error_detail or "")
    assert not succeeded(RequestColumns.pack([record])).any()


def test_error_beside_embeddings_is_a_failure() -> None:
    record = document(TWO, {**embedded([1.0], [1.0]), "error": {"message": "half of it"}})
    assert (record.error, "half of it" in (record.error_detail or "")) == (ErrorClass.STREAM_BROKEN, True)


THREE = asked("rerank", {"query": "q", "documents": ["a", "b", "c"]})


def ranked(*scores: object, name: str = "relevance_score") -> list[dict[str, object]]:
    return [{"index": at, name: score} for at, score in enumerate(scores)]


def test_ranking_has_a_finite_score_for_every_document() -> None:
    record = document(THREE, {"results": ranked(0.5, -1, 2), "usage": {"total_tokens": 9}})
    assert (record.error, record.tokenless, record.input_tokens) == (None, True, 9)
    assert document(THREE, ranked(0.5, 1, 2, name="score")).error is None  # as text-embeddings-inference says it
    best = asked("rerank", {"query": "q", "documents": ["a", "b", "c"], "top_n": 2})
    assert (
        document(best, {"results": [{"index": 2, "relevance_score": 1}, {"index": 0, "relevance_score": 0}]}).error
        is None
    )


@pytest.mark.parametrize(
    "results",
    [
        ranked(0.5, 1),
        ranked(0.5, 1, None),
        ranked(0.5, 1, float("inf")),
        [*ranked(0.5, 1), {"index": 7, "relevance_score": 1}],
        [],
    ],
)
def test_ranking_that_is_none_is_a_failure(results: object) -> None:
    assert document(THREE, {"results": results}).error is ErrorClass.PROTOCOL


# Leaving.


def test_what_the_client_did_not_wait_for_is_no_failure() -> None:
    record = read(asked("chat", stream=True), REASONED[2], left=True, leaves=True)
    assert (record.left, record.error, record.chunk_ns, record.end_ns) == (True, None, (110,), None)
    silent = Response(sent_ns=EPOCH + 100, over_ns=EPOCH + 999, left=True)
    assert decode(7, 90, EPOCH, silent, leaves=True).error is None


def test_error_that_came_before_the_client_left_is_kept() -> None:
    record = read(asked("chat", stream=True), event({"error": {"message": "no memory"}}), left=True, leaves=True)
    assert (record.left, record.error) == (True, ErrorClass.STREAM_BROKEN)


# What it says.


@pytest.mark.parametrize(
    ("ask", "reads"),
    [
        (asked("chat", stream=True), [event({"choices": [{"delta": {"content": t}}]}) for t in ("A ", "B")]),
        (asked("completions", stream=True), [event({"choices": [{"text": t}]}) for t in ("A ", "B")]),
        (
            asked("responses", stream=True),
            [delta("reasoning_text", "hm"), delta("output_text", "A "), delta("output_text", "B")],
        ),
        (asked("chat"), [json.dumps(chat_document({"content": "A B", "reasoning_content": "hm"})).encode()]),
        (asked("completions"), [b'{"choices": [{"text": "A B"}]}']),
        (
            asked("responses"),
            [
                b'{"output": [{"type": "reasoning", "content": [{"text": "hm"}]},'
                b' {"type": "message", "content": [{"text": "A B"}]}]}'
            ],
        ),
    ],
)
def test_words_of_an_answer_are_its_text_without_its_reasoning(ask: ModelRequest, reads: Sequence[bytes]) -> None:
    words = content_of(response(reads).body, ask)
    assert (words.text, words.arguments) == ("A B", {})


def test_arguments_of_a_tool_are_put_together_from_their_pieces() -> None:
    def call(index: int, piece: str, call_id: str | None = None) -> bytes:
        name = {} if call_id is None else {"name": "f"}
        function = {"index": index, "id": call_id, "function": {**name, "arguments": piece}}
        return event({"choices": [{"delta": {"tool_calls": [function]}}]})

    pieces = [call(0, '{"a"', "x"), call(1, "{}", "y"), call(0, ": 1}"), call(0, '{"b": 2}', "z")]
    words = content_of(response(pieces).body, asked("chat", stream=True))
    assert list(words.arguments.values()) == ['{"a": 1}', "{}", '{"b": 2}']


SPEECH = asked("transcriptions")
SPOKEN = asked("transcriptions", stream=True)
SECONDS = {"type": "duration", "seconds": 4}
DONE = b"data: [DONE]\n\n"


def spoken(form: str) -> ModelRequest:
    return replace(SPEECH, fields={"response_format": form})


def part(text: str, reason: str | None = None, **more: object) -> bytes:
    choice = {"delta": {"content": text}} | ({} if reason is None else {"finish_reason": reason})
    return event({"id": "trsc-1", "object": "transcription.chunk", "model": "w", "choices": [choice], **more})


def test_transcription_in_one_piece_is_whole_in_each_of_its_forms() -> None:
    verbose = {"task": "transcribe", "duration": "3.9", "language": "en", "text": "so it is", "segments": []}
    for ask, body in (
        (SPEECH, {"text": "so it is", "usage": SECONDS}),
        (spoken("verbose_json"), verbose),
        (spoken("verbose_json"), verbose | {"duration": 3.9}),
        (spoken("text"), {"text": "so it is"}),  # vLLM's answer to `text`
    ):
        record = document(ask, body)
        assert (record.error, record.finish_reason, record.chunk_ns, record.answer_chars) == (None, "stop", (110,), 6)
        assert (record.output_tokens, record.token_source) == (1, TokenSource.CHUNKS)
    framed = replace(response([b"so it is"]), head=Head("HTTP/1.1", 200, {"content-length": "8"}))
    record = decode(7, 90, EPOCH, framed, ask=spoken("text"))
    assert (record.error, record.finish_reason, record.answer_chars) == (None, "stop", 6)
    counted = {"type": "tokens", "input_tokens": 14, "output_tokens": 3, "total_tokens": 17}
    record = document(SPEECH, {"text": "so it is", "usage": counted})
    assert (record.input_tokens, record.output_tokens, record.token_source) == (14, 3, TokenSource.USAGE)


@pytest.mark.parametrize(
    ("form", "body", "error"),
    [
        ("json", b'{"text": ""}', ErrorClass.EMPTY),
        ("json", b'{"text": null}', ErrorClass.PROTOCOL),
        ("json", b'{"text": ["so"]}', ErrorClass.PROTOCOL),
        ("json", b"so it is", ErrorClass.PROTOCOL),
        ("json", b'{"error": {"message": "no such model"}}', ErrorClass.STREAM_BROKEN),
        ("json", b'{"generated_text": "so"}', ErrorClass.PROTOCOL),
        ("verbose_json", b'{"text": "so"}', ErrorClass.PROTOCOL),
        ("verbose_json", b'{"text": "so", "duration": "long"}', ErrorClass.PROTOCOL),
        ("verbose_json", b'{"text": "so", "duration": 0}', ErrorClass.PROTOCOL),
        ("text", b" ", ErrorClass.EMPTY),
        ("text", b'{"error": "aborted"}', ErrorClass.STREAM_BROKEN),
    ],
)
def test_transcription_of_another_form_or_without_a_text_is_a_failure(
    form: str, body: bytes, error: ErrorClass
) -> None:
    assert read(spoken(form), body).error is error


def test_transcription_streams_as_openai_sends_it() -> None:
    counted = {"type": "tokens", "input_tokens": 14, "output_tokens": 3, "total_tokens": 17}
    deltas = [event({"type": "transcript.text.delta", "delta": text}) for text in ("so", " it is")]
    done = event({"type": "transcript.text.done", "text": "so it is", "usage": counted})
    record = read(SPOKEN, *deltas, done)
    assert (record.error, record.finish_reason, record.chunk_ns, record.end_ns) == (None, "stop", (110, 120), 130)
    assert (record.output_tokens, record.input_tokens, record.answer_chars) == (3, 14, 6)
    assert read(SPOKEN, done).chunk_ns == (110,)  # in one piece
    assert read(SPOKEN, *deltas).error is ErrorClass.STREAM_BROKEN
    assert read(SPOKEN, *deltas, event({"type": "transcript.text.done"})).error is ErrorClass.PROTOCOL
    assert read(SPOKEN, event({"type": "transcript.text.done", "text": ""})).error is ErrorClass.EMPTY
    failed = read(SPOKEN, deltas[0], event({"type": "error", "error": {"message": "gone"}}))
    assert (failed.error, failed.error_detail) == (ErrorClass.STREAM_BROKEN, "error inside the stream: gone")


def test_transcription_streams_as_vllm_sends_it_also_in_parts() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
    last = event({"id": "trsc-1", "object": "transcription.chunk", "choices": [], "usage": usage})
    one = read(SPOKEN, part("so"), part(" it is", "stop"), last, DONE)
    assert (one.error, one.finish_reason, one.chunk_ns, one.output_tokens) == (None, "stop", (110, 120), 9)
    parts = [part("so"), part(" it", "length"), part(" is"), part(" so", "stop")]
    two = read(SPOKEN, *parts, DONE)
    assert (two.error, two.finish_reason, two.chunk_ns, two.end_ns) == (None, "length", (110, 120, 130, 140), 140)
    for cut in (parts[:2], parts):  # a finish reason alone ends a part, not the answer
        assert read(SPOKEN, *cut).error is ErrorClass.STREAM_BROKEN
    assert read(SPOKEN, *parts, part("", "abort"), DONE).error is ErrorClass.STREAM_BROKEN
    assert read(SPOKEN, part("", "stop"), DONE).error is ErrorClass.EMPTY
    whole = read(SPOKEN, json.dumps({"text": "so it is"}).encode())
    assert whole.error_detail == "one JSON document where a stream of events was requested"
