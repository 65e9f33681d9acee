"""The simulated server over gRPC: the same answers, settings and faults as over HTTP, at the same port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import grpc
import httpx2
import numpy as np
import pytest

from benchgate.load.shards import stage_shard
from benchgate.load.workers import run_shard
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.request import ModelRequest, text_request
from benchgate.plan.model import PlannedRequest, PlannedStage
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.server import FAULT_HEADER
from benchgate.sim.settings import sim_settings
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.endpoints import request_path, wire_body
from benchgate.targets.grpc_client import CHANNEL_OPTIONS
from benchgate.targets.grpc_messages import decode
from benchgate.targets.probe import wait_ready
from tests.shells.load_helpers import limits

TOKENS = 6


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    """A simulated server, whose requests choose their fault."""
    with serve_sim(sim_settings(ttft_s=0.01, itl_s=0.002)) as served:
        yield served


def sent(
    sim: Sim, *, stream: bool, by_grpc: bool = True, model: str = "sim", count: int = 4, fault: str | None = None
) -> RequestColumns:
    """Send requests with prompts of their own to a simulated server."""
    headers = {} if fault is None else {FAULT_HEADER: fault}
    asks: list[ModelRequest] = [
        replace(text_request("grpc-infer" if by_grpc else "completions", f"prompt {number}", TOKENS), stream=stream)
        for number in range(count)
    ]
    requests = tuple(PlannedRequest(number, None, ask, number) for number, ask in enumerate(asks))
    target = Target(Arm.CANDIDATE, sim.url, model, DIALECTS["vllm"], open_headers=headers, grpc=sim.grpc)
    held = limits(first_token_s=1, stall_s=1, total_s=2)
    shard = stage_shard(target, PlannedStage.of("s", 2, None, requests), limits=held)
    return run_shard(shard).requests


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_over_grpc_has_every_token(sim: Sim, stream: bool) -> None:
    sim.reset()
    found = sent(sim, stream=stream)
    truth = sim.truth()
    assert set(found.error_detail) == {None}
    assert np.diff(found.chunk_start).tolist() == ([TOKENS] * 4 if stream else [1] * 4)
    assert (truth["finished"], truth["output_tokens"]) == (4, 4 * TOKENS)
    assert truth["by_endpoint"]["grpc-infer"]["finished"] == 4


def test_the_text_over_grpc_is_the_one_over_http(sim: Sim) -> None:
    http = httpx2.post(f"{sim.url}/v1/completions", json={"prompt": "hello", "max_tokens": TOKENS, "ignore_eos": True})
    assert text_over_grpc(sim, "hello") == http.json()["choices"][0]["text"] != ""


def text_over_grpc(sim: Sim, prompt: str) -> str | None:
    """Return the whole answer to one prompt."""
    ask = replace(text_request("grpc-infer", prompt, TOKENS), stream=False)
    target = Target(Arm.CANDIDATE, sim.url, "sim", DIALECTS["vllm"], grpc=sim.grpc)
    with grpc.insecure_channel(str(sim.grpc).removeprefix("grpc://"), options=CHANNEL_OPTIONS) as channel:
        raw = channel.unary_unary(request_path(target, ask))(wire_body(target, ask, seed=0))
    answer = decode(raw, streamed=False)
    return None if answer is None else answer.text


@pytest.mark.parametrize(
    ("fault", "stream", "error"),
    [
        ("rate-limited", True, ErrorClass.HTTP_429),
        ("http-error:503", False, ErrorClass.HTTP_5XX),
        ("http-error:422", True, ErrorClass.HTTP_4XX),
        ("cut-after", True, ErrorClass.STREAM_BROKEN),
        ("reset-after", True, ErrorClass.STREAM_BROKEN),
        ("error-after", True, ErrorClass.STREAM_BROKEN),
        ("abort-after", True, ErrorClass.STREAM_BROKEN),
        ("hang-after", True, ErrorClass.TIMEOUT),
        ("no-answer", False, ErrorClass.TIMEOUT),
        ("empty-answer", True, ErrorClass.EMPTY),
        ("half-text", True, None),
        ("multi-token", True, None),
        ("merged", True, None),
    ],
)
def test_a_fault_has_the_same_error_class_over_grpc_and_http(
    sim: Sim, fault: str, stream: bool, error: ErrorClass | None
) -> None:
    http = sent(sim, stream=stream, by_grpc=False, count=1, fault=fault)
    sim.reset()
    found = sent(sim, stream=stream, count=1, fault=fault)
    assert set(found.error) == set(http.error) == {error}
    assert sum(sim.truth()["faults"].values()) == 1


def test_an_unknown_model_is_refused_over_grpc(sim: Sim) -> None:
    found = sent(sim, stream=True, model="other", count=1)
    assert found.error == (ErrorClass.HTTP_4XX,)
    assert "NOT_FOUND" in str(found.error_detail[0])


def test_a_client_that_leaves_over_grpc_frees_its_place(sim: Sim) -> None:
    sim.reset()
    sent(sim, stream=True, count=2, fault="hang-after")
    truth = sim.truth()
    assert (truth["aborted"], truth["in_flight"]) == (2, 0)


def test_a_probe_finds_the_server_ready_over_grpc() -> None:
    with serve_sim(sim_settings(ready_after_s=0.3)) as sim:
        target = Target(Arm.CANDIDATE, sim.url, "sim", DIALECTS["vllm"], grpc=sim.grpc)
        wait_ready(target, endpoint="grpc-infer", ready_s=60, connect_s=5)


def test_a_busy_engine_refuses_over_grpc_too() -> None:
    with serve_sim(sim_settings(prefill_s=0.0001, decode_s=0.2, batch=1, queue=0)) as sim:
        found = sent(sim, stream=True)
    assert None in found.error
    assert set(found.error) <= {None, ErrorClass.HTTP_5XX}
    assert ErrorClass.HTTP_5XX in found.error


def test_a_long_prompt_is_taken_over_grpc(sim: Sim) -> None:
    assert text_over_grpc(sim, "x" * 5_000_000)


@pytest.mark.parametrize("cut", [1, 3, 15, 16, 20])
def test_a_connection_whose_first_bytes_come_in_pieces_is_taken(sim: Sim, cut: int) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # and empty SETTINGS
    sim.reset()
    with socket.create_connection(("127.0.0.1", sim.port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(preface[:cut])
        assert sim.truth()["requests"] == 0  # what came has been read by now
        client.sendall(preface[cut:])
        assert client.recv(9)[3] == 4  # its SETTINGS
