"""The practice server itself: one event loop, one timer, every route.

Time goes by one alarm: whenever it rings, the model of time gives up all that is due, and each reply writes its part.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from time import monotonic_ns

from benchgate import __version__
from benchgate.errors import UsageError
from benchgate.sim.alarm import Alarm
from benchgate.sim.answers import DONE, Script, error_event
from benchgate.sim.asks import Ask, Refused, count_tokens, read_ask, read_object
from benchgate.sim.connection import Connection
from benchgate.sim.engine import Engine
from benchgate.sim.faults import SOUND, Behaviour, Faults, parse_faults
from benchgate.sim.http import EVENT_STREAM, LAST_CHUNK, Request, chunk, head, json_response, whole
from benchgate.sim.jobs import Model
from benchgate.sim.odd import OddDocument, OddStream
from benchgate.sim.paced import Paced
from benchgate.sim.refusals import refusal
from benchgate.sim.replies import Case, Desk, Document, Reply, Stream
from benchgate.sim.settings import NS, SimSettings
from benchgate.sim.truth import Truth

FAULT_HEADER = "x-sim-fault"  # a request that carries it meets this fault, whatever the settings say
_TICK_NS = 500_000  # rings come no closer than this: under load one ring then serves many streams
_BUSY = "The engine is currently busy and cannot accept new requests. Please try again later."
_PATHS = {"/v1/chat/completions": True, "/v1/completions": False}  # path, and whether it is the chat's


class SimServer:
    """Routes, replies and the timer. Lives inside a running event loop."""

    def __init__(self, settings: SimSettings) -> None:
        self._settings = settings
        self._faults = Faults(parse_faults(settings.faults), random.Random(f"faults {settings.seed}"))
        self._desk = Desk(_model(settings), settings.chunk_tokens)
        self._created = int(time.time())
        self._order = 0
        self._armed_ns: int | None = None
        self._last_ring_ns = 0
        self.connections: set[Connection] = set()
        self.alarm = Alarm(asyncio.get_running_loop(), self._ring)
        self._routes: dict[str, tuple[str, Callable[[Request], bytes]]] = {
            "/health": ("GET", lambda _: whole(200, b"")),
            "/version": ("GET", lambda _: json_response(200, {"version": f"sim-{__version__}"})),
            "/v1/models": ("GET", self._models),
            "/metrics": ("GET", self._metrics),
            "/tokenize": ("POST", self._tokenize),
            "/sim/truth": ("GET", self._truth),
            "/sim/reset": ("POST", self._reset),
        }

    def connection(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self.serve, self.connections, self._settings.keep_alive_s)

    def serve(self, request: Request, line: Connection) -> None:
        """Answer one request."""
        chat = _PATHS.get(request.path)
        expected, route = self._routes.get(request.path, ("POST", None))
        if chat is None and route is None:
            line.write(json_response(404, {"detail": "Not Found"}))
        elif request.method != expected:
            line.write(json_response(405, {"detail": "Method Not Allowed"}, f"allow: {expected}"))
        elif chat is not None:
            self._generate(chat, request, line)
            return
        elif route is not None:
            line.write(_answered(route, request))
        line.done(keep=request.keeps_alive)

    def _generate(self, chat: bool, request: Request, line: Connection) -> None:
        try:
            behaviour = self._behaviour(request.headers.get(FAULT_HEADER))
            ask = read_ask(chat, request.body, self._settings)
        except Refused as refused:
            self._desk.truth.refused(line.received_ns, request.headers.get("x-request-id"))
            line.write(json_response(refused.status, refused.document))
            line.done(keep=request.keeps_alive)
            return
        reply = self._reply(ask, behaviour, request, line)
        instead = refusal(behaviour, request.path)
        if instead is not None:
            reply.refuse(instead)
            return
        if not self._desk.model.admit(reply.job, monotonic_ns()):
            reply.refuse(self._busy(ask))
            return
        line.reply = reply
        reply.begin()
        self._arm()

    def _behaviour(self, wish: str | None) -> Behaviour:
        """What this request meets: what it asks for itself, or else what is drawn for it. Raises Refused."""
        if wish is None:
            return self._faults.next()
        try:
            (fault,) = parse_faults([wish])
        except UsageError as error:
            raise Refused(400, str(error), param=FAULT_HEADER) from None
        return fault.behaviour

    def _reply(self, ask: Ask, behaviour: Behaviour, request: Request, line: Connection) -> Reply:
        self._order += 1
        if request.http10 and not behaviour.http10:
            behaviour = replace(behaviour, http10=True)
        case = Case(
            ask=ask,
            script=Script(ask, self._settings.model, self._order, self._created),
            behaviour=behaviour,
            order=self._order,
            received_ns=line.received_ns,
            request_id=request.headers.get("x-request-id"),
            keeps_alive=request.keeps_alive,
        )
        if behaviour is SOUND:
            return (Stream if ask.stream else Document)(case, line, self._desk)
        return (OddStream if ask.stream else OddDocument)(case, line, self._desk)

    def _busy(self, ask: Ask) -> bytes:
        """The refusal of a full queue."""
        batching = self._settings.batching
        status = batching.queue_status if batching is not None else None
        code = status or 503
        kind = "Too Many Requests" if code == 429 else "Service Unavailable"
        document = {"error": {"message": _BUSY, "type": kind, "param": None, "code": code}}
        if status is not None or not ask.stream:
            return json_response(code, document, *(["retry-after: 1"] if code == 429 else []))
        opening = head(200, f"content-type: {EVENT_STREAM}", "transfer-encoding: chunked")
        return opening + chunk(error_event(document)) + chunk(DONE) + LAST_CHUNK

    def _ring(self) -> None:
        now_ns = monotonic_ns()
        self._armed_ns, self._last_ring_ns = None, now_ns
        for due_ns, job, tokens in self._desk.model.take(now_ns):
            job.emit(tokens, due_ns)
        self._arm()

    def _arm(self) -> None:
        """Set the alarm to the next instant, unless it rings before it anyway."""
        due_ns = self._desk.model.due_ns()
        if due_ns is None:
            return
        due_ns = max(due_ns, self._last_ring_ns + _TICK_NS)
        if self._armed_ns is None or due_ns < self._armed_ns:
            self._armed_ns = due_ns
            self.alarm.set(due_ns)

    def _models(self, _: Request) -> bytes:
        model = {
            "id": self._settings.model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",  # the dialect it speaks
            "root": self._settings.model,
            "max_model_len": self._settings.context_tokens,
        }
        return json_response(200, {"object": "list", "data": [model]})

    def _metrics(self, _: Request) -> bytes:
        model = self._desk.model
        text = self._desk.counters.text(
            self._settings.model,
            running=model.running,
            waiting=model.waiting,
            kv_ratio=model.kv_ratio,
            tokens_under_way=sum(reply.sent for reply in self._desk.replies),
        )
        return whole(200, text.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")

    def _tokenize(self, request: Request) -> bytes:
        count = count_tokens(read_object(request.body))
        return json_response(
            200, {"count": count, "max_model_len": self._settings.context_tokens, "tokens": list(range(count))}
        )

    def _truth(self, request: Request) -> bytes:
        truth = self._desk.truth
        under_way = sum(reply.sent for reply in self._desk.replies if reply.truth is truth)
        with_requests = "requests=1" in request.query.split("&")
        return json_response(200, truth.document(tokens_under_way=under_way, with_requests=with_requests))

    def _reset(self, _: Request) -> bytes:
        self._desk.truth = Truth()
        return json_response(200, {})


def _model(settings: SimSettings) -> Model:
    rng = random.Random(f"time {settings.seed}")
    if settings.batching is not None:
        return Engine(settings.batching, settings.jitter_ratio, rng)
    return Paced(round(settings.ttft_s * NS), round(settings.itl_s * NS), settings.jitter_ratio, rng)


def _answered(route: Callable[[Request], bytes], request: Request) -> bytes:
    try:
        return route(request)
    except Refused as refused:
        return json_response(refused.status, refused.document)
