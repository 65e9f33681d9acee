"""The shorter way through a stream says what the long way says, whatever the events are."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchgate.load.decode import read_stream
from benchgate.load.seen import Stream
from benchgate.load.template import Template

pytestmark = pytest.mark.usefixtures("compiled_and_not")

TEXTS = st.sampled_from(
    ['"', "\\", '\\"', '"}', '","x":"', "\\u0022", "\n", "\x00", "\u2028", "", " ", "x", "index", "content", "🙂", "é"]
) | st.text(max_size=6)
CHOICES = st.fixed_dictionaries(
    {"index": st.just(0), "delta": st.fixed_dictionaries({"content": TEXTS})},
    optional={"finish_reason": st.sampled_from([None, "stop", "abort"]), "text": TEXTS, "error": st.none() | TEXTS},
)
EVENTS = st.fixed_dictionaries(
    {"id": st.sampled_from(["a", "b", '"x"']), "choices": st.lists(CHOICES, min_size=1, max_size=2)},
    optional={
        "object": st.sampled_from(["chat.completion.chunk", "error"]),
        "error": st.sampled_from([None, {"message": "x"}, "x"]),
        "type": st.sampled_from([None, "error", "x"]),
        "message": st.sampled_from([None, "x"]),
        "usage": st.sampled_from([None, {}, {"prompt_tokens": 3, "completion_tokens": 2}]),
    },
)


def sse(event: object, ascii_only: bool = True) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + b"\n\n"


def said(text: str, **others: object) -> dict[str, Any]:
    return {"id": "1", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **others}


def slowly(events: list[bytes]) -> Stream:
    """In one read, of which no event can be taken by itself."""
    return read_stream([(7, b"".join(events))])


def one_by_one(events: list[bytes]) -> Stream:
    return read_stream([(7, event) for event in events])


@given(st.lists(st.tuples(EVENTS, st.booleans()).map(lambda pair: sse(*pair)), max_size=12))
def test_any_events_say_the_same_either_way(events: list[bytes]) -> None:
    assert one_by_one(events) == slowly(events)


@given(TEXTS, st.lists(TEXTS, max_size=12), st.booleans())
def test_any_texts_in_like_events_say_the_same_either_way(first: str, texts: list[str], ascii_only: bool) -> None:
    events = [sse(said(text), ascii_only) for text in (first, first, *texts)]
    assert one_by_one(events) == slowly(events)


NAMES = st.sampled_from(["x", "error", "type", "object", "message", "choices", "a text no server sends"])


@given(NAMES, st.lists(st.tuples(NAMES, NAMES), max_size=6), st.sampled_from([{"message": "boom"}, "error", None]))
def test_text_that_is_a_name_of_the_event_too_says_the_same_either_way(
    text: str, others: list[tuple[str, str]], beside: object
) -> None:
    """The first event's text stands where another field's name does; the next ones have another name there."""

    def named(name: str, content: str) -> bytes:
        kept = b'"choices":[{"delta":{"content":"' + content.encode() + b'"}}]}\n\n'
        return b'data: {"' + name.encode() + b'":' + json.dumps(beside).encode() + b"," + kept

    events = [named(text, text), named(text, text), *(named(*other) for other in [("error", text), *others])]
    assert one_by_one(events) == slowly(events)


def test_error_in_place_of_a_name_that_was_the_text_is_an_error() -> None:
    first = b'data: {"x":{"message":"boom"},"choices":[{"delta":{"content":"x"}}]}\n\n'
    assert one_by_one([first, first, first.replace(b'"x"', b'"error"', 1)]).error == "boom"


BEFORE, AFTER = b'data: {"choices":[{"delta":{"content":"', b'"}}]}\n\n'
# fmt: off
INSIDE = (
    b"", b"a", b"\\", b'\\"', b"\\\\", b"\\n", b"\\x", b'"', b'""', b"\t", b"\0", b"\x1f", b"\x7f",
    b"\xff", b"\xe2\x82",
    b'"},"finish_reason":"stop","x":{"y":"', b'"}}],"error":"x","y":[{"x":{"y":"',
    b'","content":"', b'"}},{"delta":{"content":"', b'"\r', b"\n",
    b'"}}]}\n\ndata: {"choices":[{"delta":{"content":"', b'"}}]}\n\ndata: [DONE]\n\n: {"x":[{"y":{"z":"',
)
# fmt: on


@given(st.lists(st.sampled_from(INSIDE) | st.binary(max_size=6), max_size=12))
@settings(max_examples=20)
@pytest.mark.parametrize("first", INSIDE)
def test_any_bytes_in_like_events_say_the_same_either_way(first: bytes, middles: list[bytes]) -> None:
    """What begins and ends alike is not yet alike."""
    whole = BEFORE + b"a" + AFTER
    events = [whole, whole, *(BEFORE + middle + AFTER for middle in (first, *middles))]
    assert one_by_one(events) == slowly(events)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 8), st.binary(max_size=6)), max_size=12))
def test_any_damage_to_like_events_says_the_same_either_way(damage: list[tuple[int, int, bytes]]) -> None:
    """Bytes cut out of an event and others put in their place, at any point."""
    whole = BEFORE + b"a" + AFTER
    events = [whole, whole] + [whole[:at] + put + whole[at + cut :] for at, cut, put in damage]
    assert one_by_one(events) == slowly(events)


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[{"delta":{"content":"a","content":"b"}}]}\n\n',  # the last of two equal keys counts
        b'data: {"choices":[{"delta":{"content":"b","content":"b"}}]}\n\n',
        b'data: {"b":"b","choices":[{"delta":{"content":"b"}}]}\n\n',
        b'data: {"x":"\\"content\\":\\"b\\"","choices":[{"delta":{"content":"b"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"b","reasoning_content":"b"}}]}\n\n',
    ],
)
def test_text_that_stands_there_twice_says_the_same_either_way(event: bytes) -> None:
    events = [event, event, event.replace(b'"b"', b'""', 1), event.replace(b'"b"', b'"c"', 1), event[::-1], event]
    assert one_by_one(events) == slowly(events)


def test_usual_events_take_the_shorter_way() -> None:
    first = sse(said("Hello"))
    template = Template.of(first, said("Hello"))
    assert template is not None
    assert template.fits(sse(said(" world")))
    for other in ("", '"', "\\", "\n"):
        assert not template.fits(sse(said(other)))
    for field in ({"error": {"message": "x"}}, {"usage": {"completion_tokens": 3}}):
        assert not template.fits(sse(said("x", **field)))
    assert not template.fits(
        sse({"id": "1", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]})
    )


@pytest.mark.parametrize(
    "event",
    [
        said(""),
        said("x", error="x"),
        said("x", object="error"),
        said("x", usage={}),
        {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]},
        {"choices": [{"delta": {"content": "x"}}, {"delta": {"content": "y"}}]},
        {"choices": [{"delta": {"reasoning_content": "x"}}]},
        {"choices": []},
        {},
    ],
)
def test_event_that_does_more_or_less_than_carry_output_makes_no_template(event: dict[str, Any]) -> None:
    assert Template.of(sse(event), event) is None


def test_completions_have_a_template_too() -> None:
    event: dict[str, object] = {"choices": [{"text": "a", "finish_reason": None}]}
    template = Template.of(sse(event), event)
    assert template is not None
    assert template.fits(sse({"choices": [{"text": " b", "finish_reason": None}]}))
