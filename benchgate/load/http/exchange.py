"""A response in flight: buffered reads, the end of the response, time limits, and cancellation by the client."""

from __future__ import annotations

import asyncio
import errno
import ssl
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic_ns
from typing import NamedTuple

from benchgate.load.decode.body import RawBody, Read
from benchgate.load.http.parser import LARGEST_RESPONSE_BYTES, Dechunker, Head, MalformedResponse, split_head
from benchgate.model.records import ErrorClass
from benchgate.suite.schema import Limits
from benchgate.targets.address import tls_fault

OWN_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Errors of this machine, which say nothing of the server."""

_ENDINGS = (b"\r\n\r\n", b"[DONE]\n\n\r\n", b"[DONE]\n\n")
"""Last bytes of a chunked response, with or without the end of its framing."""

LAST_CHUNK = b"0\r\n\r\n"
_LAST_CHUNK_INSIDE = b"\r\n" + LAST_CHUNK
_SHORT_BYTES = 16  # a read of fewer bytes may be the second half of what ends a response

_USUAL_END = b"[DONE]\n\n\r\n0\r\n\r\n"
"""The end of nearly every chunked stream. It is believed while the stage runs, where following the chunks would hold up
other streams, and checked when the body is decoded (`RawBody.flaw`)."""

EVENT_END = b"}\n\n\r\n"
"""The end of a chunk that is one JSON event: no response ends with it."""

_DONE = (b"data: [DONE]", b"data:[DONE]")
_NEAR_THE_END = 64  # bytes
_LINGER_S = 0.05  # how long the end of the body may trail `[DONE]`: a server shutting down holds it for seconds
_NS = 1_000_000_000
_TAIL_READS = 32  # one of the last reads of a stream under way mostly has output; the others need not be decoded


class Progress(NamedTuple):
    """Progress of an answer: the instant of its last output so far, and if its finish reason has come."""

    output_ns: int | None = None
    finished: bool = False


ProgressOf = Callable[[Iterable[Read]], Progress]
"""Reads it out of a body so far, or of the end of one. Called only when a time limit may have passed."""


def may_end(data: bytes) -> bool:
    """Return True if a read may hold the end of a chunked response: only then the response is parsed."""
    if _LAST_CHUNK_INSIDE in data or data.startswith(LAST_CHUNK):
        return True
    return not data.endswith(EVENT_END) and (data.endswith(_ENDINGS) or len(data) < _SHORT_BYTES)


class Failure(NamedTuple):
    """The reason why an exchange did not end as it should, as far as the wire shows it."""

    error: ErrorClass
    detail: str


@dataclass(frozen=True, slots=True)
class Response:
    """All that came back for one request, not yet decoded. Instants are ns of the monotonic clock.

    `sent_ns` is None when no byte was sent, `head` when none came whole. `body` has its chunk framing removed. `whole`:
    the body ended as its framing declared. `fault` is the reason why it did not; it is None too when the stream ended
    with `[DONE]` and the end of the body then failed to come. `over_ns` is when the client was free again.
    """

    sent_ns: int | None
    over_ns: int
    head: Head | None = None
    body: Iterable[Read] = ()
    whole: bool = False
    fault: Failure | None = None
    unanswered: bool = False  # the connection was closed before the first byte of a response
    reconnects: int = 0
    left: bool = False  # the client cancelled it on purpose
    connecting_ns: int | None = None  # time spent opening its connection, if one was opened for it

    @classmethod
    def unsent(cls, fault: Failure | None, *, left: bool = False) -> Response:
        """Return the response of a request that was never sent."""
        return cls(sent_ns=None, over_ns=monotonic_ns(), fault=fault, left=left)

    @property
    def reusable(self) -> bool:
        """Return True if its connection can carry another request."""
        return self.whole and self.head is not None and self.head.keeps_alive


def do_nothing() -> None:
    """Drain a reader that keeps nothing."""


class Exchange:
    """A response under way. `over` is its future; no method raises into the event loop.

    Whoever reads the socket appends the bytes and marks of each read (its instant and size) and calls
    `parse_available` when they may end the response: after every read until `notify_on_end`, then when `may_end`
    holds. Only the framing is followed here. At `check_ns` a time limit may have passed and `check_limits` is due.
    """

    __slots__ = (
        "_begins", "_dechunker", "_followed", "_head", "_length", "_limits", "_linger", "_loop", "_marks",
        "_over_reads", "_progress_of", "_reads", "_size", "_sized", "append", "append_mark", "check_ns", "drain",
        "notify_on_end", "over", "sent_ns", "unchecked_bytes",
    )  # fmt: skip  # read several times for every read of a socket

    def __init__(self, limits: Limits, progress_of: ProgressOf) -> None:
        self._loop = asyncio.get_running_loop()
        self._reads: list[bytes] = []  # a buffer that grows with every read would be moved again and again
        self.append = self._reads.append
        self._marks = array("q")  # instant and size of each read, one after the other
        self.append_mark = self._marks.append
        self._size = 0
        self._sized = 0  # marks that `_size` counts
        self._over_reads: int | None = None  # reads when the response was over
        self.unchecked_bytes = 0  # since `check_size`; counted by the reader
        self.drain: Callable[[], None] = do_nothing  # makes the reader append what it still holds
        self.notify_on_end = False  # the body is in chunks: only reads that may end it need to be parsed
        self.sent_ns = monotonic_ns()
        self.over: asyncio.Future[Response] = self._loop.create_future()
        self._limits = limits
        self._progress_of = progress_of
        self._head: Head | None = None
        self._begins = 0  # offset of the body
        self._length: int | None = None  # of the body, where it is declared
        self._dechunker: Dechunker | None = None
        self._followed = 0  # offset up to which the dechunker has seen it
        self._linger: asyncio.TimerHandle | None = None
        self.check_ns = self.sent_ns + int(min(limits.first_token_s, limits.stall_s, limits.total_s) * _NS)

    def append_many(self, raw: bytes, marks: bytes) -> None:
        """Append several reads at once: all their bytes, and the marks of each as 64-bit integers."""
        self._reads.append(raw)
        self._marks.frombytes(marks)

    def parse_available(self) -> None:
        """Parse what has come, and finish when that was all of the response."""
        self.drain()
        if self.over.done():
            return
        try:
            whole = self._is_whole()
        except MalformedResponse as exc:
            self._finish(Failure(ErrorClass.PROTOCOL, str(exc)))
            return
        if whole:
            self._finish(None, whole=True)
        elif self.size > LARGEST_RESPONSE_BYTES:
            self._finish(Failure(ErrorClass.PROTOCOL, f"the response is longer than {LARGEST_RESPONSE_BYTES} bytes"))
        elif self._linger is None and self._ends_with_done():
            self._linger = self._loop.call_later(_LINGER_S, self._finish, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response: its connection is gone."""
        self.parse_available()
        if self.over.done():
            return
        ends_with_connection = self._head is not None and self._length is None and self._dechunker is None
        if ends_with_connection and exc is None:
            self._finish(None, whole=True)
            return
        when = "in the middle of the response" if self.size else "before any answer"
        closed = exc is None or isinstance(exc, ConnectionError)
        error = ErrorClass.STREAM_BROKEN
        if isinstance(exc, ssl.SSLError):  # with TLS 1.3, a refusal of our certificate is read after the handshake
            error, detail, closed = ErrorClass.TLS, tls_fault(exc), False
        elif isinstance(exc, OSError) and exc.errno in OWN_ERRNOS:
            error, detail = ErrorClass.CLIENT, f"{exc.strerror} {when}"
        elif not closed:
            detail = f"the connection broke {when}: {exc}"
        else:
            how = "reset" if isinstance(exc, ConnectionResetError) else "closed"
            detail = f"the server {how} the connection {when}"
        self._finish(Failure(error, detail), unanswered=closed and not self.size)

    @property
    def size(self) -> int:
        """Return the number of bytes that came."""
        self._size += sum(self._marks[self._sized + 1 :: 2])
        self._sized = len(self._marks)
        return self._size

    def check_size(self) -> None:
        """End a response that has become too long."""
        self.unchecked_bytes = 0
        if self.size > LARGEST_RESPONSE_BYTES:
            self.parse_available()

    def check_limits(self) -> None:
        """End the response when a time limit has passed, else set when to check again.

        Silence is the absence of output, whatever a server sends to keep the connection alive: comments, events
        without a text. After the finish reason it is the absence of bytes.
        """
        self.parse_available()
        if self.over.done():
            return
        progress = self._progress()
        limits = self._limits
        expected = [(self.sent_ns + int(limits.total_s * _NS), f"not over within {limits.total_s:g} s")]
        if progress.output_ns is not None:
            what = "nothing more came" if progress.finished else "no further output came"
            stalled = f"{what} for {limits.stall_s:g} s in the middle of the response"
            last_ns = self._marks[-2] if progress.finished else progress.output_ns
            expected.append((last_ns + int(limits.stall_s * _NS), stalled))
        else:
            silent = f"no output within {limits.first_token_s:g} s"
            expected.append((self.sent_ns + int(limits.first_token_s * _NS), silent))
        deadline_ns, detail = min(expected)
        left_s = (deadline_ns - monotonic_ns()) / _NS
        if left_s <= 0:
            self._finish(Failure(ErrorClass.TIMEOUT, detail))
        else:
            # output may begin at any time from here, and a later check would miss a stall in it
            again_s = left_s if progress.output_ns is not None else min(left_s, limits.stall_s)
            self.check_ns = monotonic_ns() + int(again_s * _NS)

    @property
    def surplus(self) -> bool:
        """Return True if bytes came after the end of the response: the next one would begin with them."""
        if self._dechunker is not None:
            return self._dechunker.surplus or len(self._reads) != self._over_reads
        return self._length is not None and self.size > self._begins + self._length

    def cancel(self) -> None:
        """End the response with what came until now: the client goes away on purpose."""
        self._finish(None, left=True)

    def fail(self, fault: Failure) -> None:
        """End the response by a failure that its reader has found."""
        self._finish(fault)

    def cancel_timers(self) -> None:
        """Stop all timers."""
        if self._linger is not None:
            self._linger.cancel()

    def _finish(
        self, fault: Failure | None, *, whole: bool = False, unanswered: bool = False, left: bool = False
    ) -> None:
        if self.over.done():
            return
        over_ns = monotonic_ns()
        self.drain()
        body = self._body()
        self._over_reads = len(self._reads)
        self.over.set_result(
            Response(
                sent_ns=self.sent_ns,
                over_ns=over_ns,
                head=self._head,
                body=body,
                whole=whole,
                fault=fault,
                unanswered=unanswered,
                left=left,
            )
        )

    def _is_whole(self) -> bool:
        """Return True if all of the body is there, by its framing. Raises MalformedResponse."""
        if self._head is None and not self._parse_head():
            return False
        if self._dechunker is None:
            return self._length is not None and self.size >= self._begins + self._length
        new = self._last(self.size - self._followed)
        before = self._last(min(len(new) + len(_USUAL_END) - 1, self.size - self._begins))
        if new.endswith(_USUAL_END) and before.find(_USUAL_END) == len(before) - len(_USUAL_END):
            return True
        self._followed += len(new)
        self._dechunker.take(0, new, None)
        return self._dechunker.complete

    def _parse_head(self) -> bool:
        """Parse the head. Return False while it is incomplete."""
        raw = self._raw()
        split = split_head(raw)
        if split is None:
            return False
        head, rest = split
        if head.status == 200 and head.coded is not None:
            raise MalformedResponse(f"content-encoding {head.coded[:40]!r}, where identity was requested")
        self._length = head.content_length
        if head.chunked and self._length is None:  # statuses without a body have none in chunks either
            self._dechunker = Dechunker()
            self.notify_on_end = True
        self._head = head  # only now that it is known to be sound: without it there is no body either
        self._begins = self._followed = len(raw) - len(rest)
        return True

    def _raw(self) -> bytes:
        """Return all that has come."""
        if len(self._reads) > 1:
            self._reads[:] = [b"".join(self._reads)]
        return self._reads[0] if self._reads else b""

    def _last(self, count: int) -> bytes:
        """Return the last bytes that came, without joining those before them."""
        reads, first, left = self._reads, len(self._reads), count
        while left > 0 and first:
            first -= 1
            left -= len(reads[first])
        return b"".join(reads[first:])[max(0, -left) :]

    def _progress(self) -> Progress:
        """Return how far the answer has come. Decoding all of a long one would hold up other streams."""
        late = self._marks[-2 * _TAIL_READS :]
        came = self.size - sum(late[1::2])  # before those
        if came > self._begins and self._head is not None and self._length is None:
            tail = RawBody(self._raw()[came:], late, chunked=self._dechunker is not None)
            progress = self._progress_of(tail)  # empty where the tail begins inside a chunk
            if progress.output_ns is not None:
                return progress
        return self._progress_of(self._body())

    def _body(self) -> Iterable[Read]:
        if self._head is None:
            return ()
        return RawBody(self._raw(), self._marks[:], self._begins, self._length, self._dechunker is not None)

    def _ends_with_done(self) -> bool:
        tail = self._last(_NEAR_THE_END)
        if self._dechunker is not None:
            if b"[DONE]" not in tail:
                return False
            tail = b"".join([data for _, data in self._body()][-_NEAR_THE_END:])[-_NEAR_THE_END:]
        return tail.endswith((b"\n\n", b"\r\n\r\n")) and tail.rstrip().endswith(_DONE)


class CancellingExchange(Exchange):
    """A response that its client cancels on purpose: after `after_chunks` chunks of output, or at `at_ns`.

    Every read is parsed. `chunks` counts the chunks with output in a body so far. It decodes all of it, so it is called
    only when there may be enough of them: each contains the bytes `hint`. Without such bytes each byte may be a chunk.
    """

    __slots__ = ("_after", "_cancel_timer", "_chunks", "_hint", "_hinted", "_hints", "_look_at")

    def __init__(
        self,
        limits: Limits,
        progress_of: ProgressOf,
        chunks: Callable[[Iterable[Read]], int],
        *,
        at_ns: int | None,
        after_chunks: int | None,
        hint: bytes,
    ) -> None:
        super().__init__(limits, progress_of)
        self._chunks = chunks
        self._after = self._look_at = after_chunks
        self._hint = hint
        self._hints = 0  # occurrences of the hint, or bytes
        self._hinted = 0  # offset up to which it was searched for
        self._cancel_timer: asyncio.TimerHandle | None = None
        if at_ns is not None:
            left_s = max(0, at_ns - monotonic_ns()) / _NS
            self._cancel_timer = asyncio.get_running_loop().call_later(left_s, self.cancel)

    def parse_available(self) -> None:
        """Parse what has come, and cancel when enough chunks have."""
        super().parse_available()
        self.notify_on_end = False
        if self._after is None or self._look_at is None or self.over.done():
            return
        if self._hint:
            overlap = min(self._hinted, len(self._hint) - 1)
            self._hints += self._last(self.size - self._hinted + overlap).count(self._hint)
            self._hinted = self.size
        else:
            self._hints = self.size
        if self._hints >= self._look_at:
            came = self._chunks(self._body())
            if came >= self._after:
                self.cancel()
            else:
                self._look_at = self._hints + self._after - came

    def cancel_timers(self) -> None:
        """Stop all timers."""
        super().cancel_timers()
        if self._cancel_timer is not None:
            self._cancel_timer.cancel()
