"""The work of one worker: its share of a stage as one value that can be sent anywhere, and the function that does it.

Requests are made ready before the clock starts, sent on time (`sending`), kept on disk as they end (`spool`), and read
into records once the stage is over (`reading`). Nothing here knows of processes or of other workers but their number.

One load generator process: gets shards over a pipe, does one after the other, and lives until it is stopped.

Load stages over one or several processes that share one schedule and one start.

One worker is this process itself. More are processes that live as long as the fleet, so that only the first stage
waits for them. A worker that is lost does not take the stage with it: what it had answered is read from its spool,
what it had not is recorded as never sent, and the stage says so.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import uvloop

from benchgate.errors import BenchgateError, StoreError
from benchgate.escaped_streams import escape_streams
from benchgate.load.decode.record import progress_of
from benchgate.load.http.connection import Address
from benchgate.load.http.library import warn_if_missing
from benchgate.load.http.pool import Pool
from benchgate.load.requests import Stock, Ticket, kept_tickets, tickets_of
from benchgate.load.results import StageResult, merged, of_lost, read_left, read_result, remove_spools
from benchgate.load.scheduler import Class, Sending, Sent, Start
from benchgate.load.shards import Level, Requests, Shard, stage_shard
from benchgate.load.spool import Keeper, Spool
from benchgate.model.run import ClientUse
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


def run_shard(shard: Shard, start: Start | None = None) -> StageResult:
    """Do one worker's share. Blocks; KeyboardInterrupt passes through with all sockets closed.

    The spools of a shard that has a place for them stay there, for the result may never come to who asked for it.
    `start` is called once the connections are open and gives the start that all workers share; without it the stage
    starts then. Raises TargetError when the target's address or key is none, StoreError when a spool cannot be written.
    """
    with _place(shard) as path:
        paths = shard.spools(path)
        with ExitStack() as stack:
            classes = [
                Class(
                    part.level,
                    stack.enter_context(_tickets(shard.target, part.requests, part.level, path.parent)),
                    Keeper(stack.enter_context(Spool(place))),
                    part.background,
                    None
                    if part.ramp is None
                    else stack.enter_context(_tickets(shard.target, part.ramp.requests, part.level, path.parent)),
                    part.service_s,
                    part.lead_ns,
                )
                for part, place in zip(shard.parts, paths, strict=True)
            ]
            address = Address.of(shard.target.url, shard.target.route)
            pool = Pool(address, shard.limits, progress_of, audit=shard.audit)
            sent = _run(Sending(shard.target, pool, classes), start)
        with _set_aside():
            result = read_result(shard, path, _use(shard, sent), sent.down_after_s)
        for group, place, read in zip(classes, paths, result.classes, strict=True):
            if read.recorded != group.keeper.count:
                raise StoreError(
                    f"{place} gave back {read.recorded} of the {group.keeper.count} answers written to it; "
                    "look for damage to that disk, or choose another place"
                )
        return result


@contextmanager
def _tickets(target: Target, requests: Requests, level: Level, folder: Path) -> Iterator[Iterator[Ticket]]:
    """What to send: made before the clock starts; where there is no end of it, one for every slot."""
    made = tickets_of(target, requests)
    if not requests.endless:
        with kept_tickets(folder, made) as kept:
            yield kept
        return
    yield Stock(made, level.concurrency or 1)


def _run(sending: Sending, start: Start | None) -> Sent:
    collects = gc.isenabled()
    gc.disable()  # a collection in the middle of a stage would stop the clock of every stream
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(sending.run(start))
    except BaseExceptionGroup as group:
        refused, other = group.split(StoreError)
        if refused is not None and other is None:
            raise _first_of(refused) from None  # of many slots that met the same full disk
        raise
    finally:
        if collects:
            gc.enable()


@contextmanager
def _set_aside() -> Iterator[None]:
    """Have the collections of a while look at nothing that was there before it: all that was ever loaded."""
    if gc.get_freeze_count():
        yield  # somebody else's doing, and theirs to undo
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _first_of(group: BaseExceptionGroup[StoreError]) -> StoreError:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def _use(shard: Shard, sent: Sent) -> ClientUse:
    if sent.late_s <= _LATE_S:
        return sent.client
    return replace(sent.client, faults=(f"{shard.name} started {sent.late_s:.1f} s late",))


@contextmanager
def _place(shard: Shard) -> Iterator[Path]:
    if shard.spool is not None:
        yield shard.spool
        return
    with tempfile.TemporaryDirectory(prefix="benchgate-load-") as folder:
        yield Path(folder) / "answers"


class WorkerProcess:
    """The parent's end. Everything it says of a process that has died is that it is not ready and has no result."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_live, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        """The id of the process."""
        return self._process.pid

    def begin(self, shard: Shard) -> None:
        """Give it a shard. It opens its connections and waits."""
        with suppress(OSError):  # it is dead, and will not be ready
            self._pipe.send(shard)

    def is_ready(self, deadline_s: float) -> bool:
        """Whether its connections are open; waits for that until the deadline on `time.monotonic`.

        Raises the BenchgateError that kept it from it.
        """
        if self._pipe.poll(max(0.0, deadline_s - time.monotonic())):
            return self._receive() == _READY
        self._process.kill()  # whatever it does, it is not taking part
        return False

    def start(self, start_ns: int) -> None:
        """Tell it the shared start, in ns since 1970."""
        with suppress(OSError):
            self._pipe.send(start_ns)

    def has_word(self, within_s: float) -> bool:
        """Whether it has something to say, or was lost; waits that long for it."""
        return self._pipe.poll(within_s)

    def result(self) -> StageResult | None:
        """What came of its shard; None when the process was lost. Raises the BenchgateError that ended it."""
        told = self._receive()
        return told if isinstance(told, StageResult) else None

    def stop(self) -> None:
        """End it at once."""
        self._process.terminate()
        self._process.join()
        self._pipe.close()

    def _receive(self) -> object:
        try:
            told = self._pipe.recv()
        except (EOFError, OSError):
            return None
        if isinstance(told, BenchgateError):
            raise told
        return told


_READY = "ready"


def _live(pipe: Pipe) -> None:
    """The life of one load generator process. Ctrl-C is the parent's, who then ends this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    escape_streams()
    threading.Thread(target=_leave_with_parent, daemon=True).start()

    def start() -> int:
        pipe.send(_READY)
        return cast(int, pipe.recv())

    while True:
        try:
            shard = pipe.recv()
        except EOFError:
            return
        try:
            told: StageResult | BenchgateError = run_shard(shard, start)
        except BenchgateError as refused:
            told = refused
        pipe.send(told)


def _leave_with_parent() -> None:
    """A parent that was killed cannot end its workers, and nobody else would stop their requests."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


_START_IN_NS = 100_000_000  # between "all are ready" and the shared start
_READY_S = 120.0  # to start a process and open its connections

Begins = Callable[[int], None]


class Fleet:
    """Runs stages over `workers` processes. Use as a context manager.

    What is answered is kept in files of `folder` until the next stage begins or the fleet ends; without one in a
    temporary folder.
    """

    def __init__(self, workers: int = 1, folder: Path | None = None) -> None:
        self.workers = workers
        self._folder = folder
        self._stack = ExitStack()
        self._stages = 0
        self._processes: dict[int, WorkerProcess] = {}
        self._shards: list[Shard] = []  # of the stage under way, or of the last one

    def __enter__(self) -> Self:
        warn_if_missing()
        if self._folder is None:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="benchgate-load-")))
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._stop()
        self._clear()
        self._stack.close()

    def run(self, stage: Shard, begins: Begins | None = None) -> StageResult:
        """Run a whole stage to its end: the same requests at the same instants for any number of workers.

        `begins` is told the start, in ns since 1970, as soon as it is known.
        Raises TargetError when the target's address or key is none, StoreError when answers cannot be kept. A
        KeyboardInterrupt passes through with every socket closed; what had been answered by then is in `salvage`.
        """
        if self._folder is None:
            raise RuntimeError("a fleet is used as a context manager")
        self._clear()
        self._stages += 1
        prefix = self._folder / f"stage-{self._stages}"
        self._shards = [
            replace(shard, spool=prefix.with_suffix(f".{shard.worker + 1}")) for shard in stage.split(self.workers)
        ]
        if len(self._shards) == 1:
            return run_shard(self._shards[0], None if begins is None else lambda: _starting_now(begins))
        return merged(self._run_together(begins))

    def salvage(self) -> StageResult:
        """What was answered in a stage that was cut short, also by workers that were done with their share."""
        whole = merged([read_left(shard) for shard in self._shards])
        return replace(whole, client=replace(whole.client, faults=("the stage was cut short",)))

    def _run_together(self, begins: Begins | None) -> list[StageResult]:
        try:
            for shard in self._shards:
                self._process(shard).begin(shard)
            deadline = time.monotonic() + _READY_S
            ready = [shard for shard in self._shards if self._process(shard).is_ready(deadline)]
            start_ns = time.time_ns() + _START_IN_NS
            if begins is not None:
                begins(start_ns)
            for shard in ready:
                self._process(shard).start(start_ns)
            return [self._result(shard) for shard in self._shards]
        except BaseException:
            self._stop()  # the others would go on, or wait for a start that never comes
            raise

    def _result(self, shard: Shard) -> StageResult:
        result = self._process(shard).result()
        if result is not None:
            return result
        self._processes.pop(shard.worker).stop()
        return of_lost(shard)

    def _process(self, shard: Shard) -> WorkerProcess:
        if shard.worker not in self._processes:
            self._processes[shard.worker] = WorkerProcess()
        return self._processes[shard.worker]

    def _clear(self) -> None:
        for shard in self._shards:
            remove_spools(shard)
        self._shards = []

    def _stop(self) -> None:
        while self._processes:
            _, process = self._processes.popitem()
            process.stop()


def _starting_now(begins: Begins) -> int:
    start_ns = time.time_ns()
    begins(start_ns)
    return start_ns
