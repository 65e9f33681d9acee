"""One request's response as it is gathered: when it has ended, and when waiting for it must end.

An exchange whose client goes away on purpose: after so many chunks of output, or at an instant.
"""

from __future__ import annotations

import asyncio
import ssl
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic_ns
from typing import NamedTuple

from benchgate.load.decode.body import RawBody, Read
from benchgate.load.http.parser import Dechunker, Head, MalformedResponse, split_head
from benchgate.model.records import ErrorClass
from benchgate.suite.schema import Limits
from benchgate.targets.route import tls_fault

LARGEST_RESPONSE_BYTES = 64 * 2**20

_ENDINGS = (b"\r\n\r\n", b"[DONE]\n\n\r\n", b"[DONE]\n\n")
"""What a chunked response ends with, whole or but for the end of its framing."""

LAST_CHUNK = b"0\r\n\r\n"
_LAST_CHUNK_INSIDE = b"\r\n" + LAST_CHUNK
_SHORT_BYTES = 16  # a read of fewer bytes may be the second half of what ends a response

_WHOLE = b"[DONE]\n\n\r\n0\r\n\r\n"
"""What nearly every stream in chunks ends with, and nothing else that a server says. Taken at its word while the stage
runs, where following the chunks would hold up other streams; checked when the body is read (`RawBody.flaw`)."""

IN_FLOW = b"}\n\n\r\n"
"""What an event ends with that is a JSON object and all that there is in its chunk: no response ends with it."""

_DONE = (b"data: [DONE]", b"data:[DONE]")
_NEAR_THE_END = 64  # bytes
_LINGER_S = 0.05  # how long the end of the body may trail `[DONE]`: a server shutting down holds it for seconds
_NS = 1_000_000_000

_TAIL_READS = 32  # of a stream under way one of the last reads brought output, and the others need no look


class Heard(NamedTuple):
    """How far an answer has come: when its last output so far did, if any has, and whether its finish reason has."""

    output_ns: int | None = None
    finished: bool = False


Hear = Callable[[Iterable[Read]], Heard]
"""Tells it from a body so far, or from the end of one. Asked only when a time limit may have passed."""


def may_end(data: bytes) -> bool:
    """Whether what was read may hold the end of a response in chunks: only that is worth a look."""
    if _LAST_CHUNK_INSIDE in data or data.startswith(LAST_CHUNK):  # whatever follows it
        return True
    return not data.endswith(IN_FLOW) and (data.endswith(_ENDINGS) or len(data) < _SHORT_BYTES)


class Fault(NamedTuple):
    """Why an exchange did not end as it should, as far as the wire can tell."""

    error: ErrorClass
    detail: str


@dataclass(frozen=True, slots=True)
class Response:
    """All that came back for one request, still undecoded; instants are of the monotonic clock, in ns.

    `sent_ns` is None when no byte was sent; `head` is None when none came whole. `body` has its chunk framing
    removed. `whole`: the body ended as its framing said it would. `fault` says why it did not; it is None too when
    the stream said `[DONE]` and the end of the body then failed to come. `over_ns` is when the client was free again.
    """

    sent_ns: int | None
    over_ns: int
    head: Head | None = None
    body: Iterable[Read] = ()
    whole: bool = False
    fault: Fault | None = None
    unanswered: bool = False  # the connection was closed before the first byte of a response
    reconnects: int = 0
    left: bool = False  # by us, before its end and on purpose
    connecting_ns: int | None = None  # for how long its connection was being opened, where it had to be

    @classmethod
    def unsent(cls, fault: Fault | None, *, left: bool = False) -> Response:
        """A request that never reached a wire."""
        return cls(sent_ns=None, over_ns=monotonic_ns(), fault=fault, left=left)

    @property
    def reusable(self) -> bool:
        """Whether the connection it came over can carry another request."""
        return self.whole and self.head is not None and self.head.keeps_alive


def nothing() -> None:
    """What there is to be fetched where every read is handed over at once."""


class Exchange:
    """A response under way. `over` is its future; nothing here raises into the event loop.

    Who reads keeps the bytes, marks their instant and how many they are, and calls `look` when they may be the last:
    any may, until the response is `trusted` to end as streams in chunks do. Only the framing is followed here. A time
    limit may have passed at `check_ns`: then `check_limits` is to be called, and no timer is needed before.
    """

    __slots__ = (
        "_begins", "_dechunker", "_followed", "_head", "_hear", "_length", "_limits", "_linger", "_loop", "_marks",
        "_over_reads", "_reads", "_size", "_sized", "check_ns", "fetch", "keep", "mark", "over", "sent_ns", "trusted",
        "unweighed",
    )  # fmt: skip  # read several times for every read of a socket

    def __init__(self, limits: Limits, hear: Hear) -> None:
        loop = asyncio.get_running_loop()
        self._reads: list[bytes] = []  # a buffer that grows with every read would be moved again and again
        self.keep = self._reads.append
        self._marks = array("q")  # instant and size of each read, one after the other
        self.mark = self._marks.append
        self._size = 0
        self._sized = 0  # how many marks are in it
        self._over_reads: int | None = None  # how many were kept when the response was over
        self.unweighed = 0  # bytes since `weigh`, for the one that reads
        self.fetch: Callable[[], None] = nothing  # has whoever reads hand over what it still holds
        self.trusted = False  # only what may be the end is worth a look: not until the body is in chunks
        self.sent_ns = monotonic_ns()
        self.over: asyncio.Future[Response] = loop.create_future()
        self._loop = loop
        self._limits = limits
        self._hear = hear
        self._head: Head | None = None
        self._begins = 0  # where in all that came the body does
        self._length: int | None = None  # of the body, where it is declared
        self._dechunker: Dechunker | None = None
        self._followed = 0  # how much of it the dechunker has seen
        self._linger: asyncio.TimerHandle | None = None
        self.check_ns = self.sent_ns + int(min(limits.first_token_s, limits.stall_s, limits.total_s) * _NS)

    def look(self) -> None:
        """Take apart what has come; finish when that was all of it."""
        self.fetch()
        if self.over.done():
            return
        try:
            whole = self._is_whole()
        except MalformedResponse as exc:
            self._finish(Fault(ErrorClass.PROTOCOL, str(exc)))
            return
        if whole:
            self._finish(None, whole=True)
        elif self.size > LARGEST_RESPONSE_BYTES:
            self._finish(Fault(ErrorClass.PROTOCOL, f"the response is longer than {LARGEST_RESPONSE_BYTES} bytes"))
        elif self._linger is None and self._said_done():
            self._linger = self._loop.call_later(_LINGER_S, self._finish, None)

    def take(self, raw: bytes, marks: bytes) -> None:
        """Keep several reads at once: all their bytes, and the marks of each as the memory of an array has them."""
        self._reads.append(raw)
        self._marks.frombytes(marks)

    def lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.look()
        if self.over.done():
            return
        ends_with_connection = self._head is not None and self._length is None and self._dechunker is None
        if ends_with_connection and exc is None:
            self._finish(None, whole=True)
            return
        if isinstance(exc, ssl.SSLError):  # with TLS 1.3, a refusal of our certificate is read after the handshake
            self._finish(Fault(ErrorClass.TLS, tls_fault(exc)))
            return
        how = "reset" if isinstance(exc, ConnectionResetError) else "closed"
        when = "in the middle of the response" if self.size else "before any answer"
        detail = f"the server {how} the connection {when}"
        self._finish(Fault(ErrorClass.STREAM_BROKEN, detail), unanswered=not self.size)

    @property
    def size(self) -> int:
        """How many bytes came."""
        self._size += sum(self._marks[self._sized + 1 :: 2])
        self._sized = len(self._marks)
        return self._size

    def weigh(self, longest_read_bytes: int) -> None:
        """End a response that has become too long; to be called now and then where nobody looks at its reads."""
        self.unweighed = 0
        reads = (len(self._marks) - self._sized) // 2
        if self._size + reads * longest_read_bytes > LARGEST_RESPONSE_BYTES and self.size > LARGEST_RESPONSE_BYTES:
            self.look()

    def check_limits(self) -> None:
        """End the wait when a limit has passed, else look again when the next one may have.

        Silence is the absence of output, whatever a server says to keep the connection: comments, events without a
        text. Once it has said why it ended, only the absence of bytes is.
        """
        self.look()
        if self.over.done():
            return
        heard = self._heard()
        limits = self._limits
        expected = [(self.sent_ns + int(limits.total_s * _NS), f"not over within {limits.total_s:g} s")]
        if heard.output_ns is not None:
            what = "nothing more came" if heard.finished else "no further output came"
            stalled = f"{what} for {limits.stall_s:g} s in the middle of the response"
            last_ns = self._marks[-2] if heard.finished else heard.output_ns
            expected.append((last_ns + int(limits.stall_s * _NS), stalled))
        else:
            silent = f"no output within {limits.first_token_s:g} s"
            expected.append((self.sent_ns + int(limits.first_token_s * _NS), silent))
        deadline_ns, detail = min(expected)
        left_s = (deadline_ns - monotonic_ns()) / _NS
        if left_s <= 0:
            self._finish(Fault(ErrorClass.TIMEOUT, detail))
        else:
            # output may begin at any time from here, and a stall in it would be over unseen at a later look
            again_s = left_s if heard.output_ns is not None else min(left_s, limits.stall_s)
            self.check_ns = monotonic_ns() + int(again_s * _NS)

    @property
    def surplus(self) -> bool:
        """Whether bytes came after the end of the response: the next one on this connection would begin with them."""
        if self._dechunker is not None:
            return self._dechunker.surplus or len(self._reads) != self._over_reads
        return self._length is not None and self.size > self._begins + self._length

    def leave(self) -> None:
        """The client goes away on purpose: over, with what came until now."""
        self._finish(None, left=True)

    def forget(self) -> None:
        """Stop all timers."""
        if self._linger is not None:
            self._linger.cancel()

    def _finish(
        self, fault: Fault | None, *, whole: bool = False, unanswered: bool = False, left: bool = False
    ) -> None:
        if self.over.done():
            return
        over_ns = monotonic_ns()
        self.fetch()
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
        """Whether all of the body is there, as its framing has it. Raises MalformedResponse."""
        if self._head is None and not self._take_head():
            return False
        if self._dechunker is not None:
            raw = self._raw()
            if raw.endswith(_WHOLE) and raw.find(_WHOLE) == len(raw) - len(_WHOLE):
                return True
            new = raw[self._followed :]
            self._followed += len(new)
            self._dechunker.take(0, new, None)
            return self._dechunker.complete
        return self._length is not None and self.size >= self._begins + self._length

    def _take_head(self) -> bool:
        """Read the head; True when it was there."""
        raw = self._raw()
        split = split_head(raw)
        if split is None:
            return False
        head, rest = split
        if head.status == 200 and head.coded is not None:
            raise MalformedResponse(f"content-encoding {head.coded[:40]!r}, where identity was asked for")
        self._length = head.content_length
        if head.chunked:
            self._dechunker = Dechunker()
            self.trusted = True
        self._head = head  # now that it is known to be sound: without it there is no body either
        self._begins = self._followed = len(raw) - len(rest)
        return True

    def _raw(self) -> bytes:
        """All that has come."""
        if len(self._reads) > 1:
            self._reads[:] = [b"".join(self._reads)]
        return self._reads[0] if self._reads else b""

    def _last(self, count: int) -> bytes:
        """The last bytes that came; what came before them is not put together."""
        parts: list[bytes] = []
        for read in reversed(self._reads):
            parts.append(read[-count:])
            count -= len(parts[-1])
            if count <= 0:
                break
        return b"".join(reversed(parts))

    def _heard(self) -> Heard:
        """How far the answer has come. The whole of a long one would take as long to read as many reads of others."""
        late = self._marks[-2 * _TAIL_READS :]
        came = self.size - sum(late[1::2])  # before those
        if came > self._begins and self._head is not None and self._length is None:
            tail = RawBody(self._raw()[came:], late, chunked=self._dechunker is not None)
            heard = self._hear(tail)  # nothing where it begins inside of a chunk
            if heard.output_ns is not None:
                return heard
        return self._hear(self._body())

    def _body(self) -> Iterable[Read]:
        if self._head is None:
            return ()
        return RawBody(self._raw(), self._marks[:], self._begins, self._length, self._dechunker is not None)

    def _said_done(self) -> bool:
        tail = self._last(_NEAR_THE_END)
        if self._dechunker is None:
            return _ends_with_done(tail)
        if b"[DONE]" not in tail:
            return False
        tail = b"".join([data for _, data in self._body()][-_NEAR_THE_END:])[-_NEAR_THE_END:]
        return _ends_with_done(tail)


def _ends_with_done(tail: bytes) -> bool:
    return tail.endswith((b"\n\n", b"\r\n\r\n")) and tail.rstrip().endswith(_DONE)


_HINT = b"data:"  # every chunk of a stream has it, though not all that has it is one


class LeavingExchange(Exchange):
    """Looks at every read, as no other exchange does: it must know what has come while it is coming.

    `chunks` counts those with output in a body so far. It reads all of it, so it is asked only when there may be
    enough of them.
    """

    __slots__ = ("_after", "_chunks", "_hinted", "_hints", "_leave_timer", "_look_at")

    def __init__(
        self,
        limits: Limits,
        hear: Hear,
        chunks: Callable[[Iterable[Read]], int],
        *,
        at_ns: int | None,
        after_chunks: int | None,
    ) -> None:
        super().__init__(limits, hear)
        self._chunks = chunks
        self._after = self._look_at = after_chunks
        self._hints = 0  # how often the hint came
        self._hinted = 0  # up to this size
        self._leave_timer: asyncio.TimerHandle | None = None
        if at_ns is not None:
            left_s = max(0, at_ns - monotonic_ns()) / _NS
            self._leave_timer = asyncio.get_running_loop().call_later(left_s, self.leave)

    def look(self) -> None:
        """As ever, and leave when enough has come."""
        super().look()
        self.trusted = False  # look at the next one too
        if self._after is None or self._look_at is None or self.over.done():
            return
        begin = max(0, self._hinted - len(_HINT) + 1)
        self._hints += self._raw().count(_HINT, begin)
        self._hinted = self.size
        if self._hints >= self._look_at:
            came = self._chunks(self._body())
            if came >= self._after:
                self.leave()
            else:
                self._look_at = self._hints + self._after - came

    def forget(self) -> None:
        """Stop all timers."""
        super().forget()
        if self._leave_timer is not None:
            self._leave_timer.cancel()
