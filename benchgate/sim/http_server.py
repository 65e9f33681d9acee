"""HTTP/1.1 server: requests out of bytes with the instant at which the kernel had them, connections, listener, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from time import monotonic_ns
from typing import Protocol, cast

from benchgate.errors import UsageError
from benchgate.sim.settings import ListenAddress
from benchgate.timestamps import ANCILLARY_BYTES, ask_for_stamps, monotonic_of, stamp_ns

LARGEST_HEAD_BYTES = 64 * 2**10
LARGEST_BODY_BYTES = 64 * 2**20
_MOST_DIGITS = 16
_LONGEST_LINE_BYTES = 8 * 2**10  # of a chunk's size or a trailer
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON_TYPE = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"


class BadRequest(Exception):
    """Malformed bytes; the connection cannot be used any further."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request. Header names are lower case; `path` is without the query."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        """Return True if the client wants to keep the connection."""
        return self.headers.get("connection", "").lower() != "close"


class RequestReader:
    """Incremental parser of requests; reads may be split anywhere."""

    def __init__(self) -> None:
        self.wants_continue = False  # the client waits for `100 Continue` before it sends the body
        self._pending = bytearray()
        self._head: tuple[list[str], dict[str, str]] | None = None
        self._chunks = bytearray()  # of a chunked body, decoded so far
        self._in_trailer = False

    def feed(self, data: bytes) -> None:
        """Add bytes that were read."""
        self._pending += data

    def next(self) -> Request | None:
        """Return the next whole request; None while it is still coming. Raises BadRequest."""
        if self._head is None:
            self._head = self._take_head()
            if self._head is None:
                return None
        start, headers = self._head
        body = self._take_body(headers)
        if body is None:
            self.wants_continue = headers.get("expect", "").lower() == "100-continue" and not self._pending
            return None
        self._head, self.wants_continue = None, False
        path, _, query = start[1].partition("?")
        return Request(start[0], path, query, headers, body)

    def _take_head(self) -> tuple[list[str], dict[str, str]] | None:
        end = self._pending.find(b"\r\n\r\n", 0, LARGEST_HEAD_BYTES + 4)
        if end < 0:
            if len(self._pending) > LARGEST_HEAD_BYTES:
                raise BadRequest(431, f"the head of the request is longer than {LARGEST_HEAD_BYTES} bytes")
            return None
        lines = self._take(end, 4).decode("latin-1").lstrip("\r\n").split("\r\n")
        start = lines[0].split(" ")
        if len(start) != 3 or start[2] != "HTTP/1.1":
            raise BadRequest(400, "the first line is no HTTP/1.1 request line")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return start, headers

    def _take(self, size: int, separator: int = 0) -> bytes:
        taken = bytes(self._pending[:size])
        del self._pending[: size + separator]
        return taken

    def _take_body(self, headers: dict[str, str]) -> bytes | None:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._take_chunks()
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise BadRequest(400, "the content-length is no number")
        size = int(length[:_MOST_DIGITS])  # more of them are beyond any limit, and may be too many for `int`
        if size > LARGEST_BODY_BYTES or len(length) > _MOST_DIGITS:
            raise BadRequest(413, f"the body is longer than {LARGEST_BODY_BYTES} bytes")
        return self._take(size) if len(self._pending) >= size else None

    def _take_chunks(self) -> bytes | None:
        """Decode the chunks that have come whole; return the body once its trailer is over."""
        while not self._in_trailer:
            end = self._line_end()
            if end is None:
                return None
            digits = self._pending[:end].partition(b";")[0].rstrip()
            if _CHUNK_SIZE.fullmatch(digits) is None:
                raise BadRequest(400, "a chunk of the body has no hexadecimal size")
            size = int(digits, 16)
            if len(self._chunks) + size > LARGEST_BODY_BYTES:
                raise BadRequest(413, f"the body is longer than {LARGEST_BODY_BYTES} bytes")
            if size and len(self._pending) < end + 2 + size + 2:
                return None
            del self._pending[: end + 2]
            if size == 0:
                self._in_trailer = True
            elif self._pending[size : size + 2] == b"\r\n":
                self._chunks += self._take(size, 2)
            else:
                raise BadRequest(400, "a chunk of the body is longer than its size")
        while (end := self._line_end()) is not None:
            del self._pending[: end + 2]
            if end == 0:
                body, self._chunks, self._in_trailer = bytes(self._chunks), bytearray(), False
                return body
        return None

    def _line_end(self) -> int | None:
        """Return where the first line ends; None while it is still coming. Raises BadRequest when it is too long."""
        end = self._pending.find(b"\r\n", 0, _LONGEST_LINE_BYTES)
        if end < 0 and len(self._pending) >= _LONGEST_LINE_BYTES:
            raise BadRequest(400, f"a line of the chunked body is longer than {_LONGEST_LINE_BYTES} bytes")
        return None if end < 0 else end


def head(status: int, *headers: str) -> bytes:
    """Return a response head with these header lines."""
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
    return "\r\n".join([f"HTTP/1.1 {status} {phrase}", *headers, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Frame data as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(status: int, body: bytes, *headers: str, content_type: str = JSON_TYPE) -> bytes:
    """Return a whole response with its length declared."""
    return head(status, f"content-type: {content_type}", f"content-length: {len(body)}", *headers) + body


def json_response(status: int, document: object, *headers: str) -> bytes:
    """Return a whole response with a JSON document."""
    return whole(status, json.dumps(document, separators=(",", ":")).encode(), *headers)


_LONGEST_WAIT_NS = 60_000_000_000


class ArrivalClock:
    """Arrival times at a socket, read from the kernel before the bytes; without a socket everything arrives now."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self._borrow: Callable[[], socket.socket] | None = None
        if sock is not None:
            family, kind, descriptor = sock.family, sock.type, sock.fileno()
            self._borrow = lambda: socket.socket(family, kind, 0, fileno=descriptor)

    def came_ns(self, room: memoryview) -> int:
        """Return when the last unread byte came, in monotonic ns (now without a sane stamp). Overwrites `room`."""
        if self._borrow is None:
            return monotonic_ns()
        sock = self._borrow()  # of a descriptor that is the transport's to close
        try:
            _, ancillary, _, _ = sock.recvmsg_into([room], ANCILLARY_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:  # the read after this one will meet it
            ancillary = []
        finally:
            sock.detach()
        now_ns, stamp = monotonic_ns(), stamp_ns(ancillary)
        came_ns = now_ns if stamp is None else monotonic_of(stamp)
        return came_ns if 0 < now_ns - came_ns < _LONGEST_WAIT_NS else now_ns


_MOMENT_NS = 1_000_000  # much shorter ones would serve a single request at a time


class FairQueue:
    """Serves queued requests for 1 ms per loop turn, so that new arrivals are timestamped promptly."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def add(self, serve: Callable[[], None]) -> None:
        """Call `serve` when it is its turn, and never at once."""
        self._waiting.append(serve)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve_some)

    def _serve_some(self) -> None:
        self._scheduled = False
        until_ns = monotonic_ns() + _MOMENT_NS
        try:
            while self._waiting and monotonic_ns() < until_ns:
                self._waiting.popleft()()
        finally:
            self._schedule()


class OpenReply(Protocol):
    """Reply that must know when its client has gone."""

    def abandon(self) -> None:
        """Give up: the connection is lost."""


class Line(Protocol):
    """Receiver of the bytes of a response: a connection, or a call over gRPC."""

    reply: OpenReply | None  # the request being answered
    received_ns: int
    late_writes: int

    @property
    def write(self) -> Callable[[bytes], None]:
        """Return the function that takes bytes of the response."""

    @property
    def congested(self) -> bool:
        """Return True while written bytes wait for the kernel."""

    def done(self, *, keep: bool) -> None:
        """End the response."""

    def reset(self) -> None:
        """Break off the response, as a connection breaks."""


_ROOM = memoryview(bytearray(2**16))  # of all connections: what is read is taken out of it at once

# Answers one request: at once by `write` and `done`, or later, and then it leaves itself in `reply` meanwhile.
Serve = Callable[[Request, "Connection"], None]


class Connection(asyncio.BufferedProtocol):
    """A connection: reads requests one at a time, each received when the kernel had it, and writes at once."""

    def __init__(
        self,
        serve: Serve,
        turns: FairQueue,
        connections: set[Connection],
        keep_alive_s: float | None,
        http2: Callable[[asyncio.Transport, bytes], None] | None = None,
    ) -> None:
        self.reply: OpenReply | None = None  # the request being answered
        self.received_ns = 0  # when the kernel had the last of what was read
        self.late_writes = 0  # the kernel did not take them whole
        self.write: Callable[[bytes], None] = nowhere  # the transport's own, without a call between
        self._serve = serve
        self._turns = turns
        self._has_turn = False  # one is to come
        self._connections = connections
        self._keep_alive_s = keep_alive_s
        self._http2 = http2  # takes a connection over that begins like HTTP/2; None once it does not
        self._opening = b""  # a part of how that begins
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._arriving = ArrivalClock()
        self._came_ns = 0  # what is about to be read
        self._pumping = False
        self._sent_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Prepare the socket of a new client."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport.set_write_buffer_limits(high=0)  # else uvloop holds a write until its turn is over
        self.write = self._transport.write
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if transport.get_extra_info("sslcontext") is None:  # else it has been read before it is given here
                self._arriving = ArrivalClock(sock)
        self._connections.add(self)
        self._wait_for_request()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer of the next read; called when there is something to be read."""
        self._came_ns = self._arriving.came_ns(_ROOM)
        return _ROOM

    def buffer_updated(self, nbytes: int) -> None:
        """Add bytes of a request, or of the next one while this one is still being answered."""
        self.received_ns = self._came_ns  # of bytes: an end of the connection is read too
        self._stop_waiting()
        data = bytes(_ROOM[:nbytes])
        if self._http2 is not None and self._transport is not None:
            data = self._opening + data
            if data.startswith(PREFACE):
                transport, self._transport = self._transport, None
                self._connections.discard(self)
                self._http2(transport, data)
                return
            if PREFACE.startswith(data):
                self._opening = data
                return
            self._http2 = None
        self._reader.feed(data)
        if not self._has_turn:
            self._has_turn = True
            self._turns.add(self._take_turn)

    def connection_lost(self, exc: Exception | None) -> None:
        """Abandon the open reply: the client has gone."""
        self._stop_waiting()
        self._connections.discard(self)
        self._transport = None
        if self.reply is not None:
            self.reply.abandon()
            self.reply = None

    def pause_writing(self) -> None:
        """Count a write that the client's kernel did not take whole."""
        self.late_writes += 1

    @property
    def congested(self) -> bool:
        """Return True while written bytes wait for the kernel."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def done(self, *, keep: bool) -> None:
        """Continue with the next request after a written response, or close the connection."""
        self.reply = None
        if keep:
            self._pump()
        elif self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """End the connection with a TCP reset: what the client has not read yet may be lost."""
        self.reply = None
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            if sock is not None and sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def _take_turn(self) -> None:
        self._has_turn = False
        if self._transport is not None:
            self._pump()

    def _pump(self) -> None:
        """Serve what has come whole, one request after the other, without growing the stack."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self.reply is None and self._transport is not None and not self._transport.is_closing():
                request = self._reader.next()
                if request is None:
                    break
                self._sent_continue = False
                self._serve(request, self)
        except BadRequest as error:
            self.write(json_response(error.status, {"detail": str(error)}, "connection: close"))
            self.done(keep=False)
        finally:
            self._pumping = False
        if self.reply is None:
            if self._reader.wants_continue and not self._sent_continue:
                self._sent_continue = True
                self.write(CONTINUE)
            self._wait_for_request()

    def _wait_for_request(self) -> None:
        if self._keep_alive_s is not None and self._transport is not None and not self._transport.is_closing():
            self._stop_waiting()
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._keep_alive_s, self._transport.close)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


def nowhere(data: bytes) -> None:
    """Write nothing: the connection is gone, or not there yet."""


PREFACE = b"PRI * HTTP/2.0\r\n"
_BACKLOG = 4096


async def listen(address: ListenAddress, protocol: Callable[[], asyncio.BaseProtocol]) -> tuple[asyncio.Server, str]:
    """Bind the address and return the server, not yet serving, and its URL. Raises UsageError."""
    tls = _tls(address)
    sock, url = _bound_uds(address.uds) if address.uds is not None else _bound_tcp(address, tls)
    with contextlib.suppress(OSError):
        ask_for_stamps(sock)
    loop = asyncio.get_running_loop()
    create = loop.create_server if address.uds is None else loop.create_unix_server
    server = await create(protocol, sock=sock, ssl=tls, backlog=_BACKLOG, start_serving=False)
    return server, url


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS knows a lower limit of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _bound_tcp(address: ListenAddress, tls: ssl.SSLContext | None) -> tuple[socket.socket, str]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address.host, address.port))
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise UsageError(f"cannot listen on {address.host} port {address.port}: {reason}; try --port 0") from error
    host = f"[{address.host}]" if ":" in address.host else address.host
    return sock, f"{'http' if tls is None else 'https'}://{host}:{sock.getsockname()[1]}"


def _bound_uds(path: str) -> tuple[socket.socket, str]:
    """Bind a socket file: one left by a dead server is replaced, one that answers is refused."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if Path(path).is_socket() and probe.connect_ex(path) != 0:
                Path(path).unlink()
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise UsageError(f"cannot listen on the socket {path}: {error.strerror or error}") from error
    return sock, f"unix:{Path(path).resolve()}"


def _tls(address: ListenAddress) -> ssl.SSLContext | None:
    if address.cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(address.cert, address.key)
        if address.client_ca is not None:
            context.load_verify_locations(address.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        named = f"{address.cert}, {address.key}" + (f", {address.client_ca}" if address.client_ca else "")
        raise UsageError(f"a certificate cannot be used ({named}): {error}") from error
    return context
