"""What the practice server understands and says, without a socket: every endpoint, reasoning, schemas and tools."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.model.request import Endpoint
from benchgate.plan.media import data_url, speech_wav
from benchgate.sim.content import Unsupported, json_pieces
from benchgate.sim.encoders import ChoiceScript, ResponseScript, Script, Usage
from benchgate.sim.endpoints import SERVED
from benchgate.sim.http_server import Request
from benchgate.sim.requests import ApiRequest, Refused
from benchgate.sim.router import affinity_of, preferred
from benchgate.sim.settings import sim_settings
from benchgate.suite.simulator import SimSettings
from benchgate.targets.multipart import form_body

PLAIN = sim_settings()
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 18},
        "ratio": {"type": "number", "exclusiveMaximum": 1},
        "kind": {"enum": ["a", "b", "c"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 2},
        "home": {"$ref": "#/$defs/place"},
        "note": {"anyOf": [{"type": "null"}, {"type": "string"}]},
    },
    "required": ["name", "also"],
    "$defs": {"place": {"type": "object", "properties": {"open": {"type": "boolean"}, "no": {"const": 7}}}},
}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "one two three"}]}


def check_person(text: str) -> None:
    """That the text is JSON which PERSON allows; said by hand, as the schema says it."""
    person = json.loads(text)
    assert person.keys() == {"name", "age", "ratio", "kind", "tags", "home", "note", "also"}
    assert isinstance(person["name"], str)
    assert isinstance(person["age"], int)
    assert person["age"] >= 18
    assert person["ratio"] < 1
    assert person["kind"] in ("a", "b", "c")
    assert len(person["tags"]) == 2
    assert all(0 < len(tag) <= 3 for tag in person["tags"])
    assert isinstance(person["home"]["open"], bool)
    assert person["home"]["no"] == 7
    assert person["note"] is None


def asked(body: dict[str, Any], endpoint: Endpoint = "chat", served: SimSettings = PLAIN) -> ApiRequest:
    return SERVED[endpoint].request("", json.dumps(body).encode(), served)


def message(ask: ApiRequest) -> dict[str, Any]:
    document = json.loads(ChoiceScript(ask, 1, 2).document(ask.finish_reason, None))
    found: dict[str, Any] = document["choices"][0]["message"]
    return found


def streamed(script: Script, ask: ApiRequest, sizes: int = 1) -> list[dict[str, Any]]:
    """The events of a whole stream, so many tokens at a time."""
    events = script.opening()
    for first in range(0, ask.output_tokens, sizes):
        count = min(sizes, ask.output_tokens - first)
        last = first + count == ask.output_tokens
        events += script.tokens(first, count, ask.finish_reason if last else None)
    events += script.closing(ask.finish_reason, Usage(ask.input_tokens, ask.output_tokens))
    return [json.loads(event.decode().partition("data: ")[2]) for event in events]


def deltas(ask: ApiRequest, sizes: int = 1) -> list[dict[str, Any]]:
    events = streamed(ChoiceScript(ask, 1, 2), ask, sizes)
    return [event["choices"][0]["delta"] for event in events if event["choices"]][1:]


@pytest.mark.parametrize("limit", [2, 3, 9])
def test_answer_begins_with_its_reasoning_and_is_cut_with_it(limit: int) -> None:
    ask = asked(CHAT | {"max_tokens": limit}, served=sim_settings(reasoning_tokens=(3, 3)))
    kinds = [next(iter(delta)) for delta in deltas(ask)]
    assert kinds == ["reasoning_content"] * min(limit, 3) + ["content"] * (limit - 3)
    assert ask.reasoning_tokens == min(limit, 3)
    assert len(str(message(ask)["content"] or "").split()) == max(0, limit - 3)


def test_reasoning_within_its_bounds_comes_before_an_answer_that_ends_by_itself() -> None:
    served = sim_settings(reasoning_tokens=(2, 9), output_tokens=(4, 4))
    asks = [asked({"messages": [{"role": "user", "content": f"p {i}"}]}, served=served) for i in range(60)]
    assert {ask.reasoning_tokens for ask in asks} == set(range(2, 10))
    assert {ask.output_tokens - (ask.reasoning_tokens or 0) for ask in asks} == {4}
    assert asked({"prompt": "x"}, "completions", served).reasoning_tokens is None


def test_pieces_of_several_tokens_are_cut_between_reasoning_and_answer() -> None:
    ask = asked(CHAT | {"max_tokens": 8}, served=sim_settings(reasoning_tokens=(3, 3)))
    found = deltas(ask, sizes=4)
    assert [(next(iter(delta)), len(next(iter(delta.values())).split())) for delta in found] == [
        ("reasoning_content", 3),
        ("content", 1),
        ("content", 4),
    ]


@given(key=st.integers(0, 2**32 - 1), tokens=st.integers(1, 120))
def test_instance_of_a_schema_satisfies_it_in_as_many_tokens_as_there_are(key: int, tokens: int) -> None:
    whole = json_pieces(PERSON, key, tokens, cut=False)
    check_person("".join(whole))
    assert len(whole) == tokens or len(whole) == len(json_pieces(PERSON, key, 1, cut=False)) > tokens
    assert json_pieces(PERSON, key, tokens, cut=True) == whole[:tokens]


SMALL: list[tuple[dict[str, Any], Callable[[Any], bool]]] = [
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 0}, lambda v: v == []),
    ({"type": "string", "minLength": 9, "maxLength": 11}, lambda v: isinstance(v, str) and 9 <= len(v) <= 11),
    ({"type": ["null", "string"]}, lambda v: v is None),
    ({"type": "integer", "exclusiveMinimum": 4, "maximum": 9}, lambda v: isinstance(v, int) and 4 < v <= 9),
    ({"type": "number", "exclusiveMinimum": 4}, lambda v: v > 4),
    ({"oneOf": [{"type": "boolean"}]}, lambda v: isinstance(v, bool)),
    ({"type": "object"}, lambda v: v == {}),
    ({}, lambda v: isinstance(v, str)),
]


@pytest.mark.parametrize(("schema", "holds"), SMALL, ids=[str(schema) for schema, _ in SMALL])
def test_small_schemas_are_satisfied(schema: dict[str, Any], holds: Callable[[Any], bool]) -> None:
    assert holds(json.loads("".join(json_pieces(schema, 77, 30, cut=False))))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "pattern": "^a$"}, "does not know the keyword 'pattern'"),
        ({"type": "text"}, "no type 'text'"),
        ({"$ref": "#/$defs/none"}, "refers to nothing"),
        ({"$ref": "#"}, "refers to nothing"),
        ({"enum": []}, "no values"),
        ({"$ref": "#/$defs/me", "$defs": {"me": {"$ref": "#/$defs/me"}}}, "nests deeper"),
        ({"type": "array", "minItems": "2"}, "minItems is '2'"),
    ],
    ids=str,
)
def test_schema_that_says_more_than_is_known_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        json_pieces(schema, 1, 10, cut=False)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(Refused, match="cannot be followed"):
        asked(CHAT | {"response_format": form})


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("chat", CHAT | {"response_format": {"type": "json_schema", "json_schema": {"schema": PERSON}}}),
        ("chat", CHAT | {"structured_outputs": {"json": PERSON}}),
        ("completions", {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": PERSON}}}),
        ("responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON}}}),
    ],
)
def test_schema_is_understood_wherever_it_is_said(endpoint: Endpoint, body: dict[str, Any]) -> None:
    ask = asked(body | {"max_tokens": 70}, endpoint)
    assert (ask.output_tokens, ask.finish_reason) == (70, "stop")
    check_person(ask.answer.text(0, 70))
    cut = asked(body | {"max_tokens": 5}, endpoint)
    assert (cut.output_tokens, cut.finish_reason) == (5, "length")


def test_schema_comes_after_the_reasoning_and_needs_no_limit() -> None:
    form = {"response_format": {"type": "json_object"}}
    ask = asked(CHAT | form, served=sim_settings(reasoning_tokens=(4, 4), output_tokens=(1, 1)))
    assert json.loads(message(ask)["content"]).keys() == {"answer"}
    assert len(message(ask)["reasoning_content"].split()) == 4


def test_stated_share_of_the_answers_to_a_schema_is_no_json() -> None:
    served = sim_settings(invalid_json_ratio=0.25)
    form = {"response_format": {"type": "json_object"}, "max_tokens": 12}
    bad = 0
    for number in range(400):
        ask = asked(form | {"messages": [{"role": "user", "content": f"p {number}"}]}, served=served)
        try:
            json.loads(message(ask)["content"])
        except ValueError:
            bad += 1
    assert 70 <= bad <= 130


def test_stated_share_of_the_prompts_that_ask_for_a_text_gets_it_and_the_others_one_as_long() -> None:
    served = sim_settings(says_ratio=0.9, output_tokens=(9, 9))
    said = []
    for number in range(400):
        content = f"Repeat what follows.\nsay: stone {number} river"
        ask = asked({"messages": [{"role": "user", "content": content}], "max_tokens": 8}, served=served)
        assert (ask.output_tokens, ask.finish_reason) == (3, "stop")
        said.append((message(ask)["content"].split(), ["stone", str(number), "river"]))
    assert all(words[:-1] == wanted[:-1] for words, wanted in said)
    assert 20 <= sum(words != wanted for words, wanted in said) <= 60


def test_servers_of_two_seeds_are_wrong_about_prompts_of_their_own() -> None:
    def wrong(seed: int) -> set[int]:
        served = sim_settings(says_ratio=0.7, seed=seed)
        bodies = ({"prompt": f"say: river {number:04}"} for number in range(1000))
        texts = (asked(body, "completions", served).answer.text(0, 2) for body in bodies)
        return {number for number, text in enumerate(texts) if text != f"river {number:04}"}

    one, other = wrong(1), wrong(2)
    assert wrong(1) == one
    assert 50 <= len(one & other) <= 130  # 90 of 1,000 when they are drawn apart


@pytest.mark.parametrize(
    ("settings", "prompt"),
    [
        (sim_settings(), "say: river"),
        (sim_settings(says_ratio=1.0), "say: river\nnow"),
        (sim_settings(says_ratio=1.0), "say: "),
    ],
    ids=["not asked to", "not the last line", "nothing to say"],
)
def test_prompt_that_asks_for_no_text_is_answered_by_words_as_ever(settings: SimSettings, prompt: str) -> None:
    ask = asked({"prompt": prompt, "max_tokens": 5}, "completions", settings)
    assert (ask.output_tokens, ask.finish_reason, ask.answer.plain) == (5, "length", True)


def test_text_asked_for_is_cut_at_the_limit() -> None:
    ask = asked({"prompt": "say: river stone cloud", "max_tokens": 2}, "completions", sim_settings(says_ratio=1.0))
    assert (ask.answer.text(0, 2), ask.output_tokens, ask.finish_reason) == ("river stone", 2, "length")


TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": PERSON}},
    {"type": "function", "function": {"name": "wait"}},
]


def test_tools_are_called_with_arguments_that_satisfy_them() -> None:
    chosen = {"tool_choice": {"type": "function", "function": {"name": "look"}}}
    ask = asked(CHAT | {"tools": TOOLS, "max_tokens": 80} | chosen)
    (call,) = message(ask)["tool_calls"]
    assert (call["function"]["name"], ask.finish_reason, message(ask)["content"]) == ("look", "tool_calls", None)
    check_person(call["function"]["arguments"])
    calls = [delta["tool_calls"][0] for delta in deltas(ask)]
    assert "".join(piece["function"]["arguments"] for piece in calls) == call["function"]["arguments"]
    assert [piece.get("id") for piece in calls] == [call["id"]] + [None] * 79
    assert asked(CHAT | {"tools": TOOLS, "tool_choice": "none"}).answer.plain
    assert asked(CHAT | {"tools": TOOLS} | chosen | {"max_tokens": 3}).finish_reason == "length"
    names = {asked({"messages": [{"role": "user", "content": f"{i}"}], "tools": TOOLS}).answer.tool for i in range(20)}
    assert names == {"look", "wait"}


def test_response_is_a_row_of_numbered_events_that_say_what_the_document_says() -> None:
    ask = asked({"input": "x y", "max_output_tokens": 7}, "responses", sim_settings(reasoning_tokens=(3, 3)))
    events = streamed(ResponseScript(ask, 5, 6), ask)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"].removeprefix("response.") for event in events]
    thinking = ["reasoning_text.delta"] * 3 + ["reasoning_text.done", "content_part.done", "output_item.done"]
    answer = ["output_text.delta"] * 4 + ["output_text.done", "content_part.done", "output_item.done", "completed"]
    added = ["output_item.added", "content_part.added"]
    assert names == ["created", "in_progress", *added, *thinking, *added, *answer]
    whole = json.loads(ResponseScript(ask, 5, 6).document(ask.finish_reason, Usage(2, 7)))
    assert events[-1]["response"] == whole
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"], whole["usage"]["total_tokens"]) == (
        2,
        7,
        9,
    )
    said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert whole["output"][1]["content"][0]["text"] == said
    finished = asked({"input": "x"}, "responses", sim_settings(output_tokens=(3, 3)))
    assert streamed(ResponseScript(finished, 1, 2), finished)[-1]["response"]["status"] == "completed"


def test_tool_of_a_response_is_an_item_of_its_own() -> None:
    tools = [{"type": "function", "name": "look", "parameters": PERSON}]
    ask = asked({"input": "x", "tools": tools}, "responses")
    last = streamed(ResponseScript(ask, 5, 6), ask)[-1]["response"]
    (item,) = last["output"]
    assert (item["type"], item["name"]) == ("function_call", "look")
    check_person(item["arguments"])


def test_input_of_a_response_is_the_same_prompt_in_each_of_its_forms() -> None:
    forms: list[Any] = [
        "a b c",
        [{"role": "user", "content": "a b c"}],
        [{"role": "user", "content": [{"type": "input_text", "text": "a b c"}]}],
    ]
    assert len({asked({"input": form}, "responses").key for form in forms}) == 1
    assert asked({"input": "a b", "instructions": "be short"}, "responses").input_tokens == 4


def test_images_count_when_they_are_taken_and_are_refused_else() -> None:
    parts = [{"type": "text", "text": "a b"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    body = {"messages": [{"role": "user", "content": parts}]}
    assert asked(body, served=sim_settings(image_tokens=50)).input_tokens == 52
    with pytest.raises(Refused, match="content of text"):
        asked(body)


def test_audio_and_videos_count_when_they_are_taken_and_are_refused_else() -> None:
    wav = b64encode(speech_wav(2.0, np.random.default_rng(1))).decode()
    served = sim_settings(audio_tokens=10, video_tokens=30)
    part: dict[str, Any]
    for part, tokens in (
        ({"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}, 20),
        ({"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{wav}"}}, 20),
        ({"type": "audio_url", "audio_url": {"url": "https://h/a.wav"}}, 100),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, 30),
        ({"type": "video_url", "video_url": {"url": "http://h/a.mp4"}}, 30),
    ):
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a b"}, part]}]}
        assert asked(body, served=served).input_tokens == 2 + tokens
        with pytest.raises(Refused, match="content of text"):
            asked(body)
    for part, says in (
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "unsupported audio"),
        ({"type": "input_audio"}, "HTTP or data URL"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,-"}}, "unsupported video"),
        ({"type": "video_url", "video_url": {"url": "a.mp4"}}, "HTTP or data URL"),
    ):
        with pytest.raises(Refused, match=says):
            asked({"messages": [{"role": "user", "content": [part]}]}, served=served)


def transcribed(fields: dict[str, object], served: SimSettings = PLAIN) -> ApiRequest:
    wav = data_url(speech_wav(4.0, np.random.default_rng(1)), "audio/wav")
    return SERVED["transcriptions"].request("", form_body({"file": wav} | fields).content, served)


def test_transcript_is_as_long_as_the_speech_and_comes_in_the_form_that_was_requested() -> None:
    request = transcribed({})
    assert (request.input_tokens, request.output_tokens, request.finish_reason, request.stream) == (
        200,
        10,
        "stop",
        False,
    )
    assert transcribed({"stream": True, "max_completion_tokens": 3}).finish_reason == "length"
    assert transcribed({}, sim_settings(output_tokens=(7, 7), audio_tokens=1)).output_tokens == 7
    said = {
        form: SERVED["transcriptions"].script(transcribed({"response_format": form}), 1, 1).document("stop", None)
        for form in ("json", "text", "verbose_json")
    }
    text = said["text"].decode()
    assert json.loads(said["json"]) == {"text": text, "usage": {"type": "duration", "seconds": 4}}
    assert (json.loads(said["verbose_json"])["duration"], len(text.split())) == ("4.0", 10)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"file": None, "language": "en"}, "file-like object"),
        ({"file": "data:audio/wav;base64,AAAA"}, "unsupported audio"),
        ({"response_format": "srt"}, "Currently only support"),
        ({"response_format": "verbose_json", "stream": True}, "doesn't support streaming"),
        ({"model": "nope"}, "does not exist"),
    ],
)
def test_transcription_that_cannot_be_made_is_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(Refused, match=says):
        transcribed(fields)


def test_body_that_is_no_form_is_refused() -> None:
    for body in (b"", b"{}", b"--x\r\nno name\r\n\r\nv\r\n--x--\r\n", b"--x\r\ncut"):
        with pytest.raises(Refused, match="error parsing the body"):
            SERVED["transcriptions"].request("", body, PLAIN)


def test_turns_with_tool_calls_are_prompts() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [*CHAT["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
    ask = asked({"messages": [*turns, {"role": "tool", "tool_call_id": "c", "content": "found it"}]})
    assert ask.input_tokens > 5


@pytest.mark.parametrize(
    ("endpoint", "body", "says"),
    [
        ("chat", CHAT | {"priority": "high"}, "valid integer"),
        ("chat", CHAT | {"response_format": {"type": "yaml"}}, "json_object or json_schema"),
        ("chat", CHAT | {"response_format": {"type": "json_schema"}}, "needs a JSON schema"),
        ("chat", CHAT | {"tools": TOOLS, "tool_choice": {"function": {"name": "nope"}}}, "not among the tools"),
        ("responses", {"input": []}, "Field required"),
        ("embeddings", {"input": []}, "Field required"),
        ("embeddings", {"input": [1.5]}, "one text or one list"),
        ("embeddings", {"input": "x", "dimensions": 0}, "at least 1"),
        ("embeddings", {"input": "x", "dimensions": 10**9}, "at most 65536"),
        ("rerank", {"documents": ["a"]}, "Field required"),
        ("rerank", {"query": "a", "documents": [1]}, "list of texts"),
    ],
)
def test_what_cannot_be_understood_is_refused(endpoint: Endpoint, body: dict[str, Any], says: str) -> None:
    with pytest.raises(Refused, match=says):
        asked(body, endpoint)


@pytest.mark.parametrize(
    ("settings", "body", "thought"),
    [
        ({}, {}, 0),
        ({"output_tokens": (30, 30)}, {}, 0),
        ({"reasoning_tokens": (4, 4)}, {}, 4),
        ({"reasoning_tokens": (30, 30)}, {}, 10),
        ({"says_ratio": 1.0}, {"say": "a b c d e f g h i j k l"}, 0),
        ({}, {"response_format": {"type": "json_schema", "json_schema": {"schema": PERSON}}}, 0),
    ],
)
@pytest.mark.parametrize("bound", ["context_tokens", "kv_tokens"])
def test_answer_that_the_end_of_the_context_cuts_ends_for_its_length(
    settings: dict[str, Any], body: dict[str, Any], thought: int, bound: str
) -> None:
    last = f"say: {body['say']}" if "say" in body else "go"
    prompt = " ".join(["word"] * (30 - len(last.split()))) + f"\n{last}"
    options = {name: value for name, value in body.items() if name != "say"}
    engine = {"batch": 8} if bound == "kv_tokens" else {}
    served = sim_settings(**settings, **engine, **{bound: 40})
    ask = asked({"messages": [{"role": "user", "content": prompt}], **options}, served=served)
    assert (ask.input_tokens, ask.output_tokens, ask.finish_reason) == (30, 10, "length")
    assert ask.reasoning_tokens in (None, thought)


def test_answer_that_ends_before_its_context_stops_by_itself() -> None:
    exactly = asked(CHAT, served=sim_settings(context_tokens=3 + 10, output_tokens=(10, 10)))
    assert (exactly.output_tokens, exactly.finish_reason) == (10, "stop")


def test_answer_nobody_bounded_still_fits_the_cache() -> None:
    ask = asked(CHAT, served=sim_settings(kv_tokens=20))
    assert ask.room_tokens <= 20


def request(body: dict[str, Any], **headers: str) -> Request:
    return Request("POST", "/v1/chat/completions", "", headers, json.dumps(body).encode())


def test_turns_of_one_conversation_belong_together_and_others_do_not() -> None:
    system = {"role": "system", "content": "the same for all"}

    def turns(*texts: str) -> Request:
        said = [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 3, texts, strict=False)]
        return request({"messages": [system, *said]})

    first, later, other = turns("hello"), turns("hello", "yes", "and"), turns("good day")
    assert affinity_of(first, "session") == affinity_of(later, "session") != affinity_of(other, "session")
    assert affinity_of(request({"user": "u", **CHAT}), "session") == "u"
    assert affinity_of(request(CHAT, **{"x-user": "7"}), "X-User") == "7"
    assert affinity_of(request(CHAT), "X-User") is None
    long = " ".join(map(str, range(100)))
    assert affinity_of(request({"prompt": long + " a"}), "prefix") == affinity_of(request({"prompt": long}), "prefix")
    assert affinity_of(Request("POST", "/", "", {}, b"{"), "prefix") is None


def test_lost_replica_moves_only_what_belonged_to_it() -> None:
    keys = [f"session {number}" for number in range(300)]
    first = [preferred(key, 3)[0] for key in keys]
    assert all(60 <= first.count(replica) <= 140 for replica in range(3))
    assert all(sorted(preferred(key, 3)) == [0, 1, 2] for key in keys)
