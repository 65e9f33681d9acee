"""Read delays by the kernel's stamps: real packets on the loopback, and what is made of their delays."""

import socket
import sys
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from benchgate import timestamps
from benchgate.load import client_delay as stamps
from benchgate.load.client_delay import ReadDelays, audit_refusal
from benchgate.load.results import StageResult
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import run_load_test
from benchgate.load.workers import run_stage
from benchgate.model.records import ErrorClass
from benchgate.model.request import text_request
from benchgate.plan.model import PlannedRequest, PlannedStage
from benchgate.targets.address import ServerAddress
from tests.fakes.scripted_server import (
    ABORT,
    DONE,
    LAST_CHUNK,
    Received,
    ScriptedServer,
    Step,
    answering,
    finish,
    token,
)
from tests.shells.load_helpers import HALO, WHOLE, closed, limits, target_at

pytestmark = pytest.mark.skipif(
    audit_refusal(ServerAddress.of("http://127.0.0.1")) is not None, reason="this kernel stamps no arrivals"
)


@pytest.fixture(scope="module", autouse=True)
def kernel_that_stamps() -> Iterator[None]:
    """The kernel begins to stamp some time after it was asked, and goes on while any socket asks for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, socket.socket(type=socket.SOCK_DGRAM) as sender:
        timestamps.ask_for_stamps(asking)
        asking.bind(("127.0.0.1", 0))
        for _ in range(1000):
            sender.sendto(b"now", asking.getsockname())
            if timestamps.stamp_ns(asking.recvmsg(8, 256)[1]) is not None:
                break
            time.sleep(0.01)
        else:
            pytest.fail("the kernel stamps nothing")
        yield


def audited(url: str, count: int = 4, concurrency: int = 1) -> StageResult:
    return run_stage(target_at(url), closed(count, concurrency), limits=limits(), audit=True)


def test_audited_stage_answers_alike_and_tells_how_late_it_read() -> None:
    with ScriptedServer(answering(lambda _: "one two three")) as server:
        result = audited(server.url, 20, 4)
        assert server.connections == 4
    use = result.client
    assert (set(result.requests.error), set(result.requests.output_tokens.tolist())) == ({None}, {3})
    assert use.read_delay_by == "kernel"
    assert use.read_delay_p50_s is not None
    assert use.read_delay_p99_s is not None
    assert use.read_delay_max_s is not None
    assert 0 < use.read_delay_p50_s <= use.read_delay_p99_s <= use.read_delay_max_s


def test_bare_load_reports_the_kernels_word() -> None:
    with ScriptedServer(lambda _: [WHOLE]) as server:
        options = LoadOptions.parse(
            url=server.url, model="m", engine="openai", concurrency=2, requests=8, workers="2", audit=True
        )
        client = run_load_test(options)["client"]
    assert isinstance(client, dict)
    told = client["read_delay_s"]
    assert told["by"] == "kernel"
    assert 0 < told["p50"] <= told["p99"] <= told["max"]


def test_delay_of_a_client_that_does_not_read_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is held up for 50 ms while an answer lies there: that answer was read 50 ms late."""
    slept: list[bool] = []

    class Sleepy(ReadDelays):
        def extend(self, delays_ns: Iterable[int]) -> None:
            super().extend(delays_ns)
            if not slept:
                slept.append(True)
                time.sleep(0.05)

    def respond(received: Received) -> Iterator[Step]:
        yield HALO
        yield 0.02
        yield token("again") + finish("stop") + DONE + LAST_CHUNK

    monkeypatch.setattr("benchgate.load.http.reader.ReadDelays", Sleepy)
    with ScriptedServer(respond) as server:
        use = audited(server.url, 1).client
    assert use.read_delay_max_s is not None
    assert use.read_delay_max_s > 0.01


def test_audited_connection_that_breaks_is_a_broken_stream() -> None:
    with ScriptedServer(lambda _: [HALO, ABORT]) as server:
        columns = audited(server.url, 2).requests
    assert set(columns.error) == {ErrorClass.STREAM_BROKEN}


def test_audited_requests_longer_than_the_socket_takes_at_once_arrive_whole() -> None:
    request = PlannedRequest(0, None, text_request("chat", "word " * 2_000_000, 8), 0)
    long = PlannedStage.of("long", 1, None, (request,))
    with ScriptedServer(lambda _: [WHOLE]) as server:
        columns = run_stage(target_at(server.url), long, limits=limits(), audit=True).requests
        assert len(server.requests[0].prompt) == 10_000_000
    assert columns.error == (None,)


def test_dead_server_fails_alike_when_audited() -> None:
    assert set(audited("http://127.0.0.1:9").requests.error) == {ErrorClass.CONNECT}


def test_unaudited_stage_says_nothing_by_the_kernel() -> None:
    with ScriptedServer(lambda _: [WHOLE]) as server:
        use = run_stage(target_at(server.url), closed(2), limits=limits()).client
    assert use.read_delay_by != "kernel"


@pytest.mark.parametrize(
    ("url", "reason"), [("https://host", "encrypted"), ("unix:/run/s", "Unix socket"), ("http://host", None)]
)
def test_what_no_kernel_stamps_is_refused_with_the_reason(url: str, reason: str | None) -> None:
    refusal = audit_refusal(ServerAddress.of(url))
    assert refusal is None if reason is None else reason in str(refusal)


def test_system_that_stamps_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "plan9")
    assert "Linux" in str(audit_refusal(ServerAddress.of("http://host")))


def test_delays_stay_bounded_and_keep_their_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "_MOST_KEPT", 1000)
    delays = ReadDelays()
    for delay_ns in range(1, 10_002):
        delays.extend([delay_ns])
    delays.extend([50_000, 1])
    kept = delays.seconds()
    assert kept is not None
    assert 500 <= len(kept) <= 1001
    assert kept.max() == pytest.approx(50e-6)
    assert np.median(kept) == pytest.approx(5e-6, rel=0.02)


def test_delays_are_unknown_when_most_reads_had_no_stamp() -> None:
    delays = ReadDelays()
    assert delays.seconds() is None
    delays.extend([5])
    delays.extend([-1])
    assert delays.seconds() is None
