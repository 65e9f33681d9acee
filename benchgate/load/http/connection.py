"""An HTTP/1.1 connection: address, connect, proxy tunnel, TLS, requests out, timestamped bytes in.

Work done on the event loop for each read is a delay that the client would report as the server's. So a read is
timestamped and kept, and parsed only when it may end the response. It is decoded after the stage (`decode`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from time import monotonic_ns
from typing import TypeVar, cast

from benchgate.load.http.exchange import (
    EVENT_END,
    LAST_CHUNK,
    OWN_ERRNOS,
    Exchange,
    Failure,
    Response,
    do_nothing,
    may_end,
)
from benchgate.load.http.parser import Head, MalformedResponse, split_head
from benchgate.load.http.reader import CLOSED, DATA, Reader
from benchgate.model.records import ErrorClass
from benchgate.targets.address import DIRECT, Route, ServerAddress, tls_context, tls_fault
from benchgate.timestamps import ask_for_stamps

_NS = 1_000_000_000
_SOON_S = 0.001  # the loop's timers go by whole milliseconds
_FEW = 64  # that are forgotten, and stay until their instant comes

Check = Callable[[], None]
"""Looks, and asks to be called again if need be."""


class Due:
    """A scheduled call."""

    __slots__ = ("at_ns", "check")

    def __init__(self, at_ns: int, check: Check) -> None:
        self.at_ns = at_ns
        self.check: Check | None = check  # None: nobody is to be called


class Deadlines:
    """Schedules checks with a single timer of the loop: most checks are cancelled long before they are due.

    To be used inside one running loop, and closed there.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Due]] = []  # a heap, by instant and then by who came first
        self._forgotten = 0  # of those waiting
        self._came = count()
        self._timer: asyncio.TimerHandle | None = None

    def check_at(self, instant_ns: int, check: Check) -> Due:
        """Call `check` at this instant, never before; later by a millisecond, and by what keeps the loop busy."""
        due = Due(instant_ns, check)
        heappush(self._waiting, (instant_ns, next(self._came), due))
        if self._waiting[0][2] is due:
            self._set()
        return due

    def forget(self, due: Due) -> None:
        """Call nobody after all, and keep nothing of who was to be called."""
        if due.check is None:
            return
        due.check = None
        self._forgotten += 1
        if self._forgotten > _FEW and 2 * self._forgotten > len(self._waiting):
            self._waiting = [one for one in self._waiting if one[2].check is not None]
            heapify(self._waiting)
            self._forgotten = 0

    def close(self) -> None:
        """Call nobody any more."""
        self._waiting.clear()
        self._set()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._waiting:
            left_s = max(_SOON_S, (self._waiting[0][0] - monotonic_ns()) / _NS)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._ring)

    def _ring(self) -> None:
        now_ns = monotonic_ns()
        try:
            while self._waiting and self._waiting[0][0] <= now_ns:
                due = heappop(self._waiting)[2]
                check, due.check = due.check, None
                if check is None:
                    self._forgotten -= 1
                else:
                    check()
        finally:  # whatever went wrong with one, the others have theirs
            self._set()


@dataclass(slots=True, eq=False)
class Peers:
    """Addresses of a server, or of the proxy before it: those that DNS answered, and those of its connections."""

    resolved: set[str] = field(default_factory=set)
    connected: set[str] = field(default_factory=set)


_Protocol = TypeVar("_Protocol", bound=asyncio.Protocol)


async def _reach(
    fresh: Callable[[], _Protocol], host: str, port: int, peers: Peers, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.Transport, _Protocol]:
    """Connect to the first address of a host that accepts, as `create_connection` does, and note the addresses."""
    loop = asyncio.get_running_loop()
    answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    peers.resolved.update(str(answer[4][0]) for answer in answers)
    refusals: list[OSError] = []
    for address in dict.fromkeys(str(answer[4][0]) for answer in answers):
        try:
            found = await loop.create_connection(fresh, address, port, ssl=tls, server_hostname=host if tls else None)
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
            raise  # it had been accepted
        except OSError as refusal:
            refusals.append(refusal)
        else:
            peers.connected.add(address)
            return found
    if len({str(refusal) for refusal in refusals}) == 1:
        raise refusals[0]
    raise OSError(f"Multiple exceptions: {', '.join(map(str, refusals))}")


class TunnelRefused(Exception):
    """The proxy did not open a way to the server."""


async def open_tunnel(proxy_host: str, proxy_port: int, server: str, peers: Peers) -> asyncio.Transport:
    """A transport on which the server is spoken to; `server` is its host and port, as CONNECT names it.

    Raises TunnelRefused with the proxy's status, and OSError when the proxy itself is not there. The proxy gets
    nothing but `server`.
    """
    transport, asking = await _reach(_Asking, proxy_host, proxy_port, peers)
    try:
        transport.write(f"CONNECT {server} HTTP/1.1\r\nhost: {server}\r\nuser-agent: benchgate\r\n\r\n".encode())
        head, rest = await asking.answer
        if not 200 <= head.status < 300:
            raise TunnelRefused(f"the proxy answered HTTP {head.status} to the request for a way to the server")
        if rest:
            raise TunnelRefused("the proxy sent bytes of its own after it opened a way to the server")
    except BaseException:
        transport.abort()
        raise
    return transport


class _Asking(asyncio.Protocol):
    """Waits for the head of the proxy's answer, which is all that comes before the first request to the server."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[Head, bytes]] = asyncio.get_running_loop().create_future()
        self._raw = b""

    def data_received(self, data: bytes) -> None:
        self._raw += data
        try:
            split = split_head(self._raw)
        except MalformedResponse as exc:
            self._fail(f"the proxy does not speak HTTP/1.1: {exc}")
            return
        if split is not None and not self.answer.done():
            self.answer.set_result(split)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the proxy closed the connection before it opened a way to the server")

    def _fail(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(TunnelRefused(reason))


Port = tuple[str, int]
"""Host and port."""

_TIMEOUT_NOTICES = (b"HTTP/1.1 408", b"HTTP/1.0 408")  # of a server that closes an idle connection
_CHECKED_EVERY_BYTES = 2**20  # of a response whose reads are not parsed
_BACKLOG_PAUSE_S = 0.001


class ConnectFailed(Exception):
    """A connection could not be opened."""

    def __init__(self, fault: Failure) -> None:
        self.fault = fault
        super().__init__(fault.detail)


@dataclass(frozen=True, slots=True)
class Address:
    """The host, port and route of a target. `prefix` is the path of its base URL, without a trailing slash.

    Made in the process that connects: a TLS context cannot be passed to another one.
    """

    host: str
    port: int
    prefix: str
    host_header: str
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    socket: str | None = None  # the path of a Unix socket, instead of host and port
    proxy: Port | None = None

    @classmethod
    def of(cls, url: str, route: Route = DIRECT) -> Address:
        """Return the address of a base URL. Raises TargetError, which does not repeat it, and UsageError for files."""
        server = ServerAddress.of(url)
        tls = tls_context(route) if server.scheme == "https" else None
        way = None if route.proxy is None else ServerAddress.of(route.proxy)
        proxy = None if way is None else (way.host, way.tcp_port)
        return cls(server.host, server.tcp_port, server.prefix, server.netloc, tls, server.socket, proxy)


class Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time. Never waits or retries on its own.

    Its socket is read by the compiled reader once `read_by` was called, else by the transport.
    """

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        self._deadlines = deadlines or Deadlines()
        self._due: Due | None = None  # the next check of time limits
        self._transport: asyncio.Transport | None = None
        self._reader: Reader | None = None
        self._descriptor = -1
        self._exchange: Exchange | None = None
        self._lost: Exception | None = None  # the error that closed it
        self._lost_ns: int | None = None
        self.free_since_ns = monotonic_ns()  # when it was opened, or the exchange before was over
        self.has_served = False  # a whole response came over it before
        self.has_answered = False  # and the last one had status 200
        self.received_unasked = False  # data came without a request under way, and it was no timeout notice

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Prepare the open socket."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport.set_write_buffer_limits(high=0)  # else uvloop holds a write until its turn is over
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read_by(self, reader: Reader) -> None:
        """Have the compiled reader read this plain socket instead of the transport."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if self._transport is None or sock is None:
            return
        if reader.delays is not None:
            ask_for_stamps(sock)
        if reader.attach(sock.fileno(), self):
            self._transport.pause_reading()
            self._reader, self._descriptor = reader, sock.fileno()

    def data_received(self, data: bytes) -> None:
        """Timestamp and keep a read of the transport; parse only what may be the end of the response."""
        now_ns = monotonic_ns()
        exchange = self._exchange
        if exchange is None:
            self._reject_unasked(data)
            return
        size = len(data)
        exchange.append(data)
        exchange.append_mark(now_ns)
        exchange.append_mark(size)
        # Nearly every read is a whole event. `find`, because `in` costs more: it first tries the bytes as a number.
        is_event = data.endswith(EVENT_END) and data.find(LAST_CHUNK) < 0
        if exchange.notify_on_end and (is_event or not may_end(data)):
            exchange.unchecked_bytes += size
            if exchange.unchecked_bytes > _CHECKED_EVERY_BYTES:
                exchange.check_size()
        else:
            exchange.parse_available()

    def read_notice(self, notice: int) -> None:
        """Handle a notice of the compiled reader."""
        if notice != DATA:
            self._end(None if notice == CLOSED else OSError(-notice, os.strerror(-notice)))
        elif self._exchange is not None:
            self._exchange.parse_available()
            if self._exchange.notify_on_end and self._reader is not None:
                self._reader.notify_on_end(self._descriptor)
        elif self._reader is not None:
            taken = self._reader.take(self._descriptor)
            self._reject_unasked(b"" if taken is None else taken[0])

    def connection_lost(self, exc: Exception | None) -> None:
        """End a response in progress: the socket is gone."""
        if self._transport is None:
            return
        if self._exchange is not None:
            self._drain(rest=True)  # the server may have answered before it stopped taking the request
            self._exchange.connection_lost(exc)
        self._transport = None
        self._lost, self._lost_ns = exc, monotonic_ns()
        self._detach()
        self._check_at(None)

    @property
    def alive(self) -> bool:
        """Return True if a request can still be sent; the server may have closed it all the same."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unused_ns(self) -> int:
        """Return how long no exchange has been under way, or had been when the connection was lost."""
        return (self._lost_ns or monotonic_ns()) - self.free_since_ns

    def close(self) -> None:
        """Close the socket at once."""
        self._detach()
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, request: bytes, begin: Callable[[], Exchange]) -> Response:
        """Send one request and return its response, which holds any failure. Cancellation closes the connection."""
        exchange = self._exchange = begin()
        if self._transport is None:
            exchange.connection_lost(self._lost)
        else:
            self._transport.write(request)
            if self._transport.is_closing():  # nothing was sent, so nothing that is left to read answers it
                self._detach()
            else:
                exchange.drain = self._drain
            if self._due is None or exchange.check_ns < self._due.at_ns:  # mostly, that of an earlier one comes first
                self._check_at(exchange.check_ns)
        try:
            response = await exchange.over
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._drain()
            self._exchange = None
            exchange.drain = do_nothing
            if self._reader is not None:
                self._reader.next_answer(self._descriptor)
            self.free_since_ns = monotonic_ns()
            exchange.cancel_timers()
        # what is left of the request would be in the way of the next one
        all_sent = self._transport is not None and self._transport.get_write_buffer_size() == 0
        if response.reusable and not exchange.surplus and all_sent:
            self.has_served = True
            self.has_answered = response.head is not None and response.head.status == 200
        else:
            self.close()
        return response

    def _drain(self, *, rest: bool = False) -> None:
        """Append to the exchange under way what the reader holds; with `rest` also what it has not read yet."""
        if self._reader is not None and self._exchange is not None:
            taken = self._reader.take(self._descriptor, rest=rest)
            if taken is not None:
                self._exchange.append_many(*taken)

    def _reject_unasked(self, data: bytes) -> None:
        """Close: a connection with data that answers no request cannot be trusted with one."""
        self.received_unasked = bool(data.strip()) and not data.startswith(_TIMEOUT_NOTICES)
        self.close()

    def _end(self, exc: OSError | None) -> None:
        """Close: the reader met the end of the connection, or an error."""
        transport = self._transport
        self.connection_lost(exc)
        if transport is not None:
            transport.abort()

    def _detach(self) -> None:
        if self._reader is not None:
            self._reader.detach(self._descriptor)
            self._reader = None

    def _check_at(self, instant_ns: int | None) -> None:
        """Check the time limits at this instant, and at no other; None: never."""
        if self._due is not None:
            self._deadlines.forget(self._due)
        self._due = None if instant_ns is None else self._deadlines.check_at(instant_ns, self._check_limits)

    def _check_limits(self) -> None:
        """Check the time limits of the exchange under way, and again when the next one may have passed."""
        self._due = None
        exchange = self._exchange
        if exchange is not None and exchange.check_ns <= monotonic_ns():
            exchange.check_limits()
        if exchange is not None and not exchange.over.done():
            self._check_at(exchange.check_ns)


async def connect(
    address: Address,
    connect_s: float,
    peers: Peers,
    reader: Reader | None = None,
    deadlines: Deadlines | None = None,
) -> Connection:
    """Return a fresh connection, read by `reader` unless it is encrypted. Raises ConnectFailed."""
    try:
        async with asyncio.timeout(connect_s):
            connection = await _open(address, peers, partial(Connection, deadlines))
        if reader is not None and address.tls is None:
            connection.read_by(reader)
        return connection
    except TimeoutError as exc:
        raise ConnectFailed(Failure(ErrorClass.CONNECT, f"no connection within {connect_s:g} s")) from exc
    except TunnelRefused as exc:
        raise ConnectFailed(Failure(ErrorClass.CONNECT, str(exc))) from exc
    except ssl.SSLError as exc:
        raise ConnectFailed(Failure(ErrorClass.TLS, tls_fault(exc))) from exc
    except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as exc:
        fault = Failure(ErrorClass.CONNECT, "the connection was closed while it was opened")
        if address.tls is not None:  # many servers give no reason when they dislike a certificate, or its lack
            fault = Failure(ErrorClass.TLS, "the server closed the connection in the middle of the TLS handshake")
        raise ConnectFailed(fault) from exc
    except OSError as exc:
        kind = ErrorClass.CLIENT if exc.errno in OWN_ERRNOS else ErrorClass.CONNECT
        raise ConnectFailed(Failure(kind, str(exc))) from exc


async def _open(address: Address, peers: Peers, fresh: Callable[[], Connection]) -> Connection:
    loop = asyncio.get_running_loop()
    host, port = address.proxy or (address.host, address.port)
    while address.socket is not None:
        try:
            connection = (await loop.create_unix_connection(fresh, address.socket))[1]
            peers.connected.add(f"unix:{address.socket}")
            return connection
        except BlockingIOError:  # the server's backlog is full
            await asyncio.sleep(_BACKLOG_PAUSE_S)
    if address.proxy is not None and address.tls is not None:
        return await _open_in_tunnel(address, host, port, address.tls, peers, fresh)
    return (await _reach(fresh, host, port, peers, address.tls))[1]


async def _open_in_tunnel(
    address: Address,
    proxy_host: str,
    proxy_port: int,
    tls: ssl.SSLContext,
    peers: Peers,
    fresh: Callable[[], Connection],
) -> Connection:
    server = f"[{address.host}]" if ":" in address.host else address.host
    tunnel = await open_tunnel(proxy_host, proxy_port, f"{server}:{address.port}", peers)
    connection = fresh()
    loop = asyncio.get_running_loop()
    try:
        transport = await loop.start_tls(tunnel, connection, tls, server_hostname=address.host)
    except BaseException:
        tunnel.abort()
        raise
    if transport is None or transport.is_closing():
        raise ConnectionAbortedError("closed in the handshake or right after it")
    connection.connection_made(transport)
    return connection
