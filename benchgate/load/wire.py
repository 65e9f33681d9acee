"""One HTTP/1.1 connection for the measured path: request bytes out, (instant, bytes) in.

Work per read on the event loop is what makes a client report its own delays as the server's, so a read is stamped,
kept, and looked at only when it could be the last one. All meaning is read out of the bytes later, in `decode`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import cast

from benchgate.load.exchange import LARGEST_RESPONSE_BYTES, MAY_END, Begun, Exchange, Fault, Response
from benchgate.model.records import ErrorClass
from benchgate.suite.schema import Limits
from benchgate.targets.address import ServerAddress

_OWN_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


class ConnectFailed(Exception):
    """No connection could be had."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(fault.detail)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a target listens. `prefix` is the path of its base URL, without a trailing slash."""

    host: str
    port: int
    prefix: str
    host_header: str
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str) -> Address:
        """Of a base URL; raises TargetError, which does not repeat it, when it is none."""
        server = ServerAddress.of(url)
        tls = ssl.create_default_context() if server.scheme == "https" else None
        return cls(server.host, server.port or (443 if tls else 80), server.prefix, server.netloc, tls)


class Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time. Never waits or retries on its own."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self.free_since_ns = monotonic_ns()  # when it was opened, or the exchange before was over
        self.has_served = False  # a whole response came over it before

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport.set_write_buffer_limits(high=0)  # else uvloop holds a write until its turn is over
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Stamp, keep, and look closer only at what may be the end."""
        now_ns = monotonic_ns()
        exchange = self._exchange
        if exchange is None:  # bytes nobody asked for: this connection cannot be trusted with a request
            self.close()
            return
        exchange.pending.append((now_ns, data))
        exchange.last_ns = now_ns
        exchange.size += len(data)
        if (
            data.endswith(MAY_END)
            or exchange.look_at_all
            or len(data) < 4  # the end may be split over reads
            or exchange.size > LARGEST_RESPONSE_BYTES
        ):
            exchange.look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone; a response in progress ends here, well or badly."""
        self._transport = None
        if self._exchange is not None:
            self._exchange.lost(exc)

    @property
    def alive(self) -> bool:
        """Whether a request can still be sent; the server may have closed it all the same."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Drop the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, request: bytes, limits: Limits, begun: Begun) -> Response:
        """Send one request and gather its response; failures are in it, never raised. Cancellation closes."""
        exchange = self._exchange = Exchange(limits, begun)
        if self._transport is None:
            exchange.lost(None)
        else:
            self._transport.write(request)
        try:
            response = await exchange.over
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._exchange = None
            self.free_since_ns = monotonic_ns()
            exchange.forget()
        if response.reusable:
            self.has_served = True
        else:
            self.close()
        return response


async def connect(address: Address, connect_s: float) -> Connection:
    """A fresh connection; raises ConnectFailed."""
    loop = asyncio.get_running_loop()
    opening = loop.create_connection(Connection, address.host, address.port, ssl=address.tls)
    try:
        async with asyncio.timeout(connect_s):
            _, connection = await opening
    except TimeoutError as exc:
        raise ConnectFailed(Fault(ErrorClass.CONNECT, f"no connection within {connect_s:g} s")) from exc
    except ssl.SSLError as exc:
        raise ConnectFailed(Fault(ErrorClass.TLS, str(exc))) from exc
    except OSError as exc:
        kind = ErrorClass.CLIENT if exc.errno in _OWN_ERRNOS else ErrorClass.CONNECT
        raise ConnectFailed(Fault(kind, str(exc))) from exc
    return connection
