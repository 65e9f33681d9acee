"""Conversations: a turn is due when its user has thought about the answer before it, and carries the answers on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.load.results import StageResult
from benchgate.load.shards import Level, PlannedRequests, Shard
from benchgate.load.workers import run_stage
from benchgate.model.request import ModelRequest
from benchgate.plan.model import ClientCancellation, PlannedClass, PlannedRequest, PlannedStage, Turn
from benchgate.plan.slot_share import SlotShare
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering, json_response
from tests.shells.load_helpers import limits, target_at

THINK_S = 0.03
THINK_NS = 30_000_000


def turns(
    session: int,
    count: int,
    *,
    carries: bool = True,
    offset_ns: int | None = None,
    leave: ClientCancellation | None = None,
) -> list[PlannedRequest]:
    """A conversation of so many turns; each asks `s<session> t<turn>`. `leave` is its first turn's."""
    planned: list[PlannedRequest] = []
    messages: list[dict[str, object]] = []
    for turn in range(count):
        if turn and carries:
            messages = [*messages, {"role": "assistant", "content": None}]
        messages = [*(messages if carries else []), {"role": "user", "content": f"s{session} t{turn}"}]
        place = Turn(session, turn, turn == count - 1, THINK_S if turn else 0.0, carries)
        request = PlannedRequest(
            session * 10 + turn,
            offset_ns if turn == 0 else None,
            ModelRequest("chat", {"messages": messages}, 8),
            7,
            place,
            leave if turn == 0 else None,
        )
        planned.append(request)
    return planned


def run(url: str, requests: Sequence[PlannedRequest], concurrency: int | None) -> StageResult:
    rate_rps = None if concurrency is not None else 10.0
    stage = PlannedStage("talk", (PlannedClass("", concurrency, rate_rps, tuple(requests)),))
    return run_stage(target_at(url), stage, limits=limits())


def test_next_turn_waits_for_the_answer_and_a_thought() -> None:
    with ScriptedServer(answering(lambda received: "a b", after_s=0.01)) as server:
        columns = run(server.url, turns(0, 3), 1).requests
    assert columns.index.tolist() == [0, 1, 2]
    assert columns.error == (None, None, None)
    for turn in (1, 2):
        assert columns.intended_ns[turn] >= columns.end_ns[turn - 1] + THINK_NS
        assert columns.sent_ns[turn] >= columns.intended_ns[turn]


def test_models_own_answers_stand_in_the_turns_after_them() -> None:
    with ScriptedServer(answering(lambda received: f"to {received.prompt}")) as server:
        run(server.url, turns(0, 3), 1)
        last = (server.requests[-1].body or {})["messages"]
    assert [message["content"] for message in last] == ["s0 t0", "to s0 t0", "s0 t1", "to s0 t1", "s0 t2"]


def test_turns_that_carry_nothing_are_sent_as_they_were_planned() -> None:
    with ScriptedServer(answering(lambda received: "a b")) as server:
        run(server.url, turns(0, 2, carries=False), 1)
        assert [received.prompt for received in server.requests] == ["s0 t0", "s0 t1"]
        assert len((server.requests[-1].body or {})["messages"]) == 1


def test_as_many_conversations_are_in_flight_as_a_closed_loop_has_slots() -> None:
    requests = [request for session in range(3) for request in turns(session, 2)]
    with ScriptedServer(answering(lambda received: "a b", after_s=0.01)) as server:
        columns = run(server.url, requests, 2).requests
        prompts = [received.prompt for received in server.requests]
    assert columns.index.tolist() == [0, 1, 10, 11, 20, 21]
    assert sorted(prompts[:2]) == ["s0 t0", "s1 t0"]
    assert prompts.index("s2 t0") > min(prompts.index("s0 t1"), prompts.index("s1 t1"))


def test_conversations_of_an_open_loop_begin_at_their_instants() -> None:
    requests = [request for session in range(2) for request in turns(session, 2, offset_ns=session * 20_000_000)]
    with ScriptedServer(answering(lambda received: "a b", after_s=0.2)) as server:
        columns = run(server.url, requests, None).requests
        prompts = [received.prompt for received in server.requests]
    assert prompts[:2] == ["s0 t0", "s1 t0"]  # the second did not wait for the end of the first
    assert columns.intended_ns[[0, 2]].tolist() == [0, 20_000_000]
    assert (columns.intended_ns[[1, 3]] >= columns.end_ns[[0, 2]] + THINK_NS).all()


def test_background_does_not_wait_for_a_user_who_thinks() -> None:
    """The user would think for an hour."""
    talk = [replace(request, turn=replace(request.turn, think_s=3600.0)) for request in turns(0, 2) if request.turn]
    chat = PlannedRequest(90, None, ModelRequest("chat", {"messages": [{"role": "user", "content": "x"}]}, 8), 7)
    stage = PlannedStage(
        "mix",
        (
            PlannedClass("chat", 1, None, (chat,)),
            PlannedClass("talk", 1, None, tuple(talk), background=True),
        ),
    )
    with ScriptedServer(answering(lambda received: "a b", after_s=0.02)) as server:
        result = run_stage(target_at(server.url), stage, limits=limits())
    assert result.classes[0].requests.error == (None,)
    assert 1 not in result.classes[1].requests.index.tolist()


def failing_at(prompt: str) -> ScriptedServer:
    def respond(received: Received) -> Iterator[Step]:
        if received.prompt == prompt:
            yield json_response({"error": {"message": "no memory"}}, status=500)
        else:
            yield from answering(lambda _: "a b")(received)

    return ScriptedServer(respond)


def test_turn_that_fails_ends_its_conversation_and_what_is_left_fails_with_it() -> None:
    with failing_at("s0 t1") as server:
        columns = run(server.url, [*turns(0, 4), *turns(1, 2)], 1).requests
        assert len(server.requests) == 4
    assert columns.error == (None, "http_5xx", "http_5xx", "http_5xx", None, None)
    assert columns.sent_ns[2] == columns.sent_ns[3] == -1
    assert columns.error_detail[2] == "not sent, because turn 2 of its conversation failed: HTTP 500: no memory"


def test_turns_that_are_never_sent_are_no_requests_beyond_the_operators_rate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "limits.yaml").write_text("rate: 5/s\n")
    monkeypatch.setenv("BENCHGATE_LOAD_LIMITS", str(tmp_path / "limits.yaml"))
    last = replace(turns(9, 1)[0], index=60)

    def respond(received: Received) -> Iterator[Step]:
        if received.prompt == "s0 t0":
            yield json_response({"error": {"message": "no memory"}}, status=500)
        else:  # the stage still runs when its rate is looked at
            yield from answering(lambda _: "a", after_s=1.5)(received)

    with ScriptedServer(respond) as server:
        columns = run(server.url, [*turns(0, 60), last], 2).requests
    assert (len(columns), columns.error.count(None)) == (61, 1)


def test_client_that_leaves_a_conversation_does_not_come_back_to_it() -> None:
    with ScriptedServer(answering(lambda received: "a b")) as server:
        result = run(server.url, [*turns(0, 3, leave=ClientCancellation(2, None)), *turns(1, 2)], 1)
        prompts = [received.prompt for received in server.requests]
    assert prompts == ["s0 t0", "s1 t0", "s1 t1"]
    assert result.only.requests.index.tolist() == [10, 11]
    assert result.only.left.index.tolist() == [0, 1, 2]
    assert result.only.left.error == (None, None, None)


def test_conversation_is_dealt_to_one_worker_as_a_whole() -> None:
    planned = PlannedRequests(tuple(request for session in range(5) for request in turns(session, 3)))
    shares = [[request.index for request in planned.share(SlotShare(worker, 2, 2))] for worker in range(2)]
    assert shares == [[0, 1, 2, 20, 21, 22, 40, 41, 42], [10, 11, 12, 30, 31, 32]]


def test_each_slot_of_a_closed_loop_gets_equally_many_conversations() -> None:
    """Six conversations in three slots over two workers: the first one has two slots, and four conversations."""
    planned = PlannedRequests(tuple(request for session in range(6) for request in turns(session, 2)))
    whole = Shard.of(target_at("http://127.0.0.1:1"), planned, Level(3, None), limits())
    shares = [[request.index // 10 for request in shard.parts[0].requests] for shard in whole.split(2)]
    assert shares == [[0, 0, 2, 2, 3, 3, 5, 5], [1, 1, 4, 4]]
