"""Every endpoint over a real connection, streamed or in one piece."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchgate.load.results import StageResult
from benchgate.load.workers import run_stage
from benchgate.model import request_metrics
from benchgate.model.records import RequestColumns
from benchgate.model.request import Endpoint, ModelRequest, text_request
from benchgate.plan.model import PlannedRequest, PlannedStage
from tests.fakes.scripted_server import (
    DONE,
    LAST_CHUNK,
    Received,
    ScriptedServer,
    Step,
    answering,
    chunk,
    event,
    finish,
    json_response,
    stream_head,
    token,
)
from tests.shells.load_helpers import closed, limits, target_at

RANKED = ModelRequest("rerank", {"query": "q", "documents": ["a", "b"]}, None, stream=False)


def run(url: str, *asks: ModelRequest, first_token_s: float = 30.0, total_s: float = 60.0) -> StageResult:
    requests = tuple(PlannedRequest(index, None, ask, index) for index, ask in enumerate(asks))
    stage = PlannedStage.of("s", 1, None, requests)
    return run_stage(target_at(url), stage, limits=limits(first_token_s=first_token_s, total_s=total_s))


def respond(received: Received) -> Iterator[Step]:
    rows = [{"index": 0, "embedding": [1.0, 2.0]}]
    ranks = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}]
    yield 0.02
    if received.path == "/v1/embeddings":
        yield json_response({"data": rows, "usage": {"prompt_tokens": 4}})
    elif received.path == "/v1/rerank":
        yield json_response({"results": ranks, "usage": {"total_tokens": 9}})
    elif received.path == "/v1/responses":
        yield stream_head()
        yield chunk(b'data: {"type": "response.output_text.delta", "delta": "A"}\n\n')
        usage = b'{"input_tokens": 4, "output_tokens": 2}'
        whole = b'{"status": "completed", "usage": %b}' % usage
        yield chunk(b'data: {"type": "response.completed", "response": %b}\n\n' % whole) + LAST_CHUNK
    else:
        yield from answering(lambda _: "a b c")(received)


@pytest.mark.parametrize(
    ("ask", "tokens"),
    [
        (text_request("chat", "x", 8), 3),
        (ModelRequest("chat", {"messages": [{"role": "user", "content": "x"}]}, 8, stream=False), 3),
        (ModelRequest("completions", {"prompt": "x"}, 8, stream=False), 3),
        (text_request("responses", "x", 8), 2),
        (text_request("embeddings", "x", None), 0),
        (RANKED, 0),
    ],
)
def test_every_endpoint_is_asked_in_its_way_and_its_answer_is_a_success(ask: ModelRequest, tokens: int) -> None:
    with ScriptedServer(respond) as server:
        result = run(server.url, ask, ask)
        assert {received.path.rpartition("/v1/")[2] for received in server.requests} == {
            "chat/completions" if ask.endpoint == "chat" else ask.endpoint
        }
    columns = result.requests
    assert columns.error_detail == (None, None)
    assert request_metrics.succeeded(columns).all()
    assert columns.output_tokens.tolist() == [tokens, tokens]
    assert (request_metrics.ttft_s(columns) >= 0.02).all()
    if not ask.stream:
        assert request_metrics.ttft_s(columns).tolist() == request_metrics.e2e_s(columns).tolist()


def test_answer_in_one_piece_may_take_longer_than_a_first_token() -> None:
    def slowly(received: Received) -> Iterator[Step]:
        yield 0.4
        yield from answering(lambda _: "a b c")(received)

    whole = ModelRequest("chat", {"messages": [{"role": "user", "content": "x"}]}, 8, stream=False)
    with ScriptedServer(slowly) as server:
        assert run(server.url, whole, first_token_s=0.1).requests.error == (None,)
        late = run(server.url, whole, first_token_s=0.1, total_s=0.1).requests
    assert (tuple(late.error), tuple(late.error_detail)) == (("timeout",), ("not over within 0.1 s",))


def answers(*bodies: bytes) -> ScriptedServer:
    left = iter(bodies)
    return ScriptedServer(lambda received: [next(left)])


def streamed(answer_id: str, text: str) -> bytes:
    first = event({"id": answer_id, "choices": [{"delta": {"content": text}}]})
    return stream_head() + first + finish("stop") + DONE + LAST_CHUNK


def seen(*bodies: bytes, endpoint: Endpoint = "chat") -> RequestColumns:
    with answers(*bodies) as server:
        return run_stage(target_at(server.url), closed(len(bodies), endpoint=endpoint), limits=limits()).requests


def taking(*answers: tuple[float, bytes]) -> RequestColumns:
    """What is seen of a server that takes so long, in seconds, before each of these."""
    left = iter(answers)
    with ScriptedServer(lambda received: list(next(left))) as server:
        return run_stage(target_at(server.url), closed(len(answers), endpoint="chat"), limits=limits()).requests


def test_later_of_two_answers_that_are_one_is_a_failure_when_it_came_in_no_time() -> None:
    one, other = streamed("c-1", "A"), streamed("c-2", "A")
    columns = taking((0.6, one), (0.6, other), (0.0, one), (0.0, other))
    assert columns.error == (None, None, "protocol", "protocol")
    assert (
        columns.error_detail[2]
        == columns.error_detail[3]
        == ("the same answer, byte for byte, under the same id as that of an earlier request, in no time")
    )


def test_equal_answers_under_one_id_that_each_took_their_time_are_no_failure() -> None:
    """Some servers, paced ones for practice among them, have one id for each connection."""
    answer = streamed("c-1", "A")
    assert set(taking((0.3, answer), (0.3, answer), (0.4, answer)).error) == {None}


def test_ids_that_a_server_gives_twice_are_no_failure_by_themselves() -> None:
    """Ollama draws them from a thousand."""
    assert set(seen(streamed("c-1", "A"), streamed("c-1", "B")).error) == {None}


def test_equal_answers_without_an_id_are_no_failure() -> None:
    plain = stream_head() + token("A") + finish("stop") + DONE + LAST_CHUNK
    assert set(seen(plain, plain).error) == {None}


def test_answers_that_nobody_asked_for_are_counted_and_reach_no_request() -> None:
    """The second copy comes while no request is under way."""

    def twice(received: Received) -> Iterator[Step]:
        answer = b"".join(step for step in answering(lambda _: "a b c")(received) if isinstance(step, bytes))
        yield answer
        yield 0.02
        yield answer

    requests = tuple(PlannedRequest(i, i * 200_000_000, text_request("chat", f"p{i}", 8), i) for i in range(3))
    with ScriptedServer(twice) as server:
        result = run_stage(target_at(server.url), PlannedStage.of("s", None, 10.0, requests), limits=limits())
        assert len(server.requests) == 3
    assert set(result.requests.error) == {None}
    assert result.client.unasked in (2, 3)  # the last may come after the end
