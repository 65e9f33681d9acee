"""Planned requests as the bytes that go on the wire, made before the clock starts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic_ns
from typing import NamedTuple

from benchgate.errors import TargetError
from benchgate.load.request_bodies import RequestBodies, whole_body
from benchgate.model.request import Endpoint, fill_conversation
from benchgate.plan.model import PlannedRequest
from benchgate.targets.address import ServerAddress, show_address
from benchgate.targets.dialect import PATHS, Target

_MAKE_NS = 300_000  # of making tickets at a time, and
_MAKE_AGAIN_S = 0.003  # until the next time
_AHEAD = 2_000  # tickets more than slots, made before the clock starts where it takes no longer than
_AHEAD_NS = 100_000_000  # and no more than
_AHEAD_BYTES = 2**23


class Ticket(NamedTuple):
    """One request ready for the wire. `offset_ns` is its intended send since the start; None in a closed loop.

    `special` is the planned request itself where more is to know of it while it is under way than its bytes: it is a
    turn of a conversation, its client leaves, or its answer does not come as a stream of chunks of a choice. Where that
    last is all, it is any one that is answered alike.
    """

    number: int  # the planned request's index
    offset_ns: int | None
    wire: bytes
    special: PlannedRequest | None = None


class Stock(Iterator[Ticket]):
    """Tickets without end: one ready for every slot, and more ahead where they are small and soon made.

    Made when a slot is due, a ticket would make its request late; made when many slots have just been due, it would
    keep their requests, and what is answered to them, waiting. And one made by itself between the reads of a stage
    costs several times what it costs in a row. So none is made again until half of the slots would find none, and then
    one for every slot, a few at a time. To be taken from inside a running event loop.
    """

    def __init__(self, tickets: Iterator[Ticket], slots: int, ahead: int = _AHEAD) -> None:
        self._tickets = tickets
        self._ready = deque(islice(tickets, slots))
        self._slots = slots
        self._make_ahead(slots + ahead)
        self._making: asyncio.TimerHandle | None = None
        self._broken: BaseException | None = None  # why no more can be made: nobody waits for a callback

    def __next__(self) -> Ticket:
        if self._broken is not None and not self._ready:
            raise self._broken
        ticket = self._ready.popleft() if self._ready else next(self._tickets)
        if self._making is None and 2 * len(self._ready) < self._slots:
            self._make_soon()
        return ticket

    def _make_ahead(self, most: int) -> None:
        until_ns = monotonic_ns() + _AHEAD_NS
        left = _AHEAD_BYTES - sum(len(ticket.wire) for ticket in self._ready)
        while len(self._ready) < most and left > 0 and monotonic_ns() < until_ns and self._make_one():
            left -= len(self._ready[-1].wire)

    def _make_soon(self) -> None:
        self._making = asyncio.get_running_loop().call_later(_MAKE_AGAIN_S, self._make_some)

    def _make_some(self) -> None:
        """Make tickets for a moment, and go on a little later when there are more to make."""
        self._making = None
        until_ns = monotonic_ns() + _MAKE_NS
        try:
            while len(self._ready) < self._slots and monotonic_ns() < until_ns:
                if not self._make_one():
                    self._slots = 0  # there is an end after all: nothing more is to be made
        except BaseException as exc:  # whoever takes the next one has it raised
            self._broken, self._slots = exc, 0
            if not isinstance(exc, Exception):
                raise
        if len(self._ready) < self._slots:
            self._make_soon()

    def _make_one(self) -> bool:
        """False when there is none any more."""
        ready = len(self._ready)
        self._ready.extend(islice(self._tickets, 1))
        return len(self._ready) > ready


def tickets_of(target: Target, requests: Iterable[PlannedRequest]) -> Iterator[Ticket]:
    """The requests as bytes, in order; one at a time, so that endless plans can be ticketed too.

    Raises TargetError when the target's address or key cannot stand in a request.
    """
    bodies, heads = RequestBodies(target), dict[Endpoint, bytes]()
    alike: dict[tuple[Endpoint, bool], PlannedRequest] = {}
    for request in requests:
        endpoint = request.ask.endpoint
        if endpoint not in heads:
            heads[endpoint] = _request_head(target, endpoint)
        wire = _wire(heads[endpoint], bodies.write(request.ask, request.seed))
        yield Ticket(request.index, request.offset_ns, wire, _special(request, alike))


def request_wire(target: Target, request: PlannedRequest, earlier: Sequence[str] = ()) -> bytes:
    """One request as bytes; `earlier` are the model's own answers to the turns before, where the request carries them.

    Raises TargetError as `tickets_of`, and ValueError when the answers are not as many as there are places for them.
    """
    carries = request.turn is not None and request.turn.carries
    ask = fill_conversation(request.ask, earlier) if carries else request.ask
    return _wire(_request_head(target, ask.endpoint), whole_body(target, ask, request.seed))


def _special(request: PlannedRequest, alike: dict[tuple[Endpoint, bool], PlannedRequest]) -> PlannedRequest | None:
    """What a ticket keeps of its request: a million of them would fill the memory, were they not all the same one."""
    if request.turn is not None or request.leave is not None:
        return request
    if request.ask.stream and request.ask.endpoint in ("chat", "completions"):
        return None
    return alike.setdefault((request.ask.endpoint, request.ask.stream), request)


def _wire(head: bytes, body: bytes) -> bytes:
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def _request_head(target: Target, endpoint: Endpoint) -> bytes:
    """The head of every request of a stage, but for the length of its body."""
    server = ServerAddress.of(target.url)
    headers = {"host": server.netloc, "user-agent": "benchgate", **target.headers()}
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise TargetError(
                f"the {name} header for {show_address(target.url)} has characters that no header may have"
            )
    through_proxy = target.route.proxy is not None and server.scheme == "http"
    path = (server.http_url if through_proxy else server.prefix) + PATHS[endpoint]
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    return "".join(f"{line}\r\n" for line in lines).encode()
