"""Whether an answer is what its request asked it to be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchgate.load.decode.answer import AnswerContent
from benchgate.load.http.exchange import Response
from benchgate.load.http.parser import Head
from benchgate.model.request import ModelRequest
from benchgate.suite.formats import schema_problem
from benchgate.targets.validity import form_of_request
from tests.shells.load_helpers import content_of, decode

TOOLS: dict[str, object] = {"tools": [{"type": "function", "function": {"name": "f"}}]}
OFFER = ModelRequest("chat", {}, 8, stream=False, fields=TOOLS)
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"age": {"$ref": "#/$defs/age"}},
    "required": ["age"],
    "$defs": {"age": {"type": "integer", "minimum": 0}},
}
ASKED = ModelRequest("chat", {}, 8, stream=False, schema=SCHEMA)


def is_valid(ask: ModelRequest, words: AnswerContent) -> bool | None:
    form = form_of_request(ask)
    return None if form is None else form.is_met(words.text, words.called)


def calling(*calls: tuple[str, str], text: str = "") -> AnswerContent:
    """An answer that calls so many tools, each by name and arguments."""
    words = AnswerContent([text])
    for place, (name, arguments) in enumerate(calls):
        words.take_call((place, ""), name, arguments)
    return words


def test_arguments_of_every_call_must_be_a_json_object() -> None:
    assert is_valid(OFFER, calling(("f", '{"a": 1}'), ("f", "{}"))) is True
    for broken in ("{", "[]", "1", '{"a": NaN}'):
        assert is_valid(OFFER, calling(("f", '{"a": 1}'), ("f", broken))) is False, broken


def test_call_of_a_tool_that_was_not_offered_is_not_valid() -> None:
    for name in ("g", ""):
        assert is_valid(OFFER, calling(("f", "{}"), (name, "{}"))) is False, name
    other = {**TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}
    assert is_valid(replace(OFFER, fields=other), calling(("f", "{}"))) is False
    assert is_valid(replace(OFFER, fields={**TOOLS, "tool_choice": "none"}), calling(("f", "{}"))) is False
    flat = replace(OFFER, fields={"tools": [{"type": "function", "name": "f"}]})  # as responses spell it
    assert is_valid(flat, calling(("f", "{}"))) is True


def test_call_that_nobody_offered_does_not_stand_in_for_what_the_schema_asks() -> None:
    assert is_valid(ASKED, calling(("f", "{}"), text="garbage")) is False
    assert is_valid(ASKED, calling(("f", "{}"), text='{"age": 3}')) is True


def test_with_tools_and_a_schema_an_answer_calls_or_says_what_the_schema_asks() -> None:
    both = replace(ASKED, fields=TOOLS)
    assert is_valid(both, calling(("f", "{}"))) is True
    assert is_valid(both, AnswerContent(['{"age": 3}'])) is True
    assert is_valid(both, calling(("f", "{}"), text="garbage")) is False
    assert is_valid(both, AnswerContent(["garbage"])) is False


def test_tool_that_is_offered_may_be_left_alone_and_one_that_is_required_may_not() -> None:
    assert is_valid(OFFER, AnswerContent(["no need"])) is None
    assert is_valid(replace(OFFER, fields={**TOOLS, "tool_choice": "required"}), AnswerContent(["no need"])) is False
    for mode, expected in (("auto", None), ("required", False)):
        allowed = {"mode": mode, **TOOLS}
        for choice in ({"type": "allowed_tools", "allowed_tools": allowed}, {"type": "allowed_tools", **allowed}):
            offer = replace(OFFER, fields={**TOOLS, "tool_choice": choice})
            assert is_valid(offer, AnswerContent(["no need"])) is expected
            assert is_valid(offer, calling(("f", "{}"))) is True


def test_answer_to_a_plain_request_is_neither() -> None:
    assert is_valid(ModelRequest("chat", {}, 8), AnswerContent(["{"])) is None


def judged(text: str, reason: str = "stop", ask: ModelRequest = ASKED) -> bool | None:
    body = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": reason}]}).encode()
    return decode(0, 0, 0, Response(1, 9, Head("HTTP/1.1", 200, {}), [(5, body)], whole=True), ask=ask).valid


def test_all_of_the_text_must_be_json_that_the_schema_accepts() -> None:
    assert judged('{"age": 3}') is True
    assert judged(' {"age": 3, "more": []}\n', "length") is True
    for text in ('{"age": -1}', '{"age": "3"}', "{}", '{"age": 3', 'Here: {"age": 3}', "[" * 100_000, "null"):
        assert judged(text) is False, text[:20]


@pytest.mark.parametrize("value", ["1e999", "9" * 400, "-1e999"])
def test_number_too_large_to_be_judged_is_not_valid(value: str) -> None:
    asked = replace(ASKED, schema={"multipleOf": 0.01})
    assert judged("1.25", ask=asked) is True
    assert judged(value, ask=asked) is False


@pytest.mark.parametrize(
    ("schema", "sound", "endless"),  # the last for 2 to the 200th steps, and 2 to the 60th
    [
        ({"type": "string", "pattern": "^(a+)+$"}, '"aaaa"', f'"{"a" * 200}!"'),
        ({"type": "array", "anyOf": [{"items": {"$ref": "#"}}] * 2}, "[[]]", "[" * 60 + "1" + "]" * 60),
    ],
    ids=["pattern", "branches"],
)
def test_answer_that_would_take_ages_to_judge_is_not_valid(schema: dict[str, object], sound: str, endless: str) -> None:
    asked = replace(ASKED, schema=schema)
    assert judged(sound, ask=asked) is True
    assert judged(endless, ask=asked) is False


@pytest.mark.parametrize(
    "odd",
    [
        {"index": [0], "function": {"name": "f", "arguments": "{}"}},
        {"index": 0, "id": {"a": 1}, "function": {"name": "f", "arguments": "{}"}},
        {"index": "0", "id": 7, "function": {"name": "f", "arguments": "{}"}},
    ],
)
def test_call_that_counts_itself_oddly_is_read_all_the_same(odd: dict[str, object]) -> None:
    message = {"message": {"content": None, "tool_calls": [odd]}, "finish_reason": "tool_calls"}
    assert content_of([(5, json.dumps({"choices": [message]}).encode())], OFFER).names == {(0, ""): "f"}


def test_call_of_a_responses_stream_has_the_name_and_arguments_of_its_item() -> None:
    ask = ModelRequest("responses", {}, 8, fields=TOOLS)
    item = {"type": "function_call", "name": "f", "arguments": ""}
    whole = {**item, "arguments": '{"a": 1}'}
    added = {"type": "response.output_item.added", "output_index": 1, "item": item}
    delta = {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"a": 1}'}
    done = {"type": "response.output_item.done", "output_index": 1, "item": whole}
    for events in ([added, delta, done], [added, done], [{**delta, "output_index": [1]}]):
        body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        words = content_of([(5, body)], ask)
        assert list(words.arguments.values()) == ['{"a": 1}']
        assert list(words.names.values()) == (["f"] if added in events else [])


def test_request_that_failed_brought_no_valid_answer() -> None:
    assert judged('{"age": 3}', "abort") is False
    assert decode(0, 0, 0, Response(None, 9), ask=ASKED).valid is False


def test_client_that_left_did_not_wait_for_a_valid_answer() -> None:
    assert decode(0, 0, 0, Response(None, 9, left=True), ask=ASKED, leaves=True).valid is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objekt"}, "objekt"),
        ({"properties": {"a": {"pattern": "("}}}, "$.properties.a.pattern"),
        ({"properties": {"a": {"$ref": "#/$defs/nowhere"}}}, "#/$defs/nowhere"),
        ({"items": {"$ref": "https://example.org/schema.json"}}, "https://example.org/schema.json"),
        ({"items": {"$dynamicRef": "#nowhere"}}, "#nowhere leads nowhere"),
        ({"$ref": "#/required", "required": ["a"]}, "not of type 'object'"),
        ({"$ref": "#/parts/a", "parts": {"a": {"type": "objekt"}}}, "objekt"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"$schema": 5}, "`$schema` is 5, which is no known draft"),
        ({"$schema": ["a"]}, "no known draft"),
        ({"$schema": "https://example.org/mine"}, "no known draft"),
        ({"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "another than its own"),
    ],
)
def test_schema_that_cannot_judge_is_refused_before_anything_is_asked(schema: dict[str, object], said: str) -> None:
    assert schema_problem(SCHEMA) is None
    assert said in (schema_problem(schema) or "")


@pytest.mark.parametrize(
    "schema",
    [
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": {}},
            "items": {"$ref": "#/definitions/a"},
        },
        {"properties": {"next": {"$ref": "#"}, "$ref": {"type": "string"}}, "const": {"$ref": "#/nowhere"}},
        {
            "$id": "https://example.org/s",
            "$defs": {"a": {"$id": "b", "$defs": {"c": {}}}},
            "items": {"$ref": "b#/$defs/c"},
        },
        {"$dynamicRef": "#n", "$defs": {"a": {"$dynamicAnchor": "n", "type": "string"}}},
    ],
)
def test_reference_inside_a_schema_is_followed_as_its_draft_says(schema: dict[str, object]) -> None:
    assert schema_problem(schema) is None
