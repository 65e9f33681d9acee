from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.shadow.prompts import load_prompts
from benchgate.shadow.request_log import LoggedRequest, LogSummary, read_logs
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.endpoints import ask_body

USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}


def write(path: Path, rows: Iterable[object]) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def read(*paths: Path) -> tuple[list[LoggedRequest], LogSummary]:
    reading = LogSummary()
    return [asked for _, asked in read_logs(paths, reading)], reading


CHAT = {"messages": [USER]}
BATCH = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
PROXY = {"request": {"url": "https://api.example/v1/chat/completions?k=v", "body": json.dumps(CHAT)}}
ONCE = {"model": "m", "prompt": "Once", "max_tokens": 5}
INPUT = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]


@pytest.mark.parametrize(
    ("row", "endpoint", "label", "said"),
    [
        ({"messages": [SYSTEM, USER], "temperature": 0.7}, "chat", "chat", "Be brief.\nHi"),
        (BATCH, "chat", "chat", "Hi"),
        ({"request": CHAT, "response": {"status_code": 200}}, "chat", "chat", "Hi"),
        (PROXY, "chat", "chat", "Hi"),
        ({"path": "/team7/ask", "body": CHAT}, "chat", "*/ask", "Hi"),
        ({"path": "/openai/v1/completions", "body": ONCE}, "completions", "openai/*", "Once"),
        ({"path": "/openai/deployments/x/completions", "body": ONCE}, "completions", "openai/deployments/x", "Once"),
        ({"path": "/openai/v1/chat/completions", "body": CHAT}, "chat", "openai/*/chat", "Hi"),
        ({"path": "/anthropic/v1/messages", "body": CHAT}, "messages", "anthropic/*/messages", "Hi"),
        ({"model": "m", "prompt": "Once", "max_tokens": 4}, "completions", "completions", "Once"),
        ({"id": "a", "prompt": "Once"}, "chat", "chat", "Once"),
        ({"model": "m", "instructions": "Be brief.", "input": "Hi"}, "chat", "responses", "Be brief.\nHi"),
        ({"model": "m", "input": INPUT}, "chat", "responses", "Hi"),
    ],
)
def test_requests_are_read_as_openai_and_its_loggers_spell_them(
    tmp_path: Path, row: object, endpoint: str, label: str, said: str
) -> None:
    (asked,), _ = read(write(tmp_path / "log.jsonl", [row]))
    assert (asked.endpoint, asked.label, asked.text) == (endpoint, label, said)


def test_request_to_anthropics_messages_is_spelled_as_chat_and_sent_as_it_was(tmp_path: Path) -> None:
    schema = {"type": "object"}
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": 8,
        "system": "Be brief.",
        "stop_sequences": ["END"],
        "tools": [{"name": "f", "description": "d", "input_schema": schema}],
        "tool_choice": {"type": "any"},
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": "So"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "42"},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
    }
    (asked, again), _ = read(write(tmp_path / "log.jsonl", [{"url": "/v1/messages", "body": body}, body]))
    assert asked == again  # with and without a route
    assert (asked.endpoint, asked.label) == ("messages", "messages")
    roles = [message["role"] for message in asked.messages]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    (prompt,) = load_prompts(write(tmp_path / "prompts.jsonl", [asked.row("messages")]))
    target = Target(Arm.BASELINE, "http://h", "m", DIALECTS["anthropic"])
    sent = ask_body(target, prompt.ask(8))
    thought = body["messages"][1]["content"].pop(0)
    assert thought["type"] == "thinking"
    result, text = body["messages"][2]["content"]
    body["messages"][2:] = [
        {"role": "user", "content": [result]}, {"role": "user", "content": [text]},
    ]  # fmt: skip
    assert sent == {**body, "temperature": 0}


def test_a_recorded_answer_is_taken_off_and_what_is_not_asked_is_left_away(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    row = {
        "messages": [SYSTEM, USER, {"role": "assistant", "content": "Hello", "reasoning": "…"}],
        "tools": tools,
        "tool_choice": "auto",
        "user": "u-17",
        "stream": True,
    }
    (asked,), _ = read(write(tmp_path / "log.jsonl", [row]))
    assert asked.messages == (SYSTEM, USER)
    assert asked.fields == {"tools": tools, "tool_choice": "auto"}


SCHEMA = {"type": "object"}
ANSWER = {"type": "json_schema", "name": "city", "schema": SCHEMA}
FUNCTION = {"name": "f", "parameters": SCHEMA}
MESSAGES = {"model": "m", "max_tokens": 8, "system": "Be brief.", "messages": [USER]}


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        (
            {"model": "m", "input": "Hi", "text": {"format": ANSWER, "verbosity": "low"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}},
        ),
        ({"model": "m", "input": "Hi", "text": {"format": {"type": "text"}}}, {}),
        (
            {"messages": [USER], "functions": [FUNCTION], "function_call": {"name": "f"}},
            {
                "tools": [{"type": "function", "function": FUNCTION}],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
        ),
        (
            MESSAGES | {"output_format": {"type": "json_schema", "schema": SCHEMA}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
        ({"messages": [USER], "chat_template_kwargs": {}, "echo": False, "modalities": ["text"]}, {}),
    ],
)
def test_the_form_of_an_answer_is_kept_in_the_spelling_of_chat(
    tmp_path: Path, row: object, fields: dict[str, object]
) -> None:
    (asked,), _ = read(write(tmp_path / "log.jsonl", [row]))
    assert asked.fields == fields


def test_a_request_for_one_call_at_a_time_is_sent_to_messages_as_it_was(tmp_path: Path) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    body = MESSAGES | {"tools": [{"name": "f", "input_schema": SCHEMA, "strict": True}], "tool_choice": choice}
    (asked,), _ = read(write(tmp_path / "log.jsonl", [body]))
    assert asked.fields["parallel_tool_calls"] is False
    (prompt,) = load_prompts(write(tmp_path / "prompts.jsonl", [asked.row("messages")]))
    target = Target(Arm.BASELINE, "http://h", "m", DIALECTS["anthropic"])
    assert ask_body(target, prompt.ask(8)) == {**body, "temperature": 0}
    without_choice = replace(prompt, fields={key: prompt.fields[key] for key in ("tools", "parallel_tool_calls")})
    assert ask_body(target, without_choice.ask(8))["tool_choice"] == choice


@pytest.mark.parametrize(
    "row",
    [
        {"model": "m", "prompt": "def f(", "suffix": "return x"},
        {"model": "m", "prompt": "Once", "response_format": {"type": "json_object"}},
        {"messages": [USER], "guided_json": SCHEMA},
        {"messages": [USER], "extra_body": {"structured_outputs": {"json": SCHEMA}}},
        {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [USER], "add_generation_prompt": False},
        {"messages": [USER], "modalities": ["text", "audio"]},
        {"model": "m", "input": "Hi", "text": {"format": {"type": "grammar", "definition": "x"}}},
        MESSAGES | {"messages": [USER, {"role": "assistant", "content": "{"}]},
        MESSAGES | {"output_config": {"format": {"type": "yaml"}}},
        "INFO Received request cmpl-1: prompt: 'x', params: SamplingParams(n=1, stop=['a'], "
        "guided_decoding=GuidedDecodingParams(json={'type': 'object'})), lora_request: None.",
        "INFO Received request cmpl-1: prompt: 'x', params: SamplingParams(n=1, stop=[], "
        "structured_outputs=StructuredOutputsParams(regex='a')), lora_request: None.",
    ],
)
def test_a_form_of_answer_that_no_sample_can_hold_leaves_the_request_out(tmp_path: Path, row: object) -> None:
    asked, reading = read(write(tmp_path / "log.jsonl", [{"prompt": "fine"}, row]))
    assert [each.text for each in asked] == ["fine"]
    assert (reading.left_out.total(), reading.bad.total()) == (1, 0)


def test_the_stops_in_a_servers_log_are_kept(tmp_path: Path) -> None:
    stops = ["\n", "it's ]", 'a "b"', "guided_decoding=x"]
    lines = [
        f"INFO Received request cmpl-{n}: prompt: 'x', params: SamplingParams(stop={shown}, stop_token_ids=[7], "
        "guided_decoding=None, allowed_token_ids=None), lora_request: None."
        for n, shown in enumerate((repr(stops), "[]", "['cut"))
    ]
    asked, reading = read(write(tmp_path / "server.log", lines))
    assert [each.fields for each in asked] == [{"stop": stops}, {}]
    assert reading.bad == {"a request whose line was cut": 1}


RECEIVED = "INFO 04-10 18:13:14 [logger.py:39] Received request "
VLLM = [
    "INFO 02-14 05:41:15 [__init__.py:239] Automatically detected platform cuda.",
    RECEIVED + "chatcmpl-a71f: prompt: '<|user|>\\nIt\\'s \\u00fc\\n', params: SamplingParams(n=1, stop=[\"x\"]), "
    "prompt_token_ids: None, lora_request: None.",
    "\x1b[0;36m(APIServer pid=1)\x1b[0;0m DEBUG 11-05 12:39:35 [entrypoints/logger.py:51] Request cmpl-17-0 details: "
    'prompt: "What\'s up?", prompt_token_ids: None, prompt_embeds shape: None.',
    RECEIVED + "cmpl-17-0: params: SamplingParams(n=1), lora_request: None.",
    RECEIVED + "embd-9: prompt: 'words', params: PoolingParams(dimensions=None).",
    RECEIVED + "cmpl-8: prompt: None, params: SamplingParams(n=1), prompt_token_ids: [1, 2].",
    RECEIVED + "cmpl-9: prompt: 'cut off he",
    'INFO:     10.0.0.1:50000 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
]


def test_the_log_of_a_vllm_server_shows_rendered_prompts_for_the_completions_endpoint(tmp_path: Path) -> None:
    asked, reading = read(write(tmp_path / "server.log", VLLM))
    assert [(each.endpoint, each.label, each.prompt) for each in asked] == [
        ("completions", "chat", "<|user|>\nIt's ü\n"),
        ("completions", "completions", "What's up?"),
    ]
    assert reading.other == 2
    assert sum(reading.left_out.values()) == 2
    assert reading.bad == {"a request whose line was cut": 1}
    assert reading.places["a request whose line was cut"] == [f"{tmp_path / 'server.log'}:7"]


def test_settings_in_a_line_after_the_prompt_belong_to_it(tmp_path: Path) -> None:
    def details(number: int) -> str:
        return f"DEBUG Request cmpl-{number} details: prompt: 'x{number}', prompt_token_ids: None."

    def settings(number: int, shown: str) -> str:
        return f"INFO Received request cmpl-{number}: params: {shown}, lora_request: None."

    path = tmp_path / "server.log"
    lines = [
        details(1), details(2), details(3), details(4), settings(2, "SamplingParams(stop=['b'])"),
        settings(1, "SamplingParams(stop=['a'])"), settings(4, "PoolingParams(dimensions=None)"),
        details(5), details(5), settings(5, "SamplingParams(structured_outputs=StructuredOutputsParams(regex='a'))"),
        settings(9, "SamplingParams()"),
    ]  # fmt: skip
    reading = LogSummary()
    found = list(read_logs([write(path, lines)], reading))
    assert [(place, each.prompt, each.fields) for place, each in found] == [
        (f"{path}:5", "x2", {"stop": ["b"]}),
        (f"{path}:6", "x1", {"stop": ["a"]}),
        (f"{path}:9", "x5", {}),
        (f"{path}:3", "x3", {}),
    ]
    assert (reading.requests, reading.left_out.total(), reading.other) == (4, 2, 1)


def test_prompts_whose_settings_never_come_are_not_all_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.shadow.request_log._MAX_HELD", 2)
    lines = [f"DEBUG Request cmpl-{n} details: prompt: 'x{n}', prompt_token_ids: None." for n in range(9)]
    asked, _ = read(write(tmp_path / "server.log", lines))
    assert [each.prompt for each in asked] == [f"x{n}" for n in range(9)]


def test_the_log_of_a_container_wraps_the_same_lines_in_json(tmp_path: Path) -> None:
    lines = [{"log": line + "\n", "stream": "stderr", "time": "2026-01-01T00:00:00Z"} for line in VLLM]
    asked, reading = read(write(tmp_path / "container.log", lines))
    assert [each.prompt for each in asked] == ["<|user|>\nIt's ü\n", "What's up?"]
    assert (reading.other, reading.bad.total()) == (2, 1)


def test_prompts_that_all_end_where_the_log_cut_them_are_told(tmp_path: Path) -> None:
    whole = [f"prompt number {n} " + "word " * n for n in range(20)]

    def logged(longest: int) -> Path:
        lines = [f"{RECEIVED}cmpl-{n}: prompt: {text[:longest]!r}, params: None" for n, text in enumerate(whole)]
        return write(tmp_path / f"{longest}.log", lines)

    assert read(logged(10_000))[1].cut_at is None
    assert read(logged(60))[1].cut_at == 60


def test_a_server_log_without_prompts_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="VLLM_LOGGING_LEVEL=DEBUG"):
        read(write(tmp_path / "server.log", [VLLM[0], VLLM[3]]))


def test_bad_lines_are_counted_and_named_and_nothing_of_them_is_repeated(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [
        '{"prompt": "fine"}',
        '{"prompt": "canary-cut',
        "canary, just words",
        '["canary"]',
        '{"canary": 1}',
        '{"messages": [{"role": "canary", "content": "x"}]}',
        '{"prompt": "canary", "prompt": "canary"}',
        '{"prompt": "canary \\ud800"}',
        '{"prompt": "  "}',
        '{"messages": [{"role": "system", "content": "canary"}]}',
    ]
    path.write_bytes("\n".join(rows).encode() + b'\n\n{"prompt": "canary \xff"}\n')
    asked, reading = read(path)
    assert len(asked) == 1
    assert sum(reading.bad.values()) == 10
    assert sorted(int(place.rpartition(":")[2]) for places in reading.places.values() for place in places) == [
        2, 3, 4, 5, 6, 7, 8, 9, 10, 12,
    ]  # fmt: skip
    assert "canary" not in repr((reading.bad, [list(reading.places)]))


def test_requests_that_cannot_be_asked_again_are_left_out_with_the_reason(tmp_path: Path) -> None:
    rows = [
        {"prompt": "fine"},
        {"request": {"messages": [USER]}, "response": {"status_code": 400}},
        {"messages": [USER], "error": {"message": "too long"}},
        {"url": "/v1/embeddings", "body": {"input": "words"}},
        {"url": "/proxy/v1/embeddings", "body": {"model": "bge", "input": "words"}},
        {"model": "text-embedding-3", "input": "words"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:…"}}]}]},
        {"model": "m", "prompt": [[1, 2, 3]]},
        {"model": "m", "input": "go on", "previous_response_id": "r"},
    ]
    asked, reading = read(write(tmp_path / "log.jsonl", rows))
    assert len(asked) == 1
    assert sum(reading.left_out.values()) == 8
    assert not reading.bad


@pytest.mark.parametrize("status", [500, 500.0, "500", " 429 ", "503 Service Unavailable", "HTTP/1.1 404", "Failed"])
def test_a_failed_request_is_left_out_however_its_status_is_written(tmp_path: Path, status: object) -> None:
    rows = [
        {"prompt": "fine", "status": "200 OK"},
        {"prompt": "well", "status": "completed"},
        {"status": status, "body": CHAT},
        {"request": CHAT, "response": {"status_code": None, "status": status}},
    ]
    asked, reading = read(write(tmp_path / "log.jsonl", rows))
    assert [each.text for each in asked] == ["fine", "well"]
    assert reading.left_out.total() == 2


def test_calls_as_anthropic_spells_them_are_read_without_route_and_system(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "42"}
    messages = [USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    (asked,), _ = read(write(tmp_path / "log.jsonl", [{"model": "m", "messages": messages}]))
    assert asked.endpoint == "messages"
    assert [message["role"] for message in asked.messages] == ["user", "assistant", "tool"]


def test_packed_logs_are_read_as_they_are_whatever_their_name(tmp_path: Path) -> None:
    packed = tmp_path / "log.jsonl"
    packed.write_bytes(gzip.compress(b'{"prompt": "one"}\n') + gzip.compress(b'{"prompt": "two"}\n'))
    asked, _ = read(packed, packed)
    assert [each.prompt for each in asked] == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "the file is empty; expected JSON Lines"),
        (b"words\nmore\n", "of its 2 lines none is a request (line 1 is neither a JSON object"),
        (b'{"url": "/v1/embeddings", "body": {}}\n', "none is a request that can be drawn: line 1 requests no text"),
        (gzip.compress(b'{"prompt": "one"}\n', mtime=0)[:-9], "is gzip, but broken or cut off"),
        (b"\x28\xb5\x2f\xfdxxxx", "is packed with zstd; unpack it first"),
    ],
)
def test_a_file_that_is_of_no_use_is_an_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "log.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(path) in str(caught.value) and message in str(caught.value)
