"""Any split of any valid stream gives the same events, and no byte of them is lost."""

import json
from bisect import bisect_right
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from benchgate.load.decode.chat import read_stream
from benchgate.load.decode.sse import Event, EventParser
from tests.fakes.streams import MadeStream, event_streams, reads_of
from tests.shells.test_load_sse import reference


def parsed(reads: list[bytes]) -> list[Event]:
    """Read k arrives at instant k, from 0."""
    parser = EventParser()
    return [event for at_ns, data in enumerate(reads) for event in parser.feed(at_ns, data)]


def cut(made: MadeStream) -> st.SearchStrategy[tuple[MadeStream, list[bytes]]]:
    return st.tuples(st.just(made), reads_of(made.raw))


@given(event_streams().flatmap(cut))
def test_any_split_of_any_valid_stream_gives_its_events(made: tuple[MadeStream, list[bytes]]) -> None:
    stream, reads = made
    assert tuple(event.data for event in parsed(reads)) == stream.texts


@given(event_streams().flatmap(cut))
def test_event_has_the_instant_of_the_read_with_the_byte_that_completes_it(
    made: tuple[MadeStream, list[bytes]],
) -> None:
    stream, reads = made
    ends = list(accumulate(map(len, reads)))
    assert [event.at_ns for event in parsed(reads)] == [bisect_right(ends, at) for at in stream.completed_at]


PAYLOADS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1, max_size=20)
)


@given(PAYLOADS.flatmap(lambda texts: st.tuples(st.just(texts), reads_of(as_stream(texts)))))
def test_events_written_again_are_the_bytes_that_came(made: tuple[list[str], list[bytes]]) -> None:
    texts, reads = made
    assert as_stream([event.data for event in parsed(reads)]) == as_stream(texts)


def as_stream(texts: list[str]) -> bytes:
    return "".join(f"data: {text}\n\n" for text in texts).encode()


PIECES = st.sampled_from(
    [b"data: a", b"data:", b"data", b"id: 1", b": c", b" ", b"\x00", b"\n", b"\n\n", b"\r", b"\r\n",
     b"\xef\xbb\xbf", b"\xff", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x99\x82"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=25).map(b"".join).flatmap(lambda raw: st.tuples(st.just(raw), reads_of(raw))))
def test_bytes_that_are_no_valid_stream_are_read_alike_however_they_come(made: tuple[bytes, list[bytes]]) -> None:
    raw, reads = made
    assert [event.data for event in parsed(reads)] == reference(
        raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    )


# --- what a stream says, read from the events as the servers make them -----------------------------------------------


def _chat(delta: object, reason: object = None, **rest: object) -> object:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **rest}


_USAGE = {"prompt_tokens": 7, "completion_tokens": 3}
SAYINGS = st.sampled_from(
    [
        _chat({"role": "assistant", "content": ""}),
        *(_chat({"content": text}) for text in ("a", "", "grüße 🙂", '"error": {', "\\n\n", "[DONE]", "data: x")),
        _chat({"content": "b"}, "length"),
        _chat({}, "stop", usage=_USAGE),
        _chat({"content": "c"}, usage=None),
        {"choices": [], "usage": _USAGE},
        {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}},
        {"error": {"message": "no"}},
        "not JSON",
        "[DONE]",
    ]
)


@st.composite
def chat_streams(draw: st.DrawFn) -> bytes:
    """Events of a chat, each as JSON in ASCII or raw UTF-8, some between comments."""
    raw = b""
    for saying in draw(st.lists(SAYINGS, max_size=10)):
        text = saying if isinstance(saying, str) else json.dumps(saying, ensure_ascii=draw(st.booleans()))
        raw += draw(st.sampled_from([b"", b": ping\n\n", b"event: x\n"])) + f"data: {text}\n\n".encode()
    return raw


@given(chat_streams().flatmap(lambda raw: st.tuples(st.just(raw), reads_of(raw))))
def test_any_split_of_a_chat_stream_says_the_same(made: tuple[bytes, list[bytes]]) -> None:
    raw, reads = made
    whole, parts = read_stream([(5, raw)]), read_stream([(5, data) for data in reads])
    assert parts == whole
