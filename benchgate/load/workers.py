"""Load generator processes: what one does with its shard of a stage, and a fleet of them.

A worker makes its requests ready before the clock starts, sends them on time (`scheduler`), keeps responses on disk as
they end (`spool`), and decodes them once the stage is over (`results`). It has a process of its own also when it is the
only one: telemetry, the journal and the display never share an interpreter with a measurement.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Self, cast

import uvloop

from benchgate.errors import BenchgateError, StoreError
from benchgate.escaped_streams import escape_streams
from benchgate.load.decode.record import progress_of
from benchgate.load.grpc_pool import GrpcPool
from benchgate.load.http.connection import Address
from benchgate.load.http.pool import Pool
from benchgate.load.live import StageMonitor, Watch
from benchgate.load.operator_limits import require_allowed
from benchgate.load.requests import LookAhead, PreparedRequest, prepare_requests, queued_in_file
from benchgate.load.results import StageResult, lost_worker, merged, read_result, remove_spools, salvage
from benchgate.load.scheduler import InFlight, PreparedClass, StageRunner, StageTimings, Start
from benchgate.load.shards import Level, Requests, Shard, stage_shard
from benchgate.load.spool import Spool, SpoolWriter
from benchgate.model.run import WorkerAddresses
from benchgate.plan.model import PlannedStage
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Target

_LATE_S = 0.05  # as late as one single request may be sent


def run_stage(
    target: Target,
    stage: PlannedStage,
    *,
    limits: Limits,
    audit: bool = False,
    service_s: Mapping[str, float] | None = None,
) -> StageResult:
    """Run a planned stage to its end in this process: `run_shard` of `stage_shard`."""
    return run_shard(stage_shard(target, stage, limits=limits, audit=audit, service_s=service_s))


def run_shard(
    shard: Shard, start: Start | None = None, in_flight: InFlight | None = None, *, ends_on_sigterm: bool = False
) -> StageResult:
    """Run one worker's share. Blocks; KeyboardInterrupt passes through with all sockets closed.

    The spools of a shard that has a place for them stay there: the result may never reach its receiver.
    `start` is called once the connections are open and gives the start that all workers share. Without it the stage
    starts then, or at the shard's own `start_at_ns`. Raises TargetError when the target's address or key is none,
    StoreError when a spool cannot be written, LimitError beyond the operator's limits, ClusterError when it is far too
    late, and with `ends_on_sigterm` CancelledError after a SIGTERM, once every answer that has come is in the spool.
    """
    most_rps = require_allowed(shard)
    with _place(shard) as path:
        paths = shard.spools(path)
        with ExitStack() as stack:
            classes = [
                PreparedClass(
                    part.level,
                    stack.enter_context(_prepared(shard.target, part.requests, part.level, path.parent)),
                    SpoolWriter(stack.enter_context(Spool(place))),
                    part.background,
                    None
                    if part.ramp is None
                    else stack.enter_context(_prepared(shard.target, part.ramp.requests, part.level, path.parent)),
                    part.service_s,
                    part.lead_ns,
                )
                for part, place in zip(shard.parts, paths, strict=True)
            ]
            if shard.by_grpc:
                pool: Pool | GrpcPool = GrpcPool(shard.target, shard.limits, progress_of)
            else:
                address = Address.of(shard.target.url, shard.target.route)
                pool = Pool(address, shard.limits, progress_of, audit=shard.audit)
            runner = StageRunner(shard.target, pool, classes, in_flight, shard.start_at_ns, most_rps)
            sent = _run(runner, start, ends_on_sigterm=ends_on_sigterm)
        peers = pool.peers
        seen = (tuple(sorted(peers.resolved)), tuple(sorted(peers.connected)))
        use = replace(sent.client, addresses=(WorkerAddresses((shard.worker,), *seen, shard.region),))
        if shard.workers > 1 and sent.late_s > _LATE_S:  # of one alone, the send lag of its requests says it all
            use = replace(use, faults=(f"{shard.name} started {sent.late_s:.1f} s late",))
        frozen = gc.get_freeze_count() > 0  # somebody else's doing, and theirs to undo
        if not frozen:
            gc.freeze()  # while results are decoded, collections skip all that was there before
        try:
            result = read_result(shard, path, use, sent.down_after_s)
        finally:
            if not frozen:
                gc.unfreeze()
        for group, place, read in zip(classes, paths, result.classes, strict=True):
            if read.recorded != group.writer.count:
                raise StoreError(
                    f"{place} gave back {read.recorded} of the {group.writer.count} answers written to it; "
                    "look for damage to that disk, or choose another place"
                )
        return result


@contextmanager
def _prepared(target: Target, requests: Requests, level: Level, folder: Path) -> Iterator[Iterator[PreparedRequest]]:
    """Prepare the requests: all before the clock starts; of an endless load one for every slot."""
    prepared = prepare_requests(target, requests)
    if requests.endless:
        yield LookAhead(prepared, level.concurrency or 1)
    else:
        with queued_in_file(folder, prepared) as queue:
            yield queue


def _run(sending: StageRunner, start: Start | None, *, ends_on_sigterm: bool) -> StageTimings:
    async def run() -> StageTimings:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if not ends_on_sigterm or task is None:
            return await sending.run(start)
        # One round later: whoever waits for an answer that has come takes it first.
        loop.add_signal_handler(signal.SIGTERM, lambda: loop.call_soon(task.cancel))
        try:
            return await sending.run(start)
        finally:
            loop.remove_signal_handler(signal.SIGTERM)  # a closed uvloop would go on swallowing it

    collects = gc.isenabled()
    gc.disable()  # a collection in the middle of a stage would stop the clock of every stream
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run())
    except BaseExceptionGroup as group:
        refused, other = group.split(BenchgateError)
        if refused is None or other is not None:
            raise
        first: BaseException = refused
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None  # of many slots that met the same full disk
    finally:
        if collects:
            gc.enable()


@contextmanager
def _place(shard: Shard) -> Iterator[Path]:
    if shard.spool is not None:
        yield shard.spool
        return
    with tempfile.TemporaryDirectory(prefix="benchgate-load-") as folder:
        yield Path(folder) / "answers"


_READY = "ready"
_STUCK_S = 60.0  # without any use of CPU: a worker at work uses some every few milliseconds
_STOP_S = 10.0
_END_S = 5.0  # to keep what was answered
_TICK_S = 1.0


class WorkerProcess:
    """A load generator process: gets shards over a pipe, runs one after the other, and lives until it is stopped.

    A process that died is not ready and has no result. With `fork`, a parent without other threads forks it, which
    saves the imports.
    """

    def __init__(self, *, fork: bool = False) -> None:
        forks = fork and sys.platform == "linux" and threading.active_count() == 1
        context = multiprocessing.get_context("fork") if forks else multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._in_flight: InFlight = context.RawValue("q", 0)
        self._used_ns: int | None = None  # CPU time at the last look, and when that was
        self._looked_s = 0.0
        self._process = context.Process(target=_serve, args=(theirs, self._in_flight), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        """Return the id of the process."""
        return self._process.pid

    @property
    def in_flight(self) -> int:
        """Return the number of requests under way, as of a moment ago."""
        return self._in_flight.value

    def begin(self, shard: Shard) -> None:
        """Give it a shard. It opens its connections and waits."""
        with suppress(OSError):  # it is dead, and will not be ready
            self._pipe.send(shard)

    def is_ready(self, deadline_s: float) -> bool:
        """Return True once its connections are open. Raises its BenchgateError.

        After the deadline (time.monotonic) it is killed unless it is at work: it may be preparing many requests.
        """
        self.watch()
        while not self._pipe.poll(max(_TICK_S, deadline_s - time.monotonic())):
            if self.is_stuck():
                self._process.kill()
                return False
        return self._receive() == _READY

    def start(self, start_ns: int) -> None:
        """Send it the shared start, in ns since 1970."""
        with suppress(OSError):
            self._pipe.send(start_ns)

    def has_message(self, within_s: float) -> bool:
        """Wait for a message or the end of the process. Return False if neither came in this time."""
        return self._pipe.poll(within_s)

    def result(self, tick: Callable[[], None] | None = None) -> StageResult | None:
        """Wait for the result of its shard; None when the process was lost. Raises the BenchgateError that it met.

        `tick` is called about once a second meanwhile.
        """
        self.watch()
        while not self._pipe.poll(_STUCK_S if tick is None else _TICK_S):
            if tick is not None:
                tick()
            if self.is_stuck():
                self._process.kill()
                return None
        received = self._receive()
        return received if isinstance(received, StageResult) else None

    def watch(self) -> None:
        """Begin to watch its use of CPU anew, as a stage begins."""
        self._used_ns, self._looked_s = self._cpu_ns(), time.monotonic()

    def is_stuck(self) -> bool:
        """Return True once it has used no CPU for a minute: it was stopped, or hangs in the kernel on a dead disk."""
        if time.monotonic() - self._looked_s < _STUCK_S:
            return False
        before_ns = self._used_ns
        self.watch()
        return self._used_ns == before_ns

    def end(self) -> None:
        """Signal it to keep what was answered and to end."""
        self._process.terminate()
        self._pipe.close()  # it may be waiting for its start

    def stop(self, within_s: float = 0.0) -> None:
        """End it at once; after `end`, when this time is over."""
        self._process.join(within_s)
        self._process.kill()
        self._process.join(_STOP_S)
        self._pipe.close()

    def _receive(self) -> object:
        try:
            received = self._pipe.recv()
        except (EOFError, OSError):
            return None
        if isinstance(received, BenchgateError):
            raise received
        return received

    def _cpu_ns(self) -> int | None:
        """Return the CPU time that the process has used; another value at every call where that is not known."""
        if sys.platform != "linux" or self.pid is None:
            return time.monotonic_ns()
        with suppress(OSError):
            return time.clock_gettime_ns(~self.pid << 3 | 2)  # CPUCLOCK_SCHED of that process
        return None


def _serve(pipe: Pipe, in_flight: InFlight) -> None:
    """Run shards until the pipe is closed. Ctrl-C is for the parent, which then ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    escape_streams()
    gc.set_threshold(50_000)  # decoding makes many objects and no cycles

    def exit_with_parent() -> None:  # a killed parent cannot end its workers, and nobody else would
        if (parent := multiprocessing.parent_process()) is not None:
            wait([parent.sentinel])
            os._exit(1)

    def start() -> int:
        pipe.send(_READY)
        return cast(int, pipe.recv())

    threading.Thread(target=exit_with_parent, daemon=True).start()
    while True:
        try:
            shard = pipe.recv()
        except EOFError:
            return
        try:
            awaited = start if shard.start_at_ns is None else None
            result: StageResult | BenchgateError = run_shard(shard, awaited, in_flight, ends_on_sigterm=True)
        except BenchgateError as error:
            result = error
        except asyncio.CancelledError:
            return
        try:
            pipe.send(result)
        except OSError:  # the parent ended the stage just now
            return


_START_IN_NS = 100_000_000  # between "all are ready" and the shared start
READY_S = 120.0  # to start a process and open its connections

Begins = Callable[[int], None]


class Fleet:
    """Runs stages over `workers` processes that share one schedule and one start. Use as a context manager.

    The processes live as long as the fleet. One that is lost does not take the stage with it: what it had answered is
    read from its spool, what it had not is recorded as never sent, and the stage reports the loss. Answers are kept in
    files of `folder` until the next stage begins or the fleet ends; without one in a temporary folder. `fork` is that
    of `WorkerProcess`. `watch` gets the figures of a stage under way about once a second.
    """

    def __init__(
        self, workers: int = 1, folder: Path | None = None, *, fork: bool = False, watch: Watch | None = None
    ) -> None:
        self.workers = workers
        self._watch = watch
        self._fork = fork
        self._folder = folder
        self._stack = ExitStack()
        self._stages = 0
        self._processes: dict[int, WorkerProcess] = {}
        self._shards: list[Shard] = []  # of the stage under way, or of the last one

    def __enter__(self) -> Self:
        if self._folder is None:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="benchgate-load-")))
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._clear()
        self._stack.close()

    def run(self, stage: Shard, begins: Begins | None = None) -> StageResult:
        """Run a whole stage to its end: the same requests at the same instants for any number of workers.

        `begins` gets the start, in ns since 1970, as soon as it is known.
        Raises TargetError when the target's address or key is invalid, StoreError when answers cannot be kept. After a
        KeyboardInterrupt, `salvage` returns what had been answered.
        """
        if self._folder is None:
            raise RuntimeError("a fleet is used as a context manager")
        self._clear()
        self._stages += 1
        prefix = self._folder / f"stage-{self._stages}"
        self._shards = [
            replace(shard, spool=prefix.with_suffix(f".{shard.worker + 1}")) for shard in stage.split(self.workers)
        ]
        try:
            return merged(self._run(begins))
        except BaseException:
            self._stop()  # the others would go on, or wait for a start that never comes
            raise

    def salvage(self) -> StageResult:
        """Return what was answered in an interrupted stage, also by workers that had finished their share."""
        whole = merged([salvage(shard) for shard in self._shards])
        return replace(whole, client=replace(whole.client, faults=("the stage was cut short",)))

    def _run(self, begins: Begins | None) -> list[StageResult]:
        for shard in self._shards:
            self._process(shard).begin(shard)
        deadline = time.monotonic() + READY_S
        ready = [shard for shard in self._shards if self._process(shard).is_ready(deadline)]
        start_ns = time.time_ns() + _START_IN_NS
        if begins is not None:
            begins(start_ns)
        for shard in ready:
            self._process(shard).start(start_ns)
        if self._watch is None:
            return [self._result(shard) for shard in self._shards]
        with StageMonitor(self._shards, start_ns, self._in_flight, self._watch) as monitor:
            return [self._result(shard, monitor.read) for shard in self._shards]

    def _in_flight(self) -> int:
        return sum(process.in_flight for process in self._processes.values())

    def _result(self, shard: Shard, tick: Callable[[], None] | None = None) -> StageResult:
        result = self._process(shard).result(tick)
        if result is not None:
            return result
        self._processes.pop(shard.worker).stop()
        return lost_worker(shard)

    def _process(self, shard: Shard) -> WorkerProcess:
        if shard.worker not in self._processes:
            self._processes[shard.worker] = WorkerProcess(fork=self._fork)
        return self._processes[shard.worker]

    def _clear(self) -> None:
        for shard in self._shards:
            remove_spools(shard)
        self._shards = []

    def _stop(self) -> None:
        for process in self._processes.values():
            process.end()
        while self._processes:
            _, process = self._processes.popitem()
            process.stop(_END_S)
