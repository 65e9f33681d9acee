"""A way through an HTTP proxy to a server behind it, asked for by CONNECT."""

from __future__ import annotations

import asyncio

from benchgate.load.http1 import Head, MalformedResponse, split_head


class TunnelRefused(Exception):
    """The proxy did not open a way to the server."""


async def open_tunnel(proxy_host: str, proxy_port: int, server: str) -> asyncio.Transport:
    """A transport on which the server is spoken to; `server` is its host and port, as CONNECT names it.

    Raises TunnelRefused with the proxy's status, and OSError when the proxy itself is not there. The proxy is told
    nothing but `server`.
    """
    loop = asyncio.get_running_loop()
    transport, asking = await loop.create_connection(_Asking, proxy_host, proxy_port)
    try:
        transport.write(f"CONNECT {server} HTTP/1.1\r\nhost: {server}\r\nuser-agent: benchgate\r\n\r\n".encode())
        head, rest = await asking.answer
        if not 200 <= head.status < 300:
            raise TunnelRefused(f"the proxy answered HTTP {head.status} when asked for a way to the server")
        if rest:
            raise TunnelRefused("the proxy sent bytes of its own after it opened a way to the server")
    except BaseException:
        transport.abort()
        raise
    return transport


class _Asking(asyncio.Protocol):
    """Waits for the head of the proxy's answer, which is all that comes before the server is asked something."""

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
