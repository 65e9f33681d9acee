"""The simulated server: one event loop, one timer, every route.

The timer drives it: whenever it expires, the model of time yields all tokens that are due, and each reply writes its
part.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from time import monotonic_ns
from typing import Any

from benchgate import __version__
from benchgate.model.request import ENDPOINTS
from benchgate.sim.encoders import DONE, error_event
from benchgate.sim.endpoints import SERVED, ServedEndpoint, served_at
from benchgate.sim.engine import ConstantPace, Engine, Queue, block_names
from benchgate.sim.fault_injection import FaultDraw, FaultyDocument, FaultyStream, falsify, refusal
from benchgate.sim.ground_truth import METRICS_TYPE, GroundTruth, metric_page
from benchgate.sim.grpc_front import GrpcFront, GrpcLine
from benchgate.sim.http_server import (
    EVENT_STREAM,
    LAST_CHUNK,
    Connection,
    FairQueue,
    Line,
    Request,
    chunk,
    head,
    json_response,
    listen,
    raise_file_limit,
    whole,
)
from benchgate.sim.replies import Document, PromptRead, Reply, ReplyContext, ServerState, Stream
from benchgate.sim.requests import (
    ApiRequest,
    Refused,
    chat_prompt,
    completion_prompt,
    read_object,
)
from benchgate.sim.router import CACHED_HEADER, DECODE_HEADER, PREFILL_HEADER, Router
from benchgate.sim.settings import NS, ListenAddress
from benchgate.suite.simulator import NO_FAULT, FaultSpec, SimSettings, parse_fault
from benchgate.targets.grpc_messages import has_grpc
from benchgate.timers import Timer

FAULT_HEADER = "x-sim-fault"  # a request that carries it meets this fault, whatever the settings say
_TICK_NS = 500_000  # the timer expires no more often: under load one expiry then serves many streams
_BUSY = "The engine is currently busy and cannot accept new requests. Please try again later."
_SHED = "Too many requests wait already. Please try again later."
_RETRY_LATER = "retry-after: 1"


class SimServer:
    """Routes, replies and the timer. Lives inside a running event loop."""

    def __init__(self, settings: SimSettings, replica: int = 0) -> None:
        self._settings = settings
        # Answers are by the seed alone. Times and faults of replicas are independent, as those of machines are.
        drawn_by = f"{settings.seed} of {replica}" if replica else str(settings.seed)
        faults = [*map(parse_fault, settings.faults)]
        self._faults = FaultDraw(faults, random.Random(f"faults {drawn_by}"))
        kind = Engine if settings.is_engine else Queue if settings.is_queue else ConstantPace
        self._state = ServerState(kind(settings, random.Random(f"time {drawn_by}")), settings.chunk_tokens)
        self._created = int(time.time())
        # Of requests whose prompt alone is read: its truth is not reported, for others count them.
        self._prefill_state = replace(self._state, truth=GroundTruth())
        self._order = 0
        self._first_id = os.getpid() << 40  # replicas behind one address must not give two answers one id
        self._remembers = any(fault.spec.seen_factor != 1 for fault in faults)
        self._seen: set[bytes] = set()  # all prompts, if it remembers them; else those with the fault fast-when-seen
        self._loaded_ns: int | None = None if settings.load_time_s else 0
        self._is_ending = False
        self._armed_ns: int | None = None
        self._last_expiry_ns = 0
        self.connections: set[Connection] = set()
        self._turns = FairQueue()
        self._timer = Timer(self._expire)
        self._grpc = GrpcFront(self._serve_grpc) if has_grpc() else None
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
        """Return the protocol of a new connection."""
        http2 = None if self._grpc is None else self._grpc.take
        return Connection(self.serve, self._turns, self.connections, self._settings.keep_alive_s, http2)

    async def close(self) -> None:
        """Close the timer, and end what goes on over gRPC."""
        self._timer.close()
        if self._grpc is not None:
            await self._grpc.close()

    def _serve_grpc(self, request: Request, line: GrpcLine) -> None:
        self._generate(SERVED["grpc-infer"], request, line)

    def serve(self, request: Request, line: Connection) -> None:
        """Answer one request."""
        served = served_at(request.path)
        expected, route = self._routes.get(request.path, ("POST", None))
        if served is None and route is None:
            line.write(json_response(404, {"detail": "Not Found"}))
        elif request.method != expected:
            line.write(json_response(405, {"detail": "Method Not Allowed"}, f"allow: {expected}"))
        elif served is not None:
            self._generate(served, request, line)
            return
        elif route is not None:
            try:
                line.write(route(request))
            except Refused as refused:
                line.write(json_response(refused.status, refused.document))
        line.done(keep=request.keeps_alive)

    def _generate(self, served: ServedEndpoint, request: Request, line: Line) -> None:
        reads_only = PREFILL_HEADER in request.headers
        try:
            fault = self._choose_fault(request.headers.get(FAULT_HEADER))
            parsed = served.request(request.path, request.body, self._settings)
            if reads_only:
                fault, parsed = NO_FAULT, replace(parsed, output_tokens=min(1, parsed.output_tokens))
        except Refused as refused:
            if not reads_only:  # else the router counts it
                self._state.truth.refused(line.received_ns, request.headers.get("x-request-id"))
            line.write(json_response(refused.status, refused.document))
            line.done(keep=request.keeps_alive)
            return
        reply = self._reply(served, parsed, fault, request, line)
        if self._is_ending:
            reply.refuse(b"", keep=False)
            return
        instead = refusal(fault)
        if instead is None and self._state.model.sheds(reply.job):
            self._state.truth.shed += 1
            document = {"error": {"message": _SHED, "type": "Too Many Requests", "param": None, "code": 429}}
            instead = json_response(429, document, _RETRY_LATER)
        if instead is not None:
            reply.refuse(instead)
            return
        if not self._state.model.admit(reply.job, monotonic_ns()):
            reply.refuse(self._busy(parsed))
            return
        line.reply = reply
        reply.begin()
        self._set_timer()

    def _choose_fault(self, wish: str | None) -> FaultSpec:
        """Return the fault of this request: the one it names, or else one that is drawn. Raises Refused."""
        if wish is None:
            fault = self._faults.next()
        else:
            try:
                fault = parse_fault(wish).spec
            except ValueError as error:
                raise Refused(400, f"{FAULT_HEADER}: {error}", param=FAULT_HEADER) from None
        if fault.text is None or len(self._state.replies) + 1 > fault.above:
            return fault
        spared = replace(fault, text=None, repeated="", above=0, name="")
        return NO_FAULT if spared == NO_FAULT else replace(spared, name=fault.name)

    def _reply(
        self, served: ServedEndpoint, parsed: ApiRequest, fault: FaultSpec, request: Request, line: Line
    ) -> Reply:
        self._order += 1
        answered = falsify(parsed, fault)
        named = answered if fault.model is None else replace(answered, model=fault.model)
        speed = 1.0
        if self._remembers or fault.seen_factor != 1:  # quicker for prompts that this process had before
            prompt = repr((parsed.endpoint, parsed.prompt.text, parsed.items))
            name = blake2b(prompt.encode(), digest_size=16).digest()
            speed = fault.seen_factor if name in self._seen else 1.0
            self._seen.add(name)
        if self._loaded_ns is None:
            self._loaded_ns = line.received_ns + round(self._settings.load_time_s * NS)
        received_ns, transfer_s, cached_tokens = line.received_ns, 0.0, None
        is_read = request.headers.get(DECODE_HEADER, "").isdecimal()
        if is_read:
            received_ns, transfer_s = int(request.headers[DECODE_HEADER]), self._settings.transfer_s or 0.0
            cached = request.headers.get(CACHED_HEADER, "")
            cached_tokens = int(cached) if cached.isdecimal() else None
        context = ReplyContext(
            request=answered,
            script=served.script(named, self._first_id + self._order, self._created),
            fault=fault,
            order=self._order,
            received_ns=received_ns,
            begins_ns=max(line.received_ns + round(transfer_s * parsed.input_tokens * NS), self._loaded_ns),
            request_id=request.headers.get("x-request-id"),
            keeps_alive=request.keeps_alive,
            blocks=self._blocks(parsed),
            speed=speed,
            is_read=is_read,
            cached_tokens=cached_tokens,
            queued_ns=line.received_ns,
        )
        if PREFILL_HEADER in request.headers:
            return PromptRead(context, line, self._prefill_state)
        if fault is NO_FAULT:
            return (Stream if parsed.stream else Document)(context, line, self._state)
        return (FaultyStream if parsed.stream else FaultyDocument)(context, line, self._state)

    def _blocks(self, parsed: ApiRequest) -> tuple[int, ...]:
        """Return the block names of prompt and answer, which the next turn of a conversation repeats."""
        if not self._settings.is_engine or not self._settings.prefix_blocks:
            return ()
        thought = parsed.answer.thought_tokens
        answer = parsed.answer.text(thought, parsed.output_tokens - thought)
        return block_names([*parsed.prompt.words, *answer.split()], self._settings.block_tokens, parsed.model)

    def _busy(self, parsed: ApiRequest) -> bytes:
        status = self._settings.queue_status
        code = status or 503
        kind = "Too Many Requests" if code == 429 else "Service Unavailable"
        document = {"error": {"message": _BUSY, "type": kind, "param": None, "code": code}}
        if status is not None or not parsed.stream or ENDPOINTS[parsed.endpoint].by_grpc:
            return json_response(code, document, *([_RETRY_LATER] if code == 429 else []))
        opening = head(200, f"content-type: {EVENT_STREAM}", "transfer-encoding: chunked")
        return opening + chunk(error_event(document)) + chunk(DONE) + LAST_CHUNK

    def _expire(self, _: int) -> None:
        now_ns = monotonic_ns()
        self._armed_ns, self._last_expiry_ns = None, now_ns
        for due_ns, job, tokens in self._state.model.take(now_ns):
            job.emit(tokens, due_ns)
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer to the next instant, unless it expires before it anyway."""
        due_ns = self._state.model.due_ns()
        if due_ns is None:
            return
        due_ns = max(due_ns, self._last_expiry_ns + _TICK_NS)
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
        state = self._state
        tokens = state.counters.generation_tokens + sum(reply.sent for reply in state.replies)
        page = metric_page(self._settings.model, state.model, state.counters, tokens)
        return whole(200, page.encode(), content_type=METRICS_TYPE)

    def _tokenize(self, request: Request) -> bytes:
        data = read_object(request.body)
        if "messages" in data:
            count = len(chat_prompt(data["messages"], self._settings))
        else:
            count = len(completion_prompt(data.get("prompt")))
        return json_response(
            200, {"count": count, "max_model_len": self._settings.context_tokens, "tokens": list(range(count))}
        )

    def _truth(self, request: Request) -> bytes:
        truth, preempted = self._state.truth, self._state.model.tally.preemptions
        options = request.query.split("&")
        if "end=1" in options:  # a router is about to kill this process: every answer fails, also those still to come
            self._is_ending = True
            for reply in list(self._state.replies):
                reply.fail()
            return json_response(200, {})
        under_way = sum(reply.sent for reply in self._state.replies if reply.truth is truth)
        if "state=1" in options:
            return json_response(200, truth.state(tokens_under_way=under_way, preempted=preempted))
        with_requests = "requests=1" in options
        document = truth.document(tokens_under_way=under_way, preempted=preempted, with_requests=with_requests)
        return json_response(200, document)

    def _reset(self, _: Request) -> bytes:
        self._state.truth = GroundTruth(self._state.model.tally.preemptions)
        return json_response(200, {})


def run_sim(settings: SimSettings, address: ListenAddress, ready: Callable[[str], None], replica: int = 0) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; `ready` gets the URL once it is bound. Raises UsageError."""
    import uvloop

    raise_file_limit()
    gc.freeze()  # what is loaded by now stays
    gc.set_threshold(50_000, 20, 1000)  # answers leave no cycles; a collection in mid-stream is lateness
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, address, ready, replica))


async def _serve(settings: SimSettings, address: ListenAddress, ready: Callable[[str], None], replica: int) -> None:
    loop = asyncio.get_running_loop()
    stop, defects = asyncio.Event(), list[BaseException]()

    def surface(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Stop the server on a defect, which would else go on without its timer. A client's mistake is none."""
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError):  # as a broken TLS handshake is
            defects.append(error)
            stop.set()

    loop.set_exception_handler(surface)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` sets it
            loop.add_signal_handler(number, stop.set)
    server = SimServer(settings, replica) if settings.replicas == 1 else await Router.open(settings)
    listener, url = await listen(address, server.connection)
    if not settings.ready_after_s:
        await listener.start_serving()
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
        await server.close()
        await asyncio.sleep(0)  # transports close in the turn after
    if defects:
        raise defects[0]
