"""Connection pool of one stage: pre-connect, reuse, retry on a stale connection, circuit breaker."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic_ns
from typing import NamedTuple

from benchgate.load.http.connection import Address, ConnectFailed, Connection, Deadlines, Peers, connect
from benchgate.load.http.exchange import Exchange, Failure, ProgressOf, Response
from benchgate.load.http.reader import Reader, start_reader
from benchgate.model.records import ErrorClass, FloatArray
from benchgate.suite.schema import Limits

_PARALLEL_CONNECTS = 32

# The circuit breaker opens after this long and this many attempts without any connection. Requests then fail at once,
# but for one attempt in each interval. A target that had accepted connections may be restarting: it is given up later.
_OPEN_AFTER_NS = 1_000_000_000
_OPEN_AFTER_ATTEMPTS = 3
_ATTEMPT_EVERY_NS = 1_000_000_000
_GIVE_UP_NS = 300_000_000_000

_IDLE_NS = 1_000_000_000  # servers keep an unused connection for seconds: gunicorn 2, uvicorn, node and llama.cpp 5

# How long after an answer a close still counts as one that the server made at once: several times the connect (which
# is at least one round trip), within these bounds. A server that closes after every answer is granted more. The upper
# bound keeps a slow connect from hiding connections that were dropped later.
_CONNECTS_AT_ONCE = 3
_SHORTEST_AT_ONCE_NS = 10_000_000
_CLOSING_AT_ONCE_NS = 50_000_000
_LONGEST_AT_ONCE_NS = 300_000_000

Begin = Callable[[Limits], Exchange]
"""Makes the exchange of one request, which ends within these limits."""


class Pool:
    """Sends requests over connections it keeps. Must be closed, however the stage ends.

    With `audit` the kernel stamps what arrives (see `stamps`); only for a server that `audit_refusal` has nothing
    against.
    """

    def __init__(self, address: Address, limits: Limits, progress_of: ProgressOf, *, audit: bool = False) -> None:
        self._address = address
        self._progress_of = progress_of
        self._audit = audit
        self._reader: Reader | None = None
        self.peers = Peers()
        self._limits = limits
        self._deadlines = Deadlines()
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._unasked = 0  # of connections that are no more
        self._closed_early = 0
        self._down: Outage | None = None
        self._has_connected = False
        self._keeps = False  # whether a connection outlived an answer: this server does not close after each
        self._connect_ns: int | None = None  # the shortest connect so far: the nearest to one round trip

    async def open(self, count: int) -> None:
        """Open connections before the clock starts. Failures are left to the requests that will meet them."""
        _raise_open_files_limit()
        if self._reader is None:
            self._reader = start_reader(audited=self._audit)
        while len(self._idle) < count and self._down is None:
            batch = min(count - len(self._idle), _PARALLEL_CONNECTS)
            opened = await asyncio.gather(*(self._connect() for _ in range(batch)), return_exceptions=True)
            for connection in opened:
                if isinstance(connection, Connection):
                    self._idle.append(connection)
                elif not isinstance(connection, ConnectFailed):
                    raise connection

    def close(self) -> None:
        """Drop every connection at once."""
        for connection in tuple(self._open):
            connection.close()
            self._forget(connection)
        self._deadlines.close()
        if self._reader is not None:
            self._reader.close()

    async def closed(self) -> None:
        """Return at once: `close` leaves nothing to be done."""

    @property
    def given_up(self) -> bool:
        """Return True if the target is down for the rest of the stage: nothing more is tried."""
        return self._down is not None and self._down.is_given_up(has_connected=self._has_connected)

    @property
    def in_flight(self) -> int:
        """Return the number of connections with a request under way."""
        return len(self._open) - len(self._idle)

    @property
    def down_since_ns(self) -> int | None:
        """Return since when the target has accepted no connection; None when it does, or the error is our own."""
        down = self._down
        if down is None or not down.breaker_is_open or down.fault.error is ErrorClass.CLIENT:
            return None
        return down.since_ns

    @property
    def unasked(self) -> int:
        """Return how often data came over a connection without a request under way."""
        return self._unasked + sum(connection.received_unasked for connection in self._open)

    @property
    def closed_early(self) -> int:
        """Return how many kept connections the server closed soon after an answer and before another use.

        Counted when a connection is looked for: a close that no request would have met does not count.
        """
        return self._closed_early

    def read_delays_s(self) -> FloatArray | None:
        """Return the delays between arrival and read, or an even sample of them; None without audit."""
        delays = None if self._reader is None else self._reader.delays
        return None if delays is None else delays.seconds()

    async def ask(self, request: bytes, begin: Begin | None = None) -> Response:
        """Send a request on an idle connection or else a fresh one; its response holds any failure.

        A request that meets a kept connection the server had closed is sent again at once on a fresh one, and counted;
        `sent_ns` stays the first send. Nothing else is ever sent twice: a dropped request is a failed one. One whose
        connection is known to be closed before anything is sent on it is sent once, and not counted.
        """
        connection = self._take_idle()
        if connection is None:
            return await self._ask_fresh(request, begin)
        kept = connection.has_served or connection.unused_ns >= _IDLE_NS
        response = await self._exchange(connection, request, begin)
        if not (kept and self._met_close(response)):
            return response
        again = await self._ask_fresh(request, begin)
        return replace(again, sent_ns=response.sent_ns, connecting_ns=None, reconnects=1)

    async def _ask_fresh(self, request: bytes, begin: Begin | None) -> Response:
        began_ns = monotonic_ns()
        try:
            connection = await self._connect()
        except ConnectFailed as exc:
            return Response.unsent(exc.fault)
        connecting_ns = monotonic_ns() - began_ns
        return replace(await self._exchange(connection, request, begin), connecting_ns=connecting_ns)

    async def _exchange(self, connection: Connection, request: bytes, begin: Begin | None) -> Response:
        outlived = connection.has_answered
        start = partial(begin or partial(Exchange, progress_of=self._progress_of), self._limits)
        response = await connection.exchange(request, start)
        if connection.alive:
            self._idle.append(connection)
        else:
            self._forget(connection)
        if response.head is not None:
            self._down = None  # refusing some connections is not being down
            self._keeps = self._keeps or outlived
        return response

    def _take_idle(self) -> Connection | None:
        """The connection used last, which the server is the least likely to have closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
            by_server = connection.has_served and not connection.received_unasked
            self._closed_early += by_server and connection.unused_ns < _IDLE_NS
            self._forget(connection)
        return None

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._unasked += connection.received_unasked

    async def _connect(self) -> Connection:
        """Return a fresh connection. Raises ConnectFailed, at once while the circuit breaker is open."""
        down = self._down
        if down is not None and down.breaker_is_open:
            if self.given_up or monotonic_ns() < down.last_ns + _ATTEMPT_EVERY_NS:
                error, detail = down.fault
                raise ConnectFailed(Failure(error, f"not tried after {down.attempts} failed connections: {detail}"))
            self._down = down._replace(last_ns=monotonic_ns())  # half-open: this attempt alone is made
        began_ns = monotonic_ns()
        try:
            connection = await connect(self._address, self._limits.connect_s, self.peers, self._reader, self._deadlines)
        except ConnectFailed as exc:
            now_ns = monotonic_ns()
            before = self._down or Outage(now_ns, now_ns, 0, exc.fault)
            self._down = Outage(before.since_ns, now_ns, before.attempts + 1, exc.fault)
            raise
        self._down, self._has_connected = None, True
        took_ns = monotonic_ns() - began_ns
        self._connect_ns = took_ns if self._connect_ns is None else min(self._connect_ns, took_ns)
        self._open.add(connection)
        return connection

    def _met_close(self, response: Response) -> bool:
        """Return True if the server had closed the connection before the request reached it.

        A server that takes a request and drops it looks the same, and that is a failure. Two things differ. Only a
        connection kept after an answer (llama.cpp behind a proxy may close it after every stream) or unused for longer
        than servers grant can be stale. And the close is seen after one round trip and a turn of the server: sooner
        where another connection has outlived an answer, for then the server does not close by habit.
        """
        if not response.unanswered or response.sent_ns is None:
            return False
        plain = self._address.tls is None and self._address.proxy is None  # else connecting is no one round trip
        longest_ns = _LONGEST_AT_ONCE_NS if plain else _CLOSING_AT_ONCE_NS
        on_the_way_ns = min(_CONNECTS_AT_ONCE * (self._connect_ns or 0), longest_ns)
        at_once_ns = _SHORTEST_AT_ONCE_NS if self._keeps else _CLOSING_AT_ONCE_NS
        return response.over_ns - response.sent_ns <= max(at_once_ns, on_the_way_ns)


class Outage(NamedTuple):
    """Failed connections since the last one that succeeded: first and last instant, how many, and the last error."""

    since_ns: int
    last_ns: int
    attempts: int
    fault: Failure

    @property
    def breaker_is_open(self) -> bool:
        """Return True if the target counts as down."""
        return self.attempts >= _OPEN_AFTER_ATTEMPTS and self.last_ns - self.since_ns >= _OPEN_AFTER_NS

    def is_given_up(self, *, has_connected: bool) -> bool:
        """Return True if nothing more is tried: at once for a target that never was there."""
        patience_ns = _GIVE_UP_NS if has_connected else 0
        return self.breaker_is_open and self.last_ns - self.since_ns >= patience_ns


def _raise_open_files_limit() -> None:
    """Let this process open as many files as the system allows: an open loop may need thousands of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS takes no limit without a bound
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
