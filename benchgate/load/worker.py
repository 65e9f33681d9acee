"""Runs one planned stage against one target in this process: sends on schedule, keeps what comes, reads it afterwards.

Every request ends as exactly one record, also when the server is down. Lateness is recorded, never hidden: an open
loop keeps its absolute schedule whatever the server does, and latency counts from the intended send.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic_ns

import uvloop

from benchgate.load.decode import decode
from benchgate.load.exchange import Response
from benchgate.load.pacing import Alarm
from benchgate.load.pool import Pool
from benchgate.load.tickets import Ticket, tickets_of
from benchgate.load.wire import Address
from benchgate.model.records import RequestColumns, RequestRecord
from benchgate.model.run import ClientUse
from benchgate.plan.schedule import PlannedStage
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Endpoint, Target

_NS = 1_000_000_000
_PAUSE_S = 0.05  # of a slot that got no connection: a dead target must not become a busy loop
_GUESSED_ANSWER_S = 0.1
_HOLD_BYTES = 512 * 2**20  # of raw responses left for later; beyond, each is read when it is over


@dataclass(frozen=True, slots=True)
class Level:
    """One load level: a closed loop of `concurrency` slots, or an open loop at `rate_rps`."""

    concurrency: int | None
    rate_rps: float | None
    issue_until_s: float | None = None

    @property
    def connections(self) -> int:
        """How many are opened before the start; an open loop adds more as it needs them.

        What is open and idle costs the server: one that keeps a thread per connection (llama.cpp) leaves requests on
        the connections beyond its threads unanswered until another one is closed or used. So an open loop starts with
        about as many as are in flight when an answer takes a tenth of a second.
        """
        if self.concurrency is not None:
            return self.concurrency
        return max(1, min(64, math.ceil((self.rate_rps or 0) * _GUESSED_ANSWER_S)))


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


def run_stage(
    target: Target,
    stage: PlannedStage,
    *,
    endpoint: Endpoint,
    ignore_eos: bool,
    limits: Limits,
    issue_until_s: float | None = None,
) -> StageResult:
    """Run a stage to its end. Blocks; KeyboardInterrupt passes through with all sockets closed.

    With `issue_until_s` nothing is sent later than that after the start; requests not sent by then were never part of
    the stage and leave no record. Raises TargetError when the target's address is none.
    """
    tickets = list(tickets_of(target, stage.requests, endpoint=endpoint, ignore_eos=ignore_eos))
    return run_tickets(target, tickets, Level(stage.concurrency, stage.rate_rps, issue_until_s), limits)


def run_tickets(
    target: Target,
    tickets: Iterable[Ticket],
    level: Level,
    limits: Limits,
    start: Callable[[], int] = monotonic_ns,
) -> StageResult:
    """As `run_stage`, of requests ready for the wire. `start` gives the epoch once the connections are open."""
    stage = _Stage(Pool(Address.of(target.url), limits), level, target.api_key)
    collects = gc.isenabled()
    gc.disable()  # a collection in the middle of a stage would stop the clock of every stream
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            use = runner.run(stage.run(iter(tickets), start))
        return stage.result(use)
    finally:
        if collects:
            gc.enable()


class _Stage:
    """One stage under way, and what has come back so far."""

    def __init__(self, pool: Pool, level: Level, secret: str | None) -> None:
        self._pool = pool
        self._level = level
        self._secret = secret
        self._epoch_ns = 0
        self._unread: list[tuple[int, int, Response]] = []  # number, intended_ns, response
        self._unread_bytes = 0
        self._records: list[RequestRecord] = []
        self._last_ns = 0  # end or intended send
        self._down_after_s: float | None = None

    async def run(self, tickets: Iterator[Ticket], start: Callable[[], int]) -> ClientUse:
        """Send everything and wait for it all."""
        try:
            await self._pool.open(self._level.connections)
            self._epoch_ns = start()
            cpu_s = time.process_time()
            if self._level.concurrency is None:
                await self._open_loop(tickets)
            else:
                await self._closed_loop(tickets, self._level.concurrency)
            wall_s = (monotonic_ns() - self._epoch_ns) / _NS
            if (down_since_ns := self._pool.down_since_ns) is not None:
                self._down_after_s = max(0, down_since_ns - self._epoch_ns) / _NS
            return ClientUse(cpu_s=time.process_time() - cpu_s, wall_s=wall_s, workers=1)
        finally:
            self._pool.close()

    def result(self, use: ClientUse) -> StageResult:
        """Read all responses that are still raw, and pack."""
        while self._unread:
            self._read(*self._unread.pop())
        first_ns = min((record.intended_ns for record in self._records), default=0)
        window_s = max(0, self._last_ns - first_ns) / _NS
        return StageResult(RequestColumns.pack(self._records), window_s, use, self._down_after_s)

    async def _closed_loop(self, tickets: Iterator[Ticket], concurrency: int) -> None:
        async with asyncio.TaskGroup() as slots:
            for _ in range(concurrency):
                slots.create_task(self._slot(tickets))

    async def _slot(self, tickets: Iterator[Ticket]) -> None:
        """One user of a closed loop: a request is due the moment the one before it is over."""
        free_ns = self._epoch_ns
        while self._may_issue() and (ticket := next(tickets, None)) is not None:
            response = await self._pool.ask(ticket.wire)
            self._keep(ticket.number, free_ns - self._epoch_ns, response)
            free_ns = response.over_ns
            if response.sent_ns is None and not self._pool.given_up:
                await asyncio.sleep(_PAUSE_S)
                free_ns = monotonic_ns()

    def _may_issue(self) -> bool:
        """Without a time limit every ticket must become a record; with one, a dead target ends the stage early."""
        until_s = self._level.issue_until_s
        if until_s is None:
            return True
        return not self._pool.given_up and monotonic_ns() - self._epoch_ns < until_s * _NS

    async def _open_loop(self, tickets: Iterator[Ticket]) -> None:
        """Sends at absolute instants, so that lateness never shifts what follows."""
        until_s = self._level.issue_until_s
        async with asyncio.TaskGroup() as flights:
            with Alarm() as alarm:
                for ticket in tickets:
                    offset_ns = ticket.offset_ns or 0
                    if until_s is not None and offset_ns > until_s * _NS:
                        break
                    if not self._pool.given_up:
                        await alarm.until(self._epoch_ns + offset_ns)
                    flights.create_task(self._flight(ticket, offset_ns))

    async def _flight(self, ticket: Ticket, offset_ns: int) -> None:
        self._keep(ticket.number, offset_ns, await self._pool.ask(ticket.wire))

    def _keep(self, number: int, intended_ns: int, response: Response) -> None:
        """Leave a response for later, while there is room for it."""
        self._unread_bytes += sum(len(data) for _, data in response.body)
        if self._unread_bytes < _HOLD_BYTES:
            self._unread.append((number, intended_ns, response))
        else:
            self._read(number, intended_ns, response)

    def _read(self, number: int, intended_ns: int, response: Response) -> None:
        record = decode(number, intended_ns, self._epoch_ns, response, secret=self._secret)
        over_ns = response.over_ns - self._epoch_ns
        ended_ns = record.end_ns if record.error is None and record.end_ns is not None else over_ns
        self._last_ns = max(self._last_ns, ended_ns, intended_ns)  # what was given up was due all the same
        self._records.append(record)
