"""The work of one worker: its share of a stage as one value that can be sent anywhere, and the function that does it.

Requests are made ready before the clock starts, sent on time (`sending`), kept on disk as they end (`spool`), and read
into records once the stage is over (`reading`). Nothing here knows of processes or of other workers but their number.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import uvloop

from benchgate.errors import StoreError
from benchgate.load.keeping import Keeper
from benchgate.load.level import Level
from benchgate.load.pool import Pool
from benchgate.load.reading import read_class
from benchgate.load.result import ClassResult, StageResult
from benchgate.load.sending import Class, Sending, Sent, Start
from benchgate.load.shard import Cycled, Part, Planned, Ramp, Requests, Shard, stage_shard
from benchgate.load.spool import Spool
from benchgate.load.ticket_file import kept_tickets
from benchgate.load.tickets import Stock, Ticket, tickets_of
from benchgate.load.wire import Address
from benchgate.model.run import ClientUse
from benchgate.plan.model import PlannedStage
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Target

__all__ = [
    "ClassResult", "Cycled", "Level", "Part", "Planned", "Ramp", "Requests", "Shard", "StageResult", "Start",
    "read_result", "run_shard", "run_stage", "stage_shard",
]  # fmt: skip

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
            pool = Pool(Address.of(shard.target.url, shard.target.route), shard.limits, audit=shard.audit)
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


def read_result(shard: Shard, spool: Path, use: ClientUse, down_after_s: float | None = None) -> StageResult:
    """What the spools of a shard hold; of one that was cut short, what had ended by then."""
    pairs = zip(shard.parts, shard.spools(spool), strict=True)
    return StageResult(tuple(read_class(part, place, shard.target) for part, place in pairs), use, down_after_s)


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
