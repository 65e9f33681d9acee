"""One connection of a client: its bytes become requests, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
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

from benchgate.clocks import monotonic_of
from benchgate.errors import UsageError
from benchgate.sim.settings import SimSettings
from benchgate.stamping import ANCILLARY_BYTES, ask_for_stamps, stamp_ns

LARGEST_HEAD_BYTES = 64 * 2**10
LARGEST_BODY_BYTES = 64 * 2**20
LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON_TYPE = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


class BadRequest(Exception):
    """Bytes that are no request; the connection cannot be used any further."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Request:
    """One whole request. Header names are lower case; `path` is without the query."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    http10: bool

    @property
    def keeps_alive(self) -> bool:
        """Whether the client wants the connection to go on."""
        wish = self.headers.get("connection", "").lower()
        return wish == "keep-alive" if self.http10 else wish != "close"


class RequestReader:
    """Fed with reads split anywhere, gives whole requests."""

    def __init__(self) -> None:
        self._pending = b""
        self._head: tuple[list[str], dict[str, str]] | None = None
        self.wants_continue = False  # the client waits for `100 Continue` before it sends the body

    def feed(self, data: bytes) -> None:
        """Take in what was read."""
        self._pending = self._pending + data if self._pending else data

    def next(self) -> Request | None:
        """The next whole request; None while it is still coming. Raises BadRequest."""
        if self._head is None and not self._take_head():
            return None
        assert self._head is not None
        start, headers = self._head
        body = self._take_body(headers)
        if body is None:
            self.wants_continue = headers.get("expect", "").lower() == "100-continue" and not self._pending
            return None
        self._head, self.wants_continue = None, False
        path, _, query = start[1].partition("?")
        return Request(start[0], path, query, headers, body, http10=start[2] == "HTTP/1.0")

    def _take_head(self) -> bool:
        head, end, rest = self._pending.partition(b"\r\n\r\n")
        if not end or len(head) > LARGEST_HEAD_BYTES:
            if len(head) > LARGEST_HEAD_BYTES:
                raise BadRequest(431, f"the head of the request is longer than {LARGEST_HEAD_BYTES} bytes")
            return False
        lines = head.decode("latin-1").lstrip("\r\n").split("\r\n")
        start = lines[0].split(" ")
        if len(start) != 3 or start[2] not in ("HTTP/1.1", "HTTP/1.0"):
            raise BadRequest(400, "the first line is no HTTP/1.1 request line")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self._head, self._pending = (start, headers), rest
        return True

    def _take_body(self, headers: dict[str, str]) -> bytes | None:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._take_chunks()
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise BadRequest(400, "the content-length is no number")
        size = int(length)
        if size > LARGEST_BODY_BYTES:
            raise BadRequest(413, f"the body is longer than {LARGEST_BODY_BYTES} bytes")
        if len(self._pending) < size:
            return None
        body, self._pending = self._pending[:size], self._pending[size:]
        return body

    def _take_chunks(self) -> bytes | None:
        """A chunked body, from its first byte each time: requests are small and mostly come in one read."""
        body, at = b"", 0
        while (end := self._pending.find(b"\r\n", at)) >= 0:
            digits = self._pending[at:end].partition(b";")[0].strip()
            try:
                size = int(digits, 16)
            except ValueError:
                raise BadRequest(400, "a chunk of the body has no size") from None
            if size < 0 or len(body) + size > LARGEST_BODY_BYTES:
                raise BadRequest(413, f"the body is longer than {LARGEST_BODY_BYTES} bytes")
            at = end + 2 + size + 2
            if len(self._pending) < at:
                return None
            body += self._pending[end + 2 : at - 2]
            if size == 0:
                self._pending = self._pending[at:]
                return body
        return None


def head(status: int, *headers: str, version: str = "HTTP/1.1") -> bytes:
    """A response head with these header lines."""
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
    return "\r\n".join([f"{version} {status} {phrase}", *headers, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Data as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(status: int, body: bytes, *headers: str, content_type: str = JSON_TYPE) -> bytes:
    """A whole response with its length declared."""
    return head(status, f"content-type: {content_type}", f"content-length: {len(body)}", *headers) + body


def json_response(status: int, document: object, *headers: str) -> bytes:
    """A whole response with a JSON document."""
    return whole(status, json.dumps(document, separators=(",", ":")).encode(), *headers)


_LONGEST_WAIT_NS = 60_000_000_000


class Arriving:
    """What has arrived at a socket, looked at before it is read. Of no socket, everything comes now."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self._borrow: Callable[[], socket.socket] | None = None
        if sock is not None:
            family, kind, descriptor = sock.family, sock.type, sock.fileno()
            self._borrow = lambda: socket.socket(family, kind, 0, fileno=descriptor)

    def came_ns(self, room: memoryview) -> int:
        """When the last of it did, monotonic; `room` is overwritten. Now, where nothing says so.

        Stamps are of the time of day: where that was set meanwhile by more than anything waits, they say nothing.
        """
        if self._borrow is None:
            return monotonic_ns()
        sock = self._borrow()  # of a descriptor that is the transport's to close
        try:
            _, ancillary, _, _ = sock.recvmsg_into([room], ANCILLARY_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:  # the read after this one will meet it
            ancillary = []
        finally:
            sock.detach()
        now_ns, told_ns = monotonic_ns(), stamp_ns(ancillary)
        came_ns = now_ns if told_ns is None else monotonic_of(told_ns)
        return came_ns if 0 < now_ns - came_ns < _LONGEST_WAIT_NS else now_ns


_MOMENT_NS = 1_000_000  # much shorter ones would serve a single request at a time


class Turns:
    """Serves what has come a moment at a time, in order, so that what comes meanwhile is stamped when it comes.

    What waits here has been received: it waits in the server, and the server's own clock has that in its truth.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._called = False

    def add(self, serve: Callable[[], None]) -> None:
        """Call this when it is its turn, and never at once."""
        self._waiting.append(serve)
        self._call()

    def _call(self) -> None:
        if self._waiting and not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._serve_some)

    def _serve_some(self) -> None:
        self._called = False
        until_ns = monotonic_ns() + _MOMENT_NS
        try:
            while self._waiting and monotonic_ns() < until_ns:
                self._waiting.popleft()()
        finally:
            self._call()


class Leaving(Protocol):
    """What must know when the client of an open request has gone."""

    def abandon(self) -> None:
        """The connection is lost."""


_ROOM = memoryview(bytearray(2**16))  # of all connections: what is read is taken out of it at once

Serve = Callable[[Request, "Connection"], None]
"""Answers one request: at once by `write` and `done`, or later, and then it leaves itself in `reply` meanwhile."""


class Connection(asyncio.BufferedProtocol):
    """Reads requests and keeps the connection alive between them. What is written goes to the kernel at once.

    A request has come when the kernel had it: what it waits in there, it waits in the server.
    """

    def __init__(self, serve: Serve, turns: Turns, connections: set[Connection], keep_alive_s: float | None) -> None:
        self.reply: Leaving | None = None  # the request being answered
        self.received_ns = 0  # when the kernel had the last of what was read
        self.late_writes = 0  # the kernel did not take them whole
        self.write: Callable[[bytes], None] = _nowhere  # the transport's own, without a call between
        self._serve = serve
        self._turns = turns
        self._has_turn = False  # one is to come
        self._connections = connections
        self._keep_alive_s = keep_alive_s
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._arriving = Arriving()
        self._came_ns = 0  # what is about to be read
        self._pumping = False
        self._told_to_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport.set_write_buffer_limits(high=0)  # else uvloop holds a write until its turn is over
        self.write = self._transport.write
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if transport.get_extra_info("sslcontext") is None:  # else it has been read before it is given here
                self._arriving = Arriving(sock)
        self._connections.add(self)
        self._wait_for_request()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read goes; it is asked for when there is something to be read."""
        self._came_ns = self._arriving.came_ns(_ROOM)
        return _ROOM

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes of a request, or of the next one while this one is still being answered."""
        self.received_ns = self._came_ns  # of bytes: an end of the connection is read too
        self._stop_waiting()
        self._reader.feed(bytes(_ROOM[:nbytes]))
        if not self._has_turn:
            self._has_turn = True
            self._turns.add(self._take_turn)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or was sent away."""
        self._stop_waiting()
        self._connections.discard(self)
        self._transport = None
        if self.reply is not None:
            self.reply.abandon()
            self.reply = None

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        self.late_writes += 1

    @property
    def congested(self) -> bool:
        """Whether written bytes still wait for the kernel to take them."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def done(self, *, keep: bool) -> None:
        """The response is written. Go on with the next request, or end the connection in good order."""
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
                self._told_to_continue = False
                self._serve(request, self)
        except BadRequest as error:
            self.write(json_response(error.status, {"detail": str(error)}, "connection: close"))
            self.done(keep=False)
        finally:
            self._pumping = False
        if self.reply is None:
            self._between_requests()

    def _between_requests(self) -> None:
        if self._reader.wants_continue and not self._told_to_continue:
            self._told_to_continue = True
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


def _nowhere(data: bytes) -> None:
    """Where bytes go before there is a connection."""


_BACKLOG = 4096


async def listen(settings: SimSettings, protocol: Callable[[], asyncio.BaseProtocol]) -> tuple[asyncio.Server, str]:
    """Take the address and give its URL; connections are refused until the server is told to start serving.

    Raises UsageError when the address cannot be had or a certificate cannot be used.
    """
    tls = _tls(settings)
    sock, url = _bound_uds(settings.uds) if settings.uds is not None else _bound_tcp(settings, tls)
    with contextlib.suppress(OSError):
        ask_for_stamps(sock)
    loop = asyncio.get_running_loop()
    create = loop.create_server if settings.uds is None else loop.create_unix_server
    server = await create(protocol, sock=sock, ssl=tls, backlog=_BACKLOG, start_serving=False)
    if not settings.ready_after_s:
        await server.start_serving()
    return server, url


def raise_file_limit() -> None:
    """Allow as many open connections as the system does."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS knows a lower limit of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _bound_tcp(settings: SimSettings, tls: ssl.SSLContext | None) -> tuple[socket.socket, str]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise UsageError(f"cannot listen on {settings.host} port {settings.port}: {reason}; try --port 0") from error
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return sock, f"{'http' if tls is None else 'https'}://{host}:{sock.getsockname()[1]}"


def _bound_uds(path: str) -> tuple[socket.socket, str]:
    """A socket file left by a server that is gone is replaced; one that answers is somebody's."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).is_socket() and not _answers(path):
            Path(path).unlink()
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise UsageError(f"cannot listen on the socket {path}: {error.strerror or error}") from error
    return sock, f"unix:{Path(path).resolve()}"


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def _tls(settings: SimSettings) -> ssl.SSLContext | None:
    if settings.cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.cert, settings.key)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        named = f"{settings.cert}, {settings.key}" + (f", {settings.client_ca}" if settings.client_ca else "")
        raise UsageError(f"a certificate cannot be used ({named}): {error}") from error
    return context
