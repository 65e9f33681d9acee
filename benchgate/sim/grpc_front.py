"""The inference protocol over gRPC of a simulated server, at the port of its HTTP.

A connection that begins like HTTP/2 is passed on to a server of grpcio inside this process. A call becomes a request
like those over HTTP, and its reply writes an HTTP/1.1 response. The chunks of the response hold the messages, each
behind its length, and an error status becomes one of gRPC. So every setting and every fault holds over gRPC too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from time import monotonic_ns
from typing import Any, NamedTuple, cast

from benchgate.model.request import ENDPOINTS
from benchgate.sim.encoders import FRAME
from benchgate.sim.http_server import LARGEST_BODY_BYTES, OpenReply, Request
from benchgate.targets.grpc_client import HTTP_STATUS
from benchgate.targets.grpc_messages import SERVICE

_CODES = {status: code for code, status in reversed([*HTTP_STATUS.items()])}
_OK, _CLIENT_ERRORS = 200, range(400, 500)
_HELD = 64  # messages that grpcio has not taken yet, from which a call is congested
_HOST = "127.0.0.1"
_SPEC = ENDPOINTS["grpc-infer"]


class _Failure(NamedTuple):
    """The status of gRPC at the end of a call."""

    code: str
    details: str


class GrpcLine:
    """The `Line` of one call: parses an HTTP/1.1 response into messages of gRPC."""

    def __init__(self) -> None:
        self.reply: OpenReply | None = None
        self.received_ns = monotonic_ns()
        self.late_writes = 0
        self._messages: asyncio.Queue[bytes | _Failure | None] = asyncio.Queue()
        self._held = b""
        self._status: int | None = None  # of the response, once its head is there
        self._is_chunked = False

    @property
    def congested(self) -> bool:
        """Return True while many messages wait to be sent."""
        return self._messages.qsize() > _HELD

    def write(self, data: bytes) -> None:
        """Take bytes of the response."""
        self._held += data
        if self._status is None:
            head, end, body = self._held.partition(b"\r\n\r\n")
            if not end:
                return
            self._status, self._held = int(head.split(b" ", 2)[1]), body
            self._is_chunked = b"transfer-encoding: chunked" in head
        while self._is_chunked and self._take_chunk():
            pass

    def done(self, *, keep: bool) -> None:
        """End the call: the response is whole."""
        self.reply = None
        if self._status != _OK:
            status = self._status or 0
            other = "INVALID_ARGUMENT" if status in _CLIENT_ERRORS else "INTERNAL"
            self._end(_Failure(_CODES.get(status, other), self._held.decode("utf-8", "replace")))
        else:
            if not self._is_chunked:
                self._take(self._held)
            self._end(None)

    def reset(self) -> None:
        """End the call like a connection that broke."""
        self.reply = None
        self._end(_Failure("UNAVAILABLE", "Connection reset by peer"))

    async def messages(self) -> AsyncIterator[bytes | _Failure]:
        """Yield the messages as they are written, then the status of gRPC if the response failed."""
        while (message := await self._messages.get()) is not None:
            yield message

    def _take_chunk(self) -> bool:
        size, line_end, rest = self._held.partition(b"\r\n")
        length = int(size, 16) if line_end else 0
        if not length or len(rest) < length + 2:
            return False
        self._take(rest[:length])
        self._held = rest[length + 2 :]
        return True

    def _take(self, framed: bytes) -> None:
        while framed:
            _, length = FRAME.unpack_from(framed)
            self._messages.put_nowait(framed[FRAME.size : FRAME.size + length])
            framed = framed[FRAME.size + length :]

    def _end(self, failure: _Failure | None) -> None:
        if failure is not None:
            self._messages.put_nowait(failure)
        self._messages.put_nowait(None)


Serve = Callable[[Request, GrpcLine], None]
"""Answers one call: by `write` and `done` of the line, at once or later."""


class GrpcFront:
    """The server of grpcio, which starts with the first connection that speaks HTTP/2."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._starting: asyncio.Task[tuple[Any, int]] | None = None
        self._passing = set[asyncio.Task[None]]()

    def take(self, transport: asyncio.Transport, data: bytes) -> None:
        """Pass a connection on to the server; `data` was already read from it."""
        transport.pause_reading()
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        task = asyncio.ensure_future(self._pass_on(transport, data, self._starting))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def close(self) -> None:
        """Stop the server, and every call."""
        for task in self._passing:
            task.cancel()
        if self._starting is not None:
            with suppress(Exception):  # it did not start, and that was raised before
                server, _ = await self._starting
                await server.stop(None)

    async def _start(self) -> tuple[Any, int]:
        import grpc.aio

        server = grpc.aio.server(options=[("grpc.max_receive_message_length", LARGEST_BODY_BYTES)])
        handlers = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self._infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.strip("/"), handlers),))
        port = server.add_insecure_port(f"{_HOST}:0")
        await server.start()
        return server, port

    async def _pass_on(self, transport: asyncio.Transport, data: bytes, started: asyncio.Task[tuple[Any, int]]) -> None:
        try:
            _, port = await asyncio.shield(started)
            loop = asyncio.get_running_loop()
            inner, _ = await loop.create_connection(lambda: _Side(transport), _HOST, port)  # it speaks at once
        except BaseException:
            transport.abort()
            raise
        if transport.is_closing():
            inner.abort()
            return
        inner.write(data)
        transport.set_protocol(_Side(inner))
        transport.resume_reading()

    async def _infer(self, message: bytes, context: Any) -> bytes:
        async with aclosing(self._answers(_SPEC.path, message, context)) as answers:
            return await anext(answers, b"")

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in messages:
            async with aclosing(self._answers(cast(str, _SPEC.stream_path), message, context)) as answers:
                async for answer in answers:
                    yield answer

    async def _answers(self, path: str, message: bytes, context: Any) -> AsyncGenerator[bytes]:
        import grpc

        line = GrpcLine()
        headers = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        try:
            self._serve(Request("POST", path, "", headers, message), line)
        except Exception as error:  # a defect stops this server, which grpcio would make an answer of
            asyncio.get_running_loop().call_exception_handler({"message": "a call was not served", "exception": error})
            raise
        try:
            async for answer in line.messages():
                if isinstance(answer, _Failure):
                    await context.abort(grpc.StatusCode[answer.code], answer.details)
                else:
                    yield answer
        finally:
            if line.reply is not None:
                line.reply.abandon()


class _Side(asyncio.Protocol):
    """Side of a connection that is passed on: writes what it reads to the other."""

    def __init__(self, other: asyncio.Transport) -> None:
        self._other = other

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        if not self._other.is_closing():
            self._other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other side too."""
        self._other.close()
