"""The audit mode of the measured path: plain sockets read by `recvmsg`, which gives the kernel's stamps with the bytes.

The sockets stand behind one epoll of their own, which is all that the event loop watches: uvloop does not call the
reader of a socket that was reset.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
from collections.abc import Callable
from time import time_ns

from benchgate.load.stamps import ReadDelays, ask_for_stamps, stamp_ns

_READ_BYTES = 2**16
_ANCILLARY_BYTES = 256

OnEvents = Callable[[int], None]
"""Called with the mask of what epoll has seen at a socket."""


class Audit:
    """Every audited socket of a stage, and how late each read from one of them was. Must be closed."""

    def __init__(self) -> None:
        self.delays = ReadDelays()
        self._watched: dict[int, OnEvents] = {}
        self._epoll: select.epoll | None = None

    async def open(self, host: str, port: int, protocol: asyncio.Protocol) -> None:
        """Connect a protocol to the first address of the host that takes it. Raises OSError."""
        loop = asyncio.get_running_loop()
        refused = OSError("the host has no address")
        for family, kind, proto, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, proto)
            try:
                sock.setblocking(False)
                ask_for_stamps(sock)
                await self._connect(sock, address)
            except OSError as exc:
                sock.close()
                refused = exc
            except BaseException:
                sock.close()
                raise
            else:
                _ = AuditedTransport(sock, protocol, self)
                return
        raise refused

    def watch(self, sock: socket.socket, mask: int, on_events: OnEvents) -> None:
        """Call `on_events` whenever one of these events, an error or the end is there."""
        epoll = self._epoll
        if epoll is None:
            epoll = self._epoll = select.epoll()
            asyncio.get_running_loop().add_reader(epoll.fileno(), self._look)
        known = sock.fileno() in self._watched
        self._watched[sock.fileno()] = on_events
        (epoll.modify if known else epoll.register)(sock.fileno(), mask)

    def unwatch(self, sock: socket.socket) -> None:
        """Forget a socket, which is still open."""
        if self._epoll is not None and self._watched.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock.fileno())

    def close(self) -> None:
        """Watch no more. To be called where the loop still runs."""
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _look(self) -> None:
        if self._epoll is None:
            return
        for descriptor, events in self._epoll.poll(0):
            on_events = self._watched.get(descriptor)  # gone when one before it in this turn closed it
            if on_events is not None:
                on_events(events)

    async def _connect(self, sock: socket.socket, address: tuple[object, ...]) -> None:
        error = sock.connect_ex(address)
        if error == errno.EINPROGRESS:
            decided = asyncio.get_running_loop().create_future()
            self.watch(sock, select.EPOLLOUT, lambda _: None if decided.done() else decided.set_result(None))
            try:
                await decided
            finally:
                self.unwatch(sock)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))


class AuditedTransport(asyncio.Transport):
    """A connected socket as a transport; reads and writes when uvloop's own would."""

    def __init__(self, sock: socket.socket, protocol: asyncio.Protocol, audit: Audit) -> None:
        super().__init__()
        self._socket = sock
        self._protocol = protocol
        self._audit = audit
        self._unsent = bytearray()
        self._closing = False
        protocol.connection_made(self)
        audit.watch(sock, select.EPOLLIN, self._on_events)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send now what can be sent, the rest as soon as it can be."""
        if self._closing:
            return
        had_to_wait = bool(self._unsent)
        self._unsent += data
        if not had_to_wait:
            self._flush()
            if self._unsent:
                self._audit.watch(self._socket, select.EPOLLIN | select.EPOLLOUT, self._on_events)

    def abort(self) -> None:
        """Drop the socket at once."""
        self._end(None)

    close = abort

    def is_closing(self) -> bool:
        """Whether it is over."""
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever held back here."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """The socket, as every transport gives it."""
        return self._socket if name == "socket" else default

    def _on_events(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
            if not self._unsent and not self._closing:
                self._audit.watch(self._socket, select.EPOLLIN, self._on_events)
        if events & ~select.EPOLLOUT and not self._closing:
            self._read()

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._end(exc)
            return
        if not data:
            self._end(None)
            return
        stamped_ns = stamp_ns(ancillary)
        self._audit.delays.add(None if stamped_ns is None else time_ns() - stamped_ns)
        self._protocol.data_received(data)

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._end(exc)
            return
        del self._unsent[:sent]

    def _end(self, exc: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._unsent.clear()
        self._audit.unwatch(self._socket)
        self._socket.close()
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, exc)
