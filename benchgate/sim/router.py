"""A router before several replicas: who gets which request, who takes over, and one truth about them all.

It knows nothing of what is asked. A request goes to one replica; where that refuses the connection, to the next. What
was in flight on one that dies is broken, and nobody asks again for the client.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from benchgate.errors import UsageError
from benchgate.sim.affinity import affinity_of, preferred
from benchgate.sim.connection import Connection
from benchgate.sim.http import Request, json_response, whole
from benchgate.sim.metric_pages import merged
from benchgate.sim.relay import Relay
from benchgate.sim.replica import Replica
from benchgate.sim.settings import SimSettings
from benchgate.sim.truth import Truth
from benchgate.sim.turns import Turns

_ACTION = re.compile(r"/sim/replicas/(\d{1,4})/(kill|start)")
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Router:
    """Routes and the replicas behind them. Lives inside a running event loop."""

    def __init__(self, settings: SimSettings) -> None:
        alone = replace(
            settings,
            replicas=1,
            lose_replica_after=None,
            affinity=None,
            ready_after_s=0.0,
            keep_alive_s=None,
            host="127.0.0.1",
            port=0,
            uds=None,
            cert=None,
            key=None,
            client_ca=None,
        )
        self._settings = settings
        self._replicas = [Replica(number, alone) for number in range(settings.replicas)]
        self._next = 0
        self._in_flight = 0
        self._passed = 0
        self._losing: asyncio.Future[None] | None = None
        self._max_in_flight = 0
        self._lost: list[dict[str, Any]] = []  # what killed replicas had told of themselves
        self._began_s = time.time()
        self.connections: set[Connection] = set()
        self._turns = Turns()

    @classmethod
    async def open(cls, settings: SimSettings) -> Router:
        """Start every replica. Raises UsageError when one does not start."""
        router = cls(settings)
        started = await asyncio.gather(*(one.start(0.0) for one in router._replicas), return_exceptions=True)
        failures = [failure for failure in started if failure is not None]
        if failures:
            router.close()
            raise failures[0]
        return router

    def close(self) -> None:
        """End every replica."""
        for one in self._replicas:
            one.stop()

    def connection(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self.serve, self._turns, self.connections, self._settings.keep_alive_s)

    def serve(self, request: Request, line: Connection) -> None:
        """Answer one request, or pass it on."""
        action = _ACTION.fullmatch(request.path)
        own: dict[str, tuple[str, Callable[[Request], Awaitable[bytes]]]] = {
            "/metrics": ("GET", self._metrics),
            "/sim/truth": ("GET", self._truth),
            "/sim/reset": ("POST", self._reset),
            "/sim/replicas": ("GET", self._list),
        }
        expected, route = ("POST", self._act) if action else own.get(request.path, (request.method, None))
        if request.method != expected:
            line.write(json_response(405, {"detail": "Method Not Allowed"}, f"allow: {expected}"))
            line.done(keep=request.keeps_alive)
        elif route is not None:
            line.reply = _Answering(route(request), request, line)
        else:
            self._pass_on(request, line)

    def _pass_on(self, request: Request, line: Connection) -> None:
        if request.method == "POST":
            self._in_flight += 1
            self._passed += 1
            if self._passed == self._settings.lose_replica_after:
                self._losing = asyncio.ensure_future(self._kill(self._replicas[-1]))
            self._max_in_flight = max(self._max_in_flight, self._in_flight)
        line.reply = Relay(request, line, self._order(request), lambda: self._passed_on(request))

    def _passed_on(self, request: Request) -> None:
        if request.method == "POST":
            self._in_flight -= 1

    def _order(self, request: Request) -> Sequence[Replica]:
        """The replicas that are there, the one that should have the request first."""
        affinity = self._settings.affinity
        key = None if affinity is None or request.method != "POST" else affinity_of(request, affinity)
        if key is not None:
            order = [self._replicas[number] for number in preferred(key, len(self._replicas))]
        else:
            order = [*self._replicas[self._next :], *self._replicas[: self._next]]
            if request.method == "POST":
                self._next = (self._next + 1) % len(self._replicas)
        return [one for one in order if one.state == "up"]

    async def _list(self, _: Request) -> bytes:
        return json_response(200, {"replicas": [one.document() for one in self._replicas]})

    async def _act(self, request: Request) -> bytes:
        match = _ACTION.fullmatch(request.path)
        assert match is not None
        number = int(match[1])
        if number >= len(self._replicas):
            return json_response(
                404, {"detail": f"there is no replica {number}; the last is {len(self._replicas) - 1}"}
            )
        one = self._replicas[number]
        if match[2] == "start":
            try:
                await one.start(self._settings.ready_after_s)
            except UsageError as error:
                return json_response(500, {"detail": str(error)})
        elif one.state != "down":
            await self._kill(one)
        return json_response(200, one.document())

    async def _kill(self, one: Replica) -> None:
        self._lost += await self._states([one])  # it cannot be asked afterwards
        one.kill()

    async def _metrics(self, _: Request) -> bytes:
        """The series of all replicas that are there; those of a replica that is gone are gone with it."""
        pages = {one.number: (await self._asked(one, "GET", "/metrics") or b"").decode() for one in self._up()}
        born = f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {self._began_s:.6f}\n"
        return whole(200, (born + merged(pages)).encode(), content_type=_TEXT)

    async def _truth(self, request: Request) -> bytes:
        """All replicas together. What was in flight on a killed one has failed."""
        truth = Truth()
        for state in self._lost:
            truth.absorb(state)
        truth.outcomes["failed"] += truth.in_flight
        for state in await self._states(self._up()):
            truth.absorb(state)
        truth.in_flight, truth.max_in_flight = self._in_flight, self._max_in_flight
        told = truth.document(with_requests="requests=1" in request.query.split("&"))
        return json_response(200, told | {"replicas": [one.document() for one in self._replicas]})

    async def _reset(self, _: Request) -> bytes:
        self._lost.clear()
        self._max_in_flight = self._in_flight
        for one in self._replicas:
            one.requests, one.broken = 0, 0
        for one in self._up():
            await self._asked(one, "POST", "/sim/reset")
        return json_response(200, {})

    def _up(self) -> list[Replica]:
        return [one for one in self._replicas if one.state == "up"]

    async def _states(self, replicas: Sequence[Replica]) -> list[dict[str, Any]]:
        told = [await self._asked(one, "GET", "/sim/truth?state=1") for one in replicas]
        return [json.loads(state) for state in told if state]

    async def _asked(self, one: Replica, method: str, path: str) -> bytes | None:
        """What a replica says; None when it is gone meanwhile, or not there yet."""
        try:
            return await one.ask(method, path)
        except OSError:
            return None


class _Answering:
    """A route that takes time."""

    def __init__(self, answer: Awaitable[bytes], request: Request, line: Connection) -> None:
        self._request = request
        self._line = line
        self._task = asyncio.ensure_future(self._write(answer))

    def abandon(self) -> None:
        """The client has left; what it asked for is done all the same."""
        self._line.write = _nowhere

    async def _write(self, answer: Awaitable[bytes]) -> None:
        self._line.write(await answer)
        self._line.done(keep=self._request.keeps_alive)


def _nowhere(data: bytes) -> None:
    """Where the answer to a client goes that has left."""
