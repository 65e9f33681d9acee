"""Requests over gRPC, as the scheduler sends them: KServe's `ModelInfer` and Triton's `ModelStreamInfer`.

A message is stamped when the event loop gets it, and kept in the frame of a chunk of HTTP/1.1. So time limits,
cancellation, spools and decoders are those of every other answer (`http.exchange`). The status at the end is the end of
that frame, or an HTTP status where no message came before it. Messages are taken apart after the stage.

grpcio reads its sockets in a thread of its own. What that thread waits for is a delay that only the event loop's canary
can see.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from time import monotonic_ns
from typing import Any
from urllib.parse import urlsplit

from benchgate.load.http.connection import Deadlines, Due, Peers
from benchgate.load.http.exchange import Exchange, Failure, ProgressOf, Response
from benchgate.load.http.pool import Begin, Outage
from benchgate.model.records import ErrorClass, FloatArray
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Target
from benchgate.targets.grpc_client import HTTP_STATUS, called, is_unconnected, open_channel
from benchgate.targets.grpc_messages import require_grpc

_STREAMS_PER_CHANNEL = 64  # of one connection: servers limit the streams of each, often to 100
_NEARLY_FULL = 48  # then another one is opened, so that it is there when it is needed
_MOST_CHANNELS = 64
_STREAM = "ModelStreamInfer"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_ATTEMPT_EVERY_NS = 1_000_000_000


class GrpcPool:
    """Channels of one stage. Has the methods of `http.pool.Pool`, and like it must be closed."""

    def __init__(self, target: Target, limits: Limits, progress_of: ProgressOf) -> None:
        require_grpc()
        self._target = target
        self._limits = limits
        self._progress_of = progress_of
        self._deadlines = Deadlines()
        self._channels: list[Any] = []
        self._streams: list[int] = []  # under way in each of them
        self._in_flight = 0
        self._down: Outage | None = None
        self._has_connected = False
        self.peers = Peers()
        self._closing: asyncio.Task[None] | None = None

    async def open(self, count: int) -> None:
        """Open channels for so many requests at once. Failures are left to the requests that will meet them."""
        wanted = min(_MOST_CHANNELS, -(-max(1, count) // _STREAMS_PER_CHANNEL))
        for _ in range(wanted - len(self._channels)):
            self._add_channel()
        ready = [asyncio.ensure_future(channel.channel_ready()) for channel in self._channels]
        _, late = await asyncio.wait(ready, timeout=self._limits.connect_s)
        for one in late:
            one.cancel()
        self._has_connected = len(late) < len(ready)
        await self._note_peers()

    def _add_channel(self) -> None:
        import grpc.aio

        self._channels.append(open_channel(self._target, grpc.aio))
        self._streams.append(0)

    def _take_channel(self) -> int:
        """Return the number of the channel with the fewest streams, of those that are connected and not full if any."""
        import grpc

        def cost(at: int) -> tuple[bool, int]:
            is_ready = self._channels[at].get_state() is grpc.ChannelConnectivity.READY
            return not is_ready or self._streams[at] >= _STREAMS_PER_CHANNEL, self._streams[at]

        chosen = min(range(len(self._channels)), key=cost)
        waiting = any(count == 0 for count in self._streams)
        if self._streams[chosen] >= _NEARLY_FULL and not waiting and len(self._channels) < _MOST_CHANNELS:
            self._add_channel()
            self._channels[-1].get_state(try_to_connect=True)
        return chosen

    async def _note_peers(self) -> None:
        """Note the addresses of the server. grpcio does not tell which of several it is connected to."""
        server = urlsplit(self._target.grpc or "")
        with suppress(OSError):
            loop = asyncio.get_running_loop()
            answers = await loop.getaddrinfo(server.hostname, server.port, type=socket.SOCK_STREAM)
            self.peers.resolved.update(str(answer[4][0]) for answer in answers)
        if self._has_connected and len(self.peers.resolved) == 1:
            self.peers.connected.update(self.peers.resolved)

    def close(self) -> None:
        """Drop every connection."""
        self._deadlines.close()
        channels, self._channels, self._streams = self._channels, [], []
        if channels:
            self._closing = asyncio.ensure_future(_close(channels))

    async def closed(self) -> None:
        """Wait until what `close` began is done."""
        if self._closing is not None:
            await self._closing

    @property
    def given_up(self) -> bool:
        """Return True if the target is down for the rest of the stage: nothing more is tried."""
        return self._down is not None and self._down.is_given_up(has_connected=self._has_connected)

    @property
    def in_flight(self) -> int:
        """Return the number of requests under way."""
        return self._in_flight

    @property
    def down_since_ns(self) -> int | None:
        """Return since when the target has accepted no connection; None when it does."""
        down = self._down
        return None if down is None or not down.breaker_is_open else down.since_ns

    unasked = closed_early = 0  # gRPC keeps its connections itself

    def read_delays_s(self) -> FloatArray | None:
        """Return None: nothing is stamped by the kernel."""
        return None

    async def ask(self, request: bytes, begin: Begin | None = None) -> Response:
        """Send a request once; its response holds any failure."""
        down = self._down
        if down is not None and down.breaker_is_open:
            if self.given_up or monotonic_ns() < down.last_ns + _ATTEMPT_EVERY_NS:
                error, detail = down.fault
                return Response.unsent(Failure(error, f"not tried after {down.attempts} failed connections: {detail}"))
            self._down = down._replace(last_ns=monotonic_ns())
        head, _, message = request.partition(b"\r\n\r\n")
        exchange = (begin or partial(Exchange, progress_of=self._progress_of))(self._limits)
        self._in_flight += 1
        answering = asyncio.ensure_future(self._answer(exchange, head, message))
        watch = _Watch(exchange, self._deadlines)
        try:
            response = await exchange.over
        finally:
            self._in_flight -= 1
            watch.stop()
            exchange.cancel_timers()
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering
        if response.fault is not None and response.fault.error is ErrorClass.CONNECT:
            now_ns = monotonic_ns()
            before = self._down or Outage(now_ns, now_ns, 0, response.fault)
            self._down = Outage(before.since_ns, now_ns, before.attempts + 1, response.fault)
            return Response.unsent(response.fault)
        if response.head is not None:
            self._down, self._has_connected = None, True
        return response

    async def _answer(self, exchange: Exchange, head: bytes, message: bytes) -> None:
        """Send the request and give the exchange what comes; a failure ends it."""
        import grpc

        method, metadata = called(head)
        taken = self._take_channel()
        channel, streams = self._channels[taken], self._streams
        streams[taken] += 1
        frame = _Frame(exchange)
        try:
            if method.endswith(_STREAM):
                call = channel.stream_stream(method)(metadata=metadata)
                try:
                    await call.write(message)
                    await call.done_writing()
                    while (answer := await call.read()) is not grpc.aio.EOF:
                        frame.take(answer)
                finally:
                    call.cancel()  # without an effect on one that is over
            else:
                frame.take(await channel.unary_unary(method)(message, metadata=metadata))
        except grpc.RpcError as error:
            frame.fail(error.code().name, error.details() or "")
        except asyncio.CancelledError:
            if not exchange.over.done():
                exchange.fail(Failure(ErrorClass.CLIENT, "the request was cancelled by the load generator"))
            raise
        except Exception as error:  # noqa: BLE001  # a slot would wait for ever
            exchange.fail(Failure(ErrorClass.CLIENT, f"grpcio raised {type(error).__name__}: {error}"))
        else:
            frame.end()
        finally:
            streams[taken] -= 1


async def _close(channels: Iterable[Any]) -> None:
    for channel in channels:
        await channel.close()


class _Frame:
    """Writes messages into an exchange as the chunks of one response."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._began = False

    def take(self, message: bytes) -> None:
        """Take a message that has just come."""
        self._append(b"%x\r\n%b\r\n" % (len(message), message) if message else b"")

    def end(self) -> None:
        """The server ended the call in good order."""
        self._append(_LAST_CHUNK)
        self._exchange.parse_available()

    def fail(self, code: str, details: str) -> None:
        """The call ended with an error: of the connection, instead of an answer, or in the middle of one."""
        said = f"gRPC {code}: {details}"
        if self._began:
            self._exchange.fail(Failure(ErrorClass.STREAM_BROKEN, f"the stream ended with {said}"))
        elif is_unconnected(code, details):
            is_tls = "handshake" in details.lower() or "certificate" in details.lower()
            self._exchange.fail(Failure(ErrorClass.CONNECT, f"{'no TLS' if is_tls else 'no connection'}: {said}"))
        elif code == "CANCELLED" or "Socket closed" in details or "Connection reset" in details:
            self._exchange.fail(Failure(ErrorClass.STREAM_BROKEN, f"{said} before any answer"))
        else:
            body = json.dumps({"error": said}).encode()
            status = HTTP_STATUS.get(code, 500)
            head = b"HTTP/1.1 %d -\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self._keep(head % (status, len(body)) + body)
            self._exchange.parse_available()

    def _append(self, framed: bytes) -> None:
        began, self._began = self._began, True
        self._keep(framed if began else _HEAD + framed)
        if not self._exchange.notify_on_end:  # the head is still to be parsed, or the client leaves after some output
            self._exchange.parse_available()

    def _keep(self, data: bytes) -> None:
        at_ns = monotonic_ns()
        if data:
            self._exchange.append(data)
            self._exchange.append_mark(at_ns)
            self._exchange.append_mark(len(data))


class _Watch:
    """Checks the time limits of an exchange when they may have passed."""

    def __init__(self, exchange: Exchange, deadlines: Deadlines) -> None:
        self._exchange = exchange
        self._deadlines = deadlines
        self._due: Due = deadlines.check_at(exchange.check_ns, self._check)

    def _check(self) -> None:
        self._exchange.check_limits()
        if not self._exchange.over.done():
            self._due = self._deadlines.check_at(self._exchange.check_ns, self._check)

    def stop(self) -> None:
        """Check no more."""
        self._deadlines.forget(self._due)
