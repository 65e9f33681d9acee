from array import array
from collections.abc import Iterable
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from benchgate.load.decode.body import RawBody, Read
from benchgate.load.http.parser import Dechunker
from tests.fakes.streams import MadeBody, chunked_bodies, reads_of

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def raw_body(reads: list[bytes], *, length: int | None = None, chunked: bool = False) -> RawBody:
    """A response whose read k came at instant k; the head came with the first."""
    marks = array("q")
    for at_ns, data in enumerate(reads):
        marks.extend((at_ns, len(data) if at_ns else len(HEAD + data)))
    return RawBody(HEAD + b"".join(reads), marks, len(HEAD), length, chunked)


def by_instant(reads: Iterable[Read]) -> list[Read]:
    """What came at each instant, in one piece."""
    joined = ((at_ns, b"".join(data for _, data in same)) for at_ns, same in groupby(reads, key=lambda read: read[0]))
    return [(at_ns, data) for at_ns, data in joined if data]


def cut(made: MadeBody) -> st.SearchStrategy[tuple[MadeBody, list[bytes]]]:
    return st.tuples(st.just(made), reads_of(made.raw))


@given(chunked_bodies().flatmap(cut))
def test_payload_has_the_instants_it_came_at_wherever_reads_and_chunks_end(made: tuple[MadeBody, list[bytes]]) -> None:
    _, reads = made
    dechunker, expected = Dechunker(), list[Read]()
    for at_ns, data in enumerate(reads):
        dechunker.take(at_ns, data, expected)
    assert by_instant(raw_body(reads, chunked=True)) == by_instant(expected)


@given(chunked_bodies().flatmap(cut), st.integers(0, 400))
def test_cut_off_body_gives_what_had_come(made: tuple[MadeBody, list[bytes]], kept: int) -> None:
    body, reads = made
    left = b"".join(reads[:kept])
    given_back = b"".join(data for _, data in raw_body(reads[:kept], chunked=True))
    assert body.payload.startswith(given_back)
    assert len(left) < len(body.raw) or given_back == body.payload


def test_what_is_no_chunk_ends_the_body() -> None:
    assert list(raw_body([b"1\r\na\r\n", b"xyz\r\n1\r\nb\r\n"], chunked=True)) == [(0, b"a")]


def test_body_of_a_declared_length_ends_there() -> None:
    reads = [b"ab", b"cd", b"HTTP/1.1 200 OK"]
    assert list(raw_body(reads, length=3)) == [(0, b"ab"), (1, b"c")]
    assert list(raw_body(reads, length=0)) == []


def test_body_without_framing_is_everything_after_the_head() -> None:
    assert list(raw_body([b"", b"ab", b"c"])) == [(1, b"ab"), (2, b"c")]


def test_many_events_in_one_read_are_given_one_by_one() -> None:
    """So that each of them can be taken by itself."""
    assert list(raw_body([b"1\r\na\r\n1\r\nb\r\nB\r\n0123456789a\r\n"], chunked=True)) == [
        (0, b"a"),
        (0, b"b"),
        (0, b"0123456789a"),
    ]
