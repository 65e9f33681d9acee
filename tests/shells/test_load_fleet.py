import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import LimitError, TargetError
from benchgate.load import live
from benchgate.load.live import LiveFigures
from benchgate.load.operator_limits import VARIABLE, require_allowed
from benchgate.load.results import merged
from benchgate.load.scheduler import InFlight
from benchgate.load.shards import Level, PlannedRequests, Requests, Shard, stage_shard
from benchgate.load.spool import SpoolWriter
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import SyntheticRequests
from benchgate.load.workers import Fleet, WorkerProcess, run_shard
from benchgate.load.workers import _serve as workers_serve
from benchgate.model import request_metrics
from benchgate.model.records import ErrorClass
from benchgate.model.run import ClientUse
from benchgate.plan.model import PlannedRequest, PlannedStage
from benchgate.plan.schedule import make_plan
from benchgate.plan.slot_share import SlotShare
from benchgate.suite.loader import parse_suite
from tests.fakes.scripted_server import ABORT, Received, ScriptedServer, Step, answering, json_response
from tests.shells.load_helpers import WHOLE, closed, limits, opened, target_at

Asked = tuple[int, int | None, str, int]


def shard_of(url: str, stage: PlannedStage) -> Shard:
    return stage_shard(target_at(url), stage, limits=limits())


def bare(**options: Any) -> Requests:
    return SyntheticRequests(LoadOptions.parse(url="http://127.0.0.1:1", model="m", input_tokens=3, **options))


def asked(requests: Iterable[PlannedRequest]) -> list[Asked]:
    return sorted((request.index, request.offset_ns, request.ask.prompt or "", request.seed) for request in requests)


@pytest.mark.parametrize(
    "requests",
    [
        PlannedRequests(opened(range(0, 70, 10)).requests),
        bare(rate="100/s", requests=7),
        bare(rate="20/s", arrival="constant", duration="1s"),
        bare(concurrency=5, requests=7),
    ],
)
@pytest.mark.parametrize("workers", [2, 3, 9])
def test_any_number_of_workers_asks_the_same(requests: Requests, workers: int) -> None:
    shares = [requests.share(SlotShare(worker, workers, workers)) for worker in range(workers)]
    assert asked(request for share in shares for request in share) == asked(requests)
    assert max(len(list(share)) for share in shares) - min(len(list(share)) for share in shares) <= 1


@pytest.mark.parametrize("requests", [PlannedRequests(closed(36).requests), bare(concurrency=5, requests=36)])
@pytest.mark.parametrize(("slots", "workers"), [(3, 2), (5, 4), (9, 8), (6, 3), (2, 5)])
def test_each_slot_of_a_closed_loop_gets_equally_many_requests(requests: Requests, slots: int, workers: int) -> None:
    """Otherwise the workers with fewer slots would send alone in the end, below the stated concurrency."""
    whole = Shard.of(target_at("http://127.0.0.1:1"), requests, Level(slots, None), limits())
    parts = [shard.parts[0] for shard in whole.split(workers)]
    assert asked(request for part in parts for request in part.requests) == asked(requests)
    for part in parts:
        own_slots = part.level.concurrency or 0
        assert own_slots * (36 // slots) <= len(list(part.requests)) <= own_slots * -(-36 // slots)


def test_shares_of_a_closed_loop_have_its_slots_between_them() -> None:
    shards = shard_of("http://127.0.0.1:1", closed(20, concurrency=5)).split(3)
    assert [shard.parts[0].level.concurrency for shard in shards] == [2, 2, 1]
    assert [shard.name for shard in shards] == ["worker 1 of 3", "worker 2 of 3", "worker 3 of 3"]
    assert len(shard_of("http://127.0.0.1:1", closed(20, concurrency=2)).split(8)) == 2


def test_shares_of_an_open_loop_have_its_rate_between_them() -> None:
    stage = Shard.of(target_at("http://127.0.0.1:1"), PlannedRequests(()), Level(None, 90.0, 3.0), limits())
    assert [shard.parts[0].level for shard in stage.split(3)] == [Level(None, 30.0, 3.0)] * 3


SUITE = """\
suite: limited
deployments: {a: {url: "http://h:1", model: m}, b: {url: "http://h:2", model: m}}
baseline: a
candidate: b
load: {workload: {input: 8 tokens, output: 8 tokens}, blocks: 2, sweep: [{stage: s, OFFERED}]}
"""


@pytest.mark.parametrize(
    ("offered", "peak"), [("rate: 6/s, requests: 600", 6), ("rate: 1/s, ramp_to: 9/s, for: 60s", 9), ("", 30)]
)
def test_an_operators_limit_is_that_of_a_stated_rate_and_of_the_busiest_second_of_recorded_arrivals(
    tmp_path: Path, offered: str, peak: int
) -> None:
    """Poisson arrivals at 6/s have seconds with more than 10: a run would end in the first block that has one."""
    limited = tmp_path / "limits.yaml"
    if offered:
        stage = make_plan(parse_suite(SUITE.replace("OFFERED", offered), "s.yaml")).blocks[0].stages[0]
    else:
        stage = opened([0] * 30)
    for most in (peak, peak - 1):
        limited.write_text(f"rate: {most}/s")
        with pytest.raises(LimitError, match="and this load has") if most < peak else nullcontext():
            assert require_allowed(shard_of("http://h:1", stage), {VARIABLE: str(limited)}) == peak


def test_fleet_gives_the_rows_of_every_stage_in_order() -> None:
    """Two stages over the same two processes."""
    with ScriptedServer(answering(lambda received: "a b c")) as server, Fleet(2) as fleet:
        first = fleet.run(shard_of(server.url, closed(7, concurrency=3)))
        workers = {child.pid for child in multiprocessing.active_children()}
        second = fleet.run(shard_of(server.url, opened([0, 10_000_000, 20_000_000])))
        assert {child.pid for child in multiprocessing.active_children()} == workers
        assert len(server.requests) == 10
    assert not multiprocessing.active_children()
    assert first.requests.index.tolist() == list(range(7))
    assert second.requests.index.tolist() == [0, 1, 2]
    assert second.requests.intended_ns.tolist() == [0, 10_000_000, 20_000_000]
    assert first.requests.error == (None,) * 7
    assert (first.client.workers, second.client.workers, first.client.faults) == (2, 2, ())
    assert first.client.cpu_s > 0


@pytest.mark.parametrize("fork", [False, True])
def test_a_single_worker_has_a_process_of_its_own_too(tmp_path: Path, fork: bool) -> None:
    with ScriptedServer(answering(lambda received: "a b c")) as server, Fleet(1, tmp_path / "load", fork=fork) as fleet:
        result = fleet.run(shard_of(server.url, closed(3)))
        assert len(multiprocessing.active_children()) == 1
    assert list((tmp_path / "load").iterdir()) == []
    assert result.requests.index.tolist() == [0, 1, 2]


@pytest.fixture
def first_worker() -> Iterator[list[int]]:
    """The id of the first process that was started, once there is one."""
    before = {child.name for child in multiprocessing.active_children()}

    class Started(list[int]):
        def __getitem__(self, at: Any) -> Any:
            children = [child for child in multiprocessing.active_children() if child.name not in before]
            return sorted(children, key=lambda child: int(child.name.rpartition("-")[2]))[at].pid

    yield Started()


def test_killed_worker_is_named_and_nothing_planned_goes_missing(first_worker: list[int]) -> None:
    """The first worker asks 0, 2, 4 … one after the other: when it asks 6, its answers to 0, 2 and 4 had ended."""

    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == "prompt 6":
            os.kill(first_worker[0], signal.SIGKILL)
            return [30.0]
        return [WHOLE]

    with ScriptedServer(respond) as server, Fleet(2) as fleet:
        result = fleet.run(shard_of(server.url, closed(12, concurrency=2)))
        again = fleet.run(shard_of(server.url, closed(2, concurrency=2)))
    columns = result.requests
    assert columns.index.tolist() == list(range(12))
    assert [number for number, error in enumerate(columns.error) if error is not None] == [6, 8, 10]
    assert set(columns.error[6::2]) == {ErrorClass.CLIENT}
    assert columns.error_detail[6] == "worker 1 of 2 was lost before this request was over"
    assert columns.sent_ns[6] == -1
    assert result.client.faults == ("worker 1 of 2 was lost",)
    assert (tuple(again.requests.error), again.client.faults) == ((None, None), ())  # it was replaced


class Laborious(PlannedRequests):
    """Requests of which the first takes a second of work."""

    def __iter__(self) -> Iterator[PlannedRequest]:
        until_s = time.process_time() + 1.0
        while time.process_time() < until_s:
            pass
        return super().__iter__()


def test_worker_that_still_prepares_its_requests_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand recordings of a minute take two."""
    monkeypatch.setattr("benchgate.load.workers.READY_S", 0.0)
    with ScriptedServer(lambda received: [WHOLE]) as server, Fleet(1) as fleet:
        shard = shard_of(server.url, closed(2))
        part = replace(shard.parts[0], requests=Laborious(closed(2).requests))
        result = fleet.run(replace(shard, parts=(part,)))
    assert result.client.faults == ()
    assert result.requests.error == (None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="the CPU clock of another process is Linux's")
def test_worker_that_hangs_before_it_is_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.load.workers._STUCK_S", 0.5)
    process = WorkerProcess()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    assert not process.is_ready(time.monotonic())
    process.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the CPU clock of another process is Linux's")
def test_a_worker_that_hangs_is_given_up(first_worker: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, it uses no CPU, as one that waits for a dead network disk."""
    monkeypatch.setattr("benchgate.load.workers._STUCK_S", 0.5)

    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == "prompt 1":
            os.kill(first_worker[0], signal.SIGSTOP)
            return [30.0]
        return [WHOLE]

    with ScriptedServer(respond) as server, Fleet(1) as fleet:
        result = fleet.run(shard_of(server.url, closed(3)))
    assert result.requests.error == (None, ErrorClass.CLIENT, ErrorClass.CLIENT)
    assert result.client.faults == ("worker 1 of 1 was lost",)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_watched_stage_shows_what_has_ended_and_what_is_in_flight(workers: int) -> None:
    """Two requests of four are held back until the display has shown them."""
    seen, shown = list[LiveFigures](), threading.Event()

    def watch(figures: LiveFigures) -> None:
        seen.append(figures)
        if (figures.ended, figures.in_flight) == (2, 2):
            shown.set()

    def respond(received: Received) -> Iterable[Step]:
        while received.prompt in ("prompt 2", "prompt 3") and not shown.is_set():
            yield 0.02
        yield WHOLE if received.prompt != "prompt 1" else json_response({}, status=500)

    with ScriptedServer(respond) as server, Fleet(workers, watch=watch) as fleet:
        result = fleet.run(shard_of(server.url, closed(4, concurrency=2)))
    halfway = next(figures for figures in seen if (figures.ended, figures.in_flight) == (2, 2))
    assert (len(result.requests), halfway.failed) == (4, 1)
    assert halfway.ttft_p50_s == pytest.approx(float(request_metrics.ttft_s(result.requests)[0]))
    assert halfway.elapsed_s > 0


def test_a_watched_stage_counts_the_failures_of_answers_that_it_has_no_time_to_decode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "_DECODING_S", 0.0)
    seen, shown = list[LiveFigures](), threading.Event()

    def watch(figures: LiveFigures) -> None:
        seen.append(figures)
        if figures.ended == 3:
            shown.set()

    def respond(received: Received) -> Iterable[Step]:
        while received.prompt == "prompt 3" and not shown.is_set():
            yield 0.02
        if received.prompt == "prompt 2":
            yield ABORT
        yield WHOLE if received.prompt != "prompt 1" else json_response({}, status=500)

    with ScriptedServer(respond) as server, Fleet(1, watch=watch) as fleet:
        fleet.run(shard_of(server.url, closed(4, concurrency=2)))
    so_far = next(figures for figures in seen if figures.ended == 3)
    assert (so_far.failed, so_far.ttft_p50_s) == (2, None)


@pytest.mark.parametrize("fork", [True, False])
def test_a_worker_between_two_stages_ends_by_sigterm(fork: bool) -> None:
    with ScriptedServer(lambda received: [WHOLE]) as server:
        process = WorkerProcess(fork=fork)
        process.begin(shard_of(server.url, closed(1)))
        assert process.is_ready(time.monotonic() + 60)
        process.start(time.time_ns())
        assert process.result() is not None
        child = next(one for one in multiprocessing.active_children() if one.pid == process.pid)
        child.terminate()
        child.join(60)
        process.stop()
    assert child.exitcode == -signal.SIGTERM


def test_worker_that_starts_late_says_so() -> None:
    with ScriptedServer(lambda received: [WHOLE]) as server:
        shard = replace(shard_of(server.url, opened([0])), worker=1, workers=4)
        late = run_shard(shard, lambda: time.time_ns() - 1_300_000_000)
        punctual = run_shard(shard, lambda: time.time_ns() + 100_000_000)
        alone = run_shard(replace(shard, worker=0, workers=1), lambda: time.time_ns() - 1_300_000_000)
    assert late.client.faults == ("worker 2 of 4 started 1.3 s late",)
    assert alone.client.faults == ()  # the bounds of its requests' send lag decide
    assert alone.requests.sent_ns[0] >= 1_300_000_000
    assert late.requests.sent_ns[0] >= 1_300_000_000  # its lateness is in the latency too
    assert punctual.client.faults == ()
    assert punctual.requests.sent_ns[0] >= 0


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupted_stage_leaves_what_was_answered(workers: int, tmp_path: Path) -> None:
    """Both asked for so far were answered, for the one who asked went on to the next."""

    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == f"prompt {2 * workers}":
            os.kill(os.getpid(), signal.SIGINT)
            return [30.0]
        return [WHOLE]

    with ScriptedServer(respond) as server, Fleet(workers, tmp_path) as fleet:
        with pytest.raises(KeyboardInterrupt):
            fleet.run(shard_of(server.url, closed(2 * workers + 1, concurrency=workers)))
        assert not multiprocessing.active_children()
        left = fleet.salvage()
    assert {0, workers} <= set(left.requests.index.tolist())
    assert set(left.requests.error) == {None}
    assert left.client.faults == ("the stage was cut short",)


def serve_with_a_slow_disk(pipe: Connection, in_flight: InFlight) -> None:
    """Stand in for a worker that is interrupted between an answer and its next turn at the disk."""
    SpoolWriter._keep_some = lambda self: None  # type: ignore[method-assign]  # in a process of its own
    workers_serve(pipe, in_flight)


def test_interrupted_worker_keeps_the_answers_that_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.load.workers._serve", serve_with_a_slow_disk)

    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == "prompt 20":
            os.kill(os.getpid(), signal.SIGINT)
            return [30.0]
        return [WHOLE]

    with ScriptedServer(respond) as server, Fleet(1) as fleet:
        with pytest.raises(KeyboardInterrupt):
            fleet.run(shard_of(server.url, closed(30, concurrency=1)))
        assert not multiprocessing.active_children()
        assert fleet.salvage().requests.index.tolist() == list(range(20))


def test_interrupted_stage_leaves_what_a_worker_brought_home_before() -> None:
    """The second one asks 1 and 3 and is done; the first one still waits for its answer to 0."""

    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == "prompt 3":  # after a moment in which the second one says that it is done
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        return [30.0] if received.prompt == "prompt 0" else [WHOLE]

    with ScriptedServer(respond) as server, Fleet(2) as fleet:
        with pytest.raises(KeyboardInterrupt):
            fleet.run(shard_of(server.url, closed(4, concurrency=2)))
        left = fleet.salvage()
    assert left.requests.index.tolist() == [1, 3]
    assert set(left.requests.error) == {None}


@pytest.mark.parametrize("workers", [1, 2])
def test_address_that_is_none_is_refused_by_a_fleet_too(workers: int) -> None:
    with Fleet(workers) as fleet, pytest.raises(TargetError):
        fleet.run(shard_of("ftp://nowhere", closed(4, concurrency=2)))


def test_merged_of_nothing_is_nothing() -> None:
    whole = merged([])
    assert (len(whole.requests), whole.window_s) == (0, 0.0)
    assert ClientUse.from_document(whole.client.to_document()) == whole.client
