"""The plain sockets of the measured path: TCP and Unix ones, all behind one epoll of their own.

The event loop watches that one epoll. Of five hundred streams a handful have something to read at any moment, and
reading them in one go costs less than having the loop call for each. When tens of thousands of reads come in a
second, a look waits a moment first, so that more of them are there: what arrived meanwhile is read a fraction of a
millisecond later, which the canary of a stage sees like any other delay. A stream in full flow (where that is compiled,
any answer) is read here and now, past its own transport and connection, until its answer is over: a processor that
serves hundreds of them has forgotten each one's objects by the time of its next token. TLS, proxies and systems without
epoll take the loop's own transports.

Audited, sockets are read by `recvmsg`, which gives the kernel's stamps with the bytes and costs more.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
from collections.abc import Mapping, Sequence
from time import monotonic_ns, time_ns
from typing import Any

from benchgate.load import native
from benchgate.load.exchange import Exchange
from benchgate.load.flowing import READ_BYTES, READABLE, Flows, OnEvents, PythonFlows
from benchgate.load.native_flows import NativeFlows
from benchgate.load.stamps import ReadDelays
from benchgate.stamping import ANCILLARY_BYTES, ask_for_stamps, stamp_ns
from benchgate.timers import HasFileno

_GATHERS = 4  # in a row: the loop's coming round costs as much as several reads; its own timers wait for a millisecond
_HURRIED_LOOKS = 2  # as often the loop may look here before what an alarm has set off is done
_GATHER_ABOVE_RPS = 8_000  # reads a second; below, waiting gathers next to nothing
_RATE_OVER_NS = 10_000_000
_NS = 1_000_000_000
_WRITABLE = getattr(select, "EPOLLOUT", 0)  # Linux alone has it

_AGAIN_S = 0.001
_Place = tuple[Any, ...] | str
_Found = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]


class Sockets:
    """Every plain socket of a stage; with `audited`, and how late each read from one of them was. Must be closed."""

    def __init__(self, *, audited: bool = False) -> None:
        self.delays = ReadDelays() if audited else None
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, OnEvents] = {}
        self._epoll = select.epoll()
        self._flows = _flows(self._epoll, self._watched)
        self._loop.add_reader(self._epoll.fileno(), self._look)
        self._reads = 0  # of the stretch that is being counted
        self._since_ns = 0
        self._gathers = False
        self._hurried = 0  # looks that still are to be taken at once

    async def open(self, host: str, port: int, protocol: asyncio.Protocol) -> None:
        """Connect a protocol to the first address of the host that takes it. Raises OSError."""
        refused = OSError("the host has no address")
        for family, kind, proto, _, address in await self._addresses(host, port):
            try:
                await self._open(socket.socket(family, kind, proto), address, protocol)
            except OSError as exc:
                refused = exc
            else:
                return
        raise refused

    async def open_unix(self, path: str, protocol: asyncio.Protocol) -> None:
        """Connect a protocol to a Unix socket. Raises OSError."""
        await self._open(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path, protocol)

    def watch(self, sock: HasFileno, mask: int, on_events: OnEvents) -> None:
        """Call `on_events` whenever one of these events, an error or the end is there."""
        known = sock.fileno() in self._watched
        self._watched[sock.fileno()] = on_events
        (self._epoll.modify if known else self._epoll.register)(sock.fileno(), mask)

    def unwatch(self, sock: HasFileno) -> None:
        """Forget one that is still open."""
        self.ebb(sock)
        if self._watched.pop(sock.fileno(), None) is not None and not self._epoll.closed:
            self._epoll.unregister(sock.fileno())

    def flow(self, sock: socket.socket, exchange: Exchange, transport: SocketTransport) -> None:
        """Read this one here, as `Flows.add` says; `transport` gets the end of the connection, and every error."""
        self._flows.add(sock, exchange, transport)

    def ebb(self, sock: HasFileno) -> None:
        """Leave its reads to whoever watches it again."""
        self._flows.drop(sock.fileno())

    def hurry(self) -> None:
        """Something is about to be sent: nothing is gathered until it has been."""
        self._hurried = _HURRIED_LOOKS

    def close(self) -> None:
        """Watch no more. To be called where the loop still runs."""
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._flows.close()
            self._epoll.close()

    def _look(self) -> None:
        """Have every socket read that has something."""
        gathers = _GATHERS if self._gathers and not self._hurried else 0
        if self._hurried:
            self._hurried -= 1
        self._reads += self._flows.look(gathers)
        now_ns = monotonic_ns()
        if now_ns - self._since_ns >= _RATE_OVER_NS:
            self._gathers = self._reads * _NS >= _GATHER_ABOVE_RPS * (now_ns - self._since_ns)
            self._flows.settle(self._reads)
            self._reads, self._since_ns = 0, now_ns

    async def _addresses(self, host: str, port: int) -> Sequence[_Found]:
        """Looked up for every connection: names may stand for many servers. What is no name needs no looking up."""
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            return await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def _open(self, sock: socket.socket, address: _Place, protocol: asyncio.Protocol) -> None:
        try:
            sock.setblocking(False)
            if self.delays is not None:
                ask_for_stamps(sock)
            await self._connect(sock, address)
        except BaseException:
            sock.close()
            raise
        _ = SocketTransport(sock, protocol, self)

    async def _connect(self, sock: socket.socket, address: _Place) -> None:
        while (error := sock.connect_ex(address)) == errno.EAGAIN:  # of a Unix socket whose server is behind
            await asyncio.sleep(_AGAIN_S)
        if error == errno.EINPROGRESS:
            decided = self._loop.create_future()
            self.watch(sock, _WRITABLE, lambda _: None if decided.done() else decided.set_result(None))
            try:
                await decided
            finally:
                self.unwatch(sock)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))


def _flows(epoll: select.epoll, watched: Mapping[int, OnEvents]) -> Flows:
    """What reads the streams in full flow: the compiled loop where there is one."""
    library = native.library()
    return PythonFlows(epoll, watched) if library is None else NativeFlows(library, epoll, watched)


class SocketTransport(asyncio.Transport):
    """A connected socket as a transport; reads and writes when uvloop's own would."""

    def __init__(self, sock: socket.socket, protocol: asyncio.Protocol, sockets: Sockets) -> None:
        super().__init__()
        self._socket = sock
        self._protocol = protocol
        self._sockets = sockets
        self._unsent = bytearray()
        self._closing = False
        self._recv = sock.recv if sockets.delays is None else self._stamped
        protocol.connection_made(self)
        self._received = protocol.data_received
        sockets.watch(sock, READABLE, self._on_events)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send now what can be sent, the rest as soon as it can be."""
        if self._closing:
            return
        had_to_wait = bool(self._unsent)
        self._unsent += data
        if not had_to_wait:
            self._flush()
            if self._unsent:
                self._sockets.watch(self._socket, READABLE | _WRITABLE, self._on_events)

    def flow(self, exchange: Exchange) -> None:
        """An answer is under way: its exchange gets its bytes, its protocol what comes with all else.

        Not where reads are audited: each of them is looked at.
        """
        if self._sockets.delays is None and not self._closing:
            self._sockets.flow(self._socket, exchange, self)

    def ebb(self) -> None:
        """The protocol gets everything again."""
        if not self._closing:
            self._sockets.ebb(self._socket)

    def abort(self) -> None:
        """Drop the socket at once."""
        self._end(None)

    close = abort

    def is_closing(self) -> bool:
        """Whether it is over."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """How many bytes have not been taken yet."""
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever held back here."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """The socket, as every transport gives it."""
        return self._socket if name == "socket" else default

    def _on_events(self, events: int) -> None:
        if events & ~_WRITABLE:  # before anything is written: a server that refuses a request need not take all of it
            try:
                data = self._recv(READ_BYTES)
            except OSError as exc:
                self.failed(exc)
            else:
                self.came(data)
        if events & _WRITABLE and not self._closing:
            self._flush(begun=True)
            if not self._unsent and not self._closing:
                self._sockets.watch(self._socket, READABLE, self._on_events)

    def came(self, data: bytes) -> None:
        """This was read; no byte at all is the end."""
        if data:
            self._received(data)
        else:
            self._end(None)

    def failed(self, exc: OSError) -> None:
        """Reading gave nothing: there was nothing to be read after all, or there never will be."""
        if not isinstance(exc, BlockingIOError | InterruptedError):
            self._end(exc)

    def _stamped(self, most: int) -> bytes:
        """Read with the kernel's stamp, and note how long ago that was."""
        data, ancillary, _, _ = self._socket.recvmsg(most, ANCILLARY_BYTES)
        if data and self._sockets.delays is not None:
            stamped_ns = stamp_ns(ancillary)
            self._sockets.delays.add(None if stamped_ns is None else time_ns() - stamped_ns)
        return data

    def _flush(self, *, begun: bool = False) -> None:
        """Send what can be sent; with `begun` the server has some of it, and may have said what it thinks of that."""
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            if begun:
                self._take_what_is_left()
            self._end(exc)
            return
        del self._unsent[:sent]

    def _take_what_is_left(self) -> None:
        """What the server had said before it stopped listening."""
        with contextlib.suppress(OSError):
            while not self._closing and (data := self._recv(READ_BYTES)):
                self._received(data)

    def _end(self, exc: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        if exc is not None:  # which keeps, by its frames, what was being read, and nothing collects that in a stage
            exc = exc.with_traceback(None)
        self._unsent.clear()
        self._sockets.unwatch(self._socket)
        self._socket.close()
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, exc)
