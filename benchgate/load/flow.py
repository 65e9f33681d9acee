"""The requests of one class of traffic, sent when they are due, in a closed or an open loop.

Every ticket becomes exactly one response, also when the server is down. Lateness is recorded, never hidden: an open
loop keeps its absolute schedule whatever the server does, and latency counts from the intended send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic_ns

from benchgate.load.conversation import Conversation, think_s, turns_of
from benchgate.load.exchange import Response
from benchgate.load.keeping import Keeper
from benchgate.load.level import Level
from benchgate.load.manner import WayOut, manner_of
from benchgate.load.pacing import Alarm
from benchgate.load.pool import Pool
from benchgate.load.spool import Spooled
from benchgate.load.tickets import Ticket
from benchgate.targets.dialect import Target

_NS = 1_000_000_000
_PAUSE_S = 0.05  # of a slot that got no connection: a dead target must not become a busy loop
_RAMP_NS = 500_000_000  # in which all slots of a closed loop have begun, and
_LONGEST_GAP_NS = 1_000_000  # between two of them


class Flow:
    """One class of traffic of one worker."""

    def __init__(
        self,
        target: Target,
        pool: Pool,
        level: Level,
        tickets: Iterator[Ticket],
        keeper: Keeper,
        alarm: Alarm,
        background: bool,
    ) -> None:
        self.background = background
        self._target = target
        self._pool = pool
        self._level = level
        self._tickets = tickets
        self._keeper = keeper
        self._alarm = alarm
        self._epoch_ns = 0
        self._way_out = WayOut()

    async def run(self, epoch_ns: int) -> None:
        """Send everything and wait for it all; the stage began at `epoch_ns`."""
        self._epoch_ns = epoch_ns
        if self._level.concurrency is None:
            await self._open_loop()
        else:
            await self._closed_loop(self._level.concurrency)

    def end(self) -> None:
        """Send no more, and break off what is under way."""
        self._way_out.take()
        self._alarm.ring_out()

    async def _closed_loop(self, concurrency: int) -> None:
        """The slots begin one after the other, as users come.

        A thousand requests of one instant would measure how long they take to write, and to read.
        """
        gap_ns = min(_LONGEST_GAP_NS, _RAMP_NS // max(1, concurrency))
        async with asyncio.TaskGroup() as slots:
            for slot in range(concurrency):
                begin_ns = self._epoch_ns + slot * gap_ns
                await self._alarm.until(begin_ns)
                slots.create_task(self._slot(begin_ns))

    async def _slot(self, free_ns: int) -> None:
        """One user of a closed loop: a request is due the moment the one before it is over."""
        while self._may_issue() and (ticket := next(self._tickets, None)) is not None:
            turns = turns_of(ticket, self._tickets)
            due_ns = free_ns - self._epoch_ns
            response = await (self._ask(ticket, due_ns) if turns is None else self._converse(turns, due_ns))
            free_ns = response.over_ns
            if response.sent_ns is None and not self._pool.given_up:
                await asyncio.sleep(_PAUSE_S)
                free_ns = monotonic_ns()

    def _may_issue(self) -> bool:
        """Without an end of its own every ticket must become a record; with one, a dead target ends the class early."""
        if self._way_out.taken:
            return False
        until_s = self._level.issue_until_s
        if until_s is None and not self.background:
            return True
        in_time = until_s is None or monotonic_ns() - self._epoch_ns < until_s * _NS
        return in_time and not self._pool.given_up

    async def _open_loop(self) -> None:
        """Sends at absolute instants, so that lateness never shifts what follows."""
        until_s = self._level.issue_until_s
        async with asyncio.TaskGroup() as flights:
            for ticket in self._tickets:
                offset_ns = ticket.offset_ns or 0
                if until_s is not None and offset_ns > until_s * _NS:
                    break
                turns = turns_of(ticket, self._tickets)
                # What is left when the target was given up is over at once, but others still have their turn.
                await self._alarm.until(0 if self._pool.given_up else self._epoch_ns + offset_ns)
                flights.create_task(self._ask(ticket, offset_ns) if turns is None else self._converse(turns, offset_ns))

    async def _ask(self, ticket: Ticket, due_ns: int) -> Response:
        """One request, due so long after the start."""
        way_out = self._way_out if self.background else None
        manner = manner_of(ticket.special, self._epoch_ns + due_ns, way_out)
        response = await self._pool.ask(ticket.wire, manner)
        self._keep(ticket, due_ns, response)
        return response

    async def _converse(self, turns: tuple[Ticket, ...], due_ns: int) -> Response:
        """The turns of a conversation, each due when its user has thought about the answer to the one before.

        One that is not answered ends it: those that would have followed are recorded as not sent.
        """
        conversation = Conversation(self._target, turns)
        response = await self._ask(turns[0], due_ns)
        for place, ticket in enumerate(turns[1:], start=1):
            over_ns = response.over_ns - self._epoch_ns
            broken = conversation.take(turns[place - 1], response)
            if broken is not None:
                for unsent in turns[place:]:
                    self._keep(unsent, over_ns, broken)
                break
            due_ns = over_ns + int(think_s(ticket) * _NS)
            ready = conversation.ready(ticket)  # while the user thinks
            await self._alarm.until(self._epoch_ns + due_ns)
            if self._way_out.taken:
                break
            response = await self._ask(ready, due_ns)
        return response

    def _keep(self, ticket: Ticket, intended_ns: int, response: Response) -> None:
        self._keeper.keep(Spooled(ticket.number, intended_ns, self._epoch_ns, response))
