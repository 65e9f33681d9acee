"""One answer under way: tokens of the model of time become bytes on a connection, and every write is stamped.

A sound stream is written one way and a faulty one another (`odd`): what must keep a schedule with thousands of streams
does not ask at every token what could be wrong with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from time import monotonic_ns

from benchgate.sim.encoders import Script, Usage
from benchgate.sim.engine import Job, Model
from benchgate.sim.faults import Behaviour
from benchgate.sim.ground_truth import Asked, Outcome, Over, Truth
from benchgate.sim.http_server import EVENT_STREAM, JSON_TYPE, LAST_CHUNK, Connection, chunk, head, whole
from benchgate.sim.metrics import Counters
from benchgate.sim.requests import Ask

ENDLESS_TOKENS = 1 << 62
_STREAM_HEAD = head(200, f"content-type: {EVENT_STREAM}", "transfer-encoding: chunked")
_LAST_STREAM_HEAD = head(200, f"content-type: {EVENT_STREAM}", "transfer-encoding: chunked", "connection: close")


@dataclass(slots=True)
class Desk:
    """What all answers share. `truth` is exchanged when it is reset; an answer keeps the one it began with."""

    model: Model
    chunk_tokens: int
    truth: Truth = field(default_factory=Truth)
    counters: Counters = field(default_factory=Counters)
    replies: set[Reply] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Case:
    """What one answer is about."""

    ask: Ask
    script: Script
    behaviour: Behaviour
    order: int
    received_ns: int
    begins_ns: int  # when the model of time may begin with it: not before the model is loaded
    request_id: str | None
    keeps_alive: bool
    blocks: tuple[int, ...] = ()  # for the prefix cache
    speed: float = 1.0  # of a paced server or a queue: times are divided by it


class Reply(ABC):
    """What every answer does: be a job, stamp what it writes, and end exactly once."""

    def __init__(self, case: Case, line: Connection, desk: Desk) -> None:
        self.case = case
        self.sent = 0  # tokens handed to the kernel
        self.truth = desk.truth
        self.over = False
        self._line = line
        self._desk = desk
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        endless = case.behaviour.endless
        self.job = Job(
            order=case.order,
            arrived_ns=case.begins_ns,
            input_tokens=case.ask.input_tokens,
            output_tokens=ENDLESS_TOKENS if endless else case.ask.output_tokens or 1,
            reserved_tokens=case.ask.room_tokens,
            emit=self.emit,
            priority=case.ask.priority,
            blocks=case.blocks,
            with_adapter=case.ask.adapter is not None,
            speed=case.speed,
        )
        line.late_writes = 0
        desk.replies.add(self)
        self.truth.arrived(case.received_ns, case.behaviour.spec)

    def begin(self) -> None:
        """What happens as soon as the model has taken the job in."""
        return  # a sound server says nothing before its first token

    @abstractmethod
    def emit(self, tokens: int, due_ns: int) -> None:
        """Tokens that were due at that instant."""

    def abandon(self) -> None:
        """The client has left: its place is free at once."""
        if not self.over:
            self._desk.model.abandon(self.job)
            self._settle("aborted")

    def refuse(self, response: bytes) -> None:
        """Answer with this instead; the model has not taken the job in."""
        self.job.over = True
        self._line.write(response)
        self._end("failed", keep=True)

    def _end(self, outcome: Outcome, *, keep: bool) -> None:
        """The last byte is written."""
        self._desk.model.drop(self.job)
        self._settle(outcome)
        self._line.done(keep=keep and self.case.keeps_alive)

    def _usage(self, sent: int) -> Usage:
        """What the answer took, with so many tokens sent."""
        ask = self.case.ask
        thought = None if ask.reasoning_tokens is None else min(ask.reasoning_tokens, sent)
        return Usage(ask.input_tokens, sent, self.job.cached_tokens, thought)

    def _settle(self, outcome: Outcome) -> None:
        self.over = True
        self.job.emit = _ignore  # and no cycle of references is left behind
        self._desk.replies.discard(self)
        self._count(outcome)
        self.truth.late_writes += self._line.late_writes
        ask = self.case.ask
        self.truth.ended(
            Over(
                outcome,
                self.case.request_id,
                self.case.behaviour.spec,
                self.case.received_ns,
                Asked(ask.endpoint, ask.model, ask.priority),
                self._first_ns,
                self._last_ns,
                self.sent,
                ask.input_tokens,
                self.job.cached_tokens,
                self.job.admitted_ns,
                self.job.service_ns,
            )
        )

    def _count(self, outcome: Outcome) -> None:
        counters, job = self._desk.counters, self.job
        counters.over(
            self.case.ask,
            sent_tokens=self.sent,
            cached_tokens=job.cached_tokens or 0,
            outcome=outcome,
            read=self._last_ns is not None,
        )
        if job.admitted_ns is not None:
            counters.queued.add(job.admitted_ns - self.case.received_ns)
        if self._last_ns is None:
            return
        if self._first_ns is not None:
            counters.prefill.add(max(0, self._first_ns - (job.admitted_ns or self.case.begins_ns)))
            counters.decode.add(self._last_ns - self._first_ns)
        if outcome == "finished":
            counters.whole.add(self._last_ns - self.case.received_ns)

    def _handed(self, tokens: int, due_ns: int, *, streamed: bool = True) -> None:
        """Tokens have just gone to the kernel."""
        now_ns = monotonic_ns()
        self.truth.lags.add(now_ns - due_ns)
        if self._last_ns is not None:
            self.truth.gaps.add(now_ns - self._last_ns)
        elif streamed:
            self._first_ns = now_ns
            self._desk.counters.ttft.add(now_ns - self.case.received_ns)
        self._last_ns = now_ns
        self.sent += tokens


class Stream(Reply):
    """A sound stream: head and role event with the first token, then an event at a time, all in one write each."""

    def __init__(self, case: Case, line: Connection, desk: Desk) -> None:
        super().__init__(case, line, desk)
        self._pending = 0
        self._chunk_tokens = desk.chunk_tokens
        plain = desk.chunk_tokens == 1 and not case.ask.continuous_usage and case.script.plain
        self._plain_until = case.ask.output_tokens - 1 if plain else 0  # the event of every token before is plain

    def emit(self, tokens: int, due_ns: int) -> None:
        """The middle of an answer, fast; its first and last event, and those of several tokens, with more thought."""
        sent = self.sent
        if not 0 < sent < self._plain_until or tokens != 1:
            self._emit_with_thought(tokens, due_ns)
            return
        self._line.write(self.case.script.framed_token(sent))
        now_ns = monotonic_ns()  # as `_handed`, in place: this is what a server under load does all day
        truth = self.truth
        truth.lags.add(now_ns - due_ns)
        truth.gaps.add(now_ns - self._last_ns)  # type: ignore[operator]  # set with the first token
        self._last_ns = now_ns
        self.sent = sent + 1

    def _emit_with_thought(self, tokens: int, due_ns: int) -> None:
        self._pending += tokens
        last = self.sent + self._pending >= self.case.ask.output_tokens
        if self._pending < self._chunk_tokens and self.sent and not last:
            return
        pieces = [] if self.sent else self._opening()
        written, first = self._pending, self.sent
        while self._pending:
            size = 1 if first == 0 else min(self._chunk_tokens, self._pending)
            self._pending -= size
            reason = self.case.ask.finish_reason if last and not self._pending else None
            pieces += map(chunk, self.case.script.tokens(first, size, reason))
            first += size
        if last:
            pieces += self._closing()
        self._line.write(b"".join(pieces))
        self._handed(written, due_ns)
        if last:
            self._end("finished", keep=True)

    def _opening(self) -> list[bytes]:
        opening = _STREAM_HEAD if self.case.keeps_alive else _LAST_STREAM_HEAD
        return [opening, *map(chunk, self.case.script.opening())]

    def _closing(self) -> list[bytes]:
        ask, script = self.case.ask, self.case.script
        closing = script.closing(ask.finish_reason, self._usage(ask.output_tokens))
        return [*map(chunk, closing), *map(chunk, script.done()), LAST_CHUNK]


class Document(Reply):
    """An answer as one document, written when its last token is there."""

    def emit(self, tokens: int, due_ns: int) -> None:
        """Count tokens up to the last."""
        if self.job.produced < self.job.output_tokens:
            return
        ask, script = self.case.ask, self.case.script
        body = script.document(ask.finish_reason, self._usage(ask.output_tokens))
        closing = () if self.case.keeps_alive else ("connection: close",)
        self._line.write(whole(200, body, *closing, content_type=JSON_TYPE))
        self._handed(ask.output_tokens, due_ns, streamed=False)
        self._end("finished", keep=True)


def _ignore(tokens: int, due_ns: int) -> None:
    """Where the tokens of an answer go that is over."""
