"""The work of one worker: its share of a stage as one value that can be sent anywhere, and the function that does it.

Requests are made ready before the clock starts, sent on time (`sending`), kept on disk as they end (`spool`), and read
into records once the stage is over. Nothing here knows of processes or of other workers but their number.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

import uvloop

from benchgate.errors import StoreError
from benchgate.load.decode import decode
from benchgate.load.pool import Pool
from benchgate.load.sending import Level, Sending, Sent, Start
from benchgate.load.spool import Spool, read_spool
from benchgate.load.ticket_file import kept_tickets
from benchgate.load.tickets import Ticket, tickets_of
from benchgate.load.wire import Address
from benchgate.model.packing import ColumnBuilder
from benchgate.model.records import RequestColumns
from benchgate.model.run import ClientUse
from benchgate.plan.schedule import PlannedRequest, PlannedStage
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Endpoint, Target

__all__ = ["Level", "Planned", "Requests", "Shard", "StageResult", "Start", "run_shard", "run_stage", "stage_shard"]

_NS = 1_000_000_000
_LATE_S = 0.05  # as late as one single request may be sent


@dataclass(frozen=True, slots=True)
class StageResult:
    """A stage as it went. `window_s` runs from the first intended send to the last end or intended send.

    `down_after_s`: how long after the start the target stopped accepting connections, when it was given up for that.
    What was due later was not even tried, and in a closed loop for a time is in no record.
    """

    requests: RequestColumns
    window_s: float
    client: ClientUse
    down_after_s: float | None = None

    @property
    def given_up(self) -> bool:
        """Whether the target was down when the stage ended."""
        return self.down_after_s is not None


class Requests(Protocol):
    """The requests of a stage, or of a worker's share of one, in the order they are due. Can be pickled."""

    @property
    def endless(self) -> bool:
        """Whether there are as many as there is time for."""

    def __iter__(self) -> Iterator[PlannedRequest]: ...

    def share(self, worker: int, workers: int) -> Requests:
        """Those of one of `workers`: request k goes to worker k modulo their number."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Requests that a plan holds one by one."""

    requests: tuple[PlannedRequest, ...]

    @property
    def endless(self) -> bool:
        """A plan ends."""
        return False

    def __iter__(self) -> Iterator[PlannedRequest]:
        return iter(self.requests)

    def share(self, worker: int, workers: int) -> Planned:
        """Every `workers`-th one."""
        return Planned(self.requests[worker::workers])


@dataclass(frozen=True, slots=True)
class Shard:
    """What one worker is to do: a whole stage, or the share of worker `worker` (from 0) of `workers`. Can be pickled.

    `spool` is the file that keeps what was answered until it is read; None for a temporary one. With `audit` the
    kernel stamps what arrives.
    """

    target: Target
    requests: Requests
    level: Level
    limits: Limits
    endpoint: Endpoint
    ignore_eos: bool
    worker: int = 0
    workers: int = 1
    spool: Path | None = None
    audit: bool = False

    @property
    def name(self) -> str:
        """As people count."""
        return f"worker {self.worker + 1} of {self.workers}"

    def split(self, workers: int) -> list[Shard]:
        """A whole stage dealt out. Together the shares ask the same at the same instants, however many there are.

        A closed loop has no more workers than slots.
        """
        workers = min(workers, self.level.concurrency or workers)
        return [
            replace(
                self,
                requests=self.requests.share(worker, workers),
                level=self.level.share(worker, workers),
                worker=worker,
                workers=workers,
            )
            for worker in range(workers)
        ]


def stage_shard(
    target: Target,
    stage: PlannedStage,
    *,
    endpoint: Endpoint,
    ignore_eos: bool,
    limits: Limits,
    issue_until_s: float | None = None,
    audit: bool = False,
) -> Shard:
    """A planned stage as one shard.

    With `issue_until_s` nothing is sent later than that after the start; requests not sent by then were never part of
    the stage and leave no record.
    """
    level = Level(stage.concurrency, stage.peak_rps, issue_until_s)
    return Shard(target, Planned(stage.requests), level, limits, endpoint, ignore_eos, audit=audit)


def run_stage(
    target: Target,
    stage: PlannedStage,
    *,
    endpoint: Endpoint,
    ignore_eos: bool,
    limits: Limits,
    issue_until_s: float | None = None,
    audit: bool = False,
) -> StageResult:
    """Run a planned stage to its end in this process: `run_shard` of `stage_shard`."""
    shard = stage_shard(
        target,
        stage,
        endpoint=endpoint,
        ignore_eos=ignore_eos,
        limits=limits,
        issue_until_s=issue_until_s,
        audit=audit,
    )
    return run_shard(shard)


def run_shard(shard: Shard, start: Start | None = None) -> StageResult:
    """Do one worker's share. Blocks; KeyboardInterrupt passes through with all sockets closed and the spool kept.

    `start` is called once the connections are open and gives the start that all workers share; without it the stage
    starts then. Raises TargetError when the target's address or key is none, StoreError when the spool cannot be
    written.
    """
    with _place(shard) as path:
        with _tickets(shard, path.parent) as tickets, Spool(path) as spool:
            address = Address.of(shard.target.url, shard.target.route)
            pool = Pool(address, shard.limits, audit=shard.audit)
            sending = Sending(pool, shard.level, spool)
            sent = _run(sending, tickets, start)
        result = read_result(shard, path, _use(shard, sent), sent.down_after_s)
        if len(result.requests) != sending.count:
            raise StoreError(
                f"{path} gave back {len(result.requests)} of the {sending.count} answers written to it; "
                "look for damage to that disk, or choose another place"
            )
        path.unlink()
        return result


def read_result(shard: Shard, spool: Path, use: ClientUse, down_after_s: float | None = None) -> StageResult:
    """What a spool holds of a shard; of one that was cut short, what had ended by then."""
    builder = ColumnBuilder()
    first_ns, last_ns = None, 0
    for number, intended_ns, epoch_ns, response in read_spool(spool):
        record = decode(number, intended_ns, epoch_ns, response, secret=shard.target.secrets)
        whole = record.error is None and record.end_ns is not None
        ended_ns = record.end_ns if whole and record.end_ns is not None else response.over_ns - epoch_ns
        last_ns = max(last_ns, ended_ns, intended_ns)  # what was given up was due all the same
        first_ns = intended_ns if first_ns is None else min(first_ns, intended_ns)
        builder.add(record)
    return StageResult(builder.columns(), max(0, last_ns - (first_ns or 0)) / _NS, use, down_after_s)


def _tickets(shard: Shard, folder: Path) -> AbstractContextManager[Iterator[Ticket]]:
    """What to send: made before the clock starts; where there is no end of it, the first one of every slot."""
    made = tickets_of(shard.target, shard.requests, endpoint=shard.endpoint, ignore_eos=shard.ignore_eos)
    if not shard.requests.endless:
        return kept_tickets(folder, made)
    first = list(islice(made, shard.level.concurrency))  # made while all slots are due, they would all be late
    return nullcontext(chain(first, made))


def _run(sending: Sending, tickets: Iterator[Ticket], start: Start | None) -> Sent:
    collects = gc.isenabled()
    gc.disable()  # a collection in the middle of a stage would stop the clock of every stream
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(sending.run(tickets, start))
    except BaseExceptionGroup as group:
        refused, other = group.split(StoreError)
        if refused is not None and other is None:
            raise refused.exceptions[0] from None  # of many slots that met the same full disk
        raise
    finally:
        if collects:
            gc.enable()


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
