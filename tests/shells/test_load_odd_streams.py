"""Streams whose bytes are unusual or wrong, and the class of the record that comes of each."""

import pytest

from benchgate.model.records import ErrorClass
from tests.fakes.scripted_server import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    ScriptedServer,
    Step,
    chunk,
    event,
    finish,
    role_event,
    stream_head,
    token,
    usage,
)  # fmt: skip
from tests.shells.load_helpers import HALO, closed, run

REST = finish("stop") + usage(4, 3) + DONE + LAST_CHUNK
TOKENS = [role_event(), token("Hal"), token("lo"), token("!")]
EVENTS = b"".join(
    b"data: %b\n\n" % data
    for data in (
        b'{"choices":[{"index":0,"delta":{"content":"Hal"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"lo"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}]}',
        b"[DONE]",
    )
)
CRLF = EVENTS.replace(b"data:", b": keep-alive\n\ndata:").replace(b"\n", b"\r\n")
FINISH = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}})
HUGE = event('{"choices":[],"padding":"' + "x" * 1_000_000 + '"}')
LONG = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
REDIRECT = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("steps", "source"),
    [
        ([HALO, FINISH, DONE + LAST_CHUNK], "usage"),
        ([HALO, finish("stop") + DONE, 0.01, usage(4, 3) + LAST_CHUNK], "chunks"),
        ([stream_head(), chunk(CRLF) + LAST_CHUNK], "chunks"),
        ([stream_head(), *(chunk(CRLF[at : at + 1]) for at in range(len(CRLF))), LAST_CHUNK], "chunks"),
        ([stream_head(), 0.05, *TOKENS, REST], "usage"),
        ([stream_head() + role_event(), 0.05, *TOKENS[1:], REST], "usage"),
        ([stream_head(), *TOKENS[:3], HUGE, TOKENS[3], REST], "usage"),
        ([stream_head(), TOKENS[0], token("H~l").replace(b"~", b"\xff"), *TOKENS[2:], REST], "usage"),
        ([LONG % 10_000_000, EVENTS, CLOSE], "chunks"),  # the answer was over; what follows does not matter
    ],
    ids=[
        "usage in the finish event", "usage after [DONE]", "CRLF and comments", "CRLF byte by byte", "early head",
        "early role", "huge event", "no UTF-8", "length far too long",
    ],
)  # fmt: skip
def test_unusual_stream_is_a_success(steps: list[Step], source: str) -> None:
    with ScriptedServer(lambda _: steps) as server:
        columns = run(server.url, closed(1)).requests
    assert columns.error == (None,), columns.error_detail
    assert columns.output_tokens.tolist() == [3]
    assert list(columns.token_source) == [source]


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([HALO, event({"error": "the server failed"}), LAST_CHUNK], ErrorClass.STREAM_BROKEN),
        ([stream_head(), DONE + LAST_CHUNK], ErrorClass.EMPTY),
        ([REDIRECT], ErrorClass.PROTOCOL),
        ([HALO, event('{"id":"broken","choices":[{"index":0,'), REST], ErrorClass.PROTOCOL),
        ([LONG % 20, EVENTS, CLOSE], ErrorClass.PROTOCOL),
    ],
    ids=["error that is a text", "[DONE] alone", "redirect", "no JSON", "length far too short"],
)
def test_wrong_stream_is_a_failure_of_its_class(steps: list[Step], error: ErrorClass) -> None:
    with ScriptedServer(lambda _: steps) as server:
        columns = run(server.url, closed(1)).requests
    assert columns.error == (error,), columns.error_detail
