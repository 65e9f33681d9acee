import asyncio
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from distributed.comm.core import CommClosedError

from benchgate.errors import ClusterError, ExitCode, RunInterrupted, UsageError
from benchgate.load import cluster, cluster_worker
from benchgate.load.clocks import Clock, HostClock, host_clock
from benchgate.load.cluster import ClusterFleet, clock_of
from benchgate.load.shards import Shard, stage_shard
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import run_load_test, stage_of, target_of
from benchgate.load.workers import run_shard
from benchgate.model.records import ErrorClass
from benchgate.model.run import RunStatus
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.resume import resume_suite
from benchgate.pipeline.run import RunOptions, run_suite
from benchgate.plan.model import PlannedStage
from benchgate.suite.loader import parse_suite
from benchgate.targets.address import Route
from tests.e2e.command import STORE, document, here, latest_evidence
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering
from tests.fakes.slow_way import SlowWay
from tests.shells.load_helpers import WHOLE, closed, limits, opened, target_at

pytestmark = pytest.mark.alone


def shard_of(url: str, stage: PlannedStage) -> Shard:
    return stage_shard(target_at(url), stage, limits=limits())


@dataclass(frozen=True)
class Cluster:
    """A scheduler and two workers under their nannies, as their command lines start them."""

    address: str
    client: Client
    folder: Path
    scheduler: subprocess.Popen[bytes]

    @property
    def workers(self) -> list[str]:
        """Addresses, in the order in which a fleet numbers them. Waits until both answer."""
        return sorted(self.pids())

    def pid(self, worker: str) -> int:
        return self.pids()[worker]

    def pids(self) -> dict[str, int]:
        """Process by address. Asks until two answer, for a scheduler may still list one that was killed."""
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            with suppress(CommClosedError):
                found: dict[str, int] = self.client.run(os.getpid)
                if len(found) == 2:
                    return found
            time.sleep(0.05)
        raise TimeoutError("two workers did not answer within 60 s")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def dask(command: str, *args: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler or a worker, as `dask scheduler` and `dask worker` run it."""
    where = () if "--contact-address" in args else ("--host", "127.0.0.1")
    line = [sys.executable, "-m", f"distributed.cli.dask_{command}", *where, "--no-dashboard", *args]
    process = subprocess.Popen(line, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def a_worker(address: str, folder: Path, *, nanny: bool = True, **environment: str) -> Iterator[None]:
    """With a port of its own: whoever takes its place, which a nanny starts, has its address."""
    alone = () if nanny else ("--no-nanny",)
    place = ("--worker-port", str(free_port()), "--local-directory", str(folder))
    with dask("worker", address, "--nthreads", "1", *place, *alone, **environment):
        yield


@contextmanager
def a_cluster(folder: Path, workers: int, *, nanny: bool = True) -> Iterator[Cluster]:
    with ExitStack() as stack:
        port = free_port()
        address = f"tcp://127.0.0.1:{port}"
        scheduler = stack.enter_context(dask("scheduler", "--port", str(port)))
        for _ in range(workers):
            stack.enter_context(a_worker(address, folder, nanny=nanny))
        client = Client(address, timeout=60, set_as_default=False)  # type: ignore[no-untyped-call]  # typed in parts
        stack.enter_context(client)
        client.wait_for_workers(workers, timeout=60)
        yield Cluster(address, client, folder, scheduler)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(tmp_path_factory.mktemp("dask"), 2) as found:
        yield found


@pytest.fixture(scope="module")
def fleet(two: Cluster) -> Iterator[ClusterFleet]:
    """One for all tests: it keeps its load generator processes."""
    with ClusterFleet(two.address) as found:
        yield found


def asked(server: ScriptedServer) -> list[tuple[str, int]]:
    return sorted((received.prompt, (received.body or {})["seed"]) for received in server.requests)


BATCH, CHAT = closed(9, concurrency=4), opened(range(0, 90_000_000, 10_000_000))
BOTH = PlannedStage("mix", (replace(BATCH.only, name="batch"), replace(CHAT.only, name="chat")))


@pytest.mark.parametrize("stage", [BATCH, CHAT, BOTH])
def test_cluster_asks_and_records_the_same_as_one_process(
    stage: PlannedStage, two: Cluster, fleet: ClusterFleet
) -> None:
    with ScriptedServer(answering(lambda received: "a b c")) as server:
        alone = run_shard(shard_of(server.url, stage))
        expected = asked(server)
    with ScriptedServer(answering(lambda received: "a b c")) as server:
        together = fleet.run(shard_of(server.url, stage))
        assert asked(server) == expected
    for group, theirs, ours in zip(stage.classes, together.classes, alone.classes, strict=True):
        assert theirs.name == ours.name == group.name
        assert theirs.requests.index.tolist() == ours.requests.index.tolist()
        assert theirs.requests.error == ours.requests.error
        assert theirs.requests.output_tokens.tolist() == ours.requests.output_tokens.tolist()
        if group.concurrency is None:
            assert theirs.requests.intended_ns.tolist() == ours.requests.intended_ns.tolist()
    assert (together.client.workers, together.client.faults) == (2, ())
    (seen,) = together.client.addresses
    assert (seen.workers, seen.resolved, seen.connected) == ((0, 1), ("127.0.0.1",), ("127.0.0.1",))
    assert together.client.start_uncertainty_s is not None
    assert list(two.folder.rglob("*.answers*")) == []


def test_killed_worker_is_named_and_its_requests_are_never_sent_twice(two: Cluster, fleet: ClusterFleet) -> None:
    """The first worker asks 0, 2, 4 …: it is killed when it asks 6. Its nanny puts another one at its address."""
    first, second = two.workers
    pid = two.pid(first)

    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == "prompt 6":
            os.kill(pid, signal.SIGKILL)
            return [30.0]
        return [WHOLE]

    with ScriptedServer(respond) as server:
        result = fleet.run(shard_of(server.url, closed(12, concurrency=2)))
        assert two.workers == [first, second]
        assert two.pid(first) != pid
        again = fleet.run(shard_of(server.url, closed(2, concurrency=2)))
        asked_for = [received.prompt for received in server.requests]
    columns = result.requests
    assert columns.index.tolist() == list(range(12))
    assert [number for number, error in enumerate(columns.error) if error is None] == [1, 3, 5, 7, 9, 11]
    assert set(columns.error[::2]) == {ErrorClass.CLIENT}
    assert set(columns.sent_ns[::2].tolist()) == {-1}
    assert result.client.faults == (f"worker 1 of 2 at {first} was lost",)
    assert (tuple(again.requests.error), again.client.faults) == ((None, None), ())
    once = [f"prompt {number}" for number in (2, 3, 4, 5, 6, 7, 9, 11)]
    assert sorted(prompt for prompt in asked_for if prompt not in ("prompt 0", "prompt 1")) == sorted(once)


def test_lost_load_process_is_named_and_its_answers_are_kept(two: Cluster, fleet: ClusterFleet) -> None:
    """Of the first worker, only the process that sends is killed: the worker tells what it had answered."""
    first, _ = two.workers

    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == "prompt 6":
            threading.Thread(target=two.client.run, args=(kill_load_process,), kwargs={"workers": [first]}).start()
            return [30.0]
        return [WHOLE]

    with ScriptedServer(respond) as server:
        result = fleet.run(shard_of(server.url, closed(12, concurrency=2)))
    assert [number for number, error in enumerate(result.requests.error) if error is not None] == [6, 8, 10]
    assert result.client.faults == (f"worker 1 of 2 at {first} was lost",)


def kill_load_process(dask_worker: Any) -> None:
    process = cluster_worker._PROCESSES[dask_worker.address][1]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)


def test_worker_that_is_stopped_for_good_is_given_up(
    two: Cluster, fleet: ClusterFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scheduler would wait five minutes for it, or for ever."""
    monkeypatch.setattr(cluster, "_SILENT_S", 2.0)
    monkeypatch.setattr(cluster, "_RENEW_S", 0.2)
    first, _ = two.workers
    pid = two.pid(first)

    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == "prompt 6":
            os.kill(pid, signal.SIGSTOP)
            return [30.0]
        return [WHOLE]

    try:
        with ScriptedServer(respond) as server:
            result = fleet.run(shard_of(server.url, closed(12, concurrency=2)))
    finally:
        os.kill(pid, signal.SIGKILL)  # its nanny starts another one
    assert result.client.faults == (f"worker 1 of 2 at {first} did not answer for 2 s",)
    assert [number for number, error in enumerate(result.requests.error) if error is None] == [1, 3, 5, 7, 9, 11]


def test_worker_that_is_told_the_start_too_late_is_named(
    two: Cluster, fleet: ClusterFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped once it is ready, and going on when the start is over."""
    first, _ = two.workers
    pid = two.pid(first)

    begin = fleet._start_ns

    async def stopping() -> int:
        start_ns = await begin()
        os.kill(pid, signal.SIGSTOP)
        threading.Timer((start_ns - time.time_ns()) / 1e9 + 0.4, os.kill, (pid, signal.SIGCONT)).start()
        return start_ns

    monkeypatch.setattr(fleet, "_start_ns", stopping)
    with ScriptedServer(lambda received: [WHOLE]) as server:
        result = fleet.run(shard_of(server.url, opened([0, 0])))
    (fault,) = result.client.faults
    assert re.fullmatch(rf"worker 1 of 2 at {re.escape(first)} started \d+\.\d s late", fault)
    assert result.requests.error == (None, None)
    assert result.requests.sent_ns[0] >= 400_000_000  # and counts as its latency


def test_each_worker_is_told_the_start_in_its_own_clock(
    two: Cluster, fleet: ClusterFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that is thought to be 3 s behind, the start of the second is long over."""
    second = two.workers[1]

    async def behind(client: Any, address: str) -> Clock:
        return Clock(-3_000_000_000 if address == second else 0, 100_000)

    monkeypatch.setattr(cluster, "clock_of", behind)
    with ScriptedServer(lambda received: [WHOLE]) as server:
        result = fleet.run(shard_of(server.url, closed(2, concurrency=2)))
    (fault,) = result.client.faults
    assert re.fullmatch(rf"worker 2 of 2 at {re.escape(second)} started [23]\.\d s late", fault)


def test_worker_whose_clock_is_not_known_well_enough_is_named(
    two: Cluster, fleet: ClusterFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = two.workers[1]

    async def unsure(client: Any, address: str) -> Clock:
        return Clock(0, 7_000_000 if address == second else 100_000)

    monkeypatch.setattr(cluster, "clock_of", unsure)
    with ScriptedServer(lambda received: [WHOLE]) as server:
        result = fleet.run(shard_of(server.url, closed(2, concurrency=2)))
    assert result.client.faults == (
        f"worker 2 of 2 at {second} cannot be started within 5 ms of the others: its clock is known to 7.0 ms",
    )
    assert result.client.start_uncertainty_s == 0.007


def test_far_worker_is_good_for_a_ramp_and_not_for_a_burst(
    tmp_path: Path, two: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is 30 ms away each way, and no time service knows its clock better than the round trip."""
    monkeypatch.setattr(cluster, "host_clock", lambda: HostClock("somewhere"))
    first, port = two.workers[0], free_port()
    plain: dict[str, Any] = {"model": "m", "engine": "vllm", "requests": 12, "warmup": "0", "output_tokens": 8}
    with SlowWay("127.0.0.1", port, 0.03) as way, ScriptedServer(answering(lambda received: "a b c")) as server:
        place = f"tcp://127.0.0.1:{way.port}"
        listens = ("--listen-address", f"tcp://127.0.0.1:{port}", "--contact-address", place)
        with dask("worker", two.address, "--nthreads", "1", "--no-nanny", *listens):
            two.client.wait_for_workers(3, timeout=60)
            monkeypatch.setattr(
                ClusterFleet, "_crew", lambda fleet, *_: answer([(fleet._first, one) for one in (first, place)])
            )
            with ClusterFleet(two.address) as fleet:
                for load, service_s, tolerated in (
                    ({"concurrency": 4}, 0.2, True),
                    ({"rate": "50/s"}, 0.2, True),
                    ({"rate": "50/s"}, 0.004, False),  # a ramp of 20 ms
                    ({"rate": "50/s", "ramp_to": "60/s", "requests": None, "duration": "1s"}, 0.2, False),
                ):
                    options = LoadOptions.parse(url=server.url, **plain | load)
                    result = fleet.run(stage_of(options, target_of(options)[0], service_s))
                    assert set(result.requests.error) == {None}
                    assert result.client.start_uncertainty_s is not None
                    assert result.client.start_uncertainty_s >= 0.03
                    unsure = [f for f in result.client.faults if "its clock is known to" in f]
                    assert len(unsure) == (not tolerated)
                    assert all(fault.startswith(f"worker 2 of 2 at {place} ") for fault in unsure)


def test_regions_send_equal_parts_from_clusters_of_their_own(tmp_path: Path, two: Cluster) -> None:
    """The smaller one has one worker, so each sends from one."""
    with (
        a_cluster(tmp_path, 1) as other,
        ScriptedServer(answering(lambda received: "a b c")) as server,
        ClusterFleet({"eu": two.address, "us": other.address}) as fleet,
    ):
        result = fleet.run(shard_of(server.url, CHAT))
    columns = result.requests
    assert list(columns.region) == [("eu", "us")[index % 2] for index in columns.index]
    assert set(columns.error) == {None} and len(columns) == 9
    assert (result.client.workers, result.client.faults) == (2, ())
    assert [(seen.region, seen.workers) for seen in result.client.addresses] == [("eu", (0,)), ("us", (1,))]


async def answer(value: Any) -> Any:
    return value


def test_interrupted_stage_leaves_what_was_answered_and_no_load(fleet: ClusterFleet) -> None:
    def respond(received: Received) -> Iterable[Step]:
        if received.prompt == "prompt 4":
            os.kill(os.getpid(), signal.SIGINT)
            return [600.0]
        return [WHOLE]

    with ScriptedServer(respond) as server:
        with pytest.raises(KeyboardInterrupt):
            fleet.run(shard_of(server.url, closed(5, concurrency=2)))
        left = fleet.salvage()
        again = fleet.run(shard_of(server.url, closed(2, concurrency=2)))
    assert {0, 2} <= set(left.requests.index.tolist()) <= {0, 1, 2, 3}
    assert set(left.requests.error) == {None}
    assert (left.client.by_cluster, left.client.faults) == (True, ("the stage was cut short",))
    assert again.requests.error == (None, None)


def test_stage_that_ended_before_it_had_workers_leaves_no_answers_of_the_stage_before(
    fleet: ClusterFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_workers(url: str | None = None) -> None:
        raise ClusterError("none came")

    with ScriptedServer(lambda received: [WHOLE]) as server:
        assert len(fleet.run(shard_of(server.url, closed(2, concurrency=2))).requests) == 2
        monkeypatch.setattr(fleet, "_crew", without_workers)
        with pytest.raises(ClusterError, match="none came"):
            fleet.run(shard_of(server.url, closed(2, concurrency=2)))
        assert len(fleet.salvage().requests) == 0


def test_bare_load_takes_as_many_workers_as_it_is_told(two: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_COME_S", 0.0)
    load: dict[str, Any] = {"model": "m", "engine": "vllm", "concurrency": 4, "requests": 8, "warmup": "0"}
    with ScriptedServer(answering(lambda received: "a b c")) as server:
        one = run_load_test(LoadOptions.parse(url=server.url, cluster=two.address, workers="1", **load))
        with pytest.raises(ClusterError, match="has 2 workers running, and the load needs 3"):
            run_load_test(LoadOptions.parse(url=server.url, cluster=two.address, workers="3", **load))
    requests: Any = one["requests"]
    assert (requests["scheduled"], requests["ok"], requests["failed_by_class"]) == (8, 8, {})
    assert isinstance(one["client"], dict)
    assert one["client"]["workers"] == 1


def test_what_keeps_a_worker_from_its_part_is_said_with_its_address(two: Cluster, fleet: ClusterFleet) -> None:
    first, second = two.workers
    shard = shard_of("https://localhost:1", closed(2, concurrency=2))
    shard = replace(shard, target=replace(shard.target, route=Route(ca="/nowhere/ca.pem")))
    with pytest.raises(ClusterError, match=r"/nowhere/ca\.pem") as refused:
        fleet.run(shard)
    assert str(refused.value).startswith((f"worker {first}: ", f"worker {second}: "))


def test_worker_of_another_version_is_refused(two: Cluster, tmp_path: Path) -> None:
    metadata = tmp_path / "benchgate-9.9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: benchgate\nVersion: 9.9.9\n")
    with a_worker(two.address, two.folder, nanny=False, PYTHONPATH=str(tmp_path)):
        two.client.wait_for_workers(3, timeout=60)
        with pytest.raises(ClusterError, match=r"runs benchgate 9\.9\.9 on Python .*, and this is benchgate "):
            ClusterFleet(two.address).__enter__()


def test_address_that_means_another_server_to_a_worker_is_refused(
    fleet: ClusterFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(lambda received: [WHOLE]) as server:
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        with pytest.raises(ClusterError, match="is an address of this machine alone"):
            fleet.run(shard_of(server.url, closed(2)))
        assert server.requests == []
        shard = shard_of("http://gpu:8000", closed(2))
        shard = replace(shard, target=replace(shard.target, grpc="grpc://127.0.0.1:1"), by_grpc=True)
        with pytest.raises(ClusterError, match=r"127\.0\.0\.1:1 is an address of this machine alone"):
            fleet.run(shard)


SUITE = """
suite: over-a-cluster
deployments:
  baseline: {{url: "{baseline}", model: m}}
  candidate: {{url: "{candidate}", model: m}}
load:
  workload: {{input: 8 tokens, output: 3 tokens}}
  blocks: 2
  warmup: 1
  sweep:
    - {{stage: closed, concurrency: 2, requests: 20}}
gate:
  checks:
    - {{metric: error_rate, max: 20%}}
"""


def test_run_that_loses_a_worker_is_invalid_by_its_name(two: Cluster, tmp_path: Path) -> None:
    first = two.workers[0]
    pid = two.pid(first)
    answer = answering(lambda received: "a b c", after_s=0.01)

    def respond(received: Received) -> Iterable[Step]:
        if len(server.requests) == 10:
            os.kill(pid, signal.SIGKILL)
        return answer(received)

    with ScriptedServer(respond) as server, ScriptedServer(answer) as baseline:
        (tmp_path / "suite.yaml").write_text(SUITE.format(baseline=baseline.url, candidate=server.url))
        done = here(tmp_path, "run", "suite.yaml", "--cluster", two.address, "--format", "json")
    assert done.returncode == ExitCode.INVALID, done.stderr
    evidence = latest_evidence(tmp_path)
    assert [len(seen.requests) for seen in evidence.load] == [20] * 4
    faults = [fault for seen in evidence.load for fault in seen.client.faults]
    assert f"worker 1 of 2 at {first} was lost" in faults
    assert any(fault in done.stdout for fault in faults)  # one is named, and a busy machine may have more


class Ends(Progress):
    """Ends a run, as Ctrl-C does, once its first execution of a stage is stored."""

    def step(self, done: str) -> None:
        """One step is done."""
        if done.startswith("block"):
            raise KeyboardInterrupt


def test_run_by_a_single_worker_of_a_cluster_is_resumed_by_a_cluster_and_is_not_alike_to_one_of_this_machine(
    two: Cluster, tmp_path: Path
) -> None:
    answer = answering(lambda received: "a b c")
    with ScriptedServer(answer) as server, ScriptedServer(answer) as baseline:
        text = SUITE.format(baseline=baseline.url, candidate=server.url).replace("blocks: 2", "blocks: 2\n  workers: 1")
        (tmp_path / "suite.yaml").write_text(text)
        suite = parse_suite(text, "suite.yaml")
        options = RunOptions(store=str(tmp_path / STORE), work_dir=tmp_path / "work", cluster=two.address)
        here(tmp_path, "run", "suite.yaml")
        local = latest_evidence(tmp_path).run.id
        with pytest.raises(RunInterrupted) as interrupted:
            run_suite(suite, tmp_path, options, Ends())
        with pytest.raises(UsageError, match="its load was sent by a cluster and would be by this machine"):
            resume_suite(suite, tmp_path, replace(options, cluster=None), Progress())
        resume_suite(suite, tmp_path, options, Progress())
    found = latest_evidence(tmp_path)
    assert (found.run.id, found.run.status) == (interrupted.value.run_id, RunStatus.COMPLETE)
    assert {(seen.client.workers, seen.client.faults) for seen in found.load} == {(1, ())}
    compared = document(here(tmp_path, "compare", local, found.run.id, "--format", "json"))
    (guard,) = [guard for guard in compared["guards"] if guard["id"] == "same-client"]
    assert "by 1 load generator process, the other by 1 load generator process of a cluster" in guard["reason"]


def test_lost_scheduler_is_said_so(tmp_path: Path) -> None:
    def respond(received: Received) -> Iterable[Step]:
        lonely.scheduler.kill()
        return [30.0]

    with (
        a_cluster(tmp_path, 1, nanny=False) as lonely,
        ScriptedServer(respond) as server,
        ClusterFleet(lonely.address) as fleet,
        pytest.raises(ClusterError, match="scheduler was lost"),
    ):
        fleet.run(shard_of(server.url, closed(2)))


def test_nobody_at_the_address_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_CONNECT_S", 0.3)
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(ClusterError, match=f"no scheduler answers at {address}"):
        ClusterFleet(address).__enter__()


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.targets.address.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"install the extra `cluster`"):
        ClusterFleet("tcp://127.0.0.1:1").__enter__()


def test_clock_is_found_within_what_is_said_to_be_uncertain() -> None:
    class Far:
        """Answers take unevenly long there and back, as over a network."""

        async def run(self, function: Any, workers: list[str]) -> dict[str, Any]:
            if function is host_clock:
                return {workers[0]: HostClock("far")}
            await asyncio.sleep(0.004)
            told = function() + 9_000_000_000
            await asyncio.sleep(0.001)
            return {workers[0]: told}

    clock = asyncio.run(clock_of(Far(), "tcp://far:1"))
    assert clock is not None
    assert clock.uncertainty_ns >= 2_500_000
    assert abs(clock.offset_ns - 9_000_000_000) <= clock.uncertainty_ns


def test_shard_with_its_key_is_no_argument_of_a_task(two: Cluster, fleet: ClusterFleet) -> None:
    """The scheduler keeps the arguments of tasks, and shows them on its pages."""
    key = "key-c4nary-of-a-cluster"
    submitted: list[bytes] = []
    submit = Client.submit

    def note(self: Client, function: object, *arguments: object, **options: object) -> object:
        submitted.append(pickle.dumps((arguments, options)))
        return submit(self, function, *arguments, **options)  # type: ignore[arg-type]

    with ScriptedServer(answering(lambda received: "a b c")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "submit", note)
        shard = shard_of(server.url, closed(4, concurrency=2))
        fleet.run(replace(shard, target=replace(shard.target, api_key=key)))
        assert all(one.headers["authorization"] == f"Bearer {key}" for one in server.requests)
    assert len(submitted) == 2 and not any(key.encode() in arguments for arguments in submitted)
