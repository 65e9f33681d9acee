"""Router before replica processes: affinity, relay, kill, start, and one ground truth about them all.

It does not read requests, except those that no replica takes. A request goes to one replica; where that refuses the
connection, to the next. What was in flight on one that dies is broken, and is not sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Literal, cast
from zlib import crc32

from benchgate import child_process
from benchgate.errors import BenchgateError, TargetError
from benchgate.sim.endpoints import served_at
from benchgate.sim.ground_truth import METRICS_TYPE, CompletedRequest, GroundTruth, Outcome, RequestLabels, merged
from benchgate.sim.http_server import LAST_CHUNK, Connection, FairQueue, Request, json_response, nowhere, whole
from benchgate.sim.process import start_sim
from benchgate.sim.requests import Refused
from benchgate.suite.simulator import SimSettings

_CONTROL_TIMEOUT_S = 10.0  # of a replica; a client of the router waits longer

State = Literal["up", "starting", "draining", "down"]


@dataclass(slots=True)
class Replica:
    """A child process and the counts of what the router sent to it."""

    number: int
    settings: SimSettings
    weight: int = 1  # its share of the requests, over the sum of all
    credit: int = 0  # the replica with the most of it is the next in turn
    requests: int = 0
    in_flight: int = 0
    broken: int = 0  # answers that ended before they were whole
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _ready_s: float = 0.0
    _starting: bool = False
    is_draining: bool = False  # takes no new requests, and goes when the last one is over
    is_ending: bool = False  # takes no new requests, and is about to be killed
    unanswered: set[object] = field(default_factory=set, repr=False)  # what was sent to it, until the first byte comes

    @property
    def pid(self) -> int | None:
        """Return the id of its process; None when it is down."""
        return self._process.pid if self._process is not None and self.state != "down" else None

    @property
    def state(self) -> State:
        """Return `up`, `starting`, `draining` or `down`."""
        if self._starting:
            return "starting"
        if self._process is None or self._process.poll() is not None:
            return "down"
        if self.is_draining or self.is_ending:
            return "draining"
        return "up" if monotonic() >= self._ready_s else "starting"

    async def start(self, ready_after_s: float) -> None:
        """Start it unless it is there; it refuses connections for so long. Raises UsageError when it does not start."""
        if self.state != "down":
            self.is_draining = False
            return
        self._starting, self.is_draining = True, False
        try:
            settings = self.settings.model_copy(update={"ready_after_s": ready_after_s})
            sim = await asyncio.to_thread(start_sim, settings, replica=self.number)
            self._process, self.port, self._ready_s = sim.process, sim.port, monotonic() + ready_after_s
        finally:
            self._starting = False

    async def end(self) -> None:
        """Fail its requests, and wait until each has an answer or none: then its ground truth has a row of each.

        Raises TargetError when that takes too long.
        """
        await self.fetch("GET", "/sim/truth?end=1")
        deadline_s = monotonic() + _CONTROL_TIMEOUT_S
        while self.unanswered:
            if monotonic() >= deadline_s:
                raise TargetError(f"replica {self.number} did not end its requests within {_CONTROL_TIMEOUT_S:g} s")
            await asyncio.sleep(_LOOK_AGAIN_S)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            child_process.stop(self._process)

    def stop(self) -> None:
        """Stop it with SIGTERM."""
        if self._process is not None:
            child_process.stop(self._process)

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
        """Return a whole response as it came; empty when the replica is gone meanwhile, or not up yet."""
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        lines += [f"content-length: {len(body)}", "connection: close"]
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
                return await reader.read()
            finally:
                writer.close()
        except OSError:
            return b""

    async def fetch(self, method: str, path: str) -> bytes:
        """Return the body of a response of its control API; empty when it is gone meanwhile, or not up yet.

        Raises TargetError when it does not answer in time.
        """
        try:
            response = await asyncio.wait_for(self.send(method, path, {"host": "replica"}), _CONTROL_TIMEOUT_S)
        except TimeoutError:
            late = f"replica {self.number} did not answer {path} within {_CONTROL_TIMEOUT_S:g} s"
            raise TargetError(f"{late}; kill it, and reset the truth") from None
        status_and_headers, _, body = response.partition(b"\r\n\r\n")
        return body if status_and_headers.startswith(b"HTTP/1.1 200 ") else b""

    def document(self) -> dict[str, object]:
        """Return its entry in `/sim/replicas`."""
        return {
            "replica": self.number,
            "pid": self.pid,
            "state": self.state,
            "requests": self.requests,
            "in_flight": self.in_flight,
            "broken": self.broken,
        }


PREFILL_HEADER = "x-sim-prefill"  # from a router: read the prompt, and no more
DECODE_HEADER = "x-sim-received"  # from a router: the prompt was read; the request was received at this instant
CACHED_HEADER = "x-sim-cached"  # of a prompt that was read: tokens found in the prefix cache; empty without a cache
_READ = re.compile(rf"\r\n{CACHED_HEADER}: (\d*)\r\n".encode())
_SPLIT_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_PREFIX_WORDS = 64
_PROMPTS = ("messages", "prompt", "input", "query")


def affinity_of(request: Request, affinity: str) -> str | None:
    """Return the key that requests of one replica share; None for a request that belongs nowhere.

    `prefix`: how the prompt begins. `session`: the field `user`, or else the first message of the user, which every
    turn of a conversation repeats. Anything else is the name of a header.
    """
    if affinity not in ("prefix", "session"):
        return request.headers.get(affinity.lower())
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    return _beginning(body) if affinity == "prefix" else _session(body)


def preferred(key: str, replicas: int) -> list[int]:
    """Return replica numbers in a key's order of preference (rendezvous hashing: a loss moves only its own keys)."""
    return sorted(range(replicas), key=lambda replica: crc32(f"{replica} {key}".encode("utf-8", "surrogatepass")))


def in_turn(replicas: Sequence[Replica], *, counted: bool) -> list[Replica]:
    """Return replicas by whose turn it is, each by its weight (smooth weighted round robin).

    A replica that is down is left out, and its share goes to all others. Only a `counted` request takes its turn.
    """
    order = sorted(replicas, key=lambda one: -(one.credit + one.weight))
    if counted and order:
        for one in replicas:
            one.credit += one.weight
        order[0].credit -= sum(one.weight for one in replicas)
    return order


def _beginning(body: Mapping[str, object]) -> str | None:
    prompt = next((body[name] for name in _PROMPTS if name in body), None)
    return None if prompt is None else " ".join(_text_of(prompt).split()[:_PREFIX_WORDS])


def _session(body: Mapping[str, object]) -> str | None:
    if isinstance(body.get("user"), str):
        return str(body["user"])
    messages = body.get("messages", body.get("input"))
    if not isinstance(messages, list):
        return _beginning(body)
    for message in messages:
        if isinstance(message, dict) and message.get("role") == "user":
            return _text_of(message.get("content"))
    return None


def _text_of(prompt: object) -> str:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        return "\n".join(map(_text_of, prompt))
    if isinstance(prompt, dict):
        return _text_of(prompt.get("content", prompt.get("text", json.dumps(prompt))))
    return json.dumps(prompt)


_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: chunked\r\n", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: close\r\n", re.IGNORECASE)
_BODY_END = b"\r\n" + LAST_CHUNK
_OWN_HEADERS = frozenset({"connection", "content-length", "transfer-encoding", "expect"})
_LOOK_AGAIN_S = 0.005  # at a client that does not read


class Relay(asyncio.Protocol):
    """Relay of a request to the first replica that accepts it, byte by byte; broken answers stay broken.

    `count` gets the outcome of a request that no replica took, which is in the truth of none.
    """

    def __init__(
        self,
        request: Request,
        line: Connection,
        replicas: Sequence[Replica],
        over: Callable[[], None],
        count: Callable[[Outcome], None],
    ) -> None:
        self._request = request
        self._line = line
        self._replicas = replicas
        self._count = count
        self._over: Callable[[], None] | None = over
        self._tried: Replica | None = None
        self._taken_by: Replica | None = None
        self._transport: asyncio.Transport | None = None
        self._response = _Response()
        self._task = asyncio.get_running_loop().create_task(self._connect())

    def abandon(self) -> None:
        """Drop the replica's connection: the client has left."""
        self._task.cancel()
        if self._transport is not None:
            self._transport.abort()
        if self._taken_by is None:
            self._count("aborted")
        self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request to the replica."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        if self._over is None or self._tried is None:
            self._transport.abort()  # the client left meanwhile
            return
        self._taken_by = self._tried
        self._taken_by.requests += 1
        self._taken_by.in_flight += 1
        path = f"{self._request.path}?{self._request.query}" if self._request.query else self._request.path
        headers = [f"{name}: {value}" for name, value in self._request.headers.items() if name not in _OWN_HEADERS]
        lines = [
            f"{self._request.method} {path} HTTP/1.1",
            *headers,
            f"content-length: {len(self._request.body)}",
            *([] if self._request.keeps_alive else ["connection: close"]),
        ]
        self._transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + self._request.body)

    def data_received(self, data: bytes) -> None:
        """Pass on a piece of the answer."""
        if self._over is None:
            return
        if self._taken_by is not None:
            self._taken_by.unanswered.discard(self)
        self._response.feed(data)
        self._line.write(data)
        if self._response.is_whole and not self._response.closes:
            if self._transport is not None:
                self._transport.close()
            self._end()
            self._line.done(keep=self._request.keeps_alive)
        elif self._line.congested and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._read_on)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer: it is over, or the replica is gone."""
        self._transport = None
        if self._over is None or self._taken_by is None:
            return
        if not self._response.is_whole:
            self._taken_by.broken += 1
        if not self._response.begun:
            self._line.write(_error(502, "Bad Gateway", "the replica ended before it answered"))
        self._end()
        if exc is not None and self._response.begun:
            self._line.reset()
        else:
            self._line.done(keep=False)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        for replica in self._replicas:
            if replica.state != "up":
                continue  # it was when the request came
            self._tried = replica
            replica.unanswered.add(self)
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", replica.port)
            except OSError:
                replica.unanswered.discard(self)
                continue  # it is gone, or not there yet
            return
        self._count("failed")
        self._line.write(_error(503, "Service Unavailable", "no replica takes requests"))
        self._end()
        self._line.done(keep=False)

    def _read_on(self) -> None:
        if self._transport is None:
            return
        if self._line.congested:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._read_on)
        else:
            self._transport.resume_reading()

    def _end(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over()
            if self._tried is not None:
                self._tried.unanswered.discard(self)
            if self._taken_by is not None:
                self._taken_by.in_flight -= 1


class _Response:
    """Follows the bytes of one response as far as to see where it ends."""

    def __init__(self) -> None:
        self.begun = False
        self.closes = False  # its end is that of the connection
        self._head: bytes | None = b""  # None: it is over
        self._left = 0  # bytes of a body with a length
        self._chunked = False
        self._tail = b"\r\n"

    @property
    def is_whole(self) -> bool:
        """Return True once all of it came. A body ends with a chunk of size 0: no data of it has a line end."""
        if self._head is not None:
            return False
        return self._tail == _BODY_END if self._chunked else self._left <= 0

    def feed(self, data: bytes) -> None:
        """Add bytes of the response."""
        self.begun = True
        if self._head is not None:
            head, end, data = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            length = _LENGTH.search(head + b"\r\n")
            self._left = 0 if length is None else int(length[1])
            self._chunked = _CHUNKED.search(head + b"\r\n") is not None
            self.closes = _CLOSE.search(head + b"\r\n") is not None
            self._head = None
        self._left -= len(data)
        self._tail = (self._tail + data[-len(_BODY_END) :])[-len(_BODY_END) :]


def _error(status: int, kind: str, message: str) -> bytes:
    document = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return json_response(status, document, "connection: close")


class SplitRelay:
    """A request whose prompt one replica reads, and whose answer another one makes.

    An error of the first one is the answer. `count` gets the outcome of a request that ends before its prompt was read:
    only the replica that makes the answer has it in its truth.
    """

    def __init__(
        self,
        request: Request,
        line: Connection,
        prefill: Sequence[Replica],
        decode: Sequence[Replica],
        over: Callable[[], None],
        count: Callable[[Outcome], None],
    ) -> None:
        self._request, self._line, self._over, self._count = request, line, over, count
        self._prefill, self._decode = prefill, decode
        self._task = asyncio.get_running_loop().create_task(self._serve(line.received_ns))

    def abandon(self) -> None:
        """Drop the connection to the replica that reads the prompt: the client has left."""
        self._task.cancel()
        self._count("aborted")
        self._over()

    async def _serve(self, received_ns: int) -> None:
        headers = {name: value for name, value in self._request.headers.items() if name not in _OWN_HEADERS}
        response = b""
        for replica in self._prefill:
            if replica.state != "up":
                continue
            replica.requests += 1
            replica.in_flight += 1
            replica.unanswered.add(self)
            try:
                response = await replica.send(
                    self._request.method, self._request.path, {**headers, PREFILL_HEADER: "1"}, self._request.body
                )
            finally:
                replica.in_flight -= 1
                replica.unanswered.discard(self)
            if response:
                break
        read = _READ.search(response)
        if read is not None:
            found = {DECODE_HEADER: str(received_ns), CACHED_HEADER: read[1].decode()}
            request = replace(self._request, headers=self._request.headers | found)
            self._line.reply = Relay(request, self._line, self._decode, self._over, self._count)
            return
        self._count("failed")
        self._line.write(response or _error(503, "Service Unavailable", "no replica reads prompts"))
        self._over()
        self._line.done(keep=False)


_ACTION = re.compile(r"/sim/replicas/(\d{1,4})/(kill|start|drain)")


class Router:
    """Control routes, and the replicas behind them. Lives inside a running event loop."""

    def __init__(self, settings: SimSettings) -> None:
        self._settings = settings
        weights = settings.weights or (1,) * settings.replicas
        self._replicas = [Replica(number, settings.of_replica(number), weight) for number, weight in enumerate(weights)]
        self._in_flight = 0
        self._passed = 0
        self._losing: asyncio.Future[None] | None = None
        self._leaving: list[asyncio.Future[None]] = []  # tasks that wait for replicas to drain
        self._max_in_flight = 0
        self._lost: list[dict[str, Any]] = []  # states of killed replicas
        self._missing: str | None = None  # why the state of a killed replica is not there
        self._uncounted: list[CompletedRequest] = []  # requests that are in the truth of no replica
        self._began_s = time.time()
        self.connections: set[Connection] = set()
        self._turns = FairQueue()

    @classmethod
    async def open(cls, settings: SimSettings) -> Router:
        """Start every replica. Raises UsageError when one does not start."""
        router = cls(settings)
        started = await asyncio.gather(*(one.start(0.0) for one in router._replicas), return_exceptions=True)
        failures = [failure for failure in started if failure is not None]
        if failures:
            await router.close()
            raise failures[0]
        return router

    async def close(self) -> None:
        """Stop every replica."""
        for one in self._replicas:
            one.stop()

    def connection(self) -> Connection:
        """Return the protocol of a new connection."""
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
            counted = int(request.method == "POST")
            if counted:
                self._in_flight += 1
                self._passed += 1
                if self._passed == self._settings.lose_replica_after:
                    self._losing = asyncio.ensure_future(self._kill(self._replicas[-1]))
                self._max_in_flight = max(self._max_in_flight, self._in_flight)

            def over() -> None:
                self._in_flight -= counted

            received_ns, uncounted = line.received_ns, self._uncounted

            def count(outcome: Outcome) -> None:
                row = _uncounted_row(outcome, request, received_ns, self._settings)
                if row is not None:
                    uncounted.append(row)

            affinity = self._settings.affinity
            key = None if affinity is None or request.method != "POST" else affinity_of(request, affinity)
            if key is not None:
                order = [self._replicas[number] for number in preferred(key, len(self._replicas))]
                line.reply = Relay(request, line, [one for one in order if one.state == "up"], over, count)
                return
            split = self._settings.prefill_replicas or 0
            is_split = split and request.method == "POST" and request.path in _SPLIT_PATHS
            up = self._up()
            decode = in_turn([one for one in up if one.number >= split], counted=bool(counted))
            if is_split:
                prefill = in_turn([one for one in up if one.number < split], counted=True)
                line.reply = SplitRelay(request, line, prefill, decode, over, count)
            else:
                line.reply = Relay(request, line, decode, over, count)

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
            await one.start(self._settings.ready_after_s)
        elif match[2] == "drain":
            one.is_draining = True
            self._leaving.append(asyncio.ensure_future(self._leave(one)))
        elif one.state != "down":
            await self._kill(one)
        return json_response(200, one.document())

    async def _leave(self, one: Replica) -> None:
        while one.in_flight and one.is_draining:
            await asyncio.sleep(_LOOK_AGAIN_S)
        if one.is_draining:
            await self._kill(one)

    async def _kill(self, one: Replica) -> None:
        states = list[dict[str, Any]]()
        one.is_ending = True  # no request may reach it after its last truth was taken
        try:
            await one.end()
            states = await self._states([one])
        except TargetError as error:
            self._missing = str(error)
        finally:
            if one.state != "down":
                self._lost += states
                one.kill()
            one.is_ending = False

    async def _metrics(self, _: Request) -> bytes:
        pages = {one.number: (await one.fetch("GET", "/metrics")).decode() for one in self._answering()}
        born = f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {self._began_s:.6f}\n"
        split = self._settings.prefill_replicas or 0
        roles = {number: "prefill" if number < split else "decode" for number in pages if split}
        return whole(200, (born + merged(pages, roles)).encode(), content_type=METRICS_TYPE)

    async def _truth(self, request: Request) -> bytes:
        """Return the truth of all replicas together, and of the requests that are in none of theirs."""
        if self._missing is not None:
            raise TargetError(f"the truth is incomplete: {self._missing}")
        truth = GroundTruth()
        for state in self._lost:
            truth.absorb(state)
        for row in self._uncounted:
            truth.arrived(row.received_ns, "")
            truth.ended(row)
        for state in await self._states(self._answering()):
            truth.absorb(state)
        truth.in_flight, truth.max_in_flight = self._in_flight, self._max_in_flight
        documents = truth.document(with_requests="requests=1" in request.query.split("&"))
        return json_response(200, documents | {"replicas": [one.document() for one in self._replicas]})

    async def _reset(self, _: Request) -> bytes:
        self._missing = None
        self._lost.clear()
        self._uncounted = []  # a request that came before is in the truth of before, whenever it ends
        self._max_in_flight = self._in_flight
        for one in self._replicas:
            one.requests, one.broken = 0, 0
        for one in self._answering():
            await one.fetch("POST", "/sim/reset")
        return json_response(200, {})

    def _up(self) -> list[Replica]:
        return [one for one in self._replicas if one.state == "up"]

    def _answering(self) -> list[Replica]:
        return [one for one in self._replicas if one.state in ("up", "draining")]

    async def _states(self, replicas: Sequence[Replica]) -> list[dict[str, Any]]:
        documents = [await one.fetch("GET", "/sim/truth?state=1") for one in replicas]
        return [json.loads(state) for state in documents if state]


def _uncounted_row(
    outcome: Outcome, request: Request, received_ns: int, settings: SimSettings
) -> CompletedRequest | None:
    """Return the row of a request that is in the truth of no replica; None for one that asks a model for nothing."""
    served = served_at(request.path) if request.method == "POST" else None
    if served is None:
        return None
    labels, input_tokens = RequestLabels(), 0
    with contextlib.suppress(Refused):
        parsed = served.request(request.path, request.body, settings)
        labels, input_tokens = RequestLabels(parsed.endpoint, parsed.model, parsed.priority), parsed.input_tokens
    request_id = request.headers.get("x-request-id")
    return CompletedRequest(outcome, request_id, "", received_ns, labels, input_tokens=input_tokens)


class _Answering:
    def __init__(self, answer: Awaitable[bytes], request: Request, line: Connection) -> None:
        self._request = request
        self._line = line
        self._task = asyncio.ensure_future(self._write(answer))

    def abandon(self) -> None:
        """Discard the response: the client has left."""
        self._line.write = nowhere

    async def _write(self, answer: Awaitable[bytes]) -> None:
        try:
            response = await answer
        except (BenchgateError, OSError, ValueError) as error:
            response = json_response(500, {"detail": str(error)})
        self._line.write(response)
        self._line.done(keep=self._request.keeps_alive)
