"""What drips has gone to the kernel when its last byte has: the truth of such an answer is as slow as the answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import SimSettings
from tests.shells.sim_client import COMPLETIONS, read_all, request_bytes

DRIP_S = 0.001
LEAST_S = DRIP_S / 2  # of each byte: timers go by whole milliseconds
TOKENS = 3


@pytest.fixture
def sim() -> Iterator[Sim]:
    with serve_sim(SimSettings(ttft_s=0.001, itl_s=0.001)) as server:
        yield server


def asked(fault: str, tokens: int = TOKENS, *, stream: bool = True) -> bytes:
    body = {"prompt": "x", "max_tokens": tokens, "stream": stream}
    return request_bytes(COMPLETIONS, body, {"x-sim-fault": fault})


@pytest.mark.parametrize("fault", ["drip:1ms", "drip:1ms+multi-token:2", "drip:1ms+merged:2"])
def test_truth_of_a_dripping_stream_is_when_its_tokens_were_out(sim: Sim, fault: str) -> None:
    with socket.create_connection(("127.0.0.1", sim.port), timeout=10) as sock:
        begun_ns = time.monotonic_ns()
        sock.sendall(asked(fault))
        raw = read_all(sock)
    truth = sim.truth(with_requests=True)
    (row,) = truth["rows"]
    assert (row["outcome"], row["output_tokens"], row["fault"]) == ("finished", TOKENS, fault)
    text = f'"text":"{raw.events[0]["choices"][0]["text"]}"'.encode()
    for truly_ns, end in ((row["first_ns"], raw.data.index(text)), (row["last_ns"], raw.data.rindex(b'"text":'))):
        assert truly_ns - begun_ns >= LEAST_S * 1e9 * end
    least_s = LEAST_S * min(len(event) for event in raw.body.split(b"\n\n")[:TOKENS])
    assert truth["ttft_s"]["p50"] >= least_s
    assert truth["itl_s"]["p50"] >= least_s
    assert truth["e2e_s"]["p50"] > truth["ttft_s"]["p50"] + least_s
    assert truth["schedule_lag_s"]["p50"] < truth["ttft_s"]["p50"]  # dripping is no lateness


def test_what_nobody_waited_for_has_not_gone_out(sim: Sim) -> None:
    with socket.create_connection(("127.0.0.1", sim.port), timeout=10) as sock:
        sock.sendall(asked("drip:1ms", 100))
        seen = b""
        while seen.count(b"\n\n") < 2:
            seen += sock.recv(1)
    while (told := sim.truth())["in_flight"]:
        time.sleep(0.01)
    assert told["aborted"] == 1
    assert 1 <= told["output_tokens"] < 50  # the second event has gone, the end of its chunk has not


def test_a_stall_beside_it_is_as_long_as_it_says(sim: Sim) -> None:
    with socket.create_connection(("127.0.0.1", sim.port), timeout=10) as sock:
        sock.sendall(asked("stall-after:1:400ms+drip:0.01ms"))
        assert read_all(sock).events
    assert sim.truth()["itl_s"]["max"] >= 0.3


def test_a_reset_ends_an_answer_that_began_well(sim: Sim) -> None:
    with socket.create_connection(("127.0.0.1", sim.port), timeout=10) as sock:
        sock.sendall(asked("reset-after:0+drip:1ms"))
        raw = read_all(sock)
    assert raw.data == b"" or b"HTTP/1.1 200 OK\r\n".startswith(raw.data[:17])


def test_a_dripping_document_is_out_with_its_last_byte(sim: Sim) -> None:
    with socket.create_connection(("127.0.0.1", sim.port), timeout=10) as sock:
        begun_ns = time.monotonic_ns()
        sock.sendall(asked("drip:1ms", stream=False))
        raw = read_all(sock)
    (row,) = sim.truth(with_requests=True)["rows"]
    assert (row["output_tokens"], row["first_ns"]) == (TOKENS, None)
    assert row["last_ns"] - begun_ns >= LEAST_S * 1e9 * len(raw.data)
