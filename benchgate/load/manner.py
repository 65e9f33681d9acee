"""How the client behaves while one answer comes: when it goes away on purpose, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchgate.load.decode import chunks_so_far, heard
from benchgate.load.exchange import Exchange, Heard
from benchgate.load.leaving import LeavingExchange
from benchgate.load.raw_body import Read
from benchgate.model.request import ModelRequest
from benchgate.plan.model import ClientCancellation, PlannedRequest
from benchgate.suite.schema import Limits

_NS = 1_000_000_000


class WayOut:
    """Breaks off all that one class of traffic has under way, once and for all."""

    def __init__(self) -> None:
        self._taken = False
        self._under_way: set[Exchange] = set()

    @property
    def taken(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._taken

    def take(self) -> None:
        """Break off what is under way, and what would still begin."""
        self._taken = True
        for exchange in tuple(self._under_way):
            exchange.leave()

    def enter(self, exchange: Exchange) -> None:
        """An exchange begins; it is broken off with the others unless it is over before."""
        self._under_way.add(exchange)
        exchange.over.add_done_callback(lambda _: self._under_way.discard(exchange))
        if self.taken:
            exchange.leave()


@dataclass(frozen=True, slots=True)
class Manner:
    """What one exchange is about, as far as it matters while it is under way.

    `leave` and `due_ns` (the intended send, of the monotonic clock) say when its client goes away on purpose; by
    `way_out` all of its class may be broken off.
    """

    ask: ModelRequest
    leave: ClientCancellation | None
    due_ns: int
    way_out: WayOut | None

    def begin(self, limits: Limits) -> Exchange:
        """An exchange that behaves so. An answer in one piece has only to be over in time."""
        if not self.ask.stream:
            never_s = 2 * limits.total_s
            limits = limits.model_copy(update={"first_token_s": never_s, "stall_s": never_s})
        exchange = Exchange(limits, self.hear) if self.leave is None else self._leaving(self.leave, limits)
        if self.way_out is not None:
            self.way_out.enter(exchange)
        return exchange

    def hear(self, body: Iterable[Read]) -> Heard:
        """How far an answer has come, of which a body so far is there: all or nothing of one in one piece."""
        return heard(body, self.ask) if self.ask.stream else Heard()

    def chunks(self, body: Iterable[Read]) -> int:
        """How many chunks with output a body so far holds."""
        return chunks_so_far(body, self.ask)

    def _leaving(self, leave: ClientCancellation, limits: Limits) -> Exchange:
        at_ns = None if leave.after_s is None else self.due_ns + int(leave.after_s * _NS)
        return LeavingExchange(limits, self.hear, self.chunks, at_ns=at_ns, after_chunks=leave.after_tokens)


def manner_of(special: PlannedRequest | None, due_ns: int, way_out: WayOut | None) -> Manner | None:
    """How to behave while a request is under way; None for one that is simply waited for to its end."""
    if special is None:
        return None if way_out is None else Manner(_PLAIN, None, due_ns, way_out)
    return Manner(special.ask, special.leave, due_ns, way_out)


_PLAIN = ModelRequest("chat", {}, None)
