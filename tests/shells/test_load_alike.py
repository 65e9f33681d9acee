"""The shorter way through a stream says what the long way says, whatever the events are."""

import gc
import json
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchgate.load.decode.answer import ParsedAnswer
from benchgate.load.decode.body import RawBody
from benchgate.load.decode.chat import _OTHER_ID, _TEXT, KnownEvent, _kind, known_event, read_stream

pytestmark = pytest.mark.usefixtures("compiled_and_not")

TEXTS = st.sampled_from(
    ['"', "\\", '\\"', '"}', '","x":"', "\\u0022", "\n", "\x00", "\u2028", "", " ", "x", "index", "content", "🙂", "é"]
) | st.text(max_size=6)
PIECES = ("content", "reasoning_content", "reasoning", "refusal", "role")
CHOICES = st.fixed_dictionaries(
    {"index": st.sampled_from([0, 0, 0, 1]), "delta": st.fixed_dictionaries({"content": TEXTS})},
    optional={"finish_reason": st.sampled_from([None, "stop", "abort"]), "text": TEXTS, "error": st.none() | TEXTS},
) | st.fixed_dictionaries(
    {"index": st.just(0), "delta": st.fixed_dictionaries({}, optional=dict.fromkeys(PIECES, TEXTS | st.none()))}
)
EVENTS = st.fixed_dictionaries(
    {"id": st.sampled_from(["a", "b", '"x"']), "choices": st.lists(CHOICES, min_size=1, max_size=2)},
    optional={
        "model": st.sampled_from(["m", "n", "", None]),
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


def slowly(events: list[bytes]) -> ParsedAnswer:
    """In one read, of which no event can be taken by itself."""
    return read_stream([(7, b"".join(events))])


def one_by_one(events: list[bytes]) -> ParsedAnswer:
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


def told(read: bytes) -> ParsedAnswer:
    """What is known of a read without reading it."""
    stream, one = ParsedAnswer(), known_event(read)
    assert one is not None
    one.take(stream, 7)
    return stream


def test_usual_events_take_the_shorter_way() -> None:
    deltas = ({"content": None, "reasoning_content": "So"}, {"role": "assistant", "content": "", "reasoning": "So"})
    thoughts = [{"id": "1", "choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    for endpoint in (said("Hello"), {"id": "1", "choices": [{"text": "a", "finish_reason": None}]}, *thoughts):
        for separators in ((", ", ": "), (",", ":")):
            read = b"data: " + json.dumps(endpoint, separators=separators).encode() + b"\n\n"
            one = known_event(read)
            assert one is not None
            assert one.template is not None
            assert read.startswith(one.template.before)
            assert read.endswith(one.template.after)


def first_and_last(name: str, text: str) -> list[dict[str, Any]]:
    """What begins an answer, and what ends it."""
    finish = {"index": 0, "delta": {"content": text}, "finish_reason": "length"}
    return [
        {"id": name, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        said(text, id=name),
        {"id": name, "choices": [finish]},
        {"id": name, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"id": name, "choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 128}},
        {"id": name, "choices": [], "timings": {"cache_n": 12}},
    ]


@pytest.mark.parametrize("chunked", [True, False])
def test_reading_an_answer_leaves_nothing_to_collect(chunked: bool) -> None:
    """What held on to itself would stay in memory until the next collection, with all its bytes."""
    reads = [
        b"%x\r\n%b\r\n" % (len(event), event) if chunked else event for event in map(sse, first_and_last("a", "b"))
    ]
    reads.append(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n" if chunked else b"data: [DONE]\n\n")
    marks = array("q", [number for at_ns, read in enumerate(reads) for number in (at_ns, len(read))])
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert read_stream(RawBody(b"".join(reads), marks, chunked=chunked)).done_ns == len(reads) - 1
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_events_of_one_kind_are_worked_out_once_for_all_answers() -> None:
    _kind.cache_clear()
    for name in ("chatcmpl-1", "chatcmpl-2", "x y"):
        for event in first_and_last(name, f" text of {name}"):
            assert told(sse(event)) == slowly([sse(event)])
    assert _kind.cache_info().misses == 6


@pytest.mark.parametrize("length", [4096, 4097])
def test_kinds_of_long_events_are_not_kept(length: int) -> None:
    read = sse(said("x"))
    long = sse(said("x" * (1 + length - len(read))))
    assert len(long) == length
    assert (known_event(long) is None) == (length > 4096)


@pytest.mark.parametrize(
    "event",
    [
        said(""),
        said("x", usage={}),
        {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]},
        {"choices": [{"delta": {"content": "x", "reasoning_content": "y"}}]},
        {"choices": [{"delta": {"content": "x", "tool_calls": [{"function": {"name": "f"}}]}}]},
        {"choices": [{"text": "x", "refusal": "y"}]},
        {"choices": [{"delta": {"refusal": "x"}}]},
        {"choices": []},
        {"usage": {"prompt_tokens": 1}},
        {},
    ],
)
def test_event_that_does_more_or_less_than_carry_its_text_makes_no_template(event: dict[str, Any]) -> None:
    one = known_event(sse(event))
    assert one is not None
    assert one.template is None
    assert told(sse(event)) == slowly([sse(event)])


@pytest.mark.parametrize(
    "event",
    [
        said("x", error="x"),
        said("x", object="error"),
        said("\n"),
        said("x", content="y"),
        {"choices": [{"text": "x", "content": "y"}]},
        {"choices": [{"delta": {"content": "x"}}, {"delta": {"content": "y"}}]},
        {"choices": [{"index": 1, "delta": {"content": "x"}}]},
        {"choices": [{"delta": {"content": "x"}, "error": "y"}]},
        {"choices": ["x"]},
        {"choices": "x"},
        {"id": _OTHER_ID, "choices": [], "x": _TEXT},
        {"choices": [{"delta": {"content": "x"}}], "x": {"content": "y"}},
        {"choices": [{"delta": {"content": None, "reasoning_details": [{"text": "x"}]}}]},
        "x",
    ],
)
def test_event_that_is_no_plain_one_is_read_by_itself(event: object) -> None:
    one = known_event(sse(event))
    assert one is None or told(sse(event)) == slowly([sse(event)])
    if one is None:
        assert one_by_one([sse(event)] * 3) == slowly([sse(event)] * 3)


@pytest.mark.parametrize(
    "read",
    [
        b'data: {"id":"a","choices":[{"delta":{"content":"x"}}],"id":"b"}\n\n',
        b'data: {"id":"a","id":"b","choices":[{"delta":{"content":"x"}}]}\n\n',
        b'data: {"id":"a","choices":[{"delta":{"content":"x"}}],"choices":[]}\n\n',
        b'data: {"id":"a","x":{"content":"x"},"choices":[{"delta":{"content":"y"}}]}\n\n',
        b'data: {"id":"a","choices":[{"delta":{"content":"x"},"delta":{}}]}\n\n',
        b'data: {"id":"a", 7}\n\n',
    ],
)
def test_what_was_found_elsewhere_than_where_it_is_meant_to_be_is_no_kind(read: bytes) -> None:
    assert known_event(read) is None
    assert one_by_one([read, read]) == slowly([read, read])


OTHERS = st.tuples(st.integers(0, 2), NAMES | TEXTS, TEXTS)
NAMED = st.builds(
    lambda name, event: {**event, "id": name}, st.sampled_from(["a", "b", "", "\\", '"', "é", " "]) | TEXTS, EVENTS
)


@given(
    st.lists(NAMED, min_size=1, max_size=3), st.lists(st.tuples(st.integers(0, 2), NAMES | TEXTS, TEXTS), max_size=8)
)
def test_what_answers_say_does_not_depend_on_those_before_them(
    events: list[dict[str, Any]], others: list[tuple[int, str, str]]
) -> None:
    """The same few events again and again, under other names and with other texts."""
    answers = [events, *([renamed(events[which % len(events)], name, text)] for which, name, text in others)]
    for answer in answers:
        reads = [sse(event) for event in answer]
        assert one_by_one(reads) == slowly(reads)


def test_events_that_all_have_something_of_their_own_are_hardly_asked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def asking(read: bytes) -> KnownEvent | None:
        asked.append(read)
        return known_event(read)

    monkeypatch.setattr("benchgate.load.decode.chat.known_event", asking)
    events = [sse(said("x", padding="y" * (number % 40))) for number in range(1_000)]
    assert one_by_one(events) == slowly(events)
    assert len(asked) <= 50


def test_a_mark_of_the_beginning_is_none_after_the_first_event() -> None:
    marked = b"\xef\xbb\xbf" + sse(said("x"))
    assert len(one_by_one([marked, sse(said("x"))]).chunk_ns) == 2
    reads = [sse(said("x")), marked[:20], marked[20:]]
    assert one_by_one(reads) == slowly(reads)
    assert len(one_by_one(reads).chunk_ns) == 1


def renamed(event: dict[str, Any], name: str, text: str) -> dict[str, Any]:
    first, *rest = event["choices"]
    delta = {piece: value if value is None else text for piece, value in first["delta"].items()}
    return {**event, "id": name, "choices": [{**first, "delta": delta}, *rest]}
