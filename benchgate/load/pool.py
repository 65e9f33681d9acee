"""The connections of one stage to one target: kept alive, replaced when closed, given up when none can be had."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import replace
from time import monotonic_ns
from typing import NamedTuple

from benchgate.load.decode import output_begun
from benchgate.load.exchange import Fault, Response
from benchgate.load.wire import Address, ConnectFailed, Connection, connect
from benchgate.suite.schema import Limits

_PARALLEL_CONNECTS = 32
_GIVE_UP_NS = 1_000_000_000  # without any connection for this long, the rest is not even tried
_GIVE_UP_AFTER = 3  # attempts
_SPARE_FILES = 256


class Pool:
    """Sends requests over connections it keeps. Must be closed, however the stage ends."""

    def __init__(self, address: Address, limits: Limits) -> None:
        self._address = address
        self._limits = limits
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._down: _Down | None = None

    async def open(self, count: int) -> None:
        """Open connections before the clock starts. Failures are left to the requests that will meet them."""
        _allow_open_files(count + _SPARE_FILES)
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
        for connection in self._open:
            connection.close()
        self._open.clear()

    @property
    def given_up(self) -> bool:
        """No connection for a while, and not for want of trying: the target is down, and stays down in this stage."""
        down = self._down
        return down is not None and down.attempts >= _GIVE_UP_AFTER and monotonic_ns() - down.since_ns > _GIVE_UP_NS

    async def ask(self, request: bytes) -> Response:
        """One request to its end, on an idle connection or else a fresh one; failures are in the response.

        Servers close idle connections (uvicorn after 5 s). A request that meets such a close before any byte of an
        answer is sent again at once on a fresh connection, and counted; nothing else is ever sent twice.
        """
        met_closed = bool(self._idle) and not self._idle[-1].alive
        connection = self._take_idle()
        reconnects = int(met_closed and connection is None)
        while True:
            reused = connection is not None
            try:
                connection = connection or await self._connect()
            except ConnectFailed as exc:
                return replace(Response.unsent(exc.fault), reconnects=reconnects)
            response = await connection.exchange(request, self._limits, output_begun)
            if connection.alive:
                self._idle.append(connection)
            else:
                self._open.discard(connection)
            if not (response.unanswered and reused):
                return replace(response, reconnects=reconnects) if reconnects else response
            reconnects += 1
            connection = None

    def _take_idle(self) -> Connection | None:
        """The connection used last, which the server is the least likely to have closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
            self._open.discard(connection)
        return None

    async def _connect(self) -> Connection:
        """A fresh connection; raises ConnectFailed."""
        if self._down is not None and self.given_up:
            error, detail = self._down.fault
            raise ConnectFailed(Fault(error, f"not tried after {self._down.attempts} failed connections: {detail}"))
        try:
            connection = await connect(self._address, self._limits.connect_s)
        except ConnectFailed as exc:
            before = self._down or _Down(monotonic_ns(), 0, exc.fault)
            self._down = _Down(before.since_ns, before.attempts + 1, exc.fault)
            raise
        self._down = None
        self._open.add(connection)
        return connection


class _Down(NamedTuple):
    """That no connection can be had: since when, how often it was tried, and why not the last time."""

    since_ns: int
    attempts: int
    fault: Fault


def _allow_open_files(needed: int) -> None:
    """Raise this process's own limit of open files, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
