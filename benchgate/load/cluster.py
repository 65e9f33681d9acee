"""Load stages over the workers of a dask.distributed cluster: the shards of a local fleet, one to a worker.

A shard goes to one named worker and is never done twice (`cluster_job`). All begin at one instant, told to each worker
in its own clock. A worker that is lost does not take the stage with it: what it was to send is recorded as never sent,
and the stage says whose fault it was. See docs/cluster.md.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from benchgate.errors import BenchgateError, ClusterError
from benchgate.load import cluster_job
from benchgate.load.cluster_crew import (
    Client,
    answered,
    clock_of,
    connected,
    reach_fits,
    versions_fit,
    workers_now,
)
from benchgate.load.cluster_seat import Seat, with_clocks
from benchgate.load.merging import merged
from benchgate.load.worker import Shard, StageResult

_START_IN_NS = 300_000_000  # between "all are ready" and the shared start, beyond the longest way to a worker …
_TELL_NS = 2_000_000  # … and what it takes to tell each of them
_COME_S = 60.0  # for workers that are still starting
_READY_S = 120.0  # to start a process and open its connections
_LOOK_S = 1.0  # between looks at who is still there
_ASK_S = 0.05  # between questions whether a worker is ready
_RENEW_S = 5.0  # between words to a worker that its client is still there
_LEAVE_S = 10.0  # for the workers to end what they do


class ClusterFleet:
    """Runs stages over `workers` of the cluster at this scheduler address; None: over all there are.

    Use as a context manager. Entering it raises UsageError without dask.distributed, ClusterError when the cluster is
    not there, has fewer workers, or runs another version.
    """

    def __init__(self, address: str, workers: int | None = None) -> None:
        self.address = address
        self.workers = workers
        self._stack = ExitStack()
        self._name = f"benchgate-{secrets.token_hex(8)}"
        self._stages = 0
        self._seats: list[Seat] = []  # of the stage under way, or of the last one

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._client: Client = stack.enter_context(connected(self.address))
            self._sync(self._crew)
            stack.callback(self._leave)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def run(self, stage: Shard, begins: Callable[[int], None] | None = None) -> StageResult:
        """Run a whole stage to its end: the same requests at the same instants as a fleet of this machine's own.

        `begins` is told the start by this machine's clock, in ns since 1970, as soon as it is known.
        Raises ClusterError when the scheduler is lost, or a worker cannot do its part. A KeyboardInterrupt passes
        through; the workers go on until `salvage` or the end of the fleet.
        """
        self._stages += 1
        result: StageResult = self._sync(self._run, stage, begins)
        return result

    def salvage(self) -> StageResult:
        """What was answered in a stage that was cut short, which it ends."""
        whole = merged(self._sync(self._cut_short))
        return replace(whole, client=replace(whole.client, faults=("the stage was cut short",)))

    def _sync(self, function: Any, *args: Any) -> Any:
        return self._client.sync(function, *args)

    async def _crew(self, url: str | None = None) -> list[str]:
        """The workers to use now, in order of their addresses. One that was lost in an earlier stage is not missed."""
        needed = 1 if self._stages or self.workers is None else self.workers
        crew = (await self._running(needed))[: self.workers]
        await versions_fit(self._client, crew)
        if url is not None:
            await reach_fits(self._client, crew, url)
        return crew

    async def _running(self, needed: int) -> list[str]:
        """The workers that run. While they are too few, some may still be starting, or starting again."""
        deadline_s = time.monotonic() + _COME_S
        while True:
            here = sorted(at for at, status in (await workers_now(self._client)).items() if status == "running")
            if len(here) >= needed:
                return here
            if time.monotonic() >= deadline_s:
                raise ClusterError(
                    f"the cluster at {self.address} has {len(here)} workers running, and the load needs {needed}: "
                    "start more, or ask for fewer (--workers)"
                )
            await asyncio.sleep(_LOOK_S)

    async def _run(self, stage: Shard, begins: Callable[[int], None] | None) -> StageResult:
        crew = await self._crew(stage.target.url)
        shards = stage.split(len(crew))
        self._seats = [
            Seat(address, f"{self._name}-{self._stages}-{shard.worker + 1}", shard)
            for address, shard in zip(crew, shards, strict=False)  # a closed loop has no more workers than slots
        ]
        await asyncio.gather(*(self._hand_over(seat) for seat in self._seats))
        for seat in self._seats:
            seat.future = self._client.submit(
                cluster_job.do_shard,
                seat.job,
                key=seat.job,
                workers=[seat.address],
                allow_other_workers=False,
                retries=0,
                pure=False,
            )
        return with_clocks(merged(await self._seen_through(begins)), self._seats)

    async def _hand_over(self, seat: Seat) -> None:
        """By hand and not as an argument of the task: the scheduler keeps those, and a shard holds the API key."""
        told = await answered(
            self._client.run(cluster_job.hand_over, self._name, seat.job, seat.shard, workers=[seat.address])
        )
        if told[seat.address] is not None:
            raise ClusterError(f"worker {seat.address} {told[seat.address]}: wait for its end, or use another cluster")

    async def _seen_through(self, begins: Callable[[int], None] | None) -> list[StageResult]:
        seats = self._seats
        with _first_of_group():
            async with asyncio.TaskGroup() as group:
                results = [group.create_task(self._result(seat)) for seat in seats]
                others = [group.create_task(self._watch(seats))]
                others += [group.create_task(self._keep_in_touch(seat)) for seat in seats]
                await self._all_ready(seats)
                start_ns = await self._start_ns(seats)
                if begins is not None:
                    begins(start_ns)
                others += [group.create_task(self._start(seat, start_ns)) for seat in seats]
                await asyncio.wait(results)
                for other in others:
                    other.cancel()
        return [result.result() for result in results]

    async def _result(self, seat: Seat) -> StageResult:
        """What came of a seat, whatever became of its worker. Raises ClusterError for what kept it from its part."""
        told, lost = asyncio.ensure_future(seat.future), asyncio.ensure_future(seat.lost.wait())
        try:
            await asyncio.wait([told, lost], return_when=asyncio.FIRST_COMPLETED)
            return seat.told(await self._heard(seat, told) if told.done() else None)
        finally:
            seat.ready.set()  # nobody waits for it any more
            _drop(told, lost)

    async def _heard(self, seat: Seat, told: asyncio.Future[StageResult | None]) -> StageResult | None:
        from distributed import CancelledError, KilledWorker

        try:
            return told.result()
        except BenchgateError as error:
            raise ClusterError(f"worker {seat.address}: {error}") from error
        except (CancelledError, KilledWorker):
            await workers_now(self._client)  # a lost scheduler is not its worker's fault
            return None

    async def _watch(self, seats: Sequence[Seat]) -> None:
        """Give up seats whose worker is gone; the scheduler would wait for one of the same address."""
        while True:
            here = await workers_now(self._client)
            for seat in seats:
                if seat.address not in here:
                    seat.is_lost("was lost")
            await asyncio.sleep(_LOOK_S)

    async def _keep_in_touch(self, seat: Seat) -> None:
        while True:
            if await self._ask(seat, cluster_job.is_ready):
                seat.ready.set()
            await asyncio.sleep(_RENEW_S if seat.ready.is_set() else _ASK_S)

    async def _all_ready(self, seats: Sequence[Seat]) -> None:
        """Until every seat is ready or lost. One that is neither for too long is given up."""
        waits = [asyncio.ensure_future(_either(seat.ready, seat.lost)) for seat in seats]
        try:
            await asyncio.wait(waits, timeout=_READY_S)
        finally:
            _drop(*waits)
        for seat in seats:
            if not seat.ready.is_set():
                seat.is_lost(f"was not ready within {_READY_S:.0f} s")

    async def _start_ns(self, seats: Sequence[Seat]) -> int:
        """The instant to start at, by our clock; measures the workers' clocks first, one by one."""
        longest_ns = 0
        for seat in seats:
            if seat.lost.is_set():
                continue
            seat.clock = await clock_of(self._client, seat.address)
            if seat.clock is None:
                seat.is_lost("did not tell its time")
            else:
                longest_ns = max(longest_ns, seat.clock.uncertainty_ns)
        return time.time_ns() + _START_IN_NS + len(seats) * _TELL_NS + 2 * longest_ns

    async def _start(self, seat: Seat, start_ns: int) -> None:
        if seat.lost.is_set() or seat.clock is None:
            await self._ask(seat, cluster_job.give_up)
            return
        while await self._ask(seat, cluster_job.start, start_ns + seat.clock.offset_ns) is None:
            await asyncio.sleep(_LOOK_S)  # better late than never: it waits for this

    async def _ask(self, seat: Seat, function: Any, *args: Any) -> Any:
        """What a worker answers; None when it cannot be asked, and whether it is lost is the scheduler's to say."""
        try:
            told = await self._client.run(function, seat.job, *args, workers=[seat.address])
        except (OSError, RuntimeError, AttributeError):  # the last two of a client that is closing
            return None
        return told[seat.address]

    async def _cut_short(self) -> list[StageResult]:
        """Have every worker end what it does, and tell what it has."""
        asks = [self._ask(seat, cluster_job.give_up) for seat in self._seats]
        futures = [asyncio.ensure_future(seat.future) for seat in self._seats if seat.future is not None]
        waits = [*map(asyncio.ensure_future, asks), *futures]
        if not waits:
            return []
        await asyncio.wait(waits, timeout=_LEAVE_S)
        _drop(*waits)
        ended = [future for future in futures if future.done() and not future.cancelled() and not future.exception()]
        return [result for future in ended if (result := future.result()) is not None]

    def _leave(self) -> None:
        """Leave nothing behind on the workers; those that do not hear it find out by themselves."""
        if self._client.status == "running":  # else it would wait for its scheduler to come back
            with suppress(OSError):
                self._client.sync(self._client.run, cluster_job.dismiss, self._name, callback_timeout=_LEAVE_S)


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(one.wait()), asyncio.ensure_future(other.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        _drop(*waits)


def _drop(*tasks: asyncio.Future[Any]) -> None:
    """Wait for these no more; asyncio complains of an outcome that nobody looked at."""
    for task in tasks:
        if not task.cancel() and not task.cancelled():
            task.exception()


@contextmanager
def _first_of_group() -> Iterator[None]:
    """The refusal that ended a group of tasks, as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        refused, other = group.split(BenchgateError)
        if refused is not None and other is None:
            first: BaseException = refused
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from first.__cause__
        raise
