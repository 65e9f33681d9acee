"""The practice server itself: one event loop, one timer, every route.

Time goes by one alarm: whenever it rings, the model of time gives up all that is due, and each reply writes its part.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from time import monotonic_ns
from typing import Any

from benchgate import __version__
from benchgate.errors import UsageError
from benchgate.sim.encoders import DONE, ChoiceScript, ResponseScript, Script, VectorScript, error_event
from benchgate.sim.engine import Engine, Model, Paced, Queue, block_names
from benchgate.sim.fault_injection import OddDocument, OddStream, falsify, refusal
from benchgate.sim.faults import SOUND, Behaviour, Faults, parse_faults
from benchgate.sim.ground_truth import Truth
from benchgate.sim.http_server import (
    EVENT_STREAM,
    LAST_CHUNK,
    Connection,
    Request,
    Turns,
    chunk,
    head,
    json_response,
    listen,
    raise_file_limit,
    whole,
)
from benchgate.sim.metrics import Snapshot, metric_page
from benchgate.sim.replies import Case, Desk, Document, Reply, Stream
from benchgate.sim.requests import Ask, Endpoint, Refused, count_tokens, read_ask, read_object
from benchgate.sim.router import Router
from benchgate.sim.settings import NS, SimSettings
from benchgate.timers import Timer

FAULT_HEADER = "x-sim-fault"  # a request that carries it meets this fault, whatever the settings say
_TICK_NS = 500_000  # rings come no closer than this: under load one ring then serves many streams
_BUSY = "The engine is currently busy and cannot accept new requests. Please try again later."
_SHED = "Too many requests wait already. Please try again later."
_RETRY_LATER = "retry-after: 1"
_ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/rerank": "rerank",
}
_SCRIPTS: Mapping[Endpoint, Callable[[Ask, int, int], Script]] = {
    "chat": ChoiceScript,
    "completions": ChoiceScript,
    "responses": ResponseScript,
    "embeddings": VectorScript,
    "rerank": VectorScript,
}


class SimServer:
    """Routes, replies and the timer. Lives inside a running event loop."""

    def __init__(self, settings: SimSettings) -> None:
        self._settings = settings
        self._faults = Faults(parse_faults(settings.faults), random.Random(f"faults {settings.seed}"))
        self._desk = Desk(_model(settings), settings.chunk_tokens)
        self._created = int(time.time())
        self._order = 0
        self._first_id = os.getpid() << 40  # replicas behind one address must not give two answers one id
        self._seen: set[bytes] = set()  # prompts that came with the fault fast-when-seen
        self._loaded_ns: int | None = None if settings.load_time_s else 0
        self._armed_ns: int | None = None
        self._last_ring_ns = 0
        self.connections: set[Connection] = set()
        self._turns = Turns()
        self._timer = Timer(self._ring)
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
        return Connection(self.serve, self._turns, self.connections, self._settings.keep_alive_s)

    def close(self) -> None:
        """Ring no more."""
        self._timer.close()

    def serve(self, request: Request, line: Connection) -> None:
        """Answer one request."""
        endpoint = _ENDPOINTS.get(request.path)
        expected, route = self._routes.get(request.path, ("POST", None))
        if endpoint is None and route is None:
            line.write(json_response(404, {"detail": "Not Found"}))
        elif request.method != expected:
            line.write(json_response(405, {"detail": "Method Not Allowed"}, f"allow: {expected}"))
        elif endpoint is not None:
            self._generate(endpoint, request, line)
            return
        elif route is not None:
            line.write(_answered(route, request))
        line.done(keep=request.keeps_alive)

    def _generate(self, endpoint: Endpoint, request: Request, line: Connection) -> None:
        try:
            behaviour = self._behaviour(request.headers.get(FAULT_HEADER))
            ask = read_ask(endpoint, request.body, self._settings)
        except Refused as refused:
            self._desk.truth.refused(line.received_ns, request.headers.get("x-request-id"))
            line.write(json_response(refused.status, refused.document))
            line.done(keep=request.keeps_alive)
            return
        reply = self._reply(ask, behaviour, request, line)
        instead = refusal(behaviour, request.path)
        if instead is None and self._desk.model.sheds(reply.job):
            self._desk.truth.shed += 1
            instead = _too_many()
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
            behaviour = self._faults.next()
        else:
            try:
                behaviour = parse_faults([wish])[0].behaviour
            except UsageError as error:
                raise Refused(400, str(error), param=FAULT_HEADER) from None
        if behaviour.text is None or len(self._desk.replies) + 1 > behaviour.above:
            return behaviour
        spared = replace(behaviour, text=None, repeated="", above=0, spec="")
        return SOUND if spared == SOUND else replace(spared, spec=behaviour.spec)

    def _reply(self, ask: Ask, behaviour: Behaviour, request: Request, line: Connection) -> Reply:
        self._order += 1
        if request.http10 and not behaviour.http10:
            behaviour = replace(behaviour, http10=True)
        said = falsify(ask, behaviour)
        named = said if behaviour.model is None else replace(said, model=behaviour.model)
        case = Case(
            ask=said,
            script=_SCRIPTS[ask.endpoint](named, self._first_id + self._order, self._created),
            behaviour=behaviour,
            order=self._order,
            received_ns=line.received_ns,
            begins_ns=self._begins_ns(line.received_ns),
            request_id=request.headers.get("x-request-id"),
            keeps_alive=request.keeps_alive,
            blocks=self._blocks(ask),
            speed=behaviour.seen_factor if behaviour.seen_factor != 1 and self._came_before(ask) else 1.0,
        )
        if behaviour is SOUND:
            return (Stream if ask.stream else Document)(case, line, self._desk)
        return (OddStream if ask.stream else OddDocument)(case, line, self._desk)

    def _came_before(self, ask: Ask) -> bool:
        """Remember the prompt; True when this process had it before."""
        known, name = len(self._seen), blake2b(ask.prompt.text.encode("utf-8", "surrogatepass"), digest_size=16)
        self._seen.add(name.digest())
        return len(self._seen) == known

    def _begins_ns(self, received_ns: int) -> int:
        """When a request can be worked on; the first one starts the loading of the model."""
        if self._loaded_ns is None:
            self._loaded_ns = received_ns + round(self._settings.load_time_s * NS)
        return max(received_ns, self._loaded_ns)

    def _blocks(self, ask: Ask) -> tuple[int, ...]:
        """Of the prompt and then of the answer, which the next turn of a conversation repeats."""
        batching = self._settings.batching
        if batching is None or not batching.prefix_blocks:
            return ()
        thought = ask.saying.thought_tokens
        answer = ask.saying.text(thought, ask.output_tokens - thought)
        return block_names([*ask.prompt.words, *answer.split()], batching.block_tokens, ask.model)

    def _busy(self, ask: Ask) -> bytes:
        """The refusal of a full queue."""
        batching = self._settings.batching
        status = batching.queue_status if batching is not None else None
        code = status or 503
        kind = "Too Many Requests" if code == 429 else "Service Unavailable"
        document = {"error": {"message": _BUSY, "type": kind, "param": None, "code": code}}
        if status is not None or not ask.stream:
            return json_response(code, document, *([_RETRY_LATER] if code == 429 else []))
        opening = head(200, f"content-type: {EVENT_STREAM}", "transfer-encoding: chunked")
        return opening + chunk(error_event(document)) + chunk(DONE) + LAST_CHUNK

    def _ring(self, _: int) -> None:
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
            self._timer.set(due_ns)

    def _models(self, _: Request) -> bytes:
        model = {
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",  # the dialect it speaks
            "root": self._settings.model,
            "max_model_len": self._settings.context_tokens,
        }
        base = model | {"id": self._settings.model, "parent": None}
        adapters = [model | {"id": name, "parent": self._settings.model} for name in self._settings.adapters]
        return json_response(200, {"object": "list", "data": [base, *adapters]})

    def _metrics(self, _: Request) -> bytes:
        model, desk = self._desk.model, self._desk
        now = Snapshot(
            model=self._settings.model,
            counters=desk.counters,
            running=model.running,
            waiting=model.waiting,
            kv_ratio=model.kv_ratio,
            generation_tokens=desk.counters.generation_tokens + sum(reply.sent for reply in desk.replies),
            preemptions=model.tally.preemptions,
            prefix_queried_tokens=model.tally.prefix_queried_tokens,
            prefix_hit_tokens=model.tally.prefix_hit_tokens,
        )
        text = metric_page(self._settings.metrics_as, now)
        born = [f"process-start-time-unix: {int(desk.counters.began_s)}"]  # which llama.cpp tells in no other way
        headers = born if self._settings.metrics_as == "llamacpp" else []
        return whole(200, text.encode(), *headers, content_type="text/plain; version=0.0.4; charset=utf-8")

    def _tokenize(self, request: Request) -> bytes:
        count = count_tokens(read_object(request.body), self._settings.image_tokens)
        return json_response(
            200, {"count": count, "max_model_len": self._settings.context_tokens, "tokens": list(range(count))}
        )

    def _truth(self, request: Request) -> bytes:
        truth, preempted = self._desk.truth, self._desk.model.tally.preemptions
        under_way = sum(reply.sent for reply in self._desk.replies if reply.truth is truth)
        asked = request.query.split("&")
        if "state=1" in asked:
            return json_response(200, truth.state(tokens_under_way=under_way, preempted=preempted))
        with_requests = "requests=1" in asked
        told = truth.document(tokens_under_way=under_way, preempted=preempted, with_requests=with_requests)
        return json_response(200, told)

    def _reset(self, _: Request) -> bytes:
        self._desk.truth = Truth(self._desk.model.tally.preemptions)
        return json_response(200, {})


def _too_many() -> bytes:
    document = {"error": {"message": _SHED, "type": "Too Many Requests", "param": None, "code": 429}}
    return json_response(429, document, _RETRY_LATER)


def _model(settings: SimSettings) -> Model:
    rng = random.Random(f"time {settings.seed}")
    if settings.batching is not None:
        return Engine(settings.batching, settings.jitter_ratio, rng)
    if settings.queueing is not None:
        return Queue(settings.queueing, round(settings.itl_s * NS), settings.jitter_ratio, rng)
    return Paced(round(settings.ttft_s * NS), round(settings.itl_s * NS), settings.jitter_ratio, rng)


def _answered(route: Callable[[Request], bytes], request: Request) -> bytes:
    try:
        return route(request)
    except Refused as refused:
        return json_response(refused.status, refused.document)


def run_sim(settings: SimSettings, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is called with the base URL as soon as the address is taken.

    Raises UsageError when it cannot be, or a certificate cannot be read.
    """
    import uvloop

    raise_file_limit()
    gc.freeze()  # what is loaded by now stays
    gc.set_threshold(50_000, 20, 1000)  # answers leave no cycles; a collection in mid-stream is lateness
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, ready))


async def _serve(settings: SimSettings, ready: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    stop, defects = asyncio.Event(), list[BaseException]()

    def surface(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A defect ends the server, which else might go on without its timer. What a client does wrong is none."""
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError):  # as a broken TLS handshake is
            defects.append(error)
            stop.set()

    loop.set_exception_handler(surface)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = SimServer(settings) if settings.replicas == 1 else await Router.open(settings)
    listener, url = await listen(settings, server.connection)
    ready(url)
    try:
        if settings.ready_after_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), settings.ready_after_s)
        if not stop.is_set():
            await listener.start_serving()
            await stop.wait()
    finally:
        listener.close()
        for connection in list(server.connections):
            connection.reset()
        server.close()
        await asyncio.sleep(0)  # transports close in the turn after
    if defects:
        raise defects[0]
