"""Runs one worker's share of a stage on one event loop: open and closed loops, sessions, background traffic.

All classes of traffic share the start and the connections; each has an arrival process of its own. Every request
becomes exactly one response, also when the server is down. Lateness is recorded, never hidden: an open loop keeps its
absolute schedule whatever the server does, and latency counts from the intended send.

Around the measured requests a class sends ramp requests: a lead that brings the stage into steady state, and a tail
that keeps it there until the last measured request of all classes is over ("Steady state" in
docs/reference/metrics.md).
Background traffic ends when the rest has.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import attrgetter
from time import monotonic_ns
from typing import Protocol

from benchgate.errors import ClusterError, LimitError
from benchgate.load.client_delay import EventLoopProbe, with_stamps
from benchgate.load.decode.body import Read
from benchgate.load.decode.endpoints import DECODERS, read_body
from benchgate.load.decode.record import failure_and_content, progress_of
from benchgate.load.grpc_pool import GrpcPool
from benchgate.load.http.exchange import (
    CancellingExchange,
    Exchange,
    Failure,
    Progress,
    Response,
)
from benchgate.load.http.pool import Pool
from benchgate.load.requests import PreparedRequest, request_wire
from benchgate.load.shards import Level
from benchgate.load.spool import Phase, SpoolEntry, SpoolWriter
from benchgate.model.request import ModelRequest
from benchgate.model.run import ClientUse
from benchgate.plan.model import ClientCancellation
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Target
from benchgate.timers import Alarm
from benchgate.timestamps import monotonic_of
from benchgate.units import show_duration, show_number

_NS = 1_000_000_000
_SHOWN_EVERY_S = 0.25  # number of requests in flight
_OPEN_EARLY_NS = 1_500_000_000  # between opening connections and a start that was fixed beforehand, and
_CONNECT_NS = 1_000_000  # more for each
_TOO_LATE_S = 1.0
_CHANCE = 4.0  # standard deviations of Poisson arrivals


class CancelScope:
    """Breaks off all that one class of traffic has under way, once and for all."""

    def __init__(self) -> None:
        self.taken = False  # then nothing more is to be sent
        self._under_way: set[Exchange] = set()

    def take(self) -> None:
        """Break off what is under way, and what would still begin."""
        self.taken = True
        for exchange in tuple(self._under_way):
            exchange.cancel()

    def enter(self, exchange: Exchange) -> None:
        """An exchange begins; it is broken off with the others unless it is over before."""
        self._under_way.add(exchange)
        exchange.over.add_done_callback(lambda _: self._under_way.discard(exchange))
        if self.taken:
            exchange.cancel()


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """Options of one exchange; `leave` and `due_ns` (intended send, monotonic) define when its client cancels."""

    ask: ModelRequest
    leave: ClientCancellation | None
    due_ns: int
    cancel_scope: CancelScope | None

    def begin(self, limits: Limits) -> Exchange:
        """An exchange that behaves so. An answer in one piece has only to be over in time."""
        if not self.ask.stream:
            never_s = 2 * limits.total_s
            limits = limits.model_copy(update={"first_token_s": never_s, "stall_s": never_s})
        if self.leave is None:
            exchange = Exchange(limits, self.progress_of)
        else:
            at_ns = None if self.leave.after_s is None else self.due_ns + int(self.leave.after_s * _NS)
            after_chunks = self.leave.after_tokens
            exchange = CancellingExchange(
                limits,
                self.progress_of,
                self.chunks,
                at_ns=at_ns,
                after_chunks=after_chunks,
                hint=DECODERS[self.ask.endpoint].hint,
            )
        if self.cancel_scope is not None:
            self.cancel_scope.enter(exchange)
        return exchange

    def progress_of(self, body: Iterable[Read]) -> Progress:
        """Return how far an answer has come; an unstreamed one has no progress."""
        return progress_of(body, self.ask) if self.ask.stream else Progress()

    def chunks(self, body: Iterable[Read]) -> int:
        """Return the number of chunks with output in a body so far."""
        return len(read_body(body, self.ask).chunk_ns)


_PLAIN = ModelRequest("chat", {}, None)


def conversation_turns(first: PreparedRequest, others: Iterator[PreparedRequest]) -> tuple[PreparedRequest, ...] | None:
    """Take the turns that follow the first one of a session, which a plan holds one after the other; else None."""
    turn = first.turn
    if turn is None:
        return None
    turns, session = [first], turn.session
    while not turn.last and (request := next(others, None)) is not None:
        turn = request.turn
        if turn is None or turn.session != session:
            raise ValueError(f"request {request.number} stands between the turns of another conversation")
        turns.append(request)
    return tuple(turns)


class Conversation:
    """The answers of a session so far."""

    def __init__(self, target: Target, turns: Sequence[PreparedRequest]) -> None:
        self._target = target
        self._parents = {number for request in turns if request.turn is not None for number in request.turn.parents}
        self._carried = {number for request in turns if request.turn is not None for number in request.turn.answers}
        self._texts: dict[int, str] = {}

    def take(self, request: PreparedRequest, response: Response) -> Response | None:
        """Note the answer to a request. If it ends what depends on it, return the response of each of those.

        After a failed request its descendants have nothing to go on with: they fail by the same error, so that they
        stay in the denominator. After one that the client cancelled on purpose, the user is gone.
        """
        plan = request.plan
        if plan is None or plan.turn is None:
            raise ValueError(f"request {request.number} is no turn of a conversation")
        number = plan.turn.turn
        if number not in self._parents:
            return None
        if plan.leave is not None or response.left:
            return Response.unsent(None, left=True)
        failure, content = failure_and_content(response, plan.ask, self._target)
        if failure is not None:
            detail = f"not sent, because turn {number + 1} of its conversation failed: {failure.detail}"
            return Response.unsent(Failure(failure.error, detail))
        if number in self._carried:
            self._texts[number] = content.text
        return None

    def ready(self, request: PreparedRequest) -> PreparedRequest:
        """Return a turn as it is sent: with the model's own earlier answers, where it carries them."""
        if request.plan is None or request.turn is None or not request.turn.carries:
            return request
        earlier = [self._texts[number] for number in request.turn.answers]
        return request._replace(wire=request_wire(self._target, request.plan, earlier))


@dataclass(frozen=True, slots=True)
class _CallEnd:
    """End of a request of a session, since the start; no `response` if it was not sent.

    Requests that depend on it have the response `broken`, if any.
    """

    response: Response | None
    over_ns: int
    broken: Response | None


_over_ns = attrgetter("over_ns")
_PAUSE_S = 0.05  # of a slot that got no connection, doubled each time: a dead target must not become a busy loop,
_LONGEST_PAUSE_S = 1.0  # nor use up all requests before it has restarted
_START_NS = 500_000_000  # in which all slots of a closed loop have begun where its service time is not known, and
_LONGEST_GAP_NS = 1_000_000  # between two of them
LEAD_UNITS = 4  # a slot: so many begun since all slots have, the lead is over although a slot has completed none
TAIL_UNITS = 16  # a slot: so many begun after the last measured one, the tail is over although that one is not


class Steady:
    """The time in which all foreground classes of this worker are in steady state, from its first moment to its last.

    No measured request of a closed loop is sent before it. The schedule of an open loop is fixed; its lead is long
    enough for the closed loops beside it (`stage_shard`). A class whose own measured requests are over keeps its load
    up for the others. Created on a running event loop.
    """

    def __init__(self, waiting: int, foreground: int) -> None:
        self._waiting = waiting
        self._sending = self._measuring = foreground
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not foreground:
            self.over.set_result(None)

    @property
    def reached(self) -> bool:
        """Return True if measured requests may be sent."""
        return self._waiting <= 0

    @property
    def all_sent(self) -> bool:
        """Return True if no class has a measured request left to send."""
        return self._sending <= 0

    @property
    def measuring(self) -> bool:
        """Return True until the last measured request of all classes is over."""
        return not self.over.done()

    def fill(self) -> None:
        """Count a class as being in steady state, or never reaching it."""
        self._waiting -= 1

    def end_sending(self) -> None:
        """Count a class as having no measured request left to send."""
        self._sending -= 1

    def end_measuring(self) -> None:
        """Count a class as having no measured request under way or left to send."""
        self._measuring -= 1
        if self._measuring <= 0 and not self.over.done():
            self.over.set_result(None)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedClass:
    """A class ready to be sent. Measured instants count from `lead_ns`, those of its `ramp` from the start."""

    level: Level
    requests: Iterator[PreparedRequest]
    writer: SpoolWriter
    background: bool = False
    ramp: Iterator[PreparedRequest] | None = None
    service_s: float | None = None
    lead_ns: int = 0

    @property
    def holds_slots(self) -> bool:
        """Return True for a closed loop that is kept full around its measured requests."""
        return self.ramp is not None and bool(self.level.concurrency)

    @property
    def leads(self) -> bool:
        """Return True if measured requests of the stage wait until this class is in steady state."""
        return not self.background and (self.holds_slots or self.lead_ns > 0)


class TrafficClassRunner:
    """Sends one class of traffic of a worker."""

    def __init__(
        self, target: Target, pool: Pool | GrpcPool, group: PreparedClass, alarm: Alarm, steady: Steady
    ) -> None:
        self.background = group.background
        self._target = target
        self._pool = pool
        self._group = group
        self._level = group.level
        self._writer = group.writer
        self._alarm = alarm
        self._steady = steady
        self._epoch_ns = 0
        self._cancel_scope = CancelScope()
        self._leads = group.leads
        self.sent = 0  # requests that were sent and are over
        self._begun = 0  # slots that have begun
        self._completing = 0  # slots that have completed nothing so far
        self._lead_units = 0  # begun since all slots have
        self._tail_units = 0  # begun so far
        self._measured = 0  # units under way
        self._measured_from_ns: int | None = None
        self._spent = False  # there is no measured request left to send
        self._is_over = False  # nor one under way

    async def run(self, epoch_ns: int) -> None:
        """Send everything and wait for it all; the stage began at `epoch_ns`."""
        self._epoch_ns = epoch_ns
        try:
            if self._level.concurrency is None:
                await self._open_loop()
            else:
                await self._closed_loop(self._level.concurrency)
        finally:
            self._fill()
            self._spend()
            self._measured = 0
            self._end_if_over()

    def end(self) -> None:
        """Send no more, and break off what is under way."""
        self._cancel_scope.take()
        self._alarm.ring_out()

    def _fill(self) -> None:
        """Report this class as in steady state, or as one that will never be."""
        if self._leads:
            self._leads = False
            self._steady.fill()

    def _spend(self) -> None:
        """Report that there is no measured request left to send."""
        if not self._spent:
            self._spent = True
            if not self.background:
                self._steady.end_sending()

    def _end_if_over(self) -> None:
        """Report that all measured requests are over, once they are."""
        if self._spent and self._measured <= 0 and not self._is_over:
            self._is_over = True
            if not self.background:
                self._steady.end_measuring()

    async def _closed_loop(self, concurrency: int) -> None:
        """Start the slots evenly over the mean service time, by their numbers among the slots of all workers.

        Started at once they would all be in the same step of their answers, and wait for each other: a burst, and a
        thousand requests of one instant would measure how long they take to write, and to read.
        """
        self._completing = concurrency
        slots, service_s = max(1, self._level.all_slots), self._group.service_s
        gap_ns = min(_LONGEST_GAP_NS, _START_NS // slots)
        if service_s is not None and not self.background:  # what is in the background runs from the start
            gap_ns = int(service_s * _NS) // slots
        async with asyncio.TaskGroup() as tasks:
            for number in self._level.slot_numbers:
                begin_ns = self._epoch_ns + number * gap_ns
                await self._alarm.until(begin_ns)
                self._begun += 1
                tasks.create_task(self._slot(begin_ns))

    async def _slot(self, free_ns: int) -> None:
        """Send as one user of a closed loop: a request is due the moment the one before it is over."""
        first, pause_s = True, _PAUSE_S
        while (unit := self._next_unit(free_ns)) is not None:
            request, others, phase = unit
            turns = conversation_turns(request, others)
            due_ns = free_ns - self._epoch_ns
            sending = self._ask(request, due_ns, phase) if turns is None else self._converse(turns, due_ns, phase)
            response = await sending
            if first:  # the lead is over when every slot has completed a request
                first = False
                self._completing -= 1
                if self._completing == 0:
                    self._fill()
            free_ns = response.over_ns
            if response.sent_ns is not None and self._level.think_s:
                free_ns += int(self._level.think_s * _NS)
                await self._alarm.until(free_ns)
            if phase is Phase.MEASURED:  # over with its pause, in which the slot is not free either
                self._measured -= 1
                self._end_if_over()
            if response.sent_ns is not None:
                pause_s = _PAUSE_S
            elif self._pool.given_up:
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(pause_s)
                free_ns, pause_s = monotonic_ns(), min(2 * pause_s, _LONGEST_PAUSE_S)

    def _next_unit(self, free_ns: int) -> tuple[PreparedRequest, Iterator[PreparedRequest], Phase] | None:
        """Take the request, or the first of the conversation, that a free slot sends; None when it is to end."""
        ramp, requests = self._group.ramp, self._group.requests
        if ramp is not None and not (self._steady.reached or self._cancel_scope.taken or self._pool.given_up):
            if (request := next(ramp, None)) is not None:
                # A slot may hang: the lead is over also when many requests were sent since all slots have begun.
                if self._begun == self._level.concurrency:
                    self._lead_units += 1
                    if self._lead_units > LEAD_UNITS * self._begun:
                        self._fill()
                return request, ramp, Phase.LEAD
            self._fill()
        if self._may_issue(free_ns) and (request := next(requests, None)) is not None:
            if self.background and not self._steady.reached:  # it is measured when the rest is
                return request, requests, Phase.LEAD
            self._measured += 1
            return request, requests, Phase.MEASURED
        self._spend()
        self._end_if_over()
        # While another class has its measured requests to send, that bounds the tail.
        holds = self._tail_units < TAIL_UNITS * self._begun and self._steady.measuring and not self._pool.given_up
        if ramp is not None and holds and (request := next(ramp, None)) is not None:
            self._tail_units += self._steady.all_sent
            return request, ramp, Phase.TAIL
        return None

    def _may_issue(self, free_ns: int) -> bool:
        """Return True if a measured request may be sent: without `send_until_s` all of them must become records."""
        if self._cancel_scope.taken or self._spent:
            return False
        if self._measured_from_ns is None:
            self._measured_from_ns = free_ns
        until_s = self._level.send_until_s
        if until_s is None and not self.background:
            return True
        in_time = until_s is None or monotonic_ns() - self._measured_from_ns < until_s * _NS
        return in_time and not self._pool.given_up

    async def _open_loop(self) -> None:
        """Send at absolute instants, so that lateness never shifts what follows."""
        lead_ns, ramp, until_s = self._group.lead_ns, self._group.ramp or iter(()), self._level.send_until_s
        async with asyncio.TaskGroup() as flights:
            following = None
            for request in ramp:
                if (request.offset_ns or 0) > lead_ns:
                    following = request
                    break
                await self._begin(flights, request, ramp, request.offset_ns or 0, Phase.LEAD)
            await self._alarm.until(0 if self._pool.given_up else self._epoch_ns + lead_ns)
            self._fill()
            for request in self._group.requests:
                offset_ns = request.offset_ns or 0
                if until_s is not None and offset_ns > until_s * _NS:
                    break
                await self._begin(flights, request, self._group.requests, lead_ns + offset_ns, Phase.MEASURED)
            self._spend()
            self._end_if_over()
            # Hold the level with ramp requests until all measured ones are over, or there are no more.
            while following is not None and self._steady.measuring and not self._pool.given_up:
                due_ns = following.offset_ns or 0
                due = asyncio.ensure_future(self._alarm.until(self._epoch_ns + due_ns))
                try:
                    await asyncio.wait({due, self._steady.over}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    due.cancel()
                if self._steady.measuring:
                    await self._begin(flights, following, ramp, due_ns, Phase.TAIL)
                    following = next(ramp, None)

    async def _begin(
        self,
        flights: asyncio.TaskGroup,
        request: PreparedRequest,
        others: Iterator[PreparedRequest],
        due_ns: int,
        phase: Phase,
    ) -> None:
        turns = conversation_turns(request, others)
        # What is left when the target was given up is over at once, but others still have their turn.
        await self._alarm.until(0 if self._pool.given_up else self._epoch_ns + due_ns)
        flight = flights.create_task(
            self._ask(request, due_ns, phase) if turns is None else self._converse(turns, due_ns, phase)
        )
        if phase is Phase.MEASURED:
            self._measured += 1
            flight.add_done_callback(self._end_measured)

    def _end_measured(self, flight: asyncio.Task[Response]) -> None:
        self._measured -= 1
        self._end_if_over()

    async def _ask(self, request: PreparedRequest, due_ns: int, phase: Phase) -> Response:
        """Send one request, due `due_ns` after the start."""
        scope, plan, begin = self._cancel_scope if self.background else None, request.plan, None
        if plan is not None:
            begin = ExchangeOptions(plan.ask, plan.leave, self._epoch_ns + due_ns, scope).begin
        elif scope is not None:
            begin = ExchangeOptions(_PLAIN, None, self._epoch_ns + due_ns, scope).begin
        response = await self._pool.ask(request.wire, begin)
        self._keep(request, due_ns, response, phase)
        return response

    async def _converse(self, turns: tuple[PreparedRequest, ...], due_ns: int, phase: Phase) -> Response:
        """Send the requests of a session, each due a pause after all that it depends on. Return the last answer.

        Requests that depend on one without an answer are recorded as not sent.
        """
        conversation = Conversation(self._target, turns)
        calls: list[asyncio.Task[_CallEnd]] = []
        async with asyncio.TaskGroup() as flights:
            for request in turns:
                parents = [calls[number] for number in ([] if request.turn is None else request.turn.parents)]
                calls.append(flights.create_task(self._call(conversation, request, parents, due_ns, phase)))
        return max((end.response for call in calls if (end := call.result()).response is not None), key=_over_ns)

    async def _call(
        self,
        conversation: Conversation,
        request: PreparedRequest,
        parents: Sequence[asyncio.Task[_CallEnd]],
        due_ns: int,
        phase: Phase,
    ) -> _CallEnd:
        """Send a request of a session when its `parents` are over; without any, `due_ns` after the start."""
        ends = [await parent for parent in parents]
        over_ns = max([due_ns] if not ends else [end.over_ns for end in ends])
        broken = next((end.broken for end in ends if end.broken is not None), None)
        if broken is not None:
            self._keep(request, over_ns, broken, phase)
            return _CallEnd(None, over_ns, broken)
        if any(end.response is None for end in ends):
            return _CallEnd(None, over_ns, None)
        pause_ns = int((0.0 if request.turn is None else request.turn.think_s) * _NS)
        if ends or pause_ns:
            request = conversation.ready(request)  # while the user thinks, or the tools run
            await self._alarm.until(self._epoch_ns + over_ns + pause_ns)
            if self._cancel_scope.taken and ends:
                return _CallEnd(None, over_ns, None)
        response = await self._ask(request, over_ns + pause_ns, phase)
        return _CallEnd(response, response.over_ns - self._epoch_ns, conversation.take(request, response))

    def _keep(self, request: PreparedRequest, intended_ns: int, response: Response, phase: Phase) -> None:
        self.sent += response.sent_ns is not None
        self._writer.keep(SpoolEntry(request.number, intended_ns, self._epoch_ns, response, phase))


class InFlight(Protocol):
    """A number of requests in memory that processes share."""

    value: int


Start = Callable[[], int]
"""Reports that the connections are open, waits for the others, and returns the shared start: ns since 1970 in UTC.

Workers on other machines share nothing but the clock of day.
"""


@dataclass(frozen=True, slots=True)
class StageTimings:
    """Timings of a stage as it was sent. `late_s` is how long after the shared start it began."""

    client: ClientUse
    down_after_s: float | None
    late_s: float


class StageRunner:
    """Runs one worker's share of a stage. `in_flight` is kept current for a display in another process."""

    def __init__(
        self,
        target: Target,
        pool: Pool | GrpcPool,
        classes: Sequence[PreparedClass],
        in_flight: InFlight | None = None,
        start_at_ns: int | None = None,
        most_rps: float | None = None,
    ) -> None:
        self._target = target
        self._pool = pool
        self._classes = classes
        self._in_flight = in_flight
        self._start_at_ns = start_at_ns
        self._most_rps = most_rps
        self._epoch_ns = 0

    async def run(self, start: Start | None) -> StageTimings:
        """Send everything and wait for it all.

        Without `start` the stage begins at `start_at_ns`, or once the connections are open.
        """
        try:
            with ExitStack() as stack:  # before the connections, which may take all files there are
                canary = stack.enter_context(EventLoopProbe())
                alarms = [stack.enter_context(Alarm()) for _ in self._classes]
                foreground = sum(not group.background for group in self._classes)
                steady = Steady(sum(group.leads for group in self._classes), foreground)
                flows = [
                    TrafficClassRunner(self._target, self._pool, group, alarm, steady)
                    for group, alarm in zip(self._classes, alarms, strict=True)
                ]
                alarm = stack.enter_context(Alarm())
                connections = sum(group.level.connections for group in self._classes)
                if self._start_at_ns is not None:  # servers close a connection that is unused for some seconds
                    open_at_ns = self._start_at_ns - _OPEN_EARLY_NS - connections * _CONNECT_NS
                    await asyncio.sleep((open_at_ns - time.time_ns()) / _NS)
                await self._pool.open(connections)
                self._epoch_ns, late_s = monotonic_ns(), 0.0
                # The loop goes on meanwhile: a connection may close.
                start_ns = self._start_at_ns if start is None else await asyncio.to_thread(start)
                if start_ns is not None:
                    self._epoch_ns = monotonic_of(start_ns)
                    late_s = max(0, monotonic_ns() - self._epoch_ns) / _NS
                    if self._start_at_ns is not None and late_s > _TOO_LATE_S:  # all that is overdue would be a burst
                        raise ClusterError(f"was ready {show_duration(late_s)} after the start, so nothing was sent")
                    await alarm.until(self._epoch_ns)
                cpu_s = time.process_time()
                canary.start()
                async with asyncio.TaskGroup() as endless:
                    shown = endless.create_task(self._show_in_flight())
                    guard = endless.create_task(self._hold_rate(flows))
                    for flow in flows:
                        if flow.background:
                            endless.create_task(flow.run(self._epoch_ns))
                    async with asyncio.TaskGroup() as ending:
                        for flow in flows:
                            if not flow.background:
                                ending.create_task(flow.run(self._epoch_ns))
                    shown.cancel()
                    guard.cancel()
                    for flow in flows:
                        if flow.background:
                            flow.end()
                canary.stop()
            wall_s = (monotonic_ns() - self._epoch_ns) / _NS
            use = canary.seen(ClientUse(cpu_s=time.process_time() - cpu_s, wall_s=wall_s, workers=1))
            if (stamped_s := self._pool.read_delays_s()) is not None:
                use = with_stamps(use, stamped_s)
            use = replace(use, unasked=self._pool.unasked, closed_early=self._pool.closed_early)
            down_ns = self._pool.down_since_ns
            down_after_s = None if down_ns is None else max(0, down_ns - self._epoch_ns) / _NS
            return StageTimings(use, down_after_s, late_s)
        finally:
            self._pool.close()
            await self._pool.closed()
            for group in self._classes:
                group.writer.flush()

    async def _hold_rate(self, flows: Sequence[TrafficClassRunner]) -> None:
        """Raise LimitError once more requests begin in a second than the operator allows, and than chance explains."""
        if self._most_rps is None:
            return
        most, before = self._most_rps + _CHANCE * math.sqrt(self._most_rps) + 1, 0
        while True:
            await asyncio.sleep(1.0)
            begun = self._pool.in_flight + sum(flow.sent for flow in flows)
            if begun - before > most:
                found = f"{begun - before} requests began within a second"
                raise LimitError(
                    f"{found}, and the operator allows {show_number(self._most_rps)}; the stage was stopped"
                )
            before = begun

    async def _show_in_flight(self) -> None:
        while self._in_flight is not None:
            self._in_flight.value = self._pool.in_flight
            await asyncio.sleep(_SHOWN_EVERY_S)
