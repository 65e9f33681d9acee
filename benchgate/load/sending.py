"""Sends one worker's share of a stage on time and spools what comes back; what an answer means is read later.

Every ticket becomes exactly one response, also when the server is down. Lateness is recorded, never hidden: an open
loop keeps its absolute schedule whatever the server does, and latency counts from the intended send.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import monotonic_ns

from benchgate.errors import StoreError
from benchgate.load.canary import Canary, with_stamps
from benchgate.load.exchange import Response
from benchgate.load.pacing import Alarm
from benchgate.load.pool import Pool
from benchgate.load.spool import Spool, Spooled
from benchgate.load.tickets import Ticket
from benchgate.model.run import ClientUse

_NS = 1_000_000_000
_PAUSE_S = 0.05  # of a slot that got no connection: a dead target must not become a busy loop
_GUESSED_ANSWER_S = 0.1
_KEEP_NS = 1_000_000  # of keeping answers at a time, and
_KEEP_AGAIN_S = 0.002  # until the next time: five hundred answers that end together must not hold up what arrives
_SLOT_GAP_NS = 100_000  # between the first requests of a closed loop's slots

Start = Callable[[], int]
"""Tells that the connections are open, waits for the others, and gives the shared start: ns since 1970 in UTC."""


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

    def share(self, worker: int, workers: int) -> Level:
        """The part of one of `workers`: slot i goes to worker i modulo their number."""
        if self.concurrency is not None:
            return replace(self, concurrency=len(range(worker, self.concurrency, workers)))
        return replace(self, rate_rps=(self.rate_rps or 0) / workers)


@dataclass(frozen=True, slots=True)
class Sent:
    """How the sending went. `late_s` is how long after the shared start it began."""

    client: ClientUse
    down_after_s: float | None
    late_s: float


class Sending:
    """One share of a stage under way. `count` is how many responses were spooled so far."""

    def __init__(self, pool: Pool, level: Level, spool: Spool) -> None:
        self.count = 0
        self._pool = pool
        self._level = level
        self._spool = spool
        self._epoch_ns = 0
        self._unkept: deque[Spooled] = deque()
        self._keeping = False
        self._unkeepable: StoreError | None = None

    async def run(self, tickets: Iterator[Ticket], start: Start | None) -> Sent:
        """Send everything and wait for it all. Without `start` the stage begins once the connections are open."""
        try:
            with Alarm() as alarm, Canary() as canary:  # before the connections, which may take all files there are
                await self._pool.open(self._level.connections)
                self._epoch_ns, late_s = await _begin(start, alarm)
                cpu_s = time.process_time()
                canary.start()
                if self._level.concurrency is None:
                    await self._open_loop(tickets, alarm)
                else:
                    await self._closed_loop(tickets, self._level.concurrency, alarm)
                canary.stop()
            wall_s = (monotonic_ns() - self._epoch_ns) / _NS
            use = canary.seen(ClientUse(cpu_s=time.process_time() - cpu_s, wall_s=wall_s, workers=1))
            if (stamped_s := self._pool.read_delays_s()) is not None:
                use = with_stamps(use, stamped_s)
            return Sent(use, self._down_after_s(), late_s)
        finally:
            self._pool.close()
            self._keep_rest()

    def _down_after_s(self) -> float | None:
        since_ns = self._pool.down_since_ns
        return None if since_ns is None else max(0, since_ns - self._epoch_ns) / _NS

    async def _closed_loop(self, tickets: Iterator[Ticket], concurrency: int, alarm: Alarm) -> None:
        """The slots begin one after the other, as fast as one worker can surely send.

        A thousand requests of one instant would measure how long they take to write.
        """
        async with asyncio.TaskGroup() as slots:
            for slot in range(concurrency):
                begin_ns = self._epoch_ns + slot * _SLOT_GAP_NS
                await alarm.until(begin_ns)
                slots.create_task(self._slot(tickets, begin_ns))

    async def _slot(self, tickets: Iterator[Ticket], free_ns: int) -> None:
        """One user of a closed loop: a request is due the moment the one before it is over."""
        while self._may_issue() and (ticket := next(tickets, None)) is not None:
            response = await self._pool.ask(ticket.wire)
            self._keep(ticket, free_ns - self._epoch_ns, response)
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

    async def _open_loop(self, tickets: Iterator[Ticket], alarm: Alarm) -> None:
        """Sends at absolute instants, so that lateness never shifts what follows."""
        until_s = self._level.issue_until_s
        async with asyncio.TaskGroup() as flights:
            for ticket in tickets:
                offset_ns = ticket.offset_ns or 0
                if until_s is not None and offset_ns > until_s * _NS:
                    break
                # What is left when the target was given up is over at once, but others still have their turn.
                await alarm.until(0 if self._pool.given_up else self._epoch_ns + offset_ns)
                flights.create_task(self._flight(ticket, offset_ns))

    async def _flight(self, ticket: Ticket, offset_ns: int) -> None:
        self._keep(ticket, offset_ns, await self._pool.ask(ticket.wire))

    def _keep(self, ticket: Ticket, intended_ns: int, response: Response) -> None:
        """Keep an answer at once; of several that end together the others when all have sent their next request."""
        if self._unkeepable is not None:
            raise self._unkeepable
        spooled = Spooled(ticket.number, intended_ns, self._epoch_ns, response)
        self.count += 1
        if self._keeping:
            self._unkept.append(spooled)
        else:
            self._keeping = True
            asyncio.get_running_loop().call_soon(self._keep_some)
            self._spool.append(spooled)

    def _keep_some(self) -> None:
        """Keep answers for a moment, and go on a little later when there are more."""
        until_ns = monotonic_ns() + _KEEP_NS
        try:
            while self._unkept:
                self._spool.append(self._unkept.popleft())
                if monotonic_ns() > until_ns:
                    asyncio.get_running_loop().call_later(_KEEP_AGAIN_S, self._keep_some)
                    return
        except StoreError as exc:  # nobody waits for a callback: the next answer, or the end of the stage, raises it
            self._unkeepable = exc
        self._keeping = False

    def _keep_rest(self) -> None:
        """Keep what is still waiting. Raises StoreError when answers could not be kept."""
        if self._unkeepable is not None:
            raise self._unkeepable
        while self._unkept:
            self._spool.append(self._unkept.popleft())


async def _begin(start: Start | None, alarm: Alarm) -> tuple[int, float]:
    """The start of the stage in monotonic ns, waited for, and by how many seconds it was missed.

    Workers on other machines share nothing but the clock of day, so that is what the instant is told in.
    """
    if start is None:
        return monotonic_ns(), 0.0
    start_ns = await asyncio.to_thread(start)  # the loop goes on: a connection may close meanwhile
    epoch_ns = monotonic_ns() + start_ns - time.time_ns()
    late_s = max(0, monotonic_ns() - epoch_ns) / _NS
    await alarm.until(epoch_ns)
    return epoch_ns, late_s
