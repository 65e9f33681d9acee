"""The ways a stream that began with 200 can be no answer, over a real socket: each of them has been taken for a
success by a load generator in use."""

from collections.abc import Iterable

import numpy as np
import pytest

from benchgate.model import request_metrics
from benchgate.model.metric import Slo
from benchgate.model.records import ErrorClass
from tests.fakes.scripted_server import (
    ABORT,
    CLOSE,
    DONE,
    LAST_CHUNK,
    Received,
    ScriptedServer,
    Step,
    chunk,
    event,
    finish,
    json_response,
    role_event,
    stream_head,
    token,
    usage,
)
from tests.shells.load_helpers import HALO, WHOLE, closed, limits, run

ERROR = event({"error": {"message": "engine died", "code": 500}})
ENDED = DONE + LAST_CHUNK

NAMED = {
    "object": ERROR,
    "text": event({"error": "engine died"}),
    "object with a type alone": event({"error": {"type": "engine died"}}),
    "message beside its kind": event({"object": "error", "message": "engine died", "code": 500}),  # SGLang
    "error and its type": event({"error": "engine died", "error_type": "overloaded"}),  # TGI
    "event with a name": chunk(b'event: error\ndata: {"error": {"message": "engine died"}}\n\n'),
    "event with a name and a message alone": chunk(b'event: error\ndata: {"message": "engine died"}\n\n'),
    "event with a name and plain text": chunk(b"event: error\ndata: engine died\n\n"),
    "message alone": event({"message": "engine died", "code": 500}),
    "detail alone": event({"detail": "engine died"}),
    "type error": event({"type": "error", "message": "engine died"}),
    "error inside a choice": event({"choices": [{"index": 0, "delta": {}, "error": {"message": "engine died"}}]}),
    "error inside a delta": event({"choices": [{"index": 0, "delta": {"error": "engine died"}}]}),
    "errors": event({"errors": [{"message": "engine died"}]}),
    "error beside choices": event({"choices": [], "error": {"message": "engine died"}}),
    "status document": event({"error": {"message": "engine died", "status": "UNAVAILABLE", "code": 503}}),
}

TABLE: dict[str, tuple[list[Step], ErrorClass | None]] = {
    "whole": ([WHOLE], None),
    "whole without [DONE]": ([HALO + finish("stop") + usage(4, 3) + LAST_CHUNK], None),
    "whole, ended by closing": ([HALO + finish("stop") + DONE, CLOSE], None),
    "whole, the end of the body never comes": ([HALO + finish("stop") + DONE, 20.0], None),
    "error after three tokens": ([HALO + ERROR + DONE + LAST_CHUNK], ErrorClass.STREAM_BROKEN),
    "error as a string": ([HALO + event({"error": "engine died"}) + DONE + LAST_CHUNK], ErrorClass.STREAM_BROKEN),
    "error as the first event": ([stream_head() + ERROR + DONE + LAST_CHUNK], ErrorClass.STREAM_BROKEN),
    "clean end without finish reason and [DONE]": ([HALO + LAST_CHUNK], ErrorClass.STREAM_BROKEN),
    "clean end without finish reason": ([HALO + DONE + LAST_CHUNK], ErrorClass.STREAM_BROKEN),
    "closed between chunks": ([HALO, CLOSE], ErrorClass.STREAM_BROKEN),
    "reset in the middle of a chunk": ([HALO + b"40\r\ndata: {", 0.05, ABORT], ErrorClass.STREAM_BROKEN),
    "no chunk in the middle, and the usual end": ([HALO + b"zz\r\n" + finish("stop") + ENDED], ErrorClass.PROTOCOL),
    "the usual end inside a chunk that is longer": (
        [HALO + finish("stop") + b"200\r\ndata: [DONE]\n\n\r\n" + LAST_CHUNK, 0.05, b"x" * 512],
        ErrorClass.PROTOCOL,
    ),
    "finish reason abort": ([HALO + finish("abort") + DONE + LAST_CHUNK], ErrorClass.STREAM_BROKEN),
    "role and empty finish chunk": (
        [stream_head() + role_event() + finish("stop") + DONE + LAST_CHUNK],
        ErrorClass.EMPTY,
    ),
    "only [DONE]": ([stream_head() + DONE + LAST_CHUNK], ErrorClass.EMPTY),
    "empty body": ([stream_head() + LAST_CHUNK], ErrorClass.EMPTY),
    "empty body of length 0": ([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"], ErrorClass.EMPTY),
    "no JSON": (
        [stream_head() + event("{oops") + token("a") + finish("stop") + DONE + LAST_CHUNK],
        ErrorClass.PROTOCOL,
    ),
    "one JSON document": ([json_response({"choices": [{"message": {"content": "hi"}}]})], ErrorClass.PROTOCOL),
    "chunk framing broken": ([HALO + b"zz\r\n\r\n"], ErrorClass.PROTOCOL),
    "a chunk larger than any response": ([stream_head() + b"ffffffffff\r\ndata: {", 20.0], ErrorClass.PROTOCOL),
    "a later chunk larger than any response": ([HALO, 0.05, b"4000001\r\n", 20.0], ErrorClass.PROTOCOL),
    "a length larger than any response": (
        [b"HTTP/1.1 200 OK\r\ncontent-length: 67108865\r\n\r\ndata: {", 20.0],
        ErrorClass.PROTOCOL,
    ),
    "no HTTP": ([b"SSH-2.0-OpenSSH_9.6\r\n"], ErrorClass.PROTOCOL),
    "closed without an answer": ([CLOSE], ErrorClass.STREAM_BROKEN),
    "500": ([json_response({"error": "no"}, status=500)], ErrorClass.HTTP_5XX),
    "429": ([json_response({"error": "no"}, status=429)], ErrorClass.HTTP_429),
    "422": ([json_response({"detail": "Unexpected fields"}, status=422)], ErrorClass.HTTP_4XX),
}


@pytest.mark.parametrize("case", TABLE)
def test_only_a_whole_answer_is_a_success(case: str) -> None:
    steps, expected = TABLE[case]

    def respond(received: Received) -> Iterable[Step]:
        return steps

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(1)).requests
    assert columns.error == (expected,)
    assert bool(columns.error_detail[0]) is (expected is not None)
    assert request_metrics.succeeded(columns).tolist() == [expected is None]
    assert request_metrics.meets_slo(columns, Slo(ttft_s=1000)).tolist() == [expected is None]


@pytest.mark.parametrize(
    "before", [stream_head(), HALO, HALO + finish("stop")], ids=["first", "middle", "after the end"]
)
@pytest.mark.parametrize("case", NAMED)
def test_error_inside_a_stream_is_named_wherever_it_comes(case: str, before: bytes) -> None:
    with ScriptedServer(lambda received: [before + NAMED[case] + ENDED]) as server:
        columns = run(server.url, closed(1)).requests
    assert columns.error == (ErrorClass.STREAM_BROKEN,)
    assert "engine died" in str(columns.error_detail[0])


@pytest.mark.parametrize("silent_s", [0.0, 0.2, 0.5])
def test_stall_after_output_that_came_late_is_a_timeout(silent_s: float) -> None:
    def respond(received: Received) -> Iterable[Step]:
        return [stream_head(), silent_s, role_event() + token("a"), 1.0, token("b") + finish("stop") + ENDED]

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(1), limits(stall_s=0.3, first_token_s=3)).requests
    assert columns.error == (ErrorClass.TIMEOUT,)
    assert "in the middle of the response" in str(columns.error_detail[0])


def test_failures_of_every_kind_stay_in_the_denominator_and_count_as_infinite() -> None:
    """One stage of the whole table: a server that only ever breaks its answers meets no objective."""
    broken = [steps for steps, error in TABLE.values() if error is not None]

    def respond(received: Received) -> Iterable[Step]:
        return broken[int(received.prompt.split()[-1])]

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(len(broken))).requests
    assert len(columns) == len(broken)
    assert request_metrics.goodput_ratio(columns, Slo(ttft_s=1000, e2e_s=1000)) == 0
    assert np.isposinf(request_metrics.ttft_s(columns)).all()
    assert np.isposinf(request_metrics.e2e_s(columns)).all()
    assert request_metrics.output_tokens_per_s(columns, 1.0) == 0


def test_whole_stream_is_the_same_when_split_at_any_byte() -> None:
    """Split on the wire, where the end of the response must be found in pieces of it."""
    cuts = range(len(WHOLE) - 90, len(WHOLE))  # usage, [DONE], and the end of the body

    def respond(received: Received) -> Iterable[Step]:
        cut = cuts[len(server.requests) - 1]
        return [WHOLE[:cut], 0.002, WHOLE[cut:]]

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(len(cuts))).requests
        assert server.connections == 1
    assert set(columns.error) == {None}
    assert set(columns.output_tokens.tolist()) == {3}


def test_stream_sent_byte_by_byte_is_whole() -> None:
    def respond(received: Received) -> Iterable[Step]:
        for at in range(len(WHOLE)):
            yield WHOLE[at : at + 1]
            yield 0.0

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(1)).requests
    assert (tuple(columns.error), columns.output_tokens.tolist(), len(columns.chunk_ns)) == ((None,), [3], 3)
