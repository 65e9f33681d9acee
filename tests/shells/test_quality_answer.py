from __future__ import annotations

import json
from typing import Any

import pytest

from benchgate.errors import TargetError
from benchgate.targets.answers import Answer, ToolCall, read_answer


def chat(content: object = "hi", finish: object = "stop", **rest: object) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}, "finish_reason": finish}], **rest}


def read(body: object, status: int = 200) -> Answer:
    return read_answer("chat", status, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_text_finish_reason_and_tokens_are_read_from_both_endpoints() -> None:
    assert read(chat(usage={"completion_tokens": 3})) == Answer("hi", "stop", 3)
    body = {"choices": [{"text": "hi", "finish_reason": "length"}]}
    assert read_answer("completions", 200, json.dumps(body).encode()) == Answer("hi", "length", None)


def test_null_content_is_not_the_same_as_empty_content() -> None:
    assert read(chat(None)).text is None
    assert read(chat("")).text == ""


def test_half_a_surrogate_pair_becomes_text_that_can_be_stored() -> None:
    assert (read(chat("a\ud83d")).text or "").encode() == b"a?"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "HTTP 200 without choices"),
        ({"choices": []}, "HTTP 200 without choices"),
        ({"error": {"message": "out of memory"}}, "HTTP 200 with an error in it: out of memory"),
        (b"<html>", "HTTP 200 with a body that is not a JSON object: <html>"),
        (b"", "an empty body"),
        (chat(finish="abort"), "finish reason: 'abort'"),
        (chat(finish=None), "finish reason: None"),
        ({"choices": [{"finish_reason": "stop"}]}, "without a message in its first choice"),
        (chat(content=["a"]), "a content that is not a text in its first choice"),
    ],
)
def test_a_200_that_is_no_answer_is_refused_with_its_reason(body: object, expected: str) -> None:
    with pytest.raises(TargetError, match=expected):
        read(body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": {"message": "no such model"}}, "HTTP 404: no such model"),
        ({"error": "no such model"}, "HTTP 404: no such model"),
        ({"detail": "no such model"}, "HTTP 404: no such model"),
        (b"plain\n  words", "HTTP 404: plain words"),
    ],
)
def test_an_error_status_comes_with_the_servers_own_words(body: object, expected: str) -> None:
    with pytest.raises(TargetError) as caught:
        read(body, status=404)
    assert str(caught.value) == expected


def test_an_echoed_api_key_is_never_repeated_not_even_in_part() -> None:
    body = {"error": {"message": "x" * 280 + " key-12345678901234567890 is not valid"}}
    with pytest.raises(TargetError) as caught:
        read_answer("chat", 401, json.dumps(body).encode(), secret="key-12345678901234567890")
    assert "key-123" not in str(caught.value)


def test_a_key_that_stands_in_an_answer_is_blotted_out_of_all_of_it_and_a_short_one_is_a_word() -> None:
    key = "key-12345678901234567890"
    call = {"id": "c", "type": "function", "function": {"name": f"f-{key}", "arguments": json.dumps({"auth": key})}}
    message = {"content": f"EMPTY, or Bearer {key}", "refusal": f"not with {key}", "tool_calls": [call]}
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    answer = read_answer("chat", 200, body, secret=(f"Bearer {key}", key, "EMPTY"))
    assert answer.text == "EMPTY, or [redacted]"
    assert key not in repr(answer)
    assert answer.calls[0].arguments == '{"auth": "[redacted]"}'


def test_answer_of_messages_has_its_texts_and_its_calls() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "A"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
    ]
    whole = {"content": blocks, "stop_reason": "tool_use", "usage": {"input_tokens": 4, "output_tokens": 3}}
    answer = read_answer("messages", 200, json.dumps(whole).encode())
    assert answer == Answer("A", "tool_calls", 3, (ToolCall("f", '{"a": 1}'),), input_tokens=4)
    with pytest.raises(TargetError, match="refusal"):
        read_answer("messages", 200, json.dumps({**whole, "stop_reason": "refusal"}).encode())
    with pytest.raises(TargetError, match="without content"):
        read_answer("messages", 200, b'{"choices": []}')
