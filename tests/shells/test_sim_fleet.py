"""Replicas of a practice server that are not alike: weights, roles, draining, and their faults."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import socket
import threading
import time
from pathlib import Path

import httpx2
import pytest

from benchgate.errors import SuiteError, TargetError
from benchgate.model.request_metrics import succeeded, tpot_s, ttft_s
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import parse_settings, sim_settings
from benchgate.telemetry.engine_metrics import read_page
from tests.fakes.waiting import eventually
from tests.shells.load_helpers import closed, run
from tests.shells.sim_client import asking, request_bytes, talk


def spread(sim: Sim) -> list[int]:
    """The number of requests of each replica."""
    return [one["requests"] for one in sim.replicas()]


def test_requests_are_spread_by_weight() -> None:
    with serve_sim(sim_settings(model="scripted", ttft_s=0.0, itl_s=0.0, replicas=3, weights=(2, 1, 1))) as sim:
        run(sim.url, closed(16))
        assert spread(sim) == [8, 4, 4]


def test_one_replica_may_differ() -> None:
    unlike = {"1": {"itl_s": 0.04}}
    with serve_sim(sim_settings(model="scripted", ttft_s=0.0, itl_s=0.005, replicas=2, unlike=unlike)) as sim:
        paces = sorted(tpot_s(run(sim.url, closed(8)).requests))
    assert paces[3] < 0.015 < 0.03 < paces[4]


def test_faults_of_replicas_are_drawn_independently_and_their_answers_are_alike() -> None:
    settings = sim_settings(ttft_s=0.0, itl_s=0.0, replicas=2, faults=("http-error:500@50%",))
    body = {"model": "sim", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "stream": True}
    with serve_sim(settings) as sim:
        answers = [httpx2.post(f"{sim.url}/v1/chat/completions", json=body) for _ in range(40)]
    failed = [answer.status_code == 500 for answer in answers]
    assert failed[::2] != failed[1::2]  # they take turns
    whole = {"".join(re.findall(r'"content":"([^"]*)"', answer.text)) for answer in answers if answer.is_success}
    assert len(whole) == 1


SPLIT = sim_settings(model="scripted", replicas=3, prefill_replicas=1, transfer_s=0.01, prefill_s=0.001, decode_s=0.005)


def test_a_prompt_is_read_by_one_replica_and_answered_by_another() -> None:
    with serve_sim(SPLIT) as sim:
        result = run(sim.url, closed(12, 3))
        rows = result.requests
        assert succeeded(rows).all()
        assert spread(sim) == [12, 6, 6]
        truth = sim.truth()
        assert truth["requests"] == truth["finished"] == 12
        least_s = rows.input_tokens * (0.001 + 0.01)  # the prompt is read once, and its cache goes over
        assert (ttft_s(rows) >= least_s).all()
        assert truth["ttft_s"]["p50"] >= least_s.min()
        page = read_page(httpx2.get(f"{sim.url}/metrics").text, "scripted")
    assert {name: one.role for name, one in page.replicas.items()} == {"0": "prefill", "1": "decode", "2": "decode"}
    counted = {metric.value: value for metric, value in page.values.items()}
    assert counted["finished_requests"] == 12
    assert counted["generation_tokens"] == int(rows.output_tokens.sum())
    assert counted["prompt_tokens"] == int(rows.input_tokens.sum())
    assert counted["prefilled_requests"] == 12


def test_an_error_of_the_replica_that_reads_is_the_answer() -> None:
    with serve_sim(SPLIT) as sim:
        body = {"model": "unknown", "messages": [{"role": "user", "content": "a"}]}
        assert httpx2.post(f"{sim.url}/v1/chat/completions", json=body).status_code == 404
        sim.kill(0)
        assert httpx2.post(f"{sim.url}/v1/chat/completions", json=body | {"model": "scripted"}).status_code == 503
        truth = sim.truth(with_requests=True)
        assert (truth["requests"], truth["failed"], len(truth["rows"])) == (2, 2, 2)


LONG = " ".join(["a"] * 2_000)
READS = sim_settings(replicas=2, prefill_replicas=1, prefill_s=0.01, prefill_chunk_tokens=16, batch=1)  # 20 s for LONG


def reading(sim: Sim) -> float:
    """The number of prompts that the first replica reads now."""
    found = re.search(r'^vllm:num_requests_running{replica="0".*} (.+)$', httpx2.get(f"{sim.url}/metrics").text, re.M)
    assert found is not None
    return float(found[1])


def test_requests_that_end_while_their_prompt_is_read_have_one_row_each() -> None:
    settings = READS.model_copy(update={"queue": 0})
    with serve_sim(settings) as sim, socket.create_connection(("127.0.0.1", sim.port)) as first:
        first.sendall(request_bytes(body=asking(prompt=LONG), headers={"x-request-id": "left"}))
        assert eventually(lambda: reading(sim) == 1)
        refused = {
            name: talk(sim.port, request_bytes(body=asking(stream=stream), headers={"x-request-id": name}))
            for name, stream in (("document", False), ("stream", True))
        }
        first.close()
        assert eventually(lambda: reading(sim) == 0)
        httpx2.post(f"{sim.url}/v1/chat/completions", json=asking(stream=False)).raise_for_status()
        truth = sim.truth(with_requests=True)
    assert refused["document"].status == 503
    assert refused["stream"].status == 200
    assert [list(event) if isinstance(event, dict) else event for event in refused["stream"].events] == [
        ["error"], "[DONE]",
    ]  # fmt: skip
    outcomes = {row["id"]: (row["outcome"], row["endpoint"], row["input_tokens"]) for row in truth["rows"]}
    assert outcomes == {
        "document": ("failed", "chat", 3),
        "stream": ("failed", "chat", 3),
        "left": ("aborted", "chat", 2_000),
        None: ("finished", "chat", 3),
    }
    assert (truth["requests"], truth["failed"], truth["aborted"], truth["in_flight"]) == (4, 2, 1, 0)


def test_requests_shed_before_their_prompt_is_read_are_failed_requests_of_the_truth() -> None:
    settings = READS.model_copy(update={"shed_above": 0})
    with serve_sim(settings) as sim, socket.create_connection(("127.0.0.1", sim.port)) as first:
        first.sendall(request_bytes(body=asking(prompt=LONG)))
        assert eventually(lambda: reading(sim) == 1)
        assert talk(sim.port, request_bytes(body=asking())).status == 429
        truth = sim.truth()
    assert (truth["requests"], truth["failed"], truth["shed"]) == (1, 1, 1)


def test_request_left_before_a_reset_is_in_no_later_truth() -> None:
    with serve_sim(READS) as sim:
        with socket.create_connection(("127.0.0.1", sim.port)) as first:
            first.sendall(request_bytes(body=asking(prompt=LONG)))
            assert eventually(lambda: reading(sim) == 1)
            sim.reset()
        assert eventually(lambda: reading(sim) == 0)
        assert sim.truth()["requests"] == 0


def test_tokens_that_the_reading_replica_had_in_its_cache_are_in_usage_and_truth() -> None:
    settings = sim_settings(replicas=2, prefill_replicas=1, prefix_blocks=64, block_tokens=16)
    body = {"model": "sim", "prompt": " ".join(map(str, range(65))), "max_tokens": 2}
    with serve_sim(settings) as sim:
        answers = [httpx2.post(f"{sim.url}/v1/completions", json=body).json()["usage"] for _ in range(2)]
        truth = sim.truth(with_requests=True)
        page = read_page(httpx2.get(f"{sim.url}/metrics").text, "sim")
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in answers] == [0, 64]
    assert [row["cached_tokens"] for row in truth["rows"]] == [0, 64]
    assert truth["cached_tokens"] == 64
    assert {metric.value: value for metric, value in page.values.items()}["prefix_cache_hits_tokens"] == 64


def test_a_replica_that_drains_finishes_its_answers_and_takes_no_more() -> None:
    with serve_sim(sim_settings(model="scripted", ttft_s=0.3, itl_s=0.01, replicas=2)) as sim:
        results = []
        thread = threading.Thread(target=lambda: results.append(run(sim.url, closed(8, 4))))
        thread.start()
        while sum(spread(sim)) < 4:
            time.sleep(0.01)
        sim.drain(1)
        thread.join()
        assert succeeded(results[0].requests).all()
        assert spread(sim)[1] == 2
        assert [one["state"] for one in sim.replicas()] == ["up", "down"]
        sim.start(1)
        assert [one["state"] for one in sim.replicas()] == ["up", "up"]


ROLES = {"prefill_replicas": 2, "transfer_s": 0.0, "prefill_s": 1e-6, "decode_s": 0.001}


@pytest.mark.parametrize("keys", [{"ttft_s": 0.0, "itl_s": 0.001}, ROLES], ids=["alike", "roles"])
def test_every_request_has_a_row_when_replicas_are_killed_under_load(keys: dict[str, float]) -> None:
    with serve_sim(sim_settings(model="scripted", replicas=4, **keys)) as sim:
        body = {"model": "scripted", "max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}
        sent, over = list[str](), threading.Event()

        def ask(client: int) -> None:
            with httpx2.Client() as http:
                while not over.is_set():
                    name = f"{client}-{len(sent)}"
                    sent.append(name)
                    http.post(f"{sim.url}/v1/chat/completions", json=body, headers={"x-request-id": name})

        threads = [threading.Thread(target=ask, args=(client,)) for client in range(16)]
        for thread in threads:
            thread.start()
        for replica in (3, 0):
            time.sleep(0.1)
            sim.kill(replica)
        sim.start(3)
        for replica in (3, 1):
            time.sleep(0.1)
            sim.kill(replica)
        over.set()
        for thread in threads:
            thread.join()
        truth = sim.truth(with_requests=True)
    assert sorted(row["id"] for row in truth["rows"]) == sorted(sent)
    assert truth["requests"] == truth["finished"] + truth["failed"] == len(sent)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's")
def test_control_route_that_fails_says_why_and_the_server_goes_on() -> None:
    with serve_sim(sim_settings(model="scripted", ttft_s=0.0, itl_s=0.0, replicas=2)) as sim:
        sim.kill(1)
        limits = resource.prlimit(sim.pid, resource.RLIMIT_NOFILE)
        taken = {int(entry.name) for entry in Path(f"/proc/{sim.pid}/fd").iterdir()}
        free = [number for number in range(len(taken) + 5) if number not in taken]
        resource.prlimit(sim.pid, resource.RLIMIT_NOFILE, (free[4], limits[1]))  # enough for a request, not for a child
        with pytest.raises(TargetError, match=f"refused /sim/replicas/1/start.*{os.strerror(errno.EMFILE)}"):
            sim.start(1)
        resource.prlimit(sim.pid, resource.RLIMIT_NOFILE, limits)
        sim.start(1)
        assert [one["state"] for one in sim.replicas()] == ["up", "up"]


@pytest.mark.slow
def test_truth_without_a_replica_that_hangs_is_refused() -> None:
    with serve_sim(sim_settings(model="scripted", ttft_s=0.0, itl_s=0.0, replicas=2)) as sim:
        os.kill(sim.replicas()[1]["pid"], signal.SIGSTOP)
        with pytest.raises(TargetError, match="replica 1 did not answer"):
            sim.truth()
        sim.kill(1)
        with pytest.raises(TargetError, match="the truth is incomplete: replica 1"):
            sim.truth()
        sim.reset()
        assert sim.truth()["requests"] == 0


def test_a_cache_that_is_emptied_finds_less() -> None:
    body = {"model": "sim", "prompt": " ".join(map(str, range(65))), "max_tokens": 1}
    hits = []
    for keys in ({}, {"flush_every": 3}):
        with serve_sim(sim_settings(prefix_blocks=64, **keys)) as sim:
            for _ in range(6):
                httpx2.post(f"{sim.url}/v1/completions", json=body).raise_for_status()
            hits.append(sim.truth()["cached_tokens"] / 64)
    assert hits == [5, 3]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{replicas: 2, weights: [1]}", "`weights` has 1 numbers, and there are 2 `replicas`"),
        ("{replicas: 2, prefill_replicas: 2}", "none is left for the answers"),
        ("{replicas: 2, unlike: {2: {itl: 3ms}}}", "names replica 2, and the numbers are 0 to 1"),
        ("{replicas: 2, unlike: {1: {affinity: prefix}}}", "`affinity` is not of one replica"),
        ("{replicas: 2, unlike: {1: {itl: 3}}}", "itl"),
        ("{replicas: 2, ttft: 5ms, unlike: {1: {batch: 3}}}", "paces each stream"),
        ("{replicas: 2, transfer: 1ms}", "add `prefill_replicas`"),
    ],
)
def test_settings_that_do_not_fit_are_refused(text: str, says: str) -> None:
    with pytest.raises(SuiteError, match=says):
        parse_settings(text, "sim.yaml", ())
