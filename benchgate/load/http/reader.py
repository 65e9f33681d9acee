"""What was compiled of `reader.c`, where the installation could compile it and the source is still the same.

It is a shared library without any Python in it. Without it everything is done in Python, with the same results at a
higher cost: see docs/measuring.md. BENCHGATE_NATIVE=0 leaves it aside.

Streams in full flow: read in one loop, past their transports and connections, until something else happens.

A processor that serves hundreds of streams has forgotten each one's objects by the time of its next token. Here is the
loop that works everywhere; `native_flows` has the same one compiled.

Answers read by the compiled loop: bytes and instants stay there until something may have ended.

It reads an answer from its first byte, so that the first token has its instant at once, whatever else is told of the
same turn; until it is in full flow, every read is looked at.

The plain sockets of the measured path: TCP and Unix ones, all behind one epoll of their own.

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
import ctypes
import errno
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from time import monotonic_ns, time_ns
from typing import Any, Protocol

from benchgate.load.client_delay import ReadDelays
from benchgate.load.http.exchange import IN_FLOW, LARGEST_RESPONSE_BYTES, LAST_CHUNK, Exchange, may_end, nothing
from benchgate.load.http.library import library
from benchgate.stamping import ANCILLARY_BYTES, ask_for_stamps, stamp_ns
from benchgate.timers import HasFileno

READ_BYTES = 2**14  # what is left is read at the next look
GATHER_NS = 200_000  # and some 0.1 ms until the kernel wakes us
READABLE = getattr(select, "EPOLLIN", 0)  # Linux alone has it

_EVENT_BYTES = 479  # in a full flow: as long a text as Python has memory of its own for, which is cheaper than malloc's
_LONG_ONE_IN = 8  # reads: where so many are longer, that would mean two reads for one
_NS = 1_000_000_000
_WEIGH_BYTES = 2**24  # of all streams together: so often each is asked whether it has become too long

OnEvents = Callable[[int], None]
"""Called with the mask of what epoll has seen at a socket."""


def all_of(calls: Sequence[Callable[[], None]]) -> None:
    """Make these calls in their order, each whatever becomes of those before it."""
    if len(calls) == 1:  # as mostly
        calls[0]()
        return
    with ExitStack() as stack:
        for call in reversed(calls):
            stack.callback(call)


class Ending(Protocol):
    """A transport, as far as its connection may end."""

    def came(self, data: bytes) -> None:
        """This was read; no byte at all is the end."""

    def failed(self, exc: OSError) -> None:
        """Reading gave nothing."""


class Flows(Protocol):
    """The answers under way of one epoll, and whoever else watches a socket of it."""

    def add(self, sock: socket.socket, exchange: Exchange, transport: Ending) -> None:
        """Read this one from now on; `transport` gets the end of the connection, and every error.

        To be said when the request has been sent, and again when the answer is in full flow. Before that, one that
        would have to look at every read leaves them to the transport.
        """

    def drop(self, descriptor: int) -> None:
        """Read it no more, if it was read here. All that came is with its exchange."""

    def look(self, gathers: int) -> int:
        """Read every stream that has something, and tell the others. How many sockets had something.

        After so many gathers, with a look after each, until there was somebody to be told or a stream may have ended.
        """

    def settle(self, reads: int) -> None:
        """A stretch of so many reads is over."""

    def close(self) -> None:
        """Read nothing more."""


class PythonFlows:
    """As `Flows` says, in Python."""

    def __init__(self, epoll: select.epoll, watched: Mapping[int, OnEvents]) -> None:
        self._epoll = epoll
        self._watched = watched
        self._flowing: dict[int, _Flowing] = {}
        self._unweighed = 0  # bytes
        self._long = 0  # reads of `_EVENT_BYTES` or more, of the stretch that is under way
        self._at_first = _EVENT_BYTES  # bytes asked for

    def add(self, sock: socket.socket, exchange: Exchange, transport: Ending) -> None:
        """As `Flows` says."""
        if not exchange.trusted:
            return  # here, every read would be looked at as well
        self._flowing[sock.fileno()] = (sock.recv, exchange.keep, exchange.mark, exchange, transport)

    def drop(self, descriptor: int) -> None:
        """As `Flows` says."""
        self._flowing.pop(descriptor, None)

    def look(self, gathers: int) -> int:
        """As `Flows` says."""
        reads, again = 0, True
        while again:
            if gathers:
                time.sleep(GATHER_NS / _NS)
                gathers -= 1
            ready = self._epoll.poll(0)
            reads += len(ready)
            again = self._read(ready) and gathers > 0
        return reads

    def settle(self, reads: int) -> None:
        """As `Flows` says: ask for as much as most reads bring, and have long streams weighed."""
        self._at_first = READ_BYTES if self._long * _LONG_ONE_IN > reads else _EVENT_BYTES
        self._long = 0
        if self._unweighed >= _WEIGH_BYTES:
            self._unweighed = 0
            for _, _, _, exchange, _ in tuple(self._flowing.values()):
                exchange.weigh(READ_BYTES)

    def close(self) -> None:
        """As `Flows` says."""
        self._flowing.clear()

    def _read(self, ready: Iterable[tuple[int, int]]) -> bool:
        """The hottest loop there is: nothing is done here that can be done later, and nothing is looked up twice.

        Whether there was nobody to be told, and nothing that may have been an end.
        """
        watched, flowing, unweighed, at_first = self._watched, self._flowing, self._unweighed, self._at_first
        readable, in_flow, last, now_ns, longer_from = READABLE, IN_FLOW, LAST_CHUNK, monotonic_ns, _EVENT_BYTES
        ended: list[Exchange] = []
        failed: list[tuple[Ending, OSError]] = []
        told = False
        try:
            for descriptor, events in ready:
                flowing_here = flowing.get(descriptor)
                if flowing_here is None or events != readable:
                    told = True
                    on_events = watched.get(descriptor)  # gone when one before it in this turn closed it
                    if on_events is not None:
                        on_events(events)
                    continue
                recv, keep, mark, exchange, transport = flowing_here
                try:
                    data = recv(at_first)
                except OSError as exc:
                    told = True
                    transport.failed(exc)
                    continue
                size = len(data)
                if size >= longer_from:
                    self._long += 1
                    if size == at_first:
                        try:
                            data += recv(READ_BYTES - size)
                            size = len(data)
                        except (BlockingIOError, InterruptedError):
                            pass  # this was all
                        except OSError as exc:
                            failed.append((transport, exc))
                if (not data.endswith(in_flow) or last in data) and may_end(data):
                    if not size:
                        told = True
                        transport.came(data)
                        continue
                    ended.append(exchange)  # looked at when all have been read: it takes as long as ten reads
                keep(data)
                mark(now_ns())
                mark(size)
                unweighed += size
        finally:  # what was read will not wake anybody again, whatever went wrong with another one
            self._unweighed = unweighed
            all_of([exchange.look for exchange in ended])
            all_of([partial(transport.failed, error) for transport, error in failed])
        return not (told or ended or failed)


_Flowing = tuple[Callable[[int], bytes], Callable[[bytes], None], Callable[[int], None], Exchange, Ending]


_MOST_EVENTS = 1024
_LOOK, _CLOSED = 0, -(2**31)  # told of a descriptor; else the events it was seen with, or the error's number below 0
_MARK_BYTES = 8


class NativeFlows:
    """As `flowing.Flows` says. Must be closed."""

    def __init__(self, library: ctypes.CDLL, epoll: select.epoll, watched: Mapping[int, OnEvents]) -> None:
        self._library = library
        self._watched = watched
        self._flowing: dict[int, tuple[Exchange, Ending]] = {}
        self._wary = set[int]()  # those of which every read is looked at
        self._told = (ctypes.c_int32 * (2 * _MOST_EVENTS))()
        self._count = ctypes.c_int32()
        self._taken = (ctypes.c_int64 * 4)()
        self._at_told, self._at_count = ctypes.addressof(self._told), ctypes.addressof(self._count)
        self._at_taken = ctypes.addressof(self._taken)
        self._flows: int | None = library.flows_new(epoll.fileno(), LARGEST_RESPONSE_BYTES)
        if self._flows is None:
            raise MemoryError

    def add(self, sock: socket.socket, exchange: Exchange, transport: Ending) -> None:
        """As `Flows` says."""
        descriptor = sock.fileno()
        if descriptor not in self._flowing:
            if self._flows is None or self._library.flows_add(self._flows, descriptor):
                return  # closed, or no memory: its transport goes on reading it
            self._flowing[descriptor] = exchange, transport
            self._wary.add(descriptor)
            exchange.fetch = partial(self._fetch, descriptor)
        self._trust(descriptor, exchange)

    def drop(self, descriptor: int) -> None:
        """As `Flows` says."""
        if descriptor in self._flowing:
            self._fetch(descriptor)
            exchange, _ = self._flowing.pop(descriptor)
            exchange.fetch = nothing
            self._wary.discard(descriptor)
            self._library.flows_drop(self._flows, descriptor)

    def look(self, gathers: int) -> int:
        """As `Flows` says: the streams are read first, then whatever else was seen is told."""
        if self._flows is None:
            return 0
        reads: int = self._library.flows_look(self._flows, self._at_told, self._at_count, gathers, GATHER_NS)
        if count := self._count.value:
            told = self._told[: 2 * count]
            self._tell(list(zip(told[::2], told[1::2], strict=True)))
        return reads

    def settle(self, reads: int) -> None:
        """As `Flows` says: nothing to be done, for every read is weighed."""

    def close(self) -> None:
        """As `Flows` says. What had come of a stream goes to its exchange."""
        for descriptor in tuple(self._flowing):
            self.drop(descriptor)
        if self._flows is not None:
            self._library.flows_free(self._flows)
            self._flows = None

    def _tell(self, told: list[tuple[int, int]]) -> None:
        """What was read will not wake anybody again, whatever goes wrong with another one of this turn."""
        concluded = [(descriptor, *self._flowing[descriptor], what) for descriptor, what in told if what <= 0]
        try:
            for descriptor, what in told:
                if what > 0:
                    if descriptor in self._flowing:
                        self._fetch(descriptor)  # before what is read by others
                    on_events = self._watched.get(descriptor)  # gone when one before it closed it
                    if on_events is not None:
                        on_events(what)
        finally:
            all_of([partial(self._conclude, *one) for one in concluded])

    def _conclude(self, descriptor: int, exchange: Exchange, transport: Ending, what: int) -> None:
        if what == _LOOK:
            exchange.look()
            self._trust(descriptor, exchange)
        elif what == _CLOSED:
            transport.came(b"")
        else:
            transport.failed(OSError(-what, os.strerror(-what)))

    def _trust(self, descriptor: int, exchange: Exchange) -> None:
        """Look no more at every read once it is in full flow."""
        if exchange.trusted and descriptor in self._wary:
            self._wary.discard(descriptor)
            self._library.flows_trust(self._flows, descriptor)

    def _fetch(self, descriptor: int) -> None:
        """Give its exchange what came since the last time."""
        if self._library.flows_take(self._flows, descriptor, self._at_taken):
            raw, size, marks, count = self._taken
            self._flowing[descriptor][0].take(ctypes.string_at(raw, size), ctypes.string_at(marks, _MARK_BYTES * count))


_GATHERS = 4  # in a row: the loop's coming round costs as much as several reads; its own timers wait for a millisecond
_HURRIED_LOOKS = 2  # as often the loop may look here before what an alarm has set off is done
_GATHER_ABOVE_RPS = 8_000  # reads a second; below, waiting gathers next to nothing
_RATE_OVER_NS = 10_000_000
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
    compiled = library()
    return PythonFlows(epoll, watched) if compiled is None else NativeFlows(compiled, epoll, watched)


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
