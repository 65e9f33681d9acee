import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.load.http.parser import Dechunker, MalformedResponse, split_head

CHUNKED = b"3\r\nabc\r\nA;name=value\r\n0\r\n\r\n01234\r\n0\r\ntrailer: x\r\n\r\n"
PAYLOAD = b"abc0\r\n\r\n01234"


def fed(pieces: list[bytes]) -> tuple[bytes, bool]:
    dechunker, found = Dechunker(), list[tuple[int, bytes]]()
    for piece in pieces:
        dechunker.take(0, piece, found)
    return b"".join(payload for _, payload in found), dechunker.complete


def test_body_is_the_same_wherever_its_reads_are_split() -> None:
    for first in range(len(CHUNKED) + 1):
        for second in range(first, len(CHUNKED) + 1):
            assert fed([CHUNKED[:first], CHUNKED[first:second], CHUNKED[second:]]) == (PAYLOAD, True)


def test_terminator_inside_a_chunk_does_not_end_the_body() -> None:
    assert fed([b"6\r\na0\r\n\r\n\r\n"]) == (b"a0\r\n\r\n", False)


def test_body_is_not_complete_before_the_trailers_end() -> None:
    assert fed([CHUNKED[:-1]])[1] is False


def test_bytes_after_the_end_are_not_payload() -> None:
    assert fed([b"1\r\na\r\n0\r\n\r\n", b"HTTP/1.1 200 OK"]) == (b"a", True)


@pytest.mark.parametrize(
    "raw", [b"xyz\r\n", b"-1\r\n", b"+3\r\nabc\r\n", b"3\r\nabcd\r\n", b"1_0\r\n", b"\r\n", b"f" * 20, b"4000001\r\n"]
)
def test_what_is_not_chunked_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedResponse):
        fed([raw + b"\r\n"])


LONG_SIZE = b"3;name=%b\r\nabc\r\n0\r\n\r\n"
LONG_TRAILER = b"3\r\nabc\r\n0\r\nname: %b\r\n\r\n"


@pytest.mark.parametrize("step", [1, 100, 10_000], ids=["byte by byte", "in pieces", "at once"])
@pytest.mark.parametrize("body", [LONG_SIZE, LONG_TRAILER], ids=["size", "trailer"])
def test_line_between_chunks_may_have_eight_kibibytes_and_no_more(body: bytes, step: int) -> None:
    def taken(value_bytes: int, ending: int | None = None) -> tuple[bytes, bool]:
        raw = (body % (b"x" * value_bytes))[:ending]
        return fed([raw[at : at + step] for at in range(0, len(raw), step)])

    assert taken(8100) == (b"abc", True)
    with pytest.raises(MalformedResponse, match="longer than 8192 bytes"):
        taken(8200)
    with pytest.raises(MalformedResponse, match="longer than 8192 bytes"):
        taken(9000, ending=8500)  # and nobody waits for its end


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.lists(st.integers(0, 400), max_size=6))
def test_any_payload_survives_any_split(chunks: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(b"%X\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(edges)]
    assert fed(pieces) == (b"".join(chunks), True)


def test_head_is_read_and_what_follows_it_is_kept() -> None:
    split = split_head(b"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\nX-A: 1\r\nx-a: 2\r\n\r\nno")
    assert split is not None
    head, rest = split
    assert (head.status, head.content_length, head.headers["x-a"], rest) == (429, 2, "1, 2", b"no")
    assert head.keeps_alive


def test_interim_responses_are_skipped() -> None:
    split = split_head(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    assert split is not None
    assert (split[0].status, split[0].chunked, split[0].content_length) == (200, True, None)


def test_incomplete_head_is_waited_for() -> None:
    raw = b"HTTP/1.1 200 OK\r\na: b\r\n\r\n"
    assert all(split_head(raw[:end]) is None for end in range(len(raw)))


@pytest.mark.parametrize("headers", [b"connection: close", b"Connection: Close, x"])
def test_announced_close_ends_the_connection(headers: bytes) -> None:
    split = split_head(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n\r\n")
    assert split is not None
    assert not split[0].keeps_alive


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200" + b"x" * 70_000,
    ],
)
def test_what_is_no_http_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedResponse):
        split_head(raw)


def test_content_length_that_is_no_number_is_refused() -> None:
    split = split_head(b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n")
    assert split is not None
    with pytest.raises(MalformedResponse, match="content-length"):
        _ = split[0].content_length


PIECES = [
    b"content-length", b"transfer-encoding", b"connection", b"content-encoding", b": ", b":", b",", b"chunked", b"gzip",
    b"close", b"5", b"-1", b"\r\n", b"\n", b"\r\n\r\n", b" ", b"\t", b"HTTP/1.1 100 C", b"HTTP/1.1 200 OK", b"\xff",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), max_size=24))
def test_whatever_comes_is_a_head_or_not_one_yet_or_refused(pieces: list[bytes]) -> None:
    try:
        split = split_head(b"HTTP/1.1 200 OK\r\n" + b"".join(pieces))
        if split is not None:
            head, rest = split
            assert head.content_length is None or head.content_length >= 0
            assert isinstance(head.chunked, bool)
            assert isinstance(head.keeps_alive, bool)
            assert b"".join(pieces).endswith(rest)
    except MalformedResponse:
        pass
