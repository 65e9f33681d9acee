"""What a worker of a cluster does with a shard, without a cluster: once, for one load test at a time, for a client."""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchgate.load import cluster_worker as cluster_job
from benchgate.load.results import StageResult
from benchgate.load.shards import Shard, stage_shard
from benchgate.model.records import ErrorClass
from benchgate.plan.model import PlannedStage
from tests.fakes.scripted_server import Received, ScriptedServer, Step
from tests.shells.load_helpers import WHOLE, closed, limits, target_at


def shard_of(url: str, stage: PlannedStage) -> Shard:
    return stage_shard(target_at(url), stage, limits=limits())


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Any]:
    """What a worker of a cluster is to a job."""
    worker = SimpleNamespace(address="tcp://here:1", local_directory=str(tmp_path))
    yield worker
    cluster_job.release("ours", worker)
    assert cluster_job._JOBS == {}
    assert cluster_job._PROCESSES == {}


def do(name: str) -> StageResult:
    result = cluster_job.do_shard(name)
    assert result is not None
    return result


def test_shard_is_done_once(here: Any) -> None:
    with ScriptedServer(lambda received: [WHOLE]) as server:
        assert cluster_job.assign("ours", "a", shard_of(server.url, closed(1)), here) is None
        cluster_job.start("a", time.time_ns())
        assert do("a").requests.error == (None,)
        assert cluster_job.do_shard("a") is None
        assert len(server.requests) == 1


def test_worker_is_busy_with_one_load_test_at_a_time(here: Any) -> None:
    shard = shard_of("http://127.0.0.1:1", closed(1))
    assert cluster_job.assign("ours", "a", shard, here) is None
    assert cluster_job.assign("theirs", "b", shard, here) == "is busy with another load test"
    cluster_job.give_up("a")
    assert cluster_job.assign("ours", "c", shard, here) is None
    assert cluster_job.do_shard("a") is None


def test_load_ends_when_its_client_is_gone(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody renews the lease, which runs out while the second answer is awaited."""

    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == "prompt 1":
            monkeypatch.setattr(cluster_job, "_LEASE_S", 0.0)
            return [600.0]
        return [WHOLE]

    with ScriptedServer(respond) as server:
        cluster_job.assign("ours", "a", shard_of(server.url, closed(3)), here)
        cluster_job.start("a", time.time_ns())
        result = do("a")
    assert result.requests.error == (None, ErrorClass.CLIENT, ErrorClass.CLIENT)
    assert result.client.faults == ("worker 1 of 1 was lost",)


@pytest.mark.skipif(sys.platform != "linux", reason="the CPU clock of another process is Linux's")
def test_load_process_that_hangs_is_given_up_though_its_client_waits(
    here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped for good, as one that waits for a dead network disk; the lease is renewed all the time."""
    monkeypatch.setattr("benchgate.load.workers._STUCK_S", 1.0)
    monkeypatch.setattr(cluster_job, "_LEASE_S", float("inf"))

    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == "prompt 1":
            pid = cluster_job._PROCESSES[here.address][1].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            return [600.0]
        return [WHOLE]

    with ScriptedServer(respond) as server:
        cluster_job.assign("ours", "a", shard_of(server.url, closed(3)), here)
        cluster_job.start("a", time.time_ns())
        result = do("a")
    assert result.requests.error == (None, ErrorClass.CLIENT, ErrorClass.CLIENT)
    assert result.client.faults == ("worker 1 of 1 was lost",)
