"""Faulty replies: refusals, false texts, and streams and documents that break, stall or deviate as a fault says."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import monotonic_ns

from benchgate.sim.content import AnswerText, json_pieces, word
from benchgate.sim.encoders import Usage
from benchgate.sim.ground_truth import Outcome
from benchgate.sim.http_server import LAST_CHUNK, TEXT_TYPE, Line, chunk, head, whole
from benchgate.sim.replies import ENDLESS_TOKENS, Reply, ReplyContext, ServerState, stream_head
from benchgate.sim.requests import ApiRequest
from benchgate.sim.settings import NS
from benchgate.suite.simulator import NO_FAULT, Fault, FaultSpec

MESSAGE = "the practice server was configured to fail"
ERROR = {"error": {"message": MESSAGE, "type": "InternalServerError", "code": 500}}
_TOKENS = {"blank": (" ", "\n"), "zero-width": ("\u200b",)}
_CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувшыуз")
_CALL = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_TOOL = "lookup"
_BEYOND_TEXT = ("chat", "responses", "messages")  # endpoints with reasoning and calls of tools
_WITH_CHOICES = ("chat", "completions")
_WHOLE_ANSWER = frozenset({"empty-answer", "empty-body"})  # endings that stand for all of an answer


class FaultDraw:
    """Draws the fault of each request, in order of arrival, from a seed."""

    def __init__(self, faults: Sequence[Fault], rng: random.Random) -> None:
        self._faults = faults
        self._draw = rng.random

    def next(self) -> FaultSpec:
        """Return the fault of the next request."""
        if not self._faults:
            return NO_FAULT
        drawn = self._draw()
        for fault in self._faults:
            if drawn < fault.share_ratio:
                return fault.spec
            drawn -= fault.share_ratio
        return NO_FAULT


def refusal(fault: FaultSpec) -> bytes | None:
    """Return the whole error response of a fault that refuses requests; None for any other."""
    if fault.status is None:
        return None
    retry = [] if fault.retry_after_s is None else [f"retry-after: {round(fault.retry_after_s) or 1}"]
    if fault.shape == "text":
        return whole(fault.status, MESSAGE.encode(), *retry, content_type=TEXT_TYPE)
    documents = {
        "object": {"error": {"message": MESSAGE, "type": "PracticeError", "param": None, "code": fault.status}},
        "string": {"error": MESSAGE},
        "detail": {"detail": MESSAGE},
        "detail-list": {"detail": [{"type": "practice_error", "loc": ["body"], "msg": MESSAGE}]},
    }
    return whole(fault.status, json.dumps(documents[fault.shape]).encode(), *retry)


def falsify(request: ApiRequest, fault: FaultSpec) -> ApiRequest:
    """Return the request with the text that the fault makes of its answer; tokens, usage and times stay.

    Answers that call a tool, embeddings and rankings keep their text. A fault changes nothing at an endpoint without
    what it makes: reasoning, calls of tools, a second choice.
    """
    if fault.text is None or not request.output_tokens or request.answer.tool is not None:
        return request
    answer, kind = request.answer, fault.text
    thought, tokens = answer.thought_tokens, request.output_tokens
    if fault.endless:
        tokens = max(tokens, thought + 1)  # what follows the reasoning is repeated, so there must be some of it
    if kind == "reasoning":
        reasoning = AnswerText(answer.key, ENDLESS_TOKENS if fault.endless else tokens)
        return replace(request, answer=reasoning) if request.endpoint in _BEYOND_TEXT else request
    if kind == "second-choice":
        several = replace(request, answer=replace(answer, second_from=tokens // 2))
        return several if request.endpoint in _WITH_CHOICES else request
    if kind == "call":
        if request.endpoint not in _BEYOND_TEXT:
            return request
        pieces = json_pieces(_CALL, answer.key, tokens - thought, cut=True)
        return replace(request, answer=replace(answer, pieces=pieces, tool=_TOOL), finish_reason="tool_calls")
    words: Iterable[str]
    if kind == "wrong":
        last = answer.text(tokens - 1, 1).strip()
        other = next(one for index in range(2) if (one := word(answer.key, index)).strip() != last)
        words = [*(answer.text(at, 1) for at in range(thought, tokens - 1)), other]
    elif kind == "half":
        words = ("" if at % 2 else answer.text(thought + at, 1) for at in range(tokens - thought))
    elif kind == "other-script":
        words = (answer.text(thought + at, 1).translate(_CYRILLIC) for at in range(tokens - thought))
    else:
        written = _TOKENS.get(kind, (fault.repeated,))
        words = (written[at % len(written)] for at in range(tokens - thought))
    return replace(request, answer=replace(answer, pieces=tuple(words)))


class FaultyReply(Reply):
    """Common part of faulty streams and documents: stalls, silence, and the moment of the fault."""

    def __init__(self, context: ReplyContext, line: Line, state: ServerState) -> None:
        super().__init__(context, line, state)
        self._fault = context.fault
        self._made_ns = context.received_ns  # when the last tokens were written, or made where they wait for the rest
        self._stalls = self._fault.ending == "stall"
        self._ending = None if self._stalls else self._fault.ending
        if self._stalls:
            self.job.pauses_after = self._fault.after_tokens
        self._last_token = 0 if self._ending in _WHOLE_ANSWER else self._fault.after_tokens  # before the fault

    def begin(self) -> None:
        """Hold the answer that stalls before its first token, and drop the one that hangs there."""
        self._stall_after(0)
        if self._fault.silent or (self._ending == "hang" and not self._fault.after_tokens):
            self._state.model.drop(self.job)

    def _stall_after(self, tokens: int) -> None:
        if self._stalls and tokens >= self._fault.after_tokens:
            self._stalls = False
            self._state.model.hold(self.job, self._made_ns + int((self._fault.stall_s or 0) * NS))

    def _visible(self, first: int, until: int) -> int:
        """Return how many of these tokens have a text."""
        hidden = 0
        if self._fault.text == "half":
            hidden = sum(not self.context.request.answer.text(at, 1) for at in range(first, until))
        return until - first - hidden

    def _reset(self, framed: bytes) -> None:
        self._state.model.drop(self.job)
        self._settle("failed")
        self._line.write(framed[: len(framed) // 2])
        self._line.reset()

    def _reported_usage(self, sent: int) -> Usage:
        if self._fault.usage == "zero":
            return Usage(0, 0)
        true = self._usage(sent)
        return true._replace(output_tokens=round(true.output_tokens * self._fault.usage_factor))


class FaultyStream(FaultyReply):
    """A faulty stream, event by event."""

    def __init__(self, context: ReplyContext, line: Line, state: ServerState) -> None:
        super().__init__(context, line, state)
        self._pending = 0
        self._written = 0  # tokens
        self._chunk_tokens = context.fault.tokens_per_event or state.chunk_tokens
        self._write_tokens = self._chunk_tokens * context.fault.events_per_write
        self._timer: asyncio.TimerHandle | None = None  # of a late usage
        self._has_head = False
        self._has_role = self._ending == "empty-body"  # or never will

    def emit(self, tokens: int, due_ns: int) -> None:
        """Write tokens up to the fault, and then the fault, or the end of the answer."""
        if self._fault.endless and self._line.congested:
            return  # nobody reads: what cannot leave is not kept
        self._pending += tokens
        complete = self.job.produced >= self.job.output_tokens
        faulty = self._ending is not None and (complete or self._written + self._pending > self._last_token)
        if self._ending is not None:
            self._pending = min(self._pending, max(0, self._last_token - self._written))
        waits = self._written > 0 or self._fault.tokens_per_event is not None  # else the first token goes alone
        if waits and self._pending < self._write_tokens and not (complete or faulty):
            return
        if self._pending:
            count, self._pending = self._pending, 0
            last = complete and not faulty
            events, visible = self._token_events(count, last=last)
            self._written += count
            if events or last:
                self._made_ns = monotonic_ns()
                self._send([*events, *(self._closing(self.context.request.finish_reason) if last else [])])
                if visible:
                    self._handed(visible, due_ns)
        if faulty:
            self._inject(str(self._ending))
        elif complete and self._fault.usage == "late":
            self._timer = asyncio.get_running_loop().call_later(self._fault.late_s, self._send_late_usage)
        elif complete:
            self._close("finished")
        else:
            self._stall_after(self._written)

    def _send(self, events: Sequence[bytes]) -> None:
        """Write events, after the head and the role event when those are not out yet; each is a chunk, or several."""
        opening = b""
        if not self._has_head:
            self._has_head = True
            opening = stream_head(self.context.script.stream_type, self.context.keeps_alive)
        if not self._has_role:
            self._has_role = True
            events = [*self.context.script.opening(), *events]
        merged = self._fault.events_per_write
        groups = (b"".join(events[at : at + merged]) for at in range(0, len(events), merged))
        self._line.write(opening + b"".join(chunk(group) for group in groups if group))

    def _close(self, outcome: Outcome) -> None:
        self._line.write(LAST_CHUNK)
        self._end(outcome, keep=True)

    def _token_events(self, count: int, *, last: bool) -> tuple[list[bytes], int]:
        script, first, until = self.context.script, self._written, self._written + count
        events, visible = list[bytes](), 0
        while first < until:
            size = min(self._chunk_tokens, until - first) if first or self._fault.tokens_per_event else 1
            reason = self.context.request.finish_reason if last and first + size == until else None
            shown = self._visible(first, first + size)
            if shown:
                events += script.tokens(first, size, reason)
            elif reason is not None:
                events += script.finish(reason, first + size)
            visible += shown
            first += size
        return events, visible

    def _send_late_usage(self) -> None:
        usage = self._reported_usage(self._written)
        self._send(self.context.script.closing(self.context.request.finish_reason, usage))
        self._close("finished")

    def _settle(self, outcome: Outcome) -> None:
        super()._settle(outcome)
        if self._timer is not None:
            self._timer.cancel()

    def _closing(self, reason: str, sent: int | None = None) -> list[bytes]:
        if self._fault.usage == "late" and self._ending is None:
            return self._done()
        usage = None if self._fault.usage == "none" else self._reported_usage(self._written if sent is None else sent)
        return [*self.context.script.closing(reason, usage), *self._done()]

    def _done(self) -> list[bytes]:
        return self.context.script.done() if self._fault.sends_done else []

    def _inject(self, ending: str) -> None:
        script = self.context.script
        if ending == "hang":
            self._state.model.drop(self.job)
            return
        if ending in ("error", "cut"):
            self._has_role = True  # the error is the first event there is
        if ending == "reset":
            self._send([])
            self._reset(chunk(b"".join(script.tokens(self._written, 1))))
            return
        events: dict[str, Callable[[], list[bytes]]] = {
            "error": lambda: [script.error(ERROR), *self._done()],
            "abort": lambda: [*script.finish("abort", self._written), *self._closing("abort")],
            "empty-answer": lambda: [*script.finish("stop", 0), *self._closing("stop", 0)],
            "cut": list,
            "empty-body": list,
        }
        self._send(events[ending]())
        self._close("failed")


class FaultyDocument(FaultyReply):
    """A faulty answer as one document, written at the token at which a stream would meet the fault, or at the last."""

    def emit(self, tokens: int, due_ns: int) -> None:
        """Count tokens; the fault takes the place of the document."""
        produced, ending = self.job.produced, self._ending
        complete = produced >= self.job.output_tokens
        if not complete and (ending is None or produced <= self._last_token):
            if self._stalls and produced >= self._fault.after_tokens:
                self.sent = self._visible(0, produced)  # if the client leaves meanwhile
            self._made_ns = monotonic_ns()
            self._stall_after(produced)
            return
        made = min(produced, self.context.request.output_tokens)
        if ending is not None:
            made = min(made, self._last_token)
        visible = self._visible(0, made)
        self.sent = visible if ending in ("hang", "error") else 0  # those were generated, and are in no document
        if ending == "hang":
            self._state.model.drop(self.job)
            return
        status, body = self._response(made)
        document_type = self.context.script.document_type
        closing = () if self.context.keeps_alive else ("connection: close",)
        if ending == "reset":
            self._line.write(head(status, f"content-type: {document_type}", f"content-length: {len(body)}", *closing))
        else:
            self._line.write(whole(status, body, *closing, content_type=document_type))
        if ending is None or (visible and ending != "error"):
            self._handed(visible, due_ns, streamed=False)
        if ending == "reset":
            self._reset(body)
            return
        self._end("finished" if ending is None else "failed", keep=True)

    def _response(self, made: int) -> tuple[int, bytes]:
        request, ending = self.context.request, self._ending
        if ending == "error":
            return 500, json.dumps(ERROR).encode()
        if ending == "empty-body":
            return 200, b""
        reason = {"abort": "abort", "empty-answer": "stop"}.get(str(ending), request.finish_reason)
        usage = None if self._fault.usage == "none" else self._reported_usage(made)
        is_part = made < request.output_tokens or ending == "empty-answer"
        body = self.context.script.document(reason, usage, made if is_part else None)
        return 200, body[: len(body) // 2] if ending == "cut" else body
