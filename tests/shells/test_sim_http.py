"""Requests out of bytes, split anywhere: framing is read strictly and in time that grows with the bytes."""

from __future__ import annotations

import time

import pytest

from benchgate.sim.http_server import BadRequest, RequestReader

CHUNKED = b"POST /first HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
NEXT = b"GET /second HTTP/1.1\r\n\r\n"


def paths_and_bodies(data: bytes, piece_bytes: int) -> list[tuple[str, bytes]]:
    reader, found = RequestReader(), list[tuple[str, bytes]]()
    for at in range(0, len(data), piece_bytes):
        reader.feed(data[at : at + piece_bytes])
        while (request := reader.next()) is not None:
            found.append((request.path, request.body))
    return found


@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
@pytest.mark.parametrize("trailer", [b"", b"x-checksum: 1\r\n", b"a: 1\r\nb: 2\r\n"], ids=["none", "one", "two"])
def test_trailers_of_a_chunked_request_are_no_part_of_the_next(trailer: bytes, piece_bytes: int) -> None:
    data = CHUNKED + b"3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\n" + trailer + b"\r\n" + NEXT
    assert paths_and_bodies(data, piece_bytes) == [("/first", b"abc0123456789"), ("/second", b"")]


@pytest.mark.parametrize("size", [b"+5", b"0x5", b"1_0", b"-1", b"", b"g", b" 5 5", b"5" * 40])
def test_chunk_size_that_is_no_hexadecimal_number_is_refused(size: bytes) -> None:
    with pytest.raises(BadRequest):
        paths_and_bodies(CHUNKED + size + b"\r\nabcde\r\n0\r\n\r\n", 10_000)


@pytest.mark.parametrize("length", [b"-1", b"+5", b"", b"99999999", b"9" * 40, b"9" * 5000])
def test_length_that_is_no_number_or_too_large_is_refused(length: bytes) -> None:
    with pytest.raises(BadRequest):
        paths_and_bodies(b"POST /first HTTP/1.1\r\ncontent-length: " + length + b"\r\n\r\n", 10_000)


def test_chunk_that_is_longer_than_its_size_is_refused() -> None:
    with pytest.raises(BadRequest):
        paths_and_bodies(CHUNKED + b"3\r\nabcde\r\n0\r\n\r\n", 10_000)


@pytest.mark.parametrize("framing", ["chunks", "length"])
def test_long_body_is_read_in_time_that_grows_with_its_length(framing: str) -> None:
    size, piece = 8 * 2**20, 1024
    if framing == "chunks":
        data = CHUNKED + (b"%x\r\n%b\r\n" % (piece, b"x" * piece)) * (size // piece) + b"0\r\n\r\n"
    else:
        data = b"POST /first HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size
    began_s = time.process_time()
    ((path, body),) = paths_and_bodies(data, 512)
    assert (path, len(body)) == ("/first", size)
    assert time.process_time() - began_s < 2  # 40 ms; quadratic: a minute
