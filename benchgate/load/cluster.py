"""Load stages over the workers of a dask.distributed cluster: the shards of a local fleet, one to a worker.

A shard goes to one named worker and is never done twice (`cluster_worker`). All start at the same instant, which each
worker gets in its own clock. When a worker is lost, its unsent requests are recorded as never sent and the stage
reports which worker it was. See docs/guides/load.md.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

from benchgate.errors import BenchgateError, ClusterError, UsageError
from benchgate.load import cluster_worker as cluster_job
from benchgate.load.clocks import Clock, host_clock, start_fault
from benchgate.load.results import StageResult, lost_worker, merged
from benchgate.load.shards import Shard
from benchgate.targets.address import ServerAddress, require_scheduler

# A `distributed.Client`: that library loads late and is typed in parts. Methods are coroutines in its own loop.
Client: TypeAlias = Any
_CONNECT_S = 10
_ANSWER_S = 30.0
_LOOPBACK = ("localhost", "::1", "0.0.0.0", "::")
_SAMPLES = 20
_ENOUGH_NS = 500_000  # of uncertainty: more samples would not help


def connected(address: str, loop: Any = None) -> Client:
    """Return a client of the scheduler, with TLS as dask's settings say; its calls run in this loop of tornado, if any.

    Raises UsageError or ClusterError.
    """
    require_scheduler(address)
    from distributed import Client as DistributedClient

    for name in ("distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong is reported once, without a traceback

    class SchedulerClient(DistributedClient):
        """A client that closes itself when it finds no scheduler: dask's own would keep the interpreter running."""

        def start(self, **kwargs: Any) -> None:
            try:
                super().start(**kwargs)  # type: ignore[no-untyped-call]  # distributed is typed in parts
            except BaseException:
                self.close()  # type: ignore[no-untyped-call]  # the same
                raise

    try:
        return SchedulerClient(  # type: ignore[no-untyped-call]  # distributed is typed in parts
            address, timeout=_CONNECT_S, set_as_default=False, name="benchgate", loop=loop
        )
    except ValueError as error:
        raise UsageError(
            f"--cluster: {address!r} is not a scheduler's address ({error}); write tcp://HOST:8786"
        ) from error
    except (OSError, TypeError) as error:
        raise ClusterError(
            f"no scheduler answers at {address}: {error}; see that it runs there, and that tls:// addresses have their "
            "certificates in dask's settings"
        ) from error


async def workers_now(client: Client) -> dict[str, str]:
    """Every worker by address, `running` or what else it is. Raises ClusterError when the scheduler is lost."""
    lost = ClusterError("the cluster's scheduler was lost; what is stored stays. Start the cluster and run again")
    if client.status != "running":  # it would go on trying, but what was under way is gone
        raise lost
    try:
        known = await asyncio.wait_for(client.scheduler.identity(n_workers=-1), _ANSWER_S)
    except (OSError, TimeoutError, AttributeError) as error:  # a closed client has no scheduler
        raise lost from error
    return {address: worker["status"] for address, worker in known["workers"].items()}


async def versions_fit(client: Client, addresses: Sequence[str]) -> None:
    """Raises ClusterError when a worker runs another benchgate, or another minor version of Python, than this."""
    versions = await answered(client.get_versions(packages=["benchgate"]))
    ours = _versions(versions["client"])
    for address in addresses:
        theirs = _versions(versions["workers"].get(address))
        if theirs != ours or None in theirs:
            shown, here = (
                f"benchgate {benchgate or '(not installed)'} on Python {python or '(unknown)'}"
                for benchgate, python in (theirs, ours)
            )
            raise ClusterError(
                f"worker {address} runs {shown}, and this is {here}: "
                "install the same on both, or the parts of one load would not be alike"
            )


async def reach_fits(client: Client, addresses: Sequence[str], url: str) -> None:
    """Raises ClusterError when the server has an address of this machine that means another one to a worker."""
    server = ServerAddress.of(url)
    if not (server.host in _LOOPBACK or server.host.startswith("127.")):  # a Unix socket is at localhost too
        return
    here = host_name()
    hosts = await answered(client.run(host_name, workers=list(addresses)))
    for address, host in hosts.items():
        if host != here:
            raise ClusterError(
                f"{server.shown} is an address of this machine alone, and worker {address} runs on another one, "
                f"{host}: give the server an address that all workers reach"
            )


def host_name() -> str:
    """Return the host name of the machine that runs this."""
    return socket.gethostname()


async def clock_of(client: Client, address: str) -> Clock | None:
    """Return a worker's clock, by round trips or by the machines' own time services; None when it does not answer."""
    clock = await _clock_by_round_trips(client, address)
    if clock is None or clock.uncertainty_ns <= _ENOUGH_NS:
        return clock
    try:
        clocks = await asyncio.wait_for(client.run(host_clock, workers=[address]), _ANSWER_S)
    except (OSError, TimeoutError):
        return clock
    return clock.refined(await asyncio.to_thread(host_clock), clocks[address])


async def _clock_by_round_trips(client: Client, address: str) -> Clock | None:
    """Return a worker's clock as NTP finds it (RFC 5905, 8); None when it does not answer.

    Of several the shortest round trip counts: its answer was made at some moment of it, so half of it is how far the
    offset may be off, however uneven the ways are.
    """
    best: Clock | None = None
    for _ in range(_SAMPLES):
        sent_unix_ns, sent_ns = time.time_ns(), time.monotonic_ns()
        try:
            times = await asyncio.wait_for(client.run(time.time_ns, workers=[address]), _ANSWER_S)
        except (OSError, TimeoutError):
            return best
        half_ns = (time.monotonic_ns() - sent_ns) // 2
        if best is None or half_ns < best.uncertainty_ns:
            best = Clock(times[address] - sent_unix_ns - half_ns, half_ns)
        if best.uncertainty_ns <= _ENOUGH_NS:
            break
    return best


async def answered(call: Any) -> Any:
    """Await an answer of workers that takes them no time. Raises ClusterError when one does not answer."""
    try:
        return await asyncio.wait_for(call, _ANSWER_S)
    except (OSError, TimeoutError) as error:
        why = str(error) or f"not within {_ANSWER_S:.0f} s"
        raise ClusterError(f"the cluster's workers do not answer: {why}; see that they run, and run again") from error


def _versions(report: Mapping[str, Any] | None) -> tuple[str | None, str | None]:
    packages = {} if report is None else report["packages"]
    python = packages.get("python")
    return packages.get("benchgate"), None if python is None else ".".join(python.split(".")[:2])


@dataclass(slots=True, eq=False)
class RemoteWorker:
    """The shard of the worker at `address`, which it knows as `job`. `why` says how it was lost, once it is.

    `client` is that of the worker's scheduler.
    """

    client: Client
    address: str
    job: str
    shard: Shard
    future: Any = None  # of distributed
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = "was lost"
    clock: Clock | None = None

    @property
    def name(self) -> str:
        """Return the worker's name in records, its address and its region."""
        region = "" if self.shard.region is None else f" ({self.shard.region})"
        return f"{self.shard.name} at {self.address}{region}"

    def mark_lost(self, why: str) -> None:
        """Give it up; the first reason counts."""
        if not self.lost.is_set():
            self.why = why
            self.lost.set()

    def located(self, result: StageResult | None) -> StageResult:
        """Return its result with its address in the faults. None: a lost worker, whose responses are on its machine."""
        if result is None:
            whole = lost_worker(replace(self.shard, spool=None))
            return _with_faults(whole, (f"{self.name} {self.why}",))
        return _with_faults(result, [fault.replace(self.shard.name, self.name, 1) for fault in result.client.faults])


def with_clocks(whole: StageResult, seats: Sequence[RemoteWorker], tolerance_ns: int) -> StageResult:
    """Add how well the workers could be started together, and a fault for each beyond the stage's tolerance."""
    known = [(seat, seat.clock.uncertainty_ns) for seat in seats if seat.clock is not None]
    if len(seats) < 2 or not known:
        return whole
    worst_ns = max(uncertain_ns for _, uncertain_ns in known)
    offset_s = max(abs(seat.clock.offset_ns) for seat in seats if seat.clock is not None) / 1e9
    use = replace(whole.client, start_uncertainty_s=worst_ns / 1e9, clock_offset_s=offset_s)
    whole = replace(whole, client=use)
    faults = [(seat, start_fault(uncertain_ns, tolerance_ns)) for seat, uncertain_ns in known]
    unsure = [f"{seat.name} {fault}" for seat, fault in faults if fault is not None]
    return _with_faults(whole, [*whole.client.faults, *unsure])


def _with_faults(result: StageResult, faults: Sequence[str]) -> StageResult:
    return replace(result, client=replace(result.client, faults=tuple(faults)))


_START_IN_NS = 300_000_000  # between "all are ready" and the shared start, beyond the longest way to a worker …
_SEND_NS = 2_000_000  # … and what it takes to send it to each of them
_COME_S = 60.0  # for workers that are still starting
_READY_S = 120.0  # to start a process and open its connections
_LOOK_S = 1.0  # between looks at who is still there
_ASK_S = 0.05  # between questions whether a worker is ready
_RENEW_S = 5.0  # between renewals of a worker's lease
_SILENT_S = 60.0  # without an answer to one: the worker was stopped, and its scheduler may wait for it for ever
_LEAVE_S = 10.0  # for the workers to end what they do


class ClusterFleet:
    """Runs stages over `workers` of the cluster at this scheduler address; None: over all there are.

    With several `addresses` by region, each region sends an equal part from `workers` of its own cluster; None: from as
    many as the smallest region has. Use as a context manager. Entering it raises UsageError without dask.distributed,
    ClusterError when a cluster is not there, has fewer workers, or runs another version.
    """

    def __init__(self, addresses: str | Mapping[str, str], workers: int | None = None) -> None:
        self._addresses = {"": addresses} if isinstance(addresses, str) else dict(addresses)
        self._regions = () if isinstance(addresses, str) else tuple(addresses)
        self.workers = workers
        self._stack = ExitStack()
        self._name = f"benchgate-{secrets.token_hex(8)}"
        self._stages = 0
        self._seats: list[RemoteWorker] = []  # of the stage under way, once its workers are known, or of the last one

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._clients: dict[str, Client] = {}  # by region
            for region, address in self._addresses.items():
                loop = next((client.loop for client in self._clients.values()), None)  # one for all
                self._clients[region] = stack.enter_context(connected(address, loop))
            self._first = next(iter(self._clients.values()))
            self._first.sync(self._crew)
            stack.callback(self._leave)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, stage: Shard, begins: Callable[[int], None] | None = None) -> StageResult:
        """Run a whole stage to its end: the same requests at the same instants as a fleet of this machine's own.

        `begins` is called with the start by this machine's clock, in ns since 1970, as soon as it is known.
        Raises ClusterError when the scheduler is lost, or a worker cannot do its part. A KeyboardInterrupt passes
        through; the workers go on until `salvage` or the end of the fleet.
        """
        self._stages += 1
        result: StageResult = self._first.sync(self._run, stage, begins)
        return replace(result, client=replace(result.client, by_cluster=True))

    def salvage(self) -> StageResult:
        """Interrupt the stage and return what had been answered."""
        whole = merged(self._first.sync(self._interrupt))
        return replace(whole, client=replace(whole.client, by_cluster=True, faults=("the stage was cut short",)))

    async def _crew(self, url: str | None = None) -> list[tuple[Client, str]]:
        """Return the workers to use now, of each region in turn in order of their addresses.

        One lost in an earlier stage is not missed.
        """
        crews = [await self._crew_of(region, url) for region in self._addresses]
        places = min(map(len, crews))
        return [
            (client, crew[place])
            for place in range(places)
            for client, crew in zip(self._clients.values(), crews, strict=True)
        ]

    async def _crew_of(self, region: str, url: str | None) -> list[str]:
        client, address = self._clients[region], self._addresses[region]
        needed = 1 if self._stages or self.workers is None else self.workers
        deadline_s = time.monotonic() + _COME_S
        while True:
            workers = await workers_now(client)
            crew = sorted(address for address, status in workers.items() if status == "running")
            if len(crew) >= needed:
                break
            if time.monotonic() >= deadline_s:
                raise ClusterError(
                    f"the cluster at {address} has {len(crew)} workers running, and the load needs {needed}: "
                    "start more, or ask for fewer (--workers)"
                )
            await asyncio.sleep(_LOOK_S)  # some may still be starting, or starting again
        crew = crew[: self.workers]
        await versions_fit(client, crew)
        if url is not None:
            await reach_fits(client, crew, url)
        return crew

    async def _run(self, stage: Shard, begins: Callable[[int], None] | None) -> StageResult:
        self._seats = []  # an interrupt from here on salvages nothing of the stage before
        crew = await self._crew(stage.loaded_url)
        shards = stage.split(len(crew), self._regions)
        self._seats = [
            RemoteWorker(client, address, f"{self._name}-{self._stages}-{shard.worker + 1}", shard)
            for (client, address), shard in zip(crew, shards, strict=False)  # a closed loop has no more than its slots
        ]
        await asyncio.gather(*(self._assign(seat) for seat in self._seats))
        for seat in self._seats:
            seat.future = seat.client.submit(
                cluster_job.do_shard,
                seat.job,
                key=seat.job,
                workers=[seat.address],
                allow_other_workers=False,
                retries=0,
                pure=False,
            )
        with _first_of_group():
            async with asyncio.TaskGroup() as group:
                results = [group.create_task(self._result(seat)) for seat in self._seats]
                others = [group.create_task(self._watch())]
                others += [group.create_task(self._renew_lease(seat)) for seat in self._seats]
                await self._all_ready()
                start_ns = await self._start_ns()
                if begins is not None:
                    begins(start_ns)
                others += [group.create_task(self._start(seat, start_ns)) for seat in self._seats]
                await asyncio.wait(results)
                for other in others:
                    other.cancel()
        return with_clocks(merged([result.result() for result in results]), self._seats, stage.start_tolerance_ns)

    async def _assign(self, seat: RemoteWorker) -> None:
        """Send its shard, and not as an argument of the task: the scheduler keeps those, and it holds the API key."""
        refusals = await answered(
            seat.client.run(cluster_job.assign, self._name, seat.job, seat.shard, workers=[seat.address])
        )
        if (refusal := refusals[seat.address]) is not None:
            raise ClusterError(f"worker {seat.address} {refusal}: wait for its end, or use another cluster")

    async def _result(self, seat: RemoteWorker) -> StageResult:
        """Await the result of one worker, also of a lost one. Raises ClusterError for the error it ended with."""
        from distributed import CancelledError, KilledWorker

        done, lost = asyncio.ensure_future(seat.future), asyncio.ensure_future(seat.lost.wait())
        try:
            await asyncio.wait([done, lost], return_when=asyncio.FIRST_COMPLETED)
            return seat.located(done.result() if done.done() else None)
        except BenchgateError as error:
            raise ClusterError(f"worker {seat.address}: {error}") from error
        except (CancelledError, KilledWorker):
            await workers_now(seat.client)  # a lost scheduler is not its worker's fault
            return seat.located(None)
        finally:
            seat.ready.set()  # nobody waits for it any more
            _drop(done, lost)

    async def _watch(self) -> None:
        """Give up seats whose worker is gone; the scheduler would wait for one of the same address."""
        while True:
            for client in self._clients.values():
                here = await workers_now(client)
                for seat in self._seats:
                    if seat.client is client and seat.address not in here:
                        seat.mark_lost("was lost")
            await asyncio.sleep(_LOOK_S)

    async def _renew_lease(self, seat: RemoteWorker) -> None:
        while not seat.lost.is_set():
            try:
                if await asyncio.wait_for(self._call(seat, cluster_job.is_ready), _SILENT_S):
                    seat.ready.set()
            except TimeoutError:
                seat.mark_lost(f"did not answer for {_SILENT_S:.0f} s")
            await asyncio.sleep(_RENEW_S if seat.ready.is_set() else _ASK_S)

    async def _all_ready(self) -> None:
        """Wait until every seat is ready or lost. One that is neither for too long is given up."""
        waits = [asyncio.ensure_future(_either(seat.ready, seat.lost)) for seat in self._seats]
        try:
            await asyncio.wait(waits, timeout=_READY_S)
        finally:
            _drop(*waits)
        for seat in self._seats:
            if not seat.ready.is_set():
                seat.mark_lost(f"was not ready within {_READY_S:.0f} s")

    async def _start_ns(self) -> int:
        """Measure the workers' clocks one by one, and return the instant to start at by our clock."""
        longest_ns = 0
        for seat in self._seats:
            if seat.lost.is_set():
                continue
            seat.clock = await clock_of(seat.client, seat.address)
            if seat.clock is None:
                seat.mark_lost("did not report its time")
            else:
                longest_ns = max(longest_ns, seat.clock.uncertainty_ns)
        return time.time_ns() + _START_IN_NS + len(self._seats) * _SEND_NS + 2 * longest_ns

    async def _start(self, seat: RemoteWorker, start_ns: int) -> None:
        if seat.lost.is_set() or seat.clock is None:
            await self._call(seat, cluster_job.give_up)
            return
        while await self._call(seat, cluster_job.start, start_ns + seat.clock.offset_ns) is None:
            await asyncio.sleep(_LOOK_S)  # better late than never: it waits for this

    async def _call(self, seat: RemoteWorker, function: Any, *args: Any) -> Any:
        """Call a function on a worker. Return None when it cannot be reached; the scheduler knows if it is lost."""
        try:
            answers = await seat.client.run(function, seat.job, *args, workers=[seat.address])
        except (OSError, RuntimeError, AttributeError):  # the last two of a client that is closing
            return None
        return answers[seat.address]

    async def _interrupt(self) -> list[StageResult]:
        calls = [self._call(seat, cluster_job.give_up) for seat in self._seats]
        futures = [asyncio.ensure_future(seat.future) for seat in self._seats if seat.future is not None]
        waits = [*map(asyncio.ensure_future, calls), *futures]
        if not waits:
            return []
        await asyncio.wait(waits, timeout=_LEAVE_S)
        _drop(*waits)
        ended = [future for future in futures if future.done() and not future.cancelled() and not future.exception()]
        return [result for future in ended if (result := future.result()) is not None]

    def _leave(self) -> None:
        """Leave nothing behind on the workers; those that do not hear it find out by themselves."""
        for client in self._clients.values():
            if client.status == "running":  # else it would wait for its scheduler to come back
                with suppress(OSError):
                    client.sync(client.run, cluster_job.release, self._name, callback_timeout=_LEAVE_S)


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
