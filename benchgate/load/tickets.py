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
from benchgate.model.ask import Endpoint, carried_on
from benchgate.plan.schedule import PlannedRequest
from benchgate.targets.address import ServerAddress, show_address
from benchgate.targets.dialect import PATHS, Target

_MAKE_NS = 300_000  # of making tickets at a time, and
_MAKE_SOON_S = 0.003  # until the next time where half of them are missing, and
_MAKE_LATER_S = 0.02  # where fewer are: several made in a row cost less than each by itself


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
    """Tickets without end, so many always ready: those taken are made up for a little later, a few at a time.

    Made when a slot is due, a ticket would make its request late; made when many slots have just been due, it would
    keep their requests, and what is answered to them, waiting. To be taken from inside a running event loop.
    """

    def __init__(self, tickets: Iterator[Ticket], size: int) -> None:
        self._tickets = tickets
        self._size = size
        self._ready = deque(islice(tickets, size))
        self._making: asyncio.TimerHandle | None = None
        self._soon = False

    def __next__(self) -> Ticket:
        ticket = self._ready.popleft() if self._ready else next(self._tickets)
        self._make_later()
        return ticket

    def _make_later(self) -> None:
        missing = self._size - len(self._ready)
        is_low = 2 * missing > self._size
        if missing <= 0 or (self._making is not None and (self._soon or not is_low)):
            return
        if self._making is not None:
            self._making.cancel()
        self._soon = is_low
        self._making = asyncio.get_running_loop().call_later(_MAKE_SOON_S if is_low else _MAKE_LATER_S, self._make)

    def _make(self) -> None:
        """Make tickets for a moment, and go on a little later when there are more to make."""
        self._making = None
        until_ns = monotonic_ns() + _MAKE_NS
        while len(self._ready) < self._size and monotonic_ns() < until_ns:
            made = tuple(islice(self._tickets, 1))
            self._ready.extend(made)
            if not made:
                self._size = 0  # there is an end after all: nothing more is to be made
        self._make_later()


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
    ask = carried_on(request.ask, earlier) if carries else request.ask
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
