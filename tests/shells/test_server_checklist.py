"""What real servers do to a client, as they were recorded doing it (tests/captures), through the real load engine.

This half is about reading answers; test_server_checklist_asking.py is about asking for them.
"""

import itertools
from collections.abc import Iterable, Iterator

import pytest

from benchgate.errors import TargetError
from benchgate.load.decode.sse import EventParser
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.metric import Slo
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.request import Endpoint
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.mirror import mirror
from benchgate.suite.quality import Shadow
from benchgate.suite.schema import Limits
from benchgate.targets.answers import read_answer
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.probe import wait_ready
from tests.fakes.replay import CAPTURES, aborted_event, capture, engine_killed, pieces, renamed, replay, texts_of
from tests.fakes.scripted_server import CLOSE, LAST_CHUNK, Received, ScriptedServer, Step
from tests.shells.load_helpers import closed, limits, run

VLLM = "vllm-0.32.0-cpu"
FOURS = "vllm-0.32.0-cpu-stream-interval-4"
TRANSFORMERS = "transformers-serve-5.19.0"
LITGPT = "litgpt-0.5.13"

DONE = b"data: [DONE]\n\n"
TIMED = sorted(
    str(path.relative_to(CAPTURES)).removesuffix(".arrivals.txt") for path in CAPTURES.rglob("*.arrivals.txt")
)


def answered(steps: Iterable[Step], *, within: Limits | None = None, endpoint: Endpoint = "chat") -> RequestColumns:
    """The record of one request that is answered like this."""
    with ScriptedServer(lambda received: steps) as server:
        return run(server.url, closed(1, endpoint=endpoint), within).requests


# --- 1, 7: success is a finish reason that is accepted and no error event, never the status


REFUSALS: dict[str, tuple[bytes, str]] = {
    "queue full": (capture(f"{VLLM}/err_queue_full_stream").wire(), "The engine is currently busy and cannot accept"),
    "engine killed": (engine_killed(), "EngineCore encountered an issue."),
    "error event without its blank line": (capture(f"{LITGPT}/err_long_prompt_stream").wire(), "Internal Server Error"),
    "error is a text": (capture(f"{TRANSFORMERS}/err_max_tokens_0").wire(), "`max_new_tokens` must be greater than 0"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal_inside_http_200_is_a_failure_in_the_words_of_the_server(case: str) -> None:
    wire, words = REFUSALS[case]
    columns = answered([wire, CLOSE])
    assert columns.http_status.tolist() == [200]
    assert columns.error == (ErrorClass.STREAM_BROKEN,)
    assert words in str(columns.error_detail[0])
    assert request_metrics.meets_slo(columns, Slo(e2e_s=1000)).tolist() == [False]


def test_tokens_of_a_stream_that_broke_are_no_output() -> None:
    columns = answered([engine_killed(), CLOSE])
    assert len(columns.chunk_ns) > 0
    assert request_metrics.output_tokens_per_s(columns, 1.0) == 0


def test_abort_by_a_server_that_shuts_down_is_a_failure_though_the_stream_looks_whole() -> None:
    recorded = capture(f"{VLLM}/chat_stream")
    columns = answered([recorded.wire(events=[*recorded.events[:4], aborted_event(), DONE]), CLOSE])
    assert (tuple(columns.error), tuple(columns.finish_reason)) == ((ErrorClass.STREAM_BROKEN,), ("abort",))
    assert "'abort'" in str(columns.error_detail[0])


def test_finish_reason_nobody_knows_is_a_failure_and_is_named() -> None:
    recorded = capture(f"{VLLM}/chat_stream")
    events = [event.replace(b'"finish_reason":"length"', b'"finish_reason":"evicted"') for event in recorded.events]
    columns = answered([recorded.wire(events=events), CLOSE])
    assert columns.error == (ErrorClass.STREAM_BROKEN,)
    assert "'evicted'" in str(columns.error_detail[0])


# --- 2: the first token is the first output


@pytest.mark.parametrize(
    "name", [f"{TRANSFORMERS}/chat_stream_usage", f"{VLLM}/chat_stream_usage", f"{LITGPT}/chat_stream"]
)
def test_clock_stops_at_the_first_output_and_not_at_head_or_role_event(name: str) -> None:
    """transformers serve sends both before it has read the prompt; litgpt has no role event at all."""
    recorded = capture(name)
    silent = list(itertools.takewhile(lambda event: not texts_of(event), recorded.events))
    begun = recorded.wire(events=silent).removesuffix(LAST_CHUNK)
    columns = answered([begun, 0.25, recorded.wire().removeprefix(begun), CLOSE])
    assert columns.error == (None,)
    assert columns.chunk_ns[0] - columns.sent_ns[0] >= 250_000_000


# --- 3, 4: tokens from usage wherever it stands, and the end wherever the stream ends


COUNTS: dict[str, tuple[str, Endpoint, int | None, int, str]] = {
    "usage in its own event": (f"{VLLM}/chat_stream_usage", "chat", 20, 8, "usage"),
    "usage in the finish event": (f"{TRANSFORMERS}/chat_stream_usage", "chat", 20, 8, "usage"),
    "usage in every event": (f"{VLLM}/chat_stream_contusage", "chat", 20, 4, "usage"),
    "usage with withheld text": (f"{VLLM}/chat_stream_stop", "chat", 20, 2, "usage"),
    "usage of a completion": (f"{VLLM}/completions_stream_usage", "completions", 5, 6, "usage"),
    "usage in the finish event of a completion": (
        f"{TRANSFORMERS}/completions_stream_usage",
        "completions",
        5,
        6,
        "usage",
    ),
    "no usage": (f"{VLLM}/chat_stream", "chat", None, 8, "chunks"),
    "usage null and then all zeros": (f"{LITGPT}/chat_stream", "chat", None, 63, "chunks"),
}


@pytest.mark.parametrize("case", COUNTS)
def test_tokens_are_what_the_server_counted_and_else_chunks_by_name(case: str) -> None:
    name, endpoint, input_tokens, output_tokens, source = COUNTS[case]
    recorded = capture(name)
    columns = answered([recorded.wire(), CLOSE], endpoint=endpoint)
    assert columns.error == (None,)
    assert columns.input_tokens.tolist() == [-1 if input_tokens is None else input_tokens]
    assert columns.output_tokens.tolist() == [output_tokens]
    assert columns.token_source == (source,)


@pytest.mark.parametrize("name", [f"{TRANSFORMERS}/chat_stream_usage", f"{TRANSFORMERS}/completions_stream_usage"])
def test_stream_without_done_is_whole(name: str) -> None:
    recorded = capture(name)
    assert b"[DONE]" not in recorded.body
    columns = answered([recorded.wire(), CLOSE], endpoint="completions" if "completions" in name else "chat")
    assert columns.error == (None,)
    assert columns.end_ns[0] >= columns.chunk_ns[-1]


@pytest.mark.parametrize("name", [f"{VLLM}/chat_stream_ignore_eos", f"{FOURS}/chat_stream_ignore_eos"])
def test_events_are_not_tokens_and_both_are_counted(name: str) -> None:
    """Tokens without text of their own, and several tokens merged into one event."""
    recorded = capture(name)
    columns = answered(recorded.as_recorded())
    chunks = len(texts_of(recorded.body))
    assert chunks < 64
    assert columns.output_tokens.tolist() == [64]
    assert len(columns.chunk_ns) == chunks
    assert len(request_metrics.itl_s(columns)) == chunks - 1


# --- 5, 6: the end of the stream is not the end of the connection, and may never come


def test_answer_is_over_at_done_though_the_connection_stays_open() -> None:
    recorded = capture(f"{VLLM}/chat_stream_usage")
    closing: list[bool] = []

    def respond(received: Received) -> Iterator[Step]:
        yield recorded.wire().removesuffix(LAST_CHUNK)
        yield 20.0
        closing.append(True)

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(1)).requests
        assert not closing
    assert (tuple(columns.error), columns.output_tokens.tolist()) == ((None,), [8])


@pytest.mark.parametrize("events", [0, 1, 4], ids=["after the head", "after the role event", "in the middle"])
def test_stream_that_hangs_is_ended_by_a_limit_of_its_own(events: int) -> None:
    """vLLM at SIGTERM: no byte, no end, no error ever comes."""
    recorded = capture(f"{VLLM}/chat_stream_usage")
    begun = recorded.wire(events=recorded.events[:events]).removesuffix(LAST_CHUNK)
    columns = answered([begun, 20.0], within=limits(first_token_s=0.2, stall_s=0.2))
    assert columns.error == (ErrorClass.TIMEOUT,)
    expected = "no further output came for 0.2 s" if events > 1 else "no output within 0.2 s"
    assert expected in str(columns.error_detail[0])


# --- 14: bytes come as they please


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TIMED if "stream" in name])
def test_stream_in_one_read_says_what_it_says_in_the_reads_of_the_recording(name: str) -> None:
    recorded = capture(name)
    endpoint: Endpoint = "completions" if "completions" in name else "chat"
    whole = answered([recorded.wire(), CLOSE], endpoint=endpoint)
    parts = answered(recorded.as_recorded(), endpoint=endpoint)
    for columns in (whole, parts):
        assert (tuple(columns.error), len(columns.chunk_ns)) == ((None,), len(texts_of(recorded.body)))
    assert whole.output_tokens.tolist() == parts.output_tokens.tolist()


@pytest.mark.parametrize("name", [f"{LITGPT}/chat_stream", f"{FOURS}/chat_stream_ignore_eos"])
def test_raw_utf8_split_inside_any_character_stays_the_text_it_was(name: str) -> None:
    recorded = capture(name)
    body = recorded.body
    inside = [at for at in range(1, len(body)) if body[at] & 0b1100_0000 == 0b1000_0000]
    assert len(inside) > 10
    for cuts in ([at] for at in inside):
        parser = EventParser()
        events = [event.data for piece in pieces(body, cuts) for event in parser.feed(0, piece)]
        assert "".join(f"data: {text}\n\n" for text in events) == body.decode()


def test_raw_utf8_split_on_the_wire_breaks_no_stream() -> None:
    recorded = capture(f"{LITGPT}/chat_stream")
    wire = recorded.wire(keep_alive=True)
    inside = [at for at in range(1, len(wire)) if wire[at] & 0b1100_0000 == 0b1000_0000]

    def respond(received: Received) -> Iterator[Step]:
        number = len(server.requests) - 1
        for piece in pieces(renamed(wire, number), [inside[number]]):
            yield piece
            yield 0.001

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(len(inside))).requests
    assert set(columns.error) == {None}
    assert set(columns.output_tokens.tolist()) == {len(texts_of(recorded.body))}


# --- 15: five shapes of an error body, one way to say it


ERRORS: dict[str, tuple[str, ErrorClass, str]] = {
    "error object": (
        f"{VLLM}/err_bad_model",
        ErrorClass.HTTP_4XX,
        "HTTP 404: The model `nope` does not exist. Valid aliases: tiny-llama.",
    ),
    "error text": (f"{VLLM}/err_bad_api_key", ErrorClass.HTTP_4XX, "HTTP 401: Unauthorized"),
    "detail text": (
        f"{TRANSFORMERS}/err_unknown_field",
        ErrorClass.HTTP_4XX,
        "HTTP 422: Unexpected fields in the request: {'frobnicate'}",
    ),
    "detail list": (f"{TRANSFORMERS}/err_invalid_json", ErrorClass.HTTP_4XX, "HTTP 422: JSON decode error (body.37)"),
    "plain text": (f"{TRANSFORMERS}/err_no_messages", ErrorClass.HTTP_5XX, "HTTP 500: Internal Server Error"),
    "queue full": (
        f"{VLLM}/err_queue_full_nonstream",
        ErrorClass.HTTP_5XX,
        "HTTP 503: The engine is currently busy and cannot accept new requests. Please try again later or on a "
        "different instance.",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_words_of_every_shape_of_error_body_reach_the_record(case: str) -> None:
    name, error, words = ERRORS[case]
    columns = answered([capture(name).wire(), CLOSE])
    assert (tuple(columns.error), tuple(columns.error_detail)) == ((error,), (words,))


@pytest.mark.parametrize("case", ERRORS)
def test_words_of_every_shape_of_error_body_reach_whoever_waits_for_the_server(case: str) -> None:
    name, _, words = ERRORS[case]
    with ScriptedServer(replay(name)) as server, pytest.raises(TargetError) as fault:
        target = Target(Arm.CANDIDATE, server.url, "tiny-llama", DIALECTS["openai"])
        wait_ready(target, endpoint="chat", ready_s=0.4, connect_s=1)
    assert words in str(fault.value)


@pytest.mark.parametrize("case", ERRORS)
def test_words_of_every_shape_of_error_body_reach_the_shadow_comparison(case: str) -> None:
    name, _, words = ERRORS[case]
    with ScriptedServer(replay(f"{VLLM}/chat_nonstream")) as good, ScriptedServer(replay(name)) as bad:
        arms = [
            Target(arm, url, "tiny-llama", DIALECTS["openai"])
            for arm, url in ((Arm.BASELINE, good.url), (Arm.CANDIDATE, bad.url))
        ]
        settings = Shadow(prompts="unused", concurrency=1, store_text=True)
        [observation] = mirror(arms[0], arms[1], [ShadowPrompt("p", "say")], settings, Limits())
    assert observation.items[0].error == f"candidate: {words}"


@pytest.mark.parametrize("case", ERRORS)
def test_words_of_every_shape_of_error_body_reach_the_evals(case: str) -> None:
    name, _, words = ERRORS[case]
    recorded = capture(name)
    with pytest.raises(TargetError) as fault:
        read_answer("chat", int(recorded.status_line.split()[1]), recorded.body)
    assert str(fault.value) == words
