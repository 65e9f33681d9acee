"""One request's response as it is gathered: when it has ended, and when waiting for it must end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import NamedTuple

from benchgate.load.http1 import Dechunker, Head, MalformedResponse, split_head
from benchgate.model.records import ErrorClass
from benchgate.suite.schema import Limits

LARGEST_RESPONSE_BYTES = 64 * 2**20

MAY_END = (b"\r\n\r\n", b"[DONE]\n\n\r\n", b"[DONE]\n\n")
"""What the last read of a chunked response ends with, if it has four bytes: only these are worth a look."""

_DONE = (b"data: [DONE]", b"data:[DONE]")
_LINGER_S = 0.05  # how long the end of the body may trail `[DONE]`: a server shutting down holds it for seconds
_NS = 1_000_000_000

Read = tuple[int, bytes]
"""Bytes and the instant (monotonic ns) they were read at. A bare tuple: one is made for every read."""

Begun = Callable[[Sequence[Read]], bool]
"""Tells from a body so far whether output has begun. Asked only when a time limit may have passed."""


class Fault(NamedTuple):
    """Why an exchange did not end as it should, as far as the wire can tell."""

    error: ErrorClass
    detail: str


@dataclass(frozen=True, slots=True)
class Response:
    """All that came back for one request, still undecoded; instants are of the monotonic clock, in ns.

    `sent_ns` is None when no byte was sent; `head` is None when none came whole. `body` has its chunk framing
    removed. `whole`: the body ended as its framing said it would. `fault` says why it did not; it is None too when
    the stream said `[DONE]` and the end of the body then failed to come. `over_ns` is when the client was free again.
    """

    sent_ns: int | None
    over_ns: int
    head: Head | None = None
    body: Sequence[Read] = ()
    whole: bool = False
    fault: Fault | None = None
    unanswered: bool = False  # the connection was closed before the first byte of a response
    reconnects: int = 0

    @classmethod
    def unsent(cls, fault: Fault) -> Response:
        """A request that never reached a wire."""
        return cls(sent_ns=None, over_ns=monotonic_ns(), fault=fault)

    @property
    def reusable(self) -> bool:
        """Whether the connection it came over can carry another request."""
        return self.whole and self.head is not None and self.head.keeps_alive


class Exchange:
    """A response under way. `over` is its future; nothing here raises into the event loop.

    The connection appends to `pending` and calls `look` when a read may be the last; everything before that read is
    taken apart then, in one go.
    """

    def __init__(self, limits: Limits, begun: Begun) -> None:
        loop = asyncio.get_running_loop()
        self.pending: list[Read] = []
        self.size = 0  # bytes so far, framing included
        self.look_at_all = True  # until the head says that the body is chunked
        self.sent_ns = self.last_ns = monotonic_ns()
        self.over: asyncio.Future[Response] = loop.create_future()
        self._loop = loop
        self._limits = limits
        self._begun = begun
        self._has_begun = False
        self._head: Head | None = None
        self._body: list[Read] = []
        self._left: int | None = None  # body bytes still to come, when their number is declared
        self._dechunker: Dechunker | None = None
        self._linger: asyncio.TimerHandle | None = None
        first_check_s = min(limits.first_token_s, limits.stall_s, limits.total_s)
        self._timer = loop.call_later(first_check_s, self._check_limits)

    def look(self) -> None:
        """Take apart what has come; finish when that was all of it."""
        if self.over.done():
            return
        try:
            whole = self._take_pending()
        except MalformedResponse as exc:
            self._finish(Fault(ErrorClass.PROTOCOL, str(exc)))
            return
        if whole:
            self._finish(None, whole=True)
        elif self.size > LARGEST_RESPONSE_BYTES:
            self._finish(Fault(ErrorClass.PROTOCOL, f"the response is longer than {LARGEST_RESPONSE_BYTES} bytes"))
        elif self._linger is None and self._said_done():
            self._linger = self._loop.call_later(_LINGER_S, self._finish, None)

    def lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.look()
        if self.over.done():
            return
        ends_with_connection = self._head is not None and self._left is None and self._dechunker is None
        if ends_with_connection and exc is None:
            self._finish(None, whole=True)
            return
        how = "reset" if isinstance(exc, ConnectionResetError) else "closed"
        when = "in the middle of the response" if self.size else "before any answer"
        detail = f"the server {how} the connection {when}"
        self._finish(Fault(ErrorClass.STREAM_BROKEN, detail), unanswered=self.size == 0)

    def forget(self) -> None:
        """Stop all timers."""
        self._timer.cancel()
        if self._linger is not None:
            self._linger.cancel()

    def _finish(self, fault: Fault | None, *, whole: bool = False, unanswered: bool = False) -> None:
        if self.over.done():
            return
        self.over.set_result(
            Response(
                sent_ns=self.sent_ns,
                over_ns=monotonic_ns(),
                head=self._head,
                body=self._body,
                whole=whole,
                fault=fault,
                unanswered=unanswered,
            )
        )

    def _take_pending(self) -> bool:
        """Move pending reads into the body; True when the body is whole. Raises MalformedResponse."""
        if self._head is None and not self._take_head():
            return False
        for at_ns, data in self.pending:
            if self._dechunker is not None:
                data = self._dechunker.feed(data)
            elif self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            if data:
                self._body.append((at_ns, data))
        self.pending.clear()
        return self._left == 0 if self._dechunker is None else self._dechunker.complete

    def _take_head(self) -> bool:
        """Read the head out of pending; True when it was there, and then pending holds what followed it."""
        split = split_head(b"".join(data for _, data in self.pending))
        if split is None:
            return False
        self._head, rest = split
        self._left = self._head.content_length
        if self._head.chunked:
            self._dechunker = Dechunker()
            self.look_at_all = False
        self.pending[:] = [(self.pending[-1][0], rest)]
        return True

    def _said_done(self) -> bool:
        tail = b"".join(data for _, data in self._body[-2:])[-32:]
        return tail.endswith((b"\n\n", b"\r\n\r\n")) and tail.rstrip().endswith(_DONE)

    def _check_limits(self) -> None:
        """End the wait when a limit has passed, else look again when the next one may have."""
        self.look()
        if self.over.done():
            return
        self._has_begun = self._has_begun or self._begun(self._body)
        limits = self._limits
        expected = [(self.sent_ns + int(limits.total_s * _NS), f"not over within {limits.total_s:g} s")]
        if self._has_begun:
            stalled = f"nothing more came for {limits.stall_s:g} s in the middle of the response"
            expected.append((self.last_ns + int(limits.stall_s * _NS), stalled))
        else:
            silent = f"no output within {limits.first_token_s:g} s"
            expected.append((self.sent_ns + int(limits.first_token_s * _NS), silent))
        deadline_ns, detail = min(expected)
        left_s = (deadline_ns - monotonic_ns()) / _NS
        if left_s <= 0:
            self._finish(Fault(ErrorClass.TIMEOUT, detail))
        else:
            self._timer = self._loop.call_later(left_s, self._check_limits)
