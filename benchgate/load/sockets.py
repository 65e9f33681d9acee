"""The plain sockets of the measured path: TCP and Unix ones, all behind one epoll of their own.

The event loop watches that one epoll. Of five hundred streams a handful have something to read at any moment, and
reading them in one go costs less than having the loop call for each. When tens of thousands of reads come in a
second, a look waits a moment first, so that more of them are there: what arrived meanwhile is read a fraction of a
millisecond later, which the canary of a stage sees like any other delay. A stream in full flow is read here and now,
past its own transport and connection, until its answer is over: a processor that serves hundreds of them has
forgotten each one's objects by the time of its next token. TLS, proxies and systems without epoll take the loop's own
transports.

Audited, sockets are read by `recvmsg`, which gives the kernel's stamps with the bytes and costs more.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from time import monotonic_ns, time_ns
from typing import Any, NamedTuple

from benchgate.load.exchange import IN_FLOW, may_end
from benchgate.load.stamps import ReadDelays, ask_for_stamps, stamp_ns

_READ_BYTES = 2**14  # what is left is read at the next look
_EVENT_BYTES = 479  # in a full flow: as long a text as Python has memory of its own for, which is cheaper than malloc's
_LONG_ONE_IN = 8  # reads: where so many are longer, that would mean two reads for one
_ANCILLARY_BYTES = 256
_GATHER_S = 0.0002  # and some 0.1 ms until the kernel wakes us
_GATHER_ABOVE_RPS = 8_000  # reads a second; below, waiting gathers next to nothing
_RATE_OVER_NS = 10_000_000
_WEIGH_BYTES = 2**24  # of all streams together: so often each is asked whether it has become too long
_NS = 1_000_000_000
_READABLE = getattr(select, "EPOLLIN", 0)  # Linux alone has it
_WRITABLE = getattr(select, "EPOLLOUT", 0)

_AGAIN_S = 0.001
_Place = tuple[Any, ...] | str
_Found = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]

OnEvents = Callable[[int], None]
"""Called with the mask of what epoll has seen at a socket."""


class Flow(NamedTuple):
    """What is done with the reads of a stream in full flow, of which only its end is of interest."""

    keep: Callable[[bytes], None]
    mark: Callable[[int], None]  # gets the instant of each, in ns, and then its bytes
    look: Callable[[], None]  # called after what may be its end
    weigh: Callable[[int], None]  # called now and then with how long a read may be: have too many bytes come?


class Sockets:
    """Every plain socket of a stage; with `audited`, and how late each read from one of them was. Must be closed."""

    def __init__(self, *, audited: bool = False) -> None:
        self.delays = ReadDelays() if audited else None
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, OnEvents] = {}
        self._flowing: dict[int, _Flowing] = {}
        self._epoll = select.epoll()
        self._loop.add_reader(self._epoll.fileno(), self._look)
        self._reads = 0  # of the stretch that is being counted
        self._since_ns = 0
        self._gathers = False
        self._unweighed = 0  # bytes
        self._long = 0  # reads of `_EVENT_BYTES` or more, of the stretch that is being counted
        self._at_first = _EVENT_BYTES  # bytes asked for of a stream in full flow

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

    def watch(self, sock: socket.socket, mask: int, on_events: OnEvents) -> None:
        """Call `on_events` whenever one of these events, an error or the end is there."""
        known = sock.fileno() in self._watched
        self._watched[sock.fileno()] = on_events
        (self._epoll.modify if known else self._epoll.register)(sock.fileno(), mask)

    def unwatch(self, sock: socket.socket) -> None:
        """Forget a socket, which is still open."""
        self.ebb(sock)
        if self._watched.pop(sock.fileno(), None) is not None and not self._epoll.closed:
            self._epoll.unregister(sock.fileno())

    def flow(self, sock: socket.socket, flow: Flow, transport: SocketTransport) -> None:
        """Read this one here from now on; `transport` gets the end of the connection, and every error."""
        self._flowing[sock.fileno()] = (sock.recv, flow.keep, flow.mark, flow, transport)

    def ebb(self, sock: socket.socket) -> None:
        """Leave its reads to whoever watches it again."""
        self._flowing.pop(sock.fileno(), None)

    def close(self) -> None:
        """Watch no more. To be called where the loop still runs."""
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _look(self) -> None:
        """Have every socket read that has something."""
        if self._gathers:
            time.sleep(_GATHER_S)
        ready = self._epoll.poll(0)
        self._read(ready)
        self._reads += len(ready)
        now_ns = monotonic_ns()
        if now_ns - self._since_ns >= _RATE_OVER_NS:
            self._gathers = self._reads * _NS >= _GATHER_ABOVE_RPS * (now_ns - self._since_ns)
            self._at_first = _READ_BYTES if self._long * _LONG_ONE_IN > self._reads else _EVENT_BYTES
            self._reads, self._long, self._since_ns = 0, 0, now_ns
            if self._unweighed >= _WEIGH_BYTES:
                self._unweighed = 0
                for _, _, _, flow, _ in tuple(self._flowing.values()):
                    flow.weigh(_READ_BYTES)

    def _read(self, ready: Iterable[tuple[int, int]]) -> None:
        """The hottest loop there is: nothing is done here that can be done later, and nothing is looked up twice."""
        watched, flowing, unweighed, at_first = self._watched, self._flowing, self._unweighed, self._at_first
        readable, in_flow, now_ns, longer_from = _READABLE, IN_FLOW, monotonic_ns, _EVENT_BYTES
        ended: list[Flow] = []
        failed: list[tuple[SocketTransport, OSError]] = []
        try:
            for descriptor, events in ready:
                flowing_here = flowing.get(descriptor)
                if flowing_here is None or events != readable:
                    on_events = watched.get(descriptor)  # gone when one before it in this turn closed it
                    if on_events is not None:
                        on_events(events)
                    continue
                recv, keep, mark, flow, transport = flowing_here
                try:
                    data = recv(at_first)
                except OSError as exc:
                    transport.failed(exc)
                    continue
                size = len(data)
                if size >= longer_from:
                    self._long += 1
                    if size == at_first:
                        try:
                            data += recv(_READ_BYTES - size)
                            size = len(data)
                        except (BlockingIOError, InterruptedError):
                            pass  # this was all
                        except OSError as exc:
                            failed.append((transport, exc))
                if not data.endswith(in_flow) and may_end(data):
                    if not size:
                        transport.came(data)
                        continue
                    ended.append(flow)  # looked at when all have been read: it takes as long as ten reads
                keep(data)
                mark(now_ns())
                mark(size)
                unweighed += size
        finally:  # what was read will not wake anybody again, whatever went wrong with another one
            self._unweighed = unweighed
            for flow in ended:
                flow.look()
            for transport, error in failed:
                transport.failed(error)

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


_Flowing = tuple[Callable[[int], bytes], Callable[[bytes], None], Callable[[int], None], Flow, "SocketTransport"]


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
        sockets.watch(sock, _READABLE, self._on_events)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send now what can be sent, the rest as soon as it can be."""
        if self._closing:
            return
        had_to_wait = bool(self._unsent)
        self._unsent += data
        if not had_to_wait:
            self._flush()
            if self._unsent:
                self._sockets.watch(self._socket, _READABLE | _WRITABLE, self._on_events)

    def flow(self, flow: Flow) -> None:
        """The stream under way is in full flow: `flow` gets its bytes, and its protocol what comes with anything else.

        Not where reads are audited: each of them is looked at.
        """
        if self._sockets.delays is None and not self._closing:
            self._sockets.flow(self._socket, flow, self)

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

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever held back here."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """The socket, as every transport gives it."""
        return self._socket if name == "socket" else default

    def _on_events(self, events: int) -> None:
        if events != _READABLE:
            if events & _WRITABLE:
                self._flush()
                if not self._unsent and not self._closing:
                    self._sockets.watch(self._socket, _READABLE, self._on_events)
            if not events & ~_WRITABLE or self._closing:
                return
        try:
            data = self._recv(_READ_BYTES)
        except OSError as exc:
            self.failed(exc)
        else:
            self.came(data)

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
        data, ancillary, _, _ = self._socket.recvmsg(most, _ANCILLARY_BYTES)
        if data and self._sockets.delays is not None:
            stamped_ns = stamp_ns(ancillary)
            self._sockets.delays.add(None if stamped_ns is None else time_ns() - stamped_ns)
        return data

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
        if exc is not None:  # which keeps, by its frames, what was being read, and nothing collects that in a stage
            exc = exc.with_traceback(None)
        self._unsent.clear()
        self._sockets.unwatch(self._socket)
        self._socket.close()
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, exc)
