"""A response is whole, and only then, whatever reads it comes in: chunk framing by itself, and over a connection."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.load.decode.body import Read
from benchgate.load.http.connection import Connection
from benchgate.load.http.exchange import Exchange, Progress, Response
from benchgate.load.http.parser import Dechunker
from tests.fakes.streams import MadeBody, chunked_bodies, ends_once, reads_of
from tests.shells.load_helpers import limits

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED_HEAD = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def cut(made: MadeBody) -> st.SearchStrategy[tuple[MadeBody, list[bytes]]]:
    return st.tuples(st.just(made), reads_of(made.raw))


@given(chunked_bodies().flatmap(cut), st.binary(max_size=8))
def test_any_split_of_any_chunked_body_gives_its_payload(made: tuple[MadeBody, list[bytes]], after: bytes) -> None:
    body, reads = made
    dechunker, found = Dechunker(), list[Read]()
    for data in [*reads, after]:
        dechunker.take(0, data, found)
    assert b"".join(payload for _, payload in found) == body.payload
    assert dechunker.complete


@given(chunked_bodies())
def test_chunked_body_is_complete_with_its_very_last_byte(body: MadeBody) -> None:
    dechunker = Dechunker()
    dechunker.take(0, body.raw[:-1], None)
    assert not dechunker.complete
    dechunker.take(0, body.raw[-1:], None)
    assert dechunker.complete


# --- over a connection, whose end of response is looked for only where it may be -------------------------------------


class Socket(asyncio.Transport):
    """A transport that sends nothing and whose reads are made by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True


def hear(body: Iterable[Read]) -> Progress:
    return Progress(0)


async def received(reads: list[bytes], *, closes: bool) -> tuple[Response, bool]:
    """The response that these reads are, and whether it was over before the connection was closed.

    Read k comes at instant k.
    """
    connection, transport = Connection(), Socket()
    connection.connection_made(transport)
    exchange = asyncio.create_task(connection.exchange(b"POST", lambda: Exchange(limits(), hear)))
    await asyncio.sleep(0)
    for at_ns, data in enumerate(reads):
        if data:  # no event loop gives an empty read
            with patch("benchgate.load.http.connection.monotonic_ns", lambda at_ns=at_ns: at_ns):
                connection.data_received(data)
    for _ in range(3):
        await asyncio.sleep(0)
    over = exchange.done()
    if closes:
        connection.connection_lost(None)
    return await exchange, over


def body_of(response: Response) -> bytes:
    return b"".join(data for _, data in response.body)


@given(
    chunked_bodies().filter(ends_once).flatmap(lambda made: st.tuples(st.just(made), reads_of(CHUNKED_HEAD + made.raw)))
)
def test_chunked_response_is_over_with_its_last_byte(made: tuple[MadeBody, list[bytes]]) -> None:
    body, reads = made
    response, over = asyncio.run(received(reads, closes=True))
    assert (over, response.whole, response.fault, body_of(response)) == (True, True, None, body.payload)


@given(
    chunked_bodies().filter(ends_once).flatmap(lambda made: st.tuples(st.just(made), reads_of(CHUNKED_HEAD + made.raw)))
)
def test_every_byte_of_a_body_has_the_instant_of_the_read_it_came_in(made: tuple[MadeBody, list[bytes]]) -> None:
    body, reads = made
    response, _ = asyncio.run(received(reads, closes=True))
    ends = list(accumulate(map(len, reads)))
    expected = [bisect_right(ends, len(CHUNKED_HEAD) + place) for place in body.places]
    assert [at_ns for at_ns, data in response.body for _ in data] == expected


@given(st.binary(max_size=60).flatmap(lambda raw: st.tuples(st.just(raw), reads_of(declared(raw)))))
def test_response_of_declared_length_is_over_with_its_last_byte(made: tuple[bytes, list[bytes]]) -> None:
    raw, reads = made
    response, over = asyncio.run(received(reads, closes=True))
    assert (over, response.whole, body_of(response)) == (True, True, raw)


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_response_that_has_no_body_is_over_with_its_head(status: bytes) -> None:
    head = b"HTTP/1.1 " + status + b"\r\ntransfer-encoding: chunked\r\n\r\n"
    response, over = asyncio.run(received([head], closes=False))
    assert (over, response.whole, body_of(response)) == (True, True, b"")


@given(st.binary(max_size=60).flatmap(lambda raw: st.tuples(st.just(raw), reads_of(HEAD + b"\r\n" + raw))))
def test_response_without_length_is_over_when_the_connection_is(made: tuple[bytes, list[bytes]]) -> None:
    raw, reads = made
    response, over = asyncio.run(received(reads, closes=True))
    assert (over, response.whole, response.fault, body_of(response)) == (False, True, None, raw)


@given(chunked_bodies().filter(ends_once).flatmap(lambda made: reads_of((CHUNKED_HEAD + made.raw)[:-1])))
def test_response_without_its_last_byte_is_not_whole(reads: list[bytes]) -> None:
    response, over = asyncio.run(received(reads, closes=True))
    assert (over, response.whole) == (False, False)
    assert response.fault is not None


def declared(body: bytes) -> bytes:
    return HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body)
