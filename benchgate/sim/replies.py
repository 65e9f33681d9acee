"""An answer in progress: tokens of the model of time become bytes on a connection, and every write is stamped.

A correct stream and a faulty one (`fault_injection`) are written by different code: a server that keeps a schedule
with thousands of streams does not request at every token what could be wrong with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic_ns

from benchgate.sim.encoders import Script, Usage
from benchgate.sim.engine import Job, Model
from benchgate.sim.ground_truth import CompletedRequest, Counters, GroundTruth, Outcome, RequestLabels
from benchgate.sim.http_server import LAST_CHUNK, Line, chunk, head, whole
from benchgate.sim.requests import ApiRequest
from benchgate.sim.router import CACHED_HEADER
from benchgate.suite.simulator import FaultSpec

ENDLESS_TOKENS = 1 << 62


@lru_cache(maxsize=16)
def stream_head(content_type: str, keeps_alive: bool) -> bytes:
    """Return the head of a stream."""
    closing = () if keeps_alive else ("connection: close",)
    return head(200, f"content-type: {content_type}", "transfer-encoding: chunked", *closing)


@dataclass(slots=True)
class ServerState:
    """State shared by all replies. `truth` is exchanged when it is reset; a reply keeps the one it began with."""

    model: Model
    chunk_tokens: int
    truth: GroundTruth = field(default_factory=GroundTruth)
    counters: Counters = field(default_factory=Counters)
    replies: set[Reply] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """Request, encoder and fault of one reply."""

    request: ApiRequest
    script: Script
    fault: FaultSpec
    order: int
    received_ns: int
    begins_ns: int  # when the model of time may begin with it: not before the model is loaded
    request_id: str | None
    keeps_alive: bool
    blocks: tuple[int, ...] = ()  # for the prefix cache
    speed: float = 1.0  # of a paced server or a queue: times are divided by it
    is_read: bool = False  # another server has read the prompt
    cached_tokens: int | None = None  # of a prompt that another server has read, found in its prefix cache
    queued_ns: int | None = None  # when it arrived here, where that was after it was received


class Reply(ABC):
    """Common part of all replies: be a job, stamp the writes, and end exactly once."""

    def __init__(self, context: ReplyContext, line: Line, state: ServerState) -> None:
        self.context = context
        self.sent = 0  # tokens handed to the kernel
        self.truth = state.truth
        self.over = False
        self._line = line
        self._state = state
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        endless = context.fault.endless
        self.job = Job(
            order=context.order,
            arrived_ns=context.begins_ns,
            input_tokens=context.request.input_tokens,
            output_tokens=ENDLESS_TOKENS if endless else context.request.output_tokens or 1,
            reserved_tokens=context.request.room_tokens,
            emit=self.emit,
            priority=context.request.priority,
            blocks=context.blocks,
            adapter=context.request.adapter,
            is_read=context.is_read,
            cached_tokens=context.cached_tokens,
            speed=context.speed,
        )
        line.late_writes = 0
        state.replies.add(self)
        self.truth.arrived(context.received_ns, context.fault.name)

    def begin(self) -> None:
        """Act as soon as the model has accepted the job."""
        return  # a sound server says nothing before its first token

    @abstractmethod
    def emit(self, tokens: int, due_ns: int) -> None:
        """Write tokens that were due at that instant."""

    def abandon(self) -> None:
        """Free the slot at once: the client has left."""
        if not self.over:
            self._state.model.abandon(self.job)
            self._settle("aborted")

    def fail(self) -> None:
        """End it as failed and close the connection, without another byte."""
        self._end("failed", keep=False)

    def refuse(self, response: bytes, *, keep: bool = True) -> None:
        """Write this response instead; the model has not accepted the job."""
        self.job.over = True
        self._line.write(response)
        self._end("failed", keep=keep)

    def _end(self, outcome: Outcome, *, keep: bool) -> None:
        self._state.model.drop(self.job)
        self._settle(outcome)
        self._line.done(keep=keep and self.context.keeps_alive)

    def _usage(self, sent: int) -> Usage:
        request = self.context.request
        thought = None if request.reasoning_tokens is None else min(request.reasoning_tokens, sent)
        return Usage(request.input_tokens, sent, self.job.cached_tokens, thought)

    def _settle(self, outcome: Outcome) -> None:
        self.over = True
        self.job.emit = lambda tokens, due_ns: None  # and no cycle of references is left behind
        self._state.replies.discard(self)
        self._count(outcome)
        self.truth.late_writes += self._line.late_writes
        request = self.context.request
        self.truth.ended(
            CompletedRequest(
                outcome,
                self.context.request_id,
                self.context.fault.name,
                self.context.received_ns,
                RequestLabels(request.endpoint, request.model, request.priority),
                self._first_ns,
                self._last_ns,
                self.sent,
                request.input_tokens,
                self.job.cached_tokens,
                self.job.admitted_ns,
                self.job.service_ns,
            )
        )

    def _count(self, outcome: Outcome) -> None:
        counters, job = self._state.counters, self.job
        counters.over(self.context.request, self.sent, outcome, read=self._last_ns is not None or self.sent > 0)
        if job.admitted_ns is not None:
            queued_ns = self.context.received_ns if self.context.queued_ns is None else self.context.queued_ns
            counters.queued.add(job.admitted_ns - queued_ns)
        if self._last_ns is None:
            return
        if self._first_ns is not None:
            counters.prefill.add(max(0, self._first_ns - (job.admitted_ns or self.context.begins_ns)))
            counters.decode.add(self._last_ns - self._first_ns)
        if outcome == "finished":
            counters.whole.add(self._last_ns - self.context.received_ns)

    def _handed(self, tokens: int, due_ns: int, *, streamed: bool = True) -> None:
        """Record tokens that have just gone to the kernel."""
        now_ns = monotonic_ns()
        self.truth.lags.add(now_ns - due_ns)
        if self._last_ns is not None:
            self.truth.gaps.add(now_ns - self._last_ns)
        elif streamed:
            self._first_ns = now_ns
            self._state.counters.ttft.add(now_ns - self.context.received_ns)
        self._last_ns = now_ns
        self.sent += tokens


class Stream(Reply):
    """A correct stream: head and role event with the first token, then one event per write."""

    def __init__(self, context: ReplyContext, line: Line, state: ServerState) -> None:
        super().__init__(context, line, state)
        self._pending = 0
        self._chunk_tokens = state.chunk_tokens
        plain = state.chunk_tokens == 1 and not context.request.continuous_usage and context.script.plain
        self._plain_until = (
            context.request.output_tokens - 1 if plain else 0
        )  # the event of every token before is plain

    def emit(self, tokens: int, due_ns: int) -> None:
        """Write the middle of an answer on a fast path; its ends, and events of several tokens, on a general one."""
        sent = self.sent
        if not 0 < sent < self._plain_until or tokens != 1:
            self._emit_with_thought(tokens, due_ns)
            return
        self._line.write(self.context.script.framed_token(sent))
        now_ns = monotonic_ns()  # as `_handed`, in place: this is what a server under load does all day
        truth = self.truth
        truth.lags.add(now_ns - due_ns)
        truth.gaps.add(now_ns - self._last_ns)  # type: ignore[operator]  # set with the first token
        self._last_ns = now_ns
        self.sent = sent + 1

    def _emit_with_thought(self, tokens: int, due_ns: int) -> None:
        self._pending += tokens
        last = self.sent + self._pending >= self.context.request.output_tokens
        if self._pending < self._chunk_tokens and self.sent and not last:
            return
        request, script = self.context.request, self.context.script
        pieces = list[bytes]()
        if not self.sent:
            pieces = [stream_head(script.stream_type, self.context.keeps_alive), *map(chunk, script.opening())]
        written, first = self._pending, self.sent
        while self._pending:
            size = 1 if first == 0 else min(self._chunk_tokens, self._pending)
            self._pending -= size
            reason = request.finish_reason if last and not self._pending else None
            pieces += map(chunk, script.tokens(first, size, reason))
            first += size
        if last:
            closing = script.closing(request.finish_reason, self._usage(request.output_tokens))
            pieces += [*map(chunk, closing), *map(chunk, script.done()), LAST_CHUNK]
        self._line.write(b"".join(pieces))
        self._handed(written, due_ns)
        if last:
            self._end("finished", keep=True)


class Document(Reply):
    """An answer as one document, written when its last token is there."""

    def emit(self, tokens: int, due_ns: int) -> None:
        """Count tokens up to the last."""
        if self.job.produced < self.job.output_tokens:
            return
        request, script = self.context.request, self.context.script
        body = script.document(request.finish_reason, self._usage(request.output_tokens))
        closing = () if self.context.keeps_alive else ("connection: close",)
        self._line.write(whole(200, body, *closing, content_type=script.document_type))
        self._handed(request.output_tokens, due_ns, streamed=False)
        self._end("finished", keep=True)


class PromptRead(Reply):
    """A prompt that is read for another server, which makes the answer: a response with a header and no body."""

    def emit(self, tokens: int, due_ns: int) -> None:
        """Report how much of the prompt the prefix cache held."""
        cached = "" if self.job.cached_tokens is None else self.job.cached_tokens
        self._line.write(whole(200, b"", f"{CACHED_HEADER}: {cached}"))
        self._handed(self.context.request.output_tokens, due_ns)
        self._end("finished", keep=True)
