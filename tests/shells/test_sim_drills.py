"""The practice server as the drills use it: caches, adapters, shedding, leaks, slow starts, over real connections."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import sim_settings
from tests.fakes.waiting import eventually
from tests.shells.sim_client import CHAT, Raw, asking, request_bytes, talk

SETTINGS = sim_settings(
    prefill_s=0.0001, decode_s=0.001, batch=2, kv_tokens=8000, prefix_blocks=500, shed_above=1, leak_kv=True,
    adapters=("lora",), reasoning_tokens=(2, 2),
)  # fmt: skip
LONG = "once upon a time there was a server " * 10


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with serve_sim(SETTINGS) as served:
        yield served


def document(sim: Sim, path: str, body: object = None) -> tuple[int, Any]:
    raw = talk(sim.port, request_bytes(path, body))
    return raw.status, json.loads(raw.body)


def metric(sim: Sim, name: str) -> float:
    page = talk(sim.port, request_bytes("/metrics")).body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(f"vllm:{name}{{"))


def test_conversation_finds_its_earlier_turns_in_the_cache(sim: Sim) -> None:
    sim.reset()
    hits, queries = metric(sim, "prefix_cache_hits_total"), metric(sim, "prefix_cache_queries_total")
    turns = [{"role": "user", "content": LONG}]
    cached = []
    for _ in range(2):
        _, answer = document(sim, CHAT, {"messages": turns, "max_tokens": 20})
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        said = answer["choices"][0]["message"]["content"]
        turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "and then"}]
    assert cached == [0, 96]  # 80 words and 18 of the answer, in blocks of 16
    assert metric(sim, "prefix_cache_hits_total") - hits == 96
    assert metric(sim, "prefix_cache_queries_total") - queries == 80 + 100
    truth = sim.truth()
    assert (truth["input_tokens"], truth["cached_tokens"]) == (180, 96)


def test_adapter_has_a_name_of_its_own_and_shares_no_cache_with_its_model(sim: Sim) -> None:
    _, listed = document(sim, "/v1/models")
    assert [(model["id"], model["parent"]) for model in listed["data"]] == [("sim", None), ("lora", "sim")]
    sim.reset()
    body = asking(5, prompt=LONG + "of its own", stream=False)
    answers = [document(sim, CHAT, body | {"model": name})[1] for name in ("sim", "lora", "lora")]
    assert [answer["model"] for answer in answers] == ["sim", "lora", "lora"]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[1] == 0 < cached[2]
    said = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert said[0] != said[1] == said[2]
    assert document(sim, CHAT, body | {"model": "lore"})[0] == 404
    groups = sim.truth()["by_model"]
    assert {name: group["finished"] for name, group in groups.items()} == {"sim": 1, "lora": 2}


def test_stream_of_a_response_reaches_the_wire_with_its_usage(sim: Sim) -> None:
    raw = talk(sim.port, request_bytes("/v1/responses", {"input": "a b", "max_output_tokens": 6, "stream": True}))
    assert b"event: response.created\ndata: " in raw.body
    events = [json.loads(line[6:]) for line in raw.body.decode().splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events].count("response.output_text.delta") == 4
    usage = events[-1]["response"]["usage"]
    assert (events[-1]["type"], usage["input_tokens"], usage["output_tokens"]) == ("response.completed", 2, 6)
    assert usage["output_tokens_details"] == {"reasoning_tokens": 2}
    assert raw.data.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("fault", ["no-usage", "late-usage", "empty-answer", "abort-after:3"])
def test_stream_of_a_response_ends_once_whatever_its_fault(sim: Sim, fault: str) -> None:
    body = {"input": "a b", "max_output_tokens": 6, "stream": True}
    raw = talk(sim.port, request_bytes("/v1/responses", body, {"x-sim-fault": fault}))
    events = [json.loads(line[6:]) for line in raw.body.decode().splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events].count("response.completed") == 1
    last = events[-1]["response"]
    assert (last["usage"] is None) == (fault == "no-usage")
    assert last["status"] == {"empty-answer": "completed", "abort-after:3": "cancelled"}.get(fault, "incomplete")


def test_embeddings_and_rankings_are_whole_answers_without_output_tokens(sim: Sim) -> None:
    sim.reset()
    prompt_tokens, generated = metric(sim, "prompt_tokens_total"), metric(sim, "generation_tokens_total")
    _, embedded = document(sim, "/v1/embeddings", {"input": ["a b", "c", "a b"], "dimensions": 8})
    vectors = [row["embedding"] for row in embedded["data"]]
    assert [len(vector) for vector in vectors] == [8, 8, 8]
    assert vectors[0] == vectors[2] != vectors[1]
    assert sum(number * number for number in vectors[0]) == pytest.approx(1, abs=1e-4)
    assert embedded["usage"]["prompt_tokens"] == 5
    _, packed = document(sim, "/v1/embeddings", {"input": "a", "encoding_format": "base64"})
    assert len(packed["data"][0]["embedding"]) == 64 * 4 * 4 // 3 + 3  # 256 bytes
    for path in ("/rerank", "/v1/rerank"):
        _, ranked = document(sim, path, {"query": "q", "documents": ["a", {"text": "b"}, "c"], "top_n": 2})
        scores = [row["relevance_score"] for row in ranked["results"]]
        assert len(scores) == 2
        assert scores == sorted(scores, reverse=True)
    truth = sim.truth()
    assert (truth["finished"], truth["output_tokens"], truth["input_tokens"]) == (4, 0, 5 + 1 + 6 + 6)
    assert metric(sim, "prompt_tokens_total") - prompt_tokens == 18
    assert metric(sim, "generation_tokens_total") == generated


def test_request_is_turned_away_early_when_too_many_wait_but_an_urgent_one_is_not(sim: Sim) -> None:
    sim.reset()
    with ExitStack() as stack:
        busy = [stack.enter_context(socket.create_connection(("127.0.0.1", sim.port))) for _ in range(3)]
        for sock in busy:
            sock.sendall(request_bytes(body=asking(1500)))
        assert eventually(lambda: metric(sim, "num_requests_waiting") == 1)
        raw = talk(sim.port, request_bytes(body=asking(2)))
        assert (raw.status, "retry-after: 1" in raw.head) == (429, True)
        urgent = stack.enter_context(socket.create_connection(("127.0.0.1", sim.port)))
        urgent.sendall(request_bytes(body=asking(2, priority=-1)))
        assert eventually(lambda: metric(sim, "num_requests_waiting") == 2)
        truth = sim.truth()
    assert (truth["shed"], truth["failed"], truth["in_flight"]) == (1, 1, 4)


def test_leaking_engine_does_not_give_back_the_room_of_clients_that_left(sim: Sim) -> None:
    assert eventually(lambda: sim.truth()["in_flight"] == 0)
    base = metric(sim, "kv_cache_usage_perc")
    talk(sim.port, request_bytes(body=asking(5)))
    assert metric(sim, "kv_cache_usage_perc") == base
    with socket.create_connection(("127.0.0.1", sim.port)) as sock:
        sock.sendall(request_bytes(body=asking(997)))
        assert sock.recv(100)
    assert eventually(lambda: metric(sim, "num_requests_running") == 0)
    assert metric(sim, "kv_cache_usage_perc") == pytest.approx(base + 1000 / 8000)


def test_first_request_loads_the_model_and_the_server_is_healthy_meanwhile() -> None:
    with serve_sim(sim_settings(ttft_s=0.001, itl_s=0, load_time_s=0.6)) as sim:
        assert talk(sim.port, request_bytes("/health")).status == 200
        raws = [talk(sim.port, request_bytes(body=asking(1))) for _ in range(2)]
        rows = sim.truth(with_requests=True)["rows"]
    assert [raw.finish for raw in raws] == ["length", "length"]
    waited_s = [(row["first_ns"] - row["received_ns"]) / 1e9 for row in rows]
    assert waited_s[0] >= 0.6 > waited_s[1]


@pytest.fixture(scope="module")
def routed() -> Iterator[Sim]:
    costs = {"prefill_s": 0.0001, "decode_s": 0.002, "prefix_blocks": 500}
    with serve_sim(sim_settings(**costs, replicas=2, affinity="session", load_time_s=0)) as served:
        yield served


def home_of(sim: Sim, user: str) -> int:
    """The replica to which the requests of this user go."""
    before = [one["requests"] for one in sim.replicas()]
    assert talk(sim.port, request_bytes(body=asking(1, user=user))).finish == "length"
    return next(int(one["replica"]) for one, was in zip(sim.replicas(), before, strict=True) if one["requests"] > was)


def test_router_passes_on_what_is_asked_and_adds_up_what_happened(routed: Sim) -> None:
    routed.reset()
    raws = [talk(routed.port, request_bytes(body=asking(4, user=str(number)))) for number in range(8)]
    assert {(raw.status, raw.finish, len(raw.text.split())) for raw in raws} == {(200, "length", 4)}
    told = routed.replicas()
    assert len({one["pid"] for one in told} | {routed.pid}) == 3
    assert [one["state"] for one in told] == ["up", "up"]
    assert sum(one["requests"] for one in told) == 8
    assert min(one["requests"] for one in told) > 0
    truth = routed.truth(with_requests=True)
    assert (truth["requests"], truth["finished"], truth["output_tokens"], truth["in_flight"]) == (8, 8, 32, 0)
    assert (truth["ttft_s"]["n"], truth["itl_s"]["n"], len(truth["rows"])) == (8, 24, 8)
    assert metric(routed, "generation_tokens_total") == 32
    assert document(routed, "/v1/models")[1]["data"][0]["id"] == "sim"
    assert document(routed, CHAT, {"model": "nope"})[0] == 404
    assert document(routed, "/sim/replicas/7/kill", {}) == (404, {"detail": "there is no replica 7; the last is 1"})


def test_requests_of_a_dead_replica_are_shared_by_all_the_others() -> None:
    with serve_sim(sim_settings(ttft_s=0, itl_s=0, replicas=3)) as sim:
        sim.kill(1)
        for _ in range(12):
            assert talk(sim.port, request_bytes(body=asking(1))).finish == "length"
        assert [one["requests"] for one in sim.replicas()] == [6, 0, 6]


@pytest.mark.parametrize("stream", [True, False])
def test_router_keeps_the_connection_of_its_client(routed: Sim, stream: bool) -> None:
    kept = request_bytes(body=asking(2, stream=stream), keep=True)
    raw = talk(routed.port, kept, kept, request_bytes(body=asking(2, stream=stream)))
    assert (raw.data.count(b"HTTP/1.1 200 OK"), raw.ended) == (3, "closed")
    assert raw.data.lower().count(b"connection: close") == 1


def test_equal_sessions_meet_the_same_prefix_cache(routed: Sim) -> None:
    turns = [{"role": "system", "content": "be kind"}, {"role": "user", "content": LONG}]
    usages = [document(routed, CHAT, {"messages": turns, "max_tokens": 2})[1]["usage"] for _ in range(3)]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 80, 80]


def test_fault_passes_through_the_router(routed: Sim) -> None:
    raw = talk(routed.port, request_bytes(body=asking(4), headers={"x-sim-fault": "reset-after:2"}))
    assert (raw.ended, len(raw.text.split())) == ("reset", 2)


def test_client_that_leaves_the_router_frees_its_place_on_the_replica(routed: Sim) -> None:
    routed.reset()
    with socket.create_connection(("127.0.0.1", routed.port), timeout=10) as sock:
        sock.sendall(request_bytes(body=asking(5000)))
        assert sock.recv(100)
        assert metric(routed, "kv_cache_usage_perc") > 0
    assert eventually(lambda: metric(routed, "kv_cache_usage_perc") == 0)
    truth = routed.truth()
    assert (truth["aborted"], truth["in_flight"], sum(one["in_flight"] for one in truth["replicas"])) == (1, 0, 0)


def test_killed_replica_is_gone_and_breaks_what_it_was_answering_and_nothing_else(routed: Sim) -> None:
    routed.reset()
    home = home_of(routed, "mine")
    pid = routed.replicas()[home]["pid"]
    with ExitStack() as stack:
        begun, unanswered = (
            stack.enter_context(socket.create_connection(("127.0.0.1", routed.port), timeout=10)) for _ in range(2)
        )
        begun.sendall(request_bytes(body=asking(5000, user="mine"), headers={"x-request-id": "begun"}))
        assert begun.recv(100)
        unanswered.sendall(
            request_bytes(
                body=asking(2, user="mine"), headers={"x-sim-fault": "no-answer", "x-request-id": "unanswered"}
            )
        )
        assert eventually(lambda: routed.replicas()[home]["in_flight"] == 2)
        status, told = document(routed, f"/sim/replicas/{home}/kill", {})
        assert (status, told["state"], told["pid"]) == (200, "down", None)
        assert not is_running(pid)
        assert b"[DONE]" not in rest_of(begun)
        assert rest_of(unanswered).startswith(b"HTTP/1.1 502 ")
    assert home_of(routed, "mine") == 1 - home
    assert (routed.replicas()[home]["broken"], talk(routed.port, request_bytes("/health")).status) == (2, 200)
    truth = routed.truth(with_requests=True)
    assert (truth["requests"], truth["finished"], truth["failed"]) == (4, 2, 2)
    failed = {row["id"]: row for row in truth["rows"] if row["outcome"] == "failed"}
    assert (len(truth["rows"]), set(failed)) == (4, {"begun", "unanswered"})
    assert 0 < failed["begun"]["output_tokens"] < 5000
    assert (failed["unanswered"]["output_tokens"], failed["unanswered"]["fault"]) == (0, "no-answer")
    assert sum(row["output_tokens"] for row in truth["rows"]) == truth["output_tokens"]
    assert 'replica="' + str(home) not in talk(routed.port, request_bytes("/metrics")).body.decode()
    routed.kill(1 - home)
    routed.reset()
    assert nobody_answers(talk(routed.port, request_bytes(body=asking(1), headers={"x-request-id": "nobody"})))
    assert nobody_answers(talk(routed.port, request_bytes("/v1/models")))  # this one asks for no answer of the model
    truth = routed.truth(with_requests=True)
    assert (truth["requests"], truth["failed"], truth["in_flight"]) == (1, 1, 0)
    assert [(row["id"], row["endpoint"], row["outcome"]) for row in truth["rows"]] == [("nobody", "chat", "failed")]
    for number in (0, 1):
        routed.start(number)
    assert [one["state"] for one in routed.replicas()] == ["up", "up"]
    assert home_of(routed, "mine") == home
    assert routed.replicas()[home]["pid"] != pid


def nobody_answers(raw: Raw) -> bool:
    return raw.status == 503 and "no replica takes requests" in raw.body.decode()


def rest_of(sock: socket.socket) -> bytes:
    seen = b""
    while piece := sock.recv(65_536):
        seen += piece
    return seen


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
