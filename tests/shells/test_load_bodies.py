"""Every way in which HTTP/1.1 frames a response, and what is refused, over real connections."""

import gzip

import pytest

from benchgate.model.records import ErrorClass
from tests.fakes.scripted_server import CLOSE, DONE, LAST_CHUNK, ScriptedServer, Step, chunk, finish, stream_head, token
from tests.shells.load_helpers import WHOLE, closed, run

EVENTS = [
    b'data: {"choices":[{"index":0,"delta":{"content":"Hal"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
]
PLAIN = b"".join(EVENTS)
TYPE = "content-type: text/event-stream"


def head(*lines: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"HTTP/{version} 200 OK", TYPE, *lines, "", ""]).encode()


LENGTH = head(f"content-length: {len(PLAIN)}")


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([LENGTH, *EVENTS], True),
        ([LENGTH, *(PLAIN[at : at + 1] for at in range(len(PLAIN)))], True),
        ([head(f"content-length: {len(PLAIN)}, {len(PLAIN)}"), PLAIN], True),
        ([head(), *EVENTS, CLOSE], False),
        ([head(version="1.0"), *EVENTS, CLOSE], False),
        ([head("connection: close", f"content-length: {len(PLAIN)}"), PLAIN], False),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", LENGTH, PLAIN], True),
        ([stream_head(), *(b"%x;ext=1\r\n%b\r\n" % (len(e), e) for e in EVENTS), b"0\r\nx-t: 1\r\n\r\n"], True),
        ([head("transfer-encoding: chunked", "content-length: 5"), chunk(PLAIN), LAST_CHUNK], False),
        ([head("x-folded: one", "\ttwo", f"content-length: {len(PLAIN)}"), PLAIN], True),
        ([head("content-encoding: identity", f"content-length: {len(PLAIN)}"), PLAIN], True),
    ],
    ids=[
        "length",
        "length byte by byte",
        "length twice the same",
        "to the close",
        "HTTP/1.0",
        "announced close",
        "interim",
        "extensions and trailers",
        "chunks and length",
        "folded header",
        "identity",
    ],
)
def test_body_is_read_as_its_framing_says(steps: list[Step], kept: bool) -> None:
    with ScriptedServer(lambda _: steps) as server:
        columns = run(server.url, closed(2)).requests
        assert server.connections == (1 if kept else 2)
    assert (tuple(columns.error), columns.output_tokens.tolist()) == ((None, None), [2, 2])


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([head("content-encoding: gzip"), gzip.compress(PLAIN), CLOSE], "content-encoding 'gzip'"),
        ([stream_head("Content-Encoding: br"), chunk(b"\x01\x02"), LAST_CHUNK], "content-encoding 'br'"),
        (
            [head("transfer-encoding: gzip, chunked"), chunk(b"\x1f\x8b"), LAST_CHUNK],
            "'gzip, chunked' was not",
        ),
        ([head("content-length: 3", "content-length: 4"), b"abc"], "declared twice, differently"),
        ([head("content-length: 0x10"), PLAIN], "not a number"),
        ([head("content-length: " + "9" * 40), PLAIN], "not a number"),
        ([b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n"], "another protocol"),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n" * 4000], "head is longer than"),
        ([head("x: " + "y" * 70_000)], "head is longer than"),
        ([b"ICY 200 OK\r\n\r\n"], "does not start like HTTP/1.1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_response_that_cannot_be_read_in_one_way_is_a_protocol_error(steps: list[Step], said: str) -> None:
    with ScriptedServer(lambda _: steps) as server:
        columns = run(server.url, closed(1)).requests
    assert columns.error == (ErrorClass.PROTOCOL,), columns.error_detail
    assert said in str(columns.error_detail[0])


def test_body_shorter_than_its_length_is_a_broken_stream() -> None:
    with ScriptedServer(lambda _: [LENGTH, EVENTS[0], CLOSE]) as server:
        columns = run(server.url, closed(1)).requests
    assert columns.error == (ErrorClass.STREAM_BROKEN,)


def test_coded_refusal_keeps_its_status() -> None:
    refusal = b"HTTP/1.1 503 Busy\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b\x08"
    with ScriptedServer(lambda _: [refusal]) as server:
        columns = run(server.url, closed(1)).requests
    assert columns.error == (ErrorClass.HTTP_5XX,)


@pytest.mark.parametrize("whole", [WHOLE, LENGTH + PLAIN], ids=["chunks", "length"])
def test_bytes_after_an_answer_cost_the_connection_and_are_nobody_s_answer(whole: bytes) -> None:
    with ScriptedServer(lambda _: [whole + b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"]) as server:
        columns = run(server.url, closed(3)).requests
        assert server.connections == 3
    assert set(columns.error) == {None}


def test_head_that_comes_byte_by_byte_is_read() -> None:
    steps: list[Step] = [bytes([byte]) for byte in stream_head("x: " + "y" * 300)]
    with ScriptedServer(lambda _: [*steps, token("a"), finish("stop"), DONE, LAST_CHUNK]) as server:
        columns = run(server.url, closed(2)).requests
        assert server.connections == 1
    assert columns.error == (None, None)
