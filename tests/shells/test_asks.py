"""What is asked as each engine wants to be asked: bodies, wires, tokenizers, and the first sign of life."""

import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import replace
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

import pytest

from benchgate.errors import TargetError, UsageError
from benchgate.load.material import calibrate, server_vocabulary
from benchgate.load.requests import prepare_requests, request_wire
from benchgate.model.deployment import Arm
from benchgate.model.request import Endpoint, ModelRequest, endpoint_at, text_request
from benchgate.plan.model import PlannedRequest, Turn
from benchgate.sim.requests import read_form
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.endpoints import ask_body, request_path
from benchgate.targets.probe import wait_ready
from tests.fakes.scripted_server import Received, ScriptedServer, Step, json_response

SCHEMA = {"type": "object"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


def target(url: str = "http://127.0.0.1:1", engine: str = "vllm") -> Target:
    return Target(Arm.BASELINE, url, "m", DIALECTS[engine])


def test_plain_chat_is_asked_as_it_always_was() -> None:
    assert list(ask_body(target(), text_request("chat", "hi", 8), seed=3).items()) == [
        ("model", "m"), ("max_tokens", 8), ("temperature", 0), ("messages", [{"role": "user", "content": "hi"}]),
        ("seed", 3), ("stream", True), ("stream_options", {"include_usage": True}), ("ignore_eos", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ask", "body"),
    [
        (
            text_request("responses", "hi", 8),
            {"model": "m", "max_output_tokens": 8, "temperature": 0, "input": "hi", "stream": True, "ignore_eos": True},
        ),
        (text_request("embeddings", "hi", 8), {"model": "m", "input": "hi"}),
        (
            ModelRequest("rerank", {"query": "q", "documents": ["a", "b"]}, None, stream=False),
            {"model": "m", "query": "q", "documents": ["a", "b"]},
        ),
        (
            ModelRequest(
                "chat", {"messages": []}, 8, stream=False, ignore_eos=False, fields={"priority": 1}, model="lora"
            ),
            {"model": "lora", "max_tokens": 8, "temperature": 0, "messages": [], "seed": 3, "priority": 1},
        ),
    ],
    ids=["responses", "embeddings", "rerank", "whole chat of an adapter"],
)
def test_body_has_what_its_endpoint_knows(ask: ModelRequest, body: dict[str, object]) -> None:
    assert ask_body(target(), ask, seed=3) == body


def test_chat_becomes_messages_with_blocks_tools_and_instructions_beside_them() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        {"role": "assistant", "content": "well", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "user", "content": "so?"},
    ]
    fields = {"tools": [tool], "tool_choice": "required", "response_format": FORMAT, "top_k": 3}
    ask = ModelRequest("messages", {"messages": chat}, 8, fields=fields)
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    assert ask_body(target(), ask, seed=3) == {
        "model": "m",
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
        "system": "be brief",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "look"}, picture]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "well"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "42"}]},
            {"role": "user", "content": "so?"},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "top_k": 3,
    }


@pytest.mark.parametrize("arguments", ["{broken", "[" * 100_000], ids=["broken", "nested too deep"])
def test_arguments_that_are_no_json_become_an_empty_input(arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    ask = ModelRequest("messages", {"messages": [{"role": "assistant", "tool_calls": [call]}]}, 8)
    content = [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]
    assert ask_body(target(), ask, seed=3)["messages"] == [{"role": "assistant", "content": content}]


@pytest.mark.parametrize(
    ("endpoint", "stream", "fields", "path", "body"),
    [
        (
            "generate",
            True,
            {"parameters": {"stop": ["x"]}, "response_format": FORMAT},
            "/generate_stream",
            {
                "inputs": "hi",
                "parameters": {
                    "max_new_tokens": 8, "do_sample": False, "details": True, "seed": 3, "ignore_eos": True,
                    "grammar": {"type": "json", "value": SCHEMA}, "stop": ["x"],
                },
            },
        ),
        (
            "triton-generate",
            True,
            {"parameters": {"top_k": 1}, "id": "r"},
            "/v2/models/m/generate_stream",
            {
                "text_input": "hi",
                "id": "r",
                "parameters": {"max_tokens": 8, "temperature": 0, "stream": True, "ignore_eos": True, "top_k": 1},
            },
        ),
        (
            "triton-generate",
            False,
            {},
            "/v2/models/m/generate",
            {
                "text_input": "hi",
                "parameters": {
                    "max_tokens": 8, "temperature": 0, "stream": False, "exclude_input_in_output": True,
                    "ignore_eos": True,
                },
            },
        ),
        (
            "predictions",
            True,
            {"top_k": 1},
            "/predictions/m",
            {"max_new_tokens": 8, "stream": True, "top_k": 1, "prompt": "hi"},
        ),
        (
            "predictions",
            True,
            {"data": None, "stream": False},
            "/predictions/m",
            {"max_new_tokens": 8, "stream": False, "data": "hi"},
        ),
        (
            "infer",
            False,
            {},
            "/v2/models/m/infer",
            {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hi"]}]},
        ),
        (
            "infer",
            False,
            {
                "inputs": [
                    {"name": "args", "shape": [1], "datatype": "BYTES"},
                    {"name": "n", "shape": [1], "datatype": "INT32", "data": [8]},
                ]
            },
            "/v2/models/m/infer",
            {
                "inputs": [
                    {"name": "args", "shape": [1], "datatype": "BYTES", "data": ["hi"]},
                    {"name": "n", "shape": [1], "datatype": "INT32", "data": [8]},
                ]
            },
        ),
    ],
)  # fmt: skip
def test_one_text_goes_where_its_api_takes_it(
    endpoint: Endpoint, stream: bool, fields: dict[str, object], path: str, body: dict[str, object]
) -> None:
    ask = ModelRequest(endpoint, {"prompt": "hi"}, 8, stream=stream, fields=fields)
    assert (request_path(target(), ask), ask_body(target(), ask, seed=3)) == (path, body)


@pytest.mark.parametrize(
    ("engine", "constraint"),
    [
        ("tgi", {"grammar": {"type": "json", "value": SCHEMA}}),
        ("lorax", {"response_format": {"type": "json_object", "schema": SCHEMA}}),
    ],
)
def test_a_schema_stands_where_the_engine_enforces_it(engine: str, constraint: dict[str, object]) -> None:
    ask = ModelRequest("generate", {"prompt": "hi"}, 8, fields={"response_format": FORMAT}, ignore_eos=False)
    parameters = {"max_new_tokens": 8, "do_sample": False, "details": True, **constraint}
    assert ask_body(target(engine=engine), ask) == {"inputs": "hi", "parameters": parameters}


SPOKEN = ModelRequest("transcriptions", {"file": "data:audio/wav;base64,AA=="}, None)


def test_audio_is_an_address_for_engines_that_know_no_other_part() -> None:
    parts = [
        {"type": "text", "text": "listen"},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
    ]
    ask = ModelRequest(
        "chat", {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]}, 8
    )
    sent = {engine: ask_body(Target(Arm.BASELINE, "http://h", "m", DIALECTS[engine]), ask) for engine in DIALECTS}
    spelled = {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AA=="}}
    for engine, body in sent.items():
        expected = [parts[0], spelled] if engine in ("sglang", "trtllm") else parts
        assert body["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": expected}]


def test_transcription_is_a_form_with_the_bytes_of_its_file() -> None:
    fields = {"language": "en", "timestamp_granularities[]": ["word", "segment"], "temperature": None}
    ask = ModelRequest("transcriptions", {"file": "data:audio/mpeg;base64,AP8NCi0t"}, None, fields=fields, model="lora")
    wire = request_wire(target(), PlannedRequest(0, None, ask, 3))
    head, _, body = wire.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/audio/transcriptions HTTP/1.1\r\n")
    assert b"content-type: application/json" not in head
    message = BytesParser(policy=HTTP).parsebytes(head.partition(b"\r\n")[2] + b"\r\n\r\n" + body)
    parts = [(part.get_param("name", header="content-disposition"), part) for part in message.iter_parts()]
    texts = [(name, part.get_payload()) for name, part in parts if name != "file"]
    assert texts == [
        ("model", "lora"), ("response_format", "json"), ("stream", "true"), ("stream_include_usage", "true"),
        ("language", "en"), ("timestamp_granularities[]", "word"), ("timestamp_granularities[]", "segment"),
    ]  # fmt: skip
    [(_, file)] = [part for part in parts if part[0] == "file"]
    assert (file.get_filename(), file.get_content_type()) == ("audio.mp3", "audio/mpeg")
    assert b"\r\n\r\n\x00\xff\r\n--\r\n--" in body
    assert read_form(body)["file"] == b"\x00\xff\r\n--"


def test_form_that_could_not_be_taken_apart_is_never_sent() -> None:
    boundary = (
        request_wire(target(), PlannedRequest(0, None, SPOKEN, 3)).partition(b"boundary=")[2].partition(b"\r\n")[0]
    )
    clash = f"data:audio/wav;base64,{b64encode(boundary).decode()}"
    with pytest.raises(ValueError, match="separates the parts of the form"):
        request_wire(target(), PlannedRequest(0, None, replace(SPOKEN, content={"file": clash}), 3))


def test_model_in_a_path_is_quoted_and_an_adapter_takes_its_place() -> None:
    ask = ModelRequest("infer", {"prompt": "hi"}, None, stream=False, model="a b/versions/2")
    wire = request_wire(target(), PlannedRequest(0, None, ask, 0))
    assert wire.startswith(b"POST /v2/models/a%20b/versions/2/infer HTTP/1.1\r\n")
    assert endpoint_at("/v2/models/a%20b/versions/2/infer") == ("infer", "a b/versions/2")


def test_key_goes_in_the_header_of_its_engine() -> None:
    keys = {
        engine: Target(Arm.BASELINE, "http://h", "m", DIALECTS[engine], "secret").headers()
        for engine in ("vllm", "anthropic")
    }
    assert keys["vllm"]["authorization"] == "Bearer secret"
    assert "authorization" not in keys["anthropic"]
    assert (keys["anthropic"]["x-api-key"], keys["anthropic"]["anthropic-version"]) == ("secret", "2023-06-01")


@pytest.mark.parametrize(
    ("engine", "endpoint", "asked"),
    [("trtllm", "chat", True), ("trtllm", "responses", False), ("vllm", "responses", True),
     ("vllm", "embeddings", False), ("openai", "chat", False), ("tgi", "chat", False), ("ollama", "chat", False)],
)  # fmt: skip
def test_full_length_is_asked_for_where_the_engine_takes_it(engine: str, endpoint: Endpoint, asked: bool) -> None:
    assert ("ignore_eos" in ask_body(target(engine=engine), text_request(endpoint, "hi", 8))) == asked


@pytest.mark.parametrize(
    ("engine", "endpoint", "spelled"),
    [
        ("vllm", "chat", {"response_format": FORMAT}),
        ("vllm", "completions", {"response_format": FORMAT}),
        ("llamacpp", "chat", {"response_format": FORMAT}),
        ("llamacpp", "completions", {"json_schema": SCHEMA}),
        ("tgi", "chat", {"response_format": {"type": "json", "value": SCHEMA}}),
        ("trtllm", "chat", {"response_format": FORMAT}),
        (
            "openai",
            "responses",
            {"text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}}},
        ),
    ],
)
def test_schema_is_spelled_as_the_engine_wants_it(engine: str, endpoint: Endpoint, spelled: dict[str, object]) -> None:
    plain = text_request(endpoint, "hi", 8)
    constrained = ModelRequest(endpoint, plain.content, 8, fields={"response_format": FORMAT})
    added = {
        key: value
        for key, value in ask_body(target(engine=engine), constrained).items()
        if key not in ask_body(target(engine=engine), plain)
    }
    assert added == spelled


def test_ticket_of_each_request_goes_to_its_own_endpoint() -> None:
    asks = [text_request("chat", "a", 8), text_request("embeddings", "b", None), text_request("chat", "c", 8)]
    tickets = list(prepare_requests(target(), [PlannedRequest(n, None, ask, n) for n, ask in enumerate(asks)]))
    paths = [ticket.wire.split(b" ")[1] for ticket in tickets]
    assert paths == [b"/v1/chat/completions", b"/v1/embeddings", b"/v1/chat/completions"]


def test_turn_that_carries_answers_is_made_when_they_have_come() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "b"},
    ]
    request = PlannedRequest(
        1, None, ModelRequest("chat", {"messages": messages}, 8), 1, Turn(0, 1, True, 0.0, carries=True)
    )
    head, _, body = request_wire(target(), request, ["said"]).partition(b"\r\n\r\n")
    assert [message["content"] for message in json.loads(body)["messages"]] == ["a", "said", "b"]
    assert f"content-length: {len(body)}".encode() in head
    with pytest.raises(ValueError, match="1 places for answers and 0"):
        request_wire(target(), request)


@pytest.mark.parametrize(
    ("endpoint", "answer"),
    [
        ("responses", {"output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}]}),
        ("responses", {"output": [{"type": "reasoning", "summary": [{"text": "hm"}]}]}),
        ("embeddings", {"data": [{"embedding": [0.1, 0.2]}]}),
        ("embeddings", {"data": [{"embedding": "AAAA"}]}),
        ("rerank", {"results": [{"index": 0, "relevance_score": 0.0}]}),
        ("rerank", [{"index": 0, "score": -3}]),
    ],
)
def test_server_that_does_what_the_endpoint_is_for_is_ready(endpoint: Endpoint, answer: Any) -> None:
    with ScriptedServer(lambda received: [json_response(answer)]) as server:
        wait_ready(target(server.url), endpoint=endpoint, ready_s=5, connect_s=1)
        assert server.requests[0].path == f"/v1/{endpoint}"


@pytest.mark.parametrize(
    ("endpoint", "answer", "said"),
    [
        ("responses", {"choices": []}, "without an output"),
        ("responses", {"output": []}, "an empty answer"),
        ("embeddings", {"data": []}, "without an embedding"),
        ("embeddings", {"data": [{"embedding": []}]}, "without an embedding"),
        ("rerank", {"results": [{"index": 0}]}, "without ranks"),
        ("rerank", {"error": "no"}, "with an error"),
    ],
)
def test_server_that_answers_something_else_is_not_ready(endpoint: Endpoint, answer: Any, said: str) -> None:
    with (
        ScriptedServer(lambda received: [json_response(answer)]) as server,
        pytest.raises(TargetError, match=said),
    ):
        wait_ready(target(server.url), endpoint=endpoint, ready_s=1, connect_s=1)


def tokens(text: str) -> int:
    """A tokenizer with a mark before each text, to which words with an e in them are two tokens each."""
    return 1 + sum(2 if "e" in word else 1 for word in text.split(" "))


def test_vocabulary_is_the_words_that_are_one_token_each() -> None:
    found = calibrate("words", tokens, "t")
    assert len(found.pieces) >= 8
    assert all("e" not in word for word in found.pieces)
    assert tokens(found.between.join(found.pieces)) == 1 + len(found.pieces)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (len, "takes only 0 of our 100 words as one token each"),
        (lambda text: 1, "takes only 0 of our 100 words as one token each"),
        (lambda text: tokens(text) + (len(text) > 40), "makes other tokens of words that stand beside each other"),
    ],
    ids=["letters", "one for all", "longer together"],
)
def test_tokenizer_that_has_too_few_of_our_words_is_refused(count: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"{said}.*; write `text: letters`"):
        calibrate("words", count, "t")


@pytest.mark.parametrize(
    ("engine", "key", "shape"),
    [
        ("vllm", "prompt", lambda count: {"count": count, "max_model_len": 9}),
        ("llamacpp", "content", lambda count: {"tokens": [0] * count}),
        ("tgi", "inputs", lambda count: [{"id": 0}] * count),
    ],
)
def test_server_is_asked_for_its_tokenizer_in_its_own_words(engine: str, key: str, shape: Any) -> None:
    def respond(received: Received) -> Iterable[Step]:
        assert received.body is not None
        return [json_response(shape(tokens(received.body[key])))]

    with ScriptedServer(respond) as server:
        assert server_vocabulary(target(server.url, engine), "words") == calibrate("words", tokens, "t")
        assert {received.path for received in server.requests} == {"/tokenize"}


@pytest.mark.parametrize(
    ("engine", "answer", "said"),
    [
        ("vllm", {"detail": "Not Found"}, r"does not say how many tokens a text is: HTTP 200: .*Not Found"),
        ("trtllm", {}, "which trtllm has not"),
    ],
)
def test_server_without_a_tokenizer_is_an_error(engine: str, answer: Any, said: str) -> None:
    with ScriptedServer(lambda received: [json_response(answer)]) as server, pytest.raises(UsageError, match=said):
        server_vocabulary(target(server.url, engine), "words")


def test_a_tokenizer_whose_answer_is_nested_too_deep_is_an_error() -> None:
    deep = b"[" * 100_000
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(deep)}\r\n\r\n".encode()
    with (
        ScriptedServer(lambda received: [head + deep]) as server,
        pytest.raises(UsageError, match="does not say how many tokens a text is"),
    ):
        server_vocabulary(target(server.url, "vllm"), "words")
