"""Answers that are not as they should be: every fault of `faults` that strikes after a request was understood."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic_ns

from benchgate.sim.content import Saying, json_pieces
from benchgate.sim.encoders import Usage, VectorScript, error_event
from benchgate.sim.faults import Behaviour
from benchgate.sim.ground_truth import Outcome
from benchgate.sim.http_server import EVENT_STREAM, JSON_TYPE, LAST_CHUNK, Connection, chunk, head, whole
from benchgate.sim.replies import Case, Desk, Reply
from benchgate.sim.requests import Ask
from benchgate.sim.settings import NS

MESSAGE = "the practice server was told to fail"


def refusal(behaviour: Behaviour, path: str) -> bytes | None:
    """The whole response of a behaviour that refuses; None when it does not."""
    if behaviour.redirects:
        return head(307, f"location: /elsewhere{path}", "content-length: 0")
    if behaviour.status is None:
        return None
    retry = [] if behaviour.retry_after_s is None else [f"retry-after: {round(behaviour.retry_after_s) or 1}"]
    body, content_type = _body(behaviour.status, behaviour.shape)
    return whole(behaviour.status, body, *retry, content_type=content_type)


def _body(status: int, shape: str) -> tuple[bytes, str]:
    if shape == "text":
        return MESSAGE.encode(), "text/plain; charset=utf-8"
    documents = {
        "object": {"error": {"message": MESSAGE, "type": "PracticeError", "param": None, "code": status}},
        "string": {"error": MESSAGE},
        "detail": {"detail": MESSAGE},
        "detail-list": {"detail": [{"type": "practice_error", "loc": ["body"], "msg": MESSAGE}]},
    }
    return json.dumps(documents[shape]).encode(), JSON_TYPE


_TOKENS = {"blank": (" ", "\n"), "zero-width": ("\u200b",)}
_CALL = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_TOOL = "lookup"


def falsify(ask: Ask, behaviour: Behaviour) -> Ask:
    """Return the request with the answer that the behaviour makes of it.

    Answers that call a tool, embeddings and rankings keep their text. Completions have no reasoning and no tools, and
    responses have no choices: there these faults change nothing.
    """
    if behaviour.text is None or not ask.output_tokens or ask.saying.tool is not None:
        return ask
    saying, kind = ask.saying, behaviour.text
    thought, tokens = saying.thought_tokens, ask.output_tokens
    if kind == "reasoning":
        return ask if ask.endpoint == "completions" else replace(ask, saying=Saying(saying.key, tokens))
    if kind == "second-choice":
        return ask if ask.endpoint == "responses" else replace(ask, saying=replace(saying, second_from=tokens // 2))
    if kind == "call":
        if ask.endpoint == "completions":
            return ask
        pieces = json_pieces(_CALL, saying.key, tokens - thought, cut=True)
        return replace(ask, saying=replace(saying, pieces=pieces, tool=_TOOL), finish_reason="tool_calls")
    if kind == "half":
        shown = ("" if at % 2 else saying.text(thought + at, 1) for at in range(tokens - thought))
    else:
        written = _TOKENS.get(kind, (behaviour.repeated,))
        shown = (written[at % len(written)] for at in range(tokens - thought))
    return replace(ask, saying=replace(saying, pieces=tuple(shown)))


_COMMENT = b": keep-alive\n\n"
_FAR_MORE_BYTES, _FAR_LESS_BYTES = 1_000_000_000, 20
_GZIP = 16 + zlib.MAX_WBITS


class Pipe:
    """One response body. `open` before anything is sent; `close` or `reset` at the end, and nothing after."""

    def __init__(self, line: Connection, behaviour: Behaviour, *, content_type: str, keeps_alive: bool) -> None:
        self.opened = False
        self.ends_connection = not keeps_alive or behaviour.http10 or behaviour.length is not None
        self._line = line
        self._behaviour = behaviour
        self._content_type = content_type
        self._chunked = False
        self._compress = zlib.compressobj(wbits=_GZIP) if behaviour.gzip else None
        self._dripping = bytearray()
        self._dripped = 0  # bytes
        self._told_at: deque[tuple[int, Callable[[], None]]] = deque()  # of those that drip, and who waits for them
        self._timer: asyncio.TimerHandle | None = None
        self._when_dry: Callable[[], None] | None = None

    def open(self, length: int | None = None, status: int = 200) -> None:
        """Write the head. With `length` (bytes, before compression) the body is declared, else it is chunked."""
        behaviour = self._behaviour
        headers = [f"content-type: {self._content_type}"]
        if behaviour.length is not None:
            headers.append(f"content-length: {_FAR_MORE_BYTES if behaviour.length == 'more' else _FAR_LESS_BYTES}")
        elif length is not None and self._compress is None:
            headers.append(f"content-length: {length}")
        elif not behaviour.http10:
            self._chunked = True
            headers.append("transfer-encoding: chunked")
        if self._compress is not None:
            headers.append("content-encoding: gzip")
        if behaviour.header_bytes:
            headers.append("x-padding: " + "x" * behaviour.header_bytes)
        if self.ends_connection and behaviour.length is None:
            headers.append("connection: close")
        self.opened = True
        self._deliver(head(status, *headers, version="HTTP/1.0" if behaviour.http10 else "HTTP/1.1"))

    def send(self, pieces: Sequence[bytes], written: Callable[[], None] | None = None, of: int | None = None) -> None:
        """Send events, or pieces of a document, in one write; each is a chunk, or so many of them together.

        `written` is called when the kernel has the first `of` of them (all, unless said), with what they are merged in.
        """
        merged = self._behaviour.events_per_write
        dressed = [self._dressed(piece) for piece in pieces]
        groups = [b"".join(dressed[at : at + merged]) for at in range(0, len(dressed), merged)]
        framed = [self._framed(self._squeezed(group)) for group in groups]
        if written is not None and self._behaviour.drip_s is not None:
            waited_for = len(framed) if of is None else -(-of // merged)
            self._told_at.append((self._dripped + len(self._dripping) + sum(map(len, framed[:waited_for])), written))
            written = None
        self._deliver(b"".join(framed))
        if written is not None:
            written()

    def close(self, then: Callable[[], None]) -> None:
        """End the body, and call `then` when its last byte is written."""
        if self._compress is not None:
            self._deliver(self._framed(self._compress.flush()))
        if self._chunked:
            self._deliver(LAST_CHUNK)
        self._when_dry = then
        if not self._dripping:
            then()

    def reset(self, unfinished: bytes) -> None:
        """Write half of this piece and drop the connection."""
        framed = self._framed(unfinished)
        self._line.write(bytes(self._dripping) + framed[: len(framed) // 2])
        self._line.reset()

    def forget(self) -> None:
        """Stop what is still dripping, and tell nobody of it."""
        self._told_at.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _dressed(self, piece: bytes) -> bytes:
        return (_COMMENT + piece).replace(b"\n", b"\r\n") if self._behaviour.crlf else piece

    def _squeezed(self, data: bytes) -> bytes:
        if self._compress is None:
            return data
        return self._compress.compress(data) + self._compress.flush(zlib.Z_SYNC_FLUSH)

    def _framed(self, data: bytes) -> bytes:
        return chunk(data) if self._chunked and data else data

    def _deliver(self, data: bytes) -> None:
        if self._behaviour.drip_s is not None:
            self._dripping += data
            if self._timer is None:
                self._drip()
        elif self._behaviour.bytewise:
            for at in range(len(data)):
                self._line.write(data[at : at + 1])
        else:
            self._line.write(data)

    def _drip(self) -> None:
        """Write the next byte, and come back for the one after."""
        self._timer = None
        if self._dripping:
            self._line.write(bytes(self._dripping[:1]))
            del self._dripping[0]
            self._dripped += 1
            while self._told_at and self._told_at[0][0] <= self._dripped:
                self._told_at.popleft()[1]()
            wait_s = self._behaviour.drip_s or 0.0
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._drip)
            if not self._dripping and self._when_dry is not None:
                self._when_dry()


ERROR = {"error": {"message": "the practice server was told to fail", "type": "InternalServerError", "code": 500}}
ERROR_TEXT = {"error": ERROR["error"]["message"]}
_BAD_JSON = b'data: {"id":"broken","choices":[{"index":0,\n\n'
_BAD_UTF8 = b"\xc3\x28\xff\xfe"
_WHOLE_ANSWER = frozenset({"empty-answer", "done-only", "empty-body"})  # endings that stand for all of an answer


class OddReply(Reply):
    """What faulty streams and documents share: stalls, silence, a pipe, and the moment at which a fault strikes."""

    content_type = EVENT_STREAM

    def __init__(self, case: Case, line: Connection, desk: Desk) -> None:
        super().__init__(case, line, desk)
        self._does = case.behaviour
        self._pipe = Pipe(line, case.behaviour, content_type=self.content_type, keeps_alive=case.keeps_alive)
        self._timer: asyncio.TimerHandle | None = None
        self._put_ns = case.received_ns  # when the last tokens went into the pipe
        self._stalls = self._does.ending == "stall"
        self._ending = None if self._stalls else self._does.ending
        self._last_token = 0 if self._ending in _WHOLE_ANSWER else self._does.after_tokens  # before the fault strikes

    def begin(self) -> None:
        """Hold the answer that stalls before its first token, and drop the one that hangs there."""
        self._stall_after(0)
        if self._does.silent or (self._ending == "hang" and not self._does.after_tokens):
            self._desk.model.drop(self.job)

    def _stall_after(self, tokens: int) -> None:
        """Hold the answer when it has come to its stall."""
        if self._stalls and tokens >= self._does.after_tokens:
            self._stalls = False
            self._desk.model.hold(self.job, self._put_ns + int((self._does.stall_s or 0) * NS))

    def _close(self, outcome: Outcome) -> None:
        self._desk.model.drop(self.job)
        self._pipe.close(lambda: self._closed(outcome))

    def _closed(self, outcome: Outcome) -> None:
        if not self.over:
            self._end(outcome, keep=not self._pipe.ends_connection)

    def _reset(self, unfinished: bytes) -> None:
        self._desk.model.drop(self.job)
        self._settle("failed")
        self._pipe.reset(unfinished)

    def _once_written(self, tokens: int, due_ns: int, *, streamed: bool = True) -> Callable[[], None]:
        """To be called when the kernel has them: how long they drip is the fault's doing, no lateness of ours."""
        put_ns = self._put_ns = monotonic_ns()
        return lambda: self._handed(tokens, due_ns + monotonic_ns() - put_ns, streamed=streamed)

    def _usage_told(self, sent: int) -> Usage:
        if self._does.usage == "zero":
            return Usage(0, 0)
        true = self._usage(sent)
        return true._replace(output_tokens=round(true.output_tokens * self._does.usage_factor))

    def _settle(self, outcome: Outcome) -> None:
        super()._settle(outcome)
        self._pipe.forget()
        if self._timer is not None:
            self._timer.cancel()


class OddStream(OddReply):
    """A faulty stream, event by event."""

    def __init__(self, case: Case, line: Connection, desk: Desk) -> None:
        super().__init__(case, line, desk)
        self._pending = 0
        self._put = 0  # tokens that are in the pipe, or were
        self._chunk_tokens = case.behaviour.tokens_per_event or desk.chunk_tokens
        self._write_tokens = self._chunk_tokens * case.behaviour.events_per_write
        self._role_is_out = self._ending in ("done-only", "empty-body")  # or will never be
        self._spoiled = case.behaviour.spoiled

    def begin(self) -> None:
        """What goes out before the first token."""
        if self._does.early_head:
            self._pipe.open()
        if self._does.early_role:
            self._send([])
        super().begin()

    def emit(self, tokens: int, due_ns: int) -> None:
        """Tokens up to the fault, the fault in place of the token after, or the end."""
        if self._does.endless and self._line.congested:
            return  # nobody reads: what cannot leave is not kept
        self._pending += tokens
        complete = self.job.produced >= self.job.output_tokens
        struck = self._ending is not None and (complete or self._put + self._pending > self._last_token)
        if self._ending is not None:
            self._pending = min(self._pending, max(0, self._last_token - self._put))
        waits = self._put > 0 or self._does.tokens_per_event is not None  # else the first token goes alone
        if waits and self._pending < self._write_tokens and not (complete or struck):
            return
        if self._pending:
            written, self._pending = self._pending, 0
            whole = complete and not struck
            events, shown = self._token_events(written, last=whole)
            self._put += written
            handed = self._once_written(shown, due_ns) if shown else None
            if events or whole:
                self._send(events, self._closing() if whole else [], handed)
        if struck:
            self._strike(str(self._ending))
        elif complete:
            self._complete()
        else:
            self._stall_after(self._put)

    def _send(
        self, events: list[bytes], following: Sequence[bytes] = (), written: Callable[[], None] | None = None
    ) -> None:
        """Events, after the head and the role event when those are not out yet, and what follows them in one write.

        `written` is called when the kernel has the events.
        """
        if not self._pipe.opened:
            self._pipe.open()
        if not self._role_is_out:
            self._role_is_out = True
            events = [*self.case.script.opening(), *events]
        self._pipe.send([*events, *following], written, len(events))

    def _token_events(self, count: int, *, last: bool) -> tuple[list[bytes], int]:
        """The events of the next tokens, and how many of the tokens they show."""
        script, first, until = self.case.script, self._put, self._put + count
        halved, saying = self._does.text == "half", self.case.ask.saying
        events, shown = list[bytes](), 0
        while first < until:
            size = min(self._chunk_tokens, until - first) if first or self._does.tokens_per_event else 1
            ends = last and first + size == until and self._does.usage != "finish"
            reason = self.case.ask.finish_reason if ends else None
            hidden = sum(not saying.text(at, 1) for at in range(first, first + size)) if halved else 0
            if hidden < size:
                events += script.tokens(first, size, reason)
            elif reason is not None:
                events += script.finish(reason, first + size)
            shown += size - hidden
            first += size
        return self._with_spoilt(events), shown

    def _with_spoilt(self, events: list[bytes]) -> list[bytes]:
        """The same with the bytes that should not be there, once an answer."""
        if not events:
            return events
        spoiled, self._spoiled = self._spoiled, None
        if spoiled == "utf8":
            events[0] = events[0].replace(b':" ', b':" ' + _BAD_UTF8, 1)
        elif spoiled == "json":
            events.insert(1, _BAD_JSON)
        elif spoiled == "line":
            events.insert(1, b'data: {"choices":[],"padding":"' + b"x" * self._does.line_bytes + b'"}\n\n')
        return events

    def _closing(self) -> list[bytes]:
        """What follows the last token at once."""
        usage, script, reason, sent = self._does.usage, self.case.script, self.case.ask.finish_reason, self._put
        finish = script.finish(reason, sent, self._usage_told(sent)) if usage == "finish" else []
        told = [] if usage == "late" else self._usage_events(sent, reason)
        return [*finish, *told, *self._done()]

    def _complete(self) -> None:
        if self._does.usage == "late":
            self._timer = asyncio.get_running_loop().call_later(self._does.late_s, self._tell_late)
        else:
            self._close("finished")

    def _tell_late(self) -> None:
        self._send(self._usage_events(self._put, self.case.ask.finish_reason))
        self._close("finished")

    def _usage_events(self, sent: int, reason: str) -> list[bytes]:
        told = None if self._does.usage in ("none", "finish") else self._usage_told(sent)
        return self.case.script.closing(reason, told)

    def _done(self) -> list[bytes]:
        return self.case.script.done() if self._does.says_done else []

    def _strike(self, ending: str) -> None:
        """What comes in place of the next token."""
        script = self.case.script
        if ending == "hang":
            self._desk.model.drop(self.job)
            return
        if ending in ("error", "error-text", "cut"):
            self._role_is_out = True  # the error is the first event there is
        if ending == "reset":
            self._send([])
            self._reset(b"".join(script.tokens(self._put, 1)))
            return
        done = self._done()
        events: dict[str, Callable[[], list[bytes]]] = {
            "error": lambda: [error_event(ERROR), *done],
            "error-text": lambda: [error_event(ERROR_TEXT)],
            "cut": list,
            "abort": lambda: [*script.finish("abort", self._put), *self._usage_events(self._put, "abort"), *done],
            "empty-answer": lambda: [*script.finish("stop", 0), *self._usage_events(0, "stop"), *done],
            "done-only": lambda: done,
            "empty-body": list,
        }
        self._send(events[ending]())
        self._close("failed")


class OddDocument(OddReply):
    """A faulty answer as one document, written when its last token is there."""

    content_type = JSON_TYPE

    def emit(self, tokens: int, due_ns: int) -> None:
        """Count tokens; the fault takes the place of the document."""
        produced = self.job.produced
        if self._ending == "hang" and produced > self._last_token:
            self._desk.model.drop(self.job)
        elif produced < self.job.output_tokens:
            self._stall_after(produced)
        if produced < self.job.output_tokens or self._ending == "hang":
            return
        status, body = self._response()
        self._pipe.open(len(body), status)
        if self._ending == "reset":
            self._reset(body)
            return
        sound = self._ending is None
        handed = self._once_written(self.case.ask.output_tokens, due_ns, streamed=False) if sound else None
        self._pipe.send([body] if body else [], handed)
        self._close("finished" if sound else "failed")

    def _response(self) -> tuple[int, bytes]:
        ask, script, ending = self.case.ask, self.case.script, self._ending
        if ending in ("error", "error-text"):
            return 500, error_event(ERROR if ending == "error" else ERROR_TEXT)[len("data: ") :]
        if ending in ("done-only", "empty-body"):
            return 200, b""
        reason = "abort" if ending == "abort" else ask.finish_reason
        usage = None if self._does.usage == "none" else self._usage_told(ask.output_tokens)
        if isinstance(script, VectorScript):
            script.spoilt = self._does.spoiled
        body = script.document(reason, usage, empty=ending == "empty-answer")
        if self._does.spoiled == "utf8":
            body = body.replace(b':" ', b':" ' + _BAD_UTF8, 1)
        if ending == "cut" or self._does.spoiled == "json":
            body = body[: len(body) // 2]
        return 200, body
