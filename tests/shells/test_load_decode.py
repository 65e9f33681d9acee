import json
from collections.abc import Sequence

import pytest

from benchgate.errors import TargetError
from benchgate.load.decode.record import progress_of
from benchgate.load.http.exchange import Failure, Progress, Response
from benchgate.load.http.parser import Head
from benchgate.model.records import ErrorClass, RequestRecord, TokenSource
from benchgate.model.request import ModelRequest
from benchgate.targets.answers import read_answer
from benchgate.targets.error_messages import Secret
from tests.shells.load_helpers import decode

EPOCH = 1000


def event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def chat(fields: dict[str, object], reason: object = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]})


def usage(prompt: object, completion: object) -> dict[str, object]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


ROLE = chat({"role": "assistant", "content": ""})
A, B = chat({"content": "A"}), chat({"content": "B"})
STOP = chat({}, "stop")
DONE = b"data: [DONE]\n\n"


def read(
    body: Sequence[tuple[int, bytes]], *, status: int = 200, fault: Failure | None = None, secret: Secret = None
) -> RequestRecord:
    """The record of request 7, intended at 90 and sent at 100 after an epoch of 1000."""
    reads = [(EPOCH + at_ns, data) for at_ns, data in body]
    head = Head("HTTP/1.1", status, {})
    response = Response(
        sent_ns=EPOCH + 100, over_ns=EPOCH + 999, head=head, body=reads, whole=fault is None, fault=fault
    )
    return decode(7, 90, EPOCH, response, secret=secret)


def stream(*events: bytes, fault: Failure | None = None) -> RequestRecord:
    """The events arrive at 110, 120, 130, …"""
    return read([(110 + 10 * at, data) for at, data in enumerate(events)], fault=fault)


def test_timeline_counts_output_chunks_and_ends_at_the_finish_event() -> None:
    record = stream(ROLE, A, B, STOP, event({"choices": [], "usage": usage(5, 3)}), DONE)
    assert record == RequestRecord(
        index=7,
        intended_ns=90,
        sent_ns=100,
        chunk_ns=(120, 130),
        end_ns=140,
        input_tokens=5,
        output_tokens=3,
        token_source=TokenSource.USAGE,
        finish_reason="stop",
        http_status=200,
        error=None,
        error_detail=None,
        reconnects=0,
        first_answer_ns=120,
        answer_chars=2,
        reasoning_chars=0,
        tool_calls=0,
        first_visible=True,
    )


def test_completions_stream_carries_text() -> None:
    pieces = [("", None), ("x", None), ("y", "length")]
    record = stream(*(event({"choices": [{"text": text, "finish_reason": reason}]}) for text, reason in pieces), DONE)
    assert (record.chunk_ns, record.end_ns, record.finish_reason, record.error) == ((120, 130), 130, "length", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"role": "assistant", "content": "hm"},  # litgpt: no role event of its own
        {"content": None, "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_every_kind_of_output_starts_the_clock(fields: dict[str, object]) -> None:
    assert stream(ROLE, chat(fields), A, STOP).chunk_ns == (120, 130)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"content": ""},
        {"content": None},
        {"tool_calls": []},
        {"tool_calls": [{"index": 0, "function": {"name": ""}}]},
    ],
)
def test_chunk_without_output_does_not_start_the_clock(fields: dict[str, object]) -> None:
    assert stream(chat(fields), A, STOP).chunk_ns == (120,)


def test_end_is_done_when_no_finish_event_came_but_that_is_no_success() -> None:
    record = stream(A, DONE)
    assert (record.end_ns, record.error) == (120, ErrorClass.STREAM_BROKEN)


def test_done_is_optional() -> None:
    record = stream(A, STOP)
    assert (record.end_ns, record.error) == (120, None)


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
def test_whole_answers_succeed(reason: str) -> None:
    assert stream(A, chat({}, reason), DONE).error is None


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter", "x" * 500, 3])
def test_other_finish_reasons_fail(reason: object) -> None:
    record = stream(A, chat({}, reason), DONE)
    assert record.error == ErrorClass.STREAM_BROKEN
    assert len(record.finish_reason or "") <= 40


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        ([A, B, STOP, event({"choices": [], "usage": usage(9, 4)})], (9, 4, TokenSource.USAGE)),
        (
            [A, B, event({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage(9, 4)})],
            (9, 4, TokenSource.USAGE),
        ),
        (
            [
                event({"choices": [{"delta": {"content": "A"}}], "usage": usage(9, 1)}),
                event({"choices": [{"delta": {"content": "B"}, "finish_reason": "stop"}], "usage": usage(9, 2)}),
            ],
            (9, 2, TokenSource.USAGE),
        ),
        (
            [A, B, STOP, event({"choices": [], "usage": usage(9, 4)}), event({"choices": [], "usage": usage(0, 0)})],
            (9, 4, TokenSource.USAGE),
        ),
        ([A, B, STOP, event({"choices": [], "usage": None})], (None, 2, TokenSource.CHUNKS)),
        ([A, B, STOP, event({"choices": [], "usage": usage(0, 0)})], (None, 2, TokenSource.CHUNKS)),
        ([A, B, STOP, event({"choices": [], "usage": usage(True, "4")})], (None, 2, TokenSource.CHUNKS)),
        ([A, B, STOP, event({"choices": [], "usage": usage(-1, 10**30)})], (None, 2, TokenSource.CHUNKS)),
        ([A, B, STOP, event({"choices": [], "usage": usage(9, 1)})], (9, 1, TokenSource.USAGE)),
        ([A, B, STOP], (None, 2, TokenSource.CHUNKS)),
    ],
    ids=[
        "own event",
        "finish event",
        "every event",
        "zeros after",
        "null",
        "zeros",
        "not numbers",
        "absurd",
        "below chunks",
        "none",
    ],
)
def test_usage_is_taken_wherever_it_stands(events: list[bytes], counts: tuple[int | None, int, TokenSource]) -> None:
    record = stream(*events, DONE)
    assert (record.input_tokens, record.output_tokens, record.token_source) == counts
    assert record.error is None


@pytest.mark.parametrize(
    "said",
    [{"error": {"message": "no room", "code": 503}}, {"error": "no room"}, {"object": "error", "message": "no room"}],
)
@pytest.mark.parametrize("before", [[], [ROLE, A, B]], ids=["first event", "in the middle"])
def test_error_inside_the_stream_fails_with_the_servers_words(said: dict[str, object], before: list[bytes]) -> None:
    record = stream(*before, event(said), DONE)
    assert record.error == ErrorClass.STREAM_BROKEN
    assert record.error_detail == "error inside the stream: no room"
    assert record.http_status == 200


def test_error_after_the_finish_event_still_fails() -> None:
    assert stream(A, STOP, event({"error": "late"})).error == ErrorClass.STREAM_BROKEN


@pytest.mark.parametrize(
    "extra",
    [
        {"object": "list", "data": []},
        {"type": "ping"},
        {"choices": [], "prompt_filter_results": []},
        {"choices": [{"delta": {}, "error": None}], "message": "warming up"},
        {"usage": {"prompt_tokens": 3, "completion_tokens": 1}, "detail": "cached"},
        {"message": None, "detail": ""},
    ],
)
def test_fields_that_servers_add_are_no_error(extra: dict[str, object]) -> None:
    assert stream(ROLE, A, event(extra), b"event: message\n" + STOP, DONE).error is None


def test_null_error_is_no_error() -> None:
    assert (
        stream(event({"error": None, "choices": [{"delta": {"content": "A"}, "finish_reason": "stop"}]})).error is None
    )


def test_failed_request_keeps_what_was_seen() -> None:
    record = stream(ROLE, A, B, fault=Failure(ErrorClass.TIMEOUT, "stalled"))
    assert (record.chunk_ns, record.output_tokens, record.end_ns) == ((120, 130), 2, None)
    assert (record.error, record.error_detail) == (ErrorClass.TIMEOUT, "stalled")


def test_what_the_connection_does_after_the_finish_event_does_not_matter() -> None:
    record = stream(A, STOP, fault=Failure(ErrorClass.STREAM_BROKEN, "reset"))
    assert (record.error, record.end_ns) == (None, 120)


@pytest.mark.parametrize("alone", [True, False])
def test_output_after_the_finish_reason_is_no_answer_that_was_asked_for(alone: bool) -> None:
    events = [A, A, A, STOP, A, chat({}, "stop"), DONE]
    record = stream(*events) if alone else stream(b"".join(events))
    assert (record.error, record.error_detail) == (ErrorClass.PROTOCOL, "output after the finish reason")


def test_output_beside_the_finish_reason_is_part_of_the_answer() -> None:
    assert stream(A, chat({"content": "B"}, "stop"), chat({}, "stop"), DONE).error is None


def test_what_ends_the_connection_counts_where_output_went_on_after_the_finish_reason() -> None:
    record = stream(A, STOP, B, fault=Failure(ErrorClass.TIMEOUT, "stalled"))
    assert (record.error, record.error_detail) == (ErrorClass.TIMEOUT, "stalled")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", ErrorClass.EMPTY),
        (b"\r\n", ErrorClass.EMPTY),
        (DONE, ErrorClass.EMPTY),
        (ROLE + STOP + DONE, ErrorClass.EMPTY),
        (ROLE + A, ErrorClass.STREAM_BROKEN),
        (ROLE, ErrorClass.STREAM_BROKEN),
        (A + STOP[:-1], ErrorClass.STREAM_BROKEN),
        (A + b"data: {not json}\n\n" + STOP, ErrorClass.PROTOCOL),
        (b"data: [1]\n\n" + A + STOP, ErrorClass.PROTOCOL),
        (b"data: " + b"[" * 100_000 + b"\n\n" + A + STOP, ErrorClass.PROTOCOL),
        (b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}', ErrorClass.PROTOCOL),
        (b'{"error": "no"}', ErrorClass.PROTOCOL),
        (b"<html>login</html>", ErrorClass.PROTOCOL),
        (b'data: {"choices": [null, 3, {"delta": 4}], "usage": 5}\n\n' + DONE, ErrorClass.EMPTY),
    ],
)
def test_200_without_a_whole_answer_fails(body: bytes, error: ErrorClass) -> None:
    record = read([(110, body)] if body else [])
    assert record.error == error
    assert record.error_detail


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ErrorClass.HTTP_4XX),
        (404, ErrorClass.HTTP_4XX),
        (429, ErrorClass.HTTP_429),
        (500, ErrorClass.HTTP_5XX),
        (503, ErrorClass.HTTP_5XX),
        (204, ErrorClass.PROTOCOL),
        (307, ErrorClass.PROTOCOL),
    ],
)
def test_status_decides_the_class_of_an_http_error(status: int, error: ErrorClass) -> None:
    record = read([(110, A + STOP)], status=status)
    assert (record.error, record.http_status, record.chunk_ns) == (error, status, ())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "too long", "type": "x"}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": "too long"}', "too long"),
        (b'{"detail": [{"loc": ["body", "x"], "msg": "bad", "input": "hi"}, {"msg": "no"}]}', "bad (body.x); no"),
        (b'{"detail": [{"loc": 3}]}', '[{"loc": 3}]'),
        (b"too\nlong \x1b[31m", "too long [31m"),
        (b'{"error": {"code": 4}}', '{"code": 4}'),
    ],
)
def test_server_words_are_kept_on_one_line(body: bytes, said: str) -> None:
    assert read([(110, body)], status=400).error_detail == f"HTTP 400: {said}"


def test_server_words_are_cut_at_300_characters() -> None:
    assert len(read([(110, b"x" * 10_000)], status=500).error_detail or "") == 300


def test_key_repeated_by_the_server_is_not_kept() -> None:
    record = read([(110, b'{"error": "bad key sk-secret"}')], status=401, secret="sk-secret")
    assert record.error_detail == "HTTP 401: bad key [redacted]"


SECRET = "sk-" + "0123456789" * 3
BOTH = ("0123456789", SECRET)  # one is a part of the other


@pytest.mark.parametrize("secret", [SECRET, BOTH], ids=["one", "several"])
@pytest.mark.parametrize(
    "body",
    [
        DONE.replace(b"[DONE]", b"x" * 100 + SECRET.encode()),
        DONE.replace(b"[DONE]", b"x" * 110 + SECRET.encode()),
        A + chat({}, "x" * 30 + SECRET),
        A + chat({}, SECRET + "x" * 30),
        b" " * 1190 + SECRET.encode(),
        b"<p>" * 60 + b" " * 1010 + SECRET.encode(),
    ],
    ids=["event", "cut event", "cut reason", "reason", "cut body", "cut words"],
)
def test_key_repeated_by_the_server_is_not_kept_where_its_words_are_cut(
    body: bytes, secret: str | tuple[str, ...]
) -> None:
    for status in (200, 500):
        record = read([(110, body)], status=status, secret=secret)
        kept = f"{record.error_detail} {record.finish_reason}"
        assert record.error is not None
        assert "sk-" not in kept
        assert "0123" not in kept


def test_key_in_a_whole_answer_that_is_refused_is_not_shown_where_its_words_are_cut() -> None:
    with pytest.raises(TargetError) as caught:
        read_answer("chat", 502, b" " * 1190 + SECRET.encode(), secret=BOTH)
    assert str(caught.value) == "HTTP 502:"


def test_request_that_was_never_sent_is_a_record_too() -> None:
    response = Response(sent_ns=None, over_ns=EPOCH, fault=Failure(ErrorClass.CONNECT, "refused"), reconnects=1)
    record = decode(3, 5, EPOCH, response)
    assert (record.index, record.intended_ns, record.sent_ns, record.http_status) == (3, 5, None, None)
    assert (record.error, record.error_detail, record.reconnects) == (ErrorClass.CONNECT, "refused", 1)


def test_what_was_heard_last_is_the_last_chunk_that_carries_output() -> None:
    assert progress_of([(1, ROLE), (2, b": ping\n\n"), (3, A[:-1])]) == Progress()
    assert progress_of([(1, ROLE), (2, A)]) == Progress(2)
    assert progress_of([(1, A), (2, B), (3, b": ping\n\n"), (4, ROLE), (5, A[:-1])]) == Progress(2)
    assert progress_of([(1, A), (2, STOP), (3, b": ping\n\n")]) == Progress(1, finished=True)
    words = (event({"type": "response.output_text.delta", "delta": "A"}), event({"type": "response.in_progress"}))
    told = [(at_ns, data) for at_ns, data in enumerate(words)]
    assert (progress_of(told, ModelRequest("responses", {}, None)), progress_of(told)) == (Progress(0), Progress())


@pytest.mark.parametrize("told", [10**30, 2**31, 0, -1, True, 3.0, "3"])
def test_count_no_answer_can_have_is_unknown_in_a_whole_answer_too(told: object) -> None:
    choice = {"message": {"content": "hi"}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "usage": usage(1, told)}).encode()
    assert read_answer("chat", 200, body).output_tokens is None


def test_stream_with_an_event_that_does_not_end_is_malformed() -> None:
    record = stream(ROLE, A, b"data: " + b"x" * 2**23, STOP, DONE)
    assert record.error is ErrorClass.PROTOCOL
    assert record.error_detail == "an event longer than 8388608 bytes"
    assert record.chunk_ns == (120,)


@pytest.mark.parametrize("alone", [True, False])
def test_stream_of_too_many_events_is_malformed(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    monkeypatch.setattr("benchgate.load.decode.chat.MOST_EVENTS", 20)
    events = [A] * 21
    record = stream(*events, STOP, DONE) if alone else stream(b"".join(events), STOP, DONE)
    assert (record.error, record.error_detail) == (ErrorClass.PROTOCOL, "more than 20 events")


@pytest.mark.parametrize("said", [b":\n\n", b"data:\n\n", b"data: \n\n", b"event: ping\ndata: \n\n"])
def test_saying_without_end_that_one_is_there_is_malformed_too(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr("benchgate.load.decode.chat.MOST_EVENTS", 20)
    for pieces in ([said] * 21, [said * 21]):
        record = stream(A, *pieces, STOP, DONE)
        assert (record.error, record.error_detail) == (ErrorClass.PROTOCOL, "more than 20 events")
    assert stream(A, said * 17, STOP, DONE).error is None
