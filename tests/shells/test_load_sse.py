import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.load.decode.sse import LONGEST_EVENT_BYTES, Event, EventParser, OverlongEvent, is_plain_event, plain_data


def parse(*reads: bytes) -> list[Event]:
    """Read k arrives at instant k, from 1."""
    parser = EventParser()
    return [event for at_ns, data in enumerate(reads, start=1) for event in parser.feed(at_ns, data)]


def texts(*reads: bytes) -> list[str]:
    return [event.data for event in parse(*reads)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard_works(end: bytes) -> None:
    lines = [b": comment", b"data: a", b"", b"id: 7", b"data:b", b"data:  c", b"", b"data", b"", b"event: x", b"", b""]
    assert texts(end.join(lines)) == ["a", "b\n c", ""]


def test_comments_and_events_without_data_are_no_events() -> None:
    assert texts(b": ping\n\n", b"event: x\nid: 1\n\n", b"\n\n\n", b"data: a\n\n") == ["a"]


def test_other_fields_that_begin_like_data_are_not_data() -> None:
    assert texts(b"database: a\n\n", b" data: b\n\n") == []


def test_event_without_its_blank_line_is_no_event() -> None:
    assert texts(b"data: a\n\ndata: b\n") == ["a"]


def test_byte_order_mark_is_skipped_at_the_start_only() -> None:
    assert texts(b"\xef\xbb\xbfdata: a\n\n", b"\xef\xbb\xbfdata: b\n\n") == ["a"]


def test_event_has_the_instant_of_the_read_that_completed_it() -> None:
    events = parse(b"data: a\n\ndata: b\n\nda", b"ta: c\n", b"\ndata: d\n\n")
    assert events == [Event(1, "a"), Event(1, "b"), Event(3, "c"), Event(3, "d")]


def test_cr_lf_split_between_reads_is_one_line_end() -> None:
    assert texts(b"data: a\r", b"\ndata: b\r", b"\n", b"\r", b"\ndata: c\r\n\r\n") == ["a\nb", "c"]


STREAM = 'data: grüße 🙂\n\n: x\n\ndata: {"a": 1}\ndata: 2\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_the_same_split_at_every_byte(end: str) -> None:
    raw = STREAM.replace("\n", end).encode()
    for cut in range(len(raw) + 1):
        assert texts(raw[:cut], raw[cut:]) == ["grüße 🙂", '{"a": 1}\n2', "[DONE]"]
    assert texts(*(raw[at : at + 1] for at in range(len(raw)))) == ["grüße 🙂", '{"a": 1}\n2', "[DONE]"]


def reference(raw: str) -> list[str]:
    """The standard's own algorithm, line by line over the whole stream."""
    lines = raw.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    events: list[str] = []
    data: list[str] = []
    for line in lines:
        if line == "":
            if data:
                events.append("\n".join(data))
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line == "data":
            data.append("")
    return events


@given(
    st.lists(
        st.sampled_from(["data: a", "data:b", "data", ": c", "id: 1", "", "", "data: é🙂", "\n", "\r", "\r\n"])
    ).map(lambda parts: "".join(parts)),
    st.lists(st.integers(0, 80), max_size=8),
)
def test_any_stream_split_anywhere_gives_the_events_of_the_standard(raw: str, cuts: list[int]) -> None:
    data = raw.encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert texts(*(data[a:b] for a, b in itertools.pairwise(edges))) == reference(raw)


@given(
    st.sampled_from([b"data: ", b"data:", b"data", b": ", b""]),
    st.binary(max_size=12) | st.sampled_from([b"a\ndata: b", b"a\n\ndata: b", b"\r", b"\xef\xbb\xbf", b"\n"]),
    st.sampled_from([b"\n\n", b"\n", b"\r\n\r\n", b""]),
)
def test_read_that_is_one_event_says_what_the_parser_says(begin: bytes, inside: bytes, end: bytes) -> None:
    data = begin + inside + end
    if is_plain_event(data):
        for before in (b"", b"data: first\n\n"):
            parser = EventParser()
            parser.feed(0, before)
            assert parser.between_events
            assert parser.feed(1, data) == [Event(1, plain_data(data))]
            assert parser.between_events


def test_what_marks_the_beginning_is_content_once_it_has_begun_also_where_others_took_the_first_event() -> None:
    marked = b"\xef\xbb\xbfdata: a\n\n"
    assert texts(marked) == ["a"]
    parser = EventParser()
    parser.begun()
    assert parser.feed(1, marked) == []


def test_nothing_is_between_events_in_the_middle_of_one() -> None:
    parser = EventParser()
    for data, between in ((b"data: a\n\n", True), (b"data: b\n", False), (b"\n", True), (b"data: c\r\n\r", False)):
        parser.feed(0, data)
        assert parser.between_events is between


@pytest.mark.parametrize("read_bytes", [2**16, 2**24])
def test_event_that_does_not_end_is_given_up(read_bytes: int) -> None:
    parser = EventParser()
    with pytest.raises(OverlongEvent):
        for _ in range(2 * LONGEST_EVENT_BYTES // read_bytes + 1):
            parser.feed(0, b"x" * read_bytes)


def test_line_end_of_two_bytes_that_comes_apart_swallows_no_line_end_after_it() -> None:
    for reads in ([b"data: x\r", b"\n", b"\n"], [b"data: x\r", b"", b"\n\n"], [b"data: x\r\n", b"\n"]):
        assert texts(*reads) == ["x"]
