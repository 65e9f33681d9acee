"""HTTP clients for all that is asked of a server beside the measured load, talking as the measured path talks.

No proxy but the deployment's own, no redirect, nothing from the environment, the same certificates, the same socket.
"""

from __future__ import annotations

import httpx2

from benchgate.errors import TargetError
from benchgate.targets.address import NO_ADDRESS, ServerAddress
from benchgate.targets.dialect import Target
from benchgate.targets.route import tls_context


def client_of(target: Target, timeout: httpx2.Timeout) -> httpx2.Client:
    """A client with the target's base address and headers. TargetError when its address is none."""
    server, context = ServerAddress.of(target.url), tls_context(target.route)
    transport = httpx2.HTTPTransport(verify=context, uds=server.socket) if server.socket is not None else None
    try:
        return httpx2.Client(
            base_url=server.http_url,
            headers=target.headers(),
            timeout=timeout,
            follow_redirects=False,
            trust_env=False,
            verify=context,
            proxy=target.route.proxy,
            transport=transport,
        )
    except httpx2.InvalidURL:
        raise TargetError(NO_ADDRESS) from None  # its message repeats parts of the address


def async_client_of(target: Target, timeout: httpx2.Timeout, limits: httpx2.Limits) -> httpx2.AsyncClient:
    """The same for an event loop."""
    server, context = ServerAddress.of(target.url), tls_context(target.route)
    transport = None
    if server.socket is not None:
        transport = httpx2.AsyncHTTPTransport(verify=context, uds=server.socket, limits=limits)
    try:
        return httpx2.AsyncClient(
            base_url=server.http_url,
            headers=target.headers(),
            timeout=timeout,
            limits=limits,
            follow_redirects=False,
            trust_env=False,
            verify=context,
            proxy=target.route.proxy,
            transport=transport,
        )
    except httpx2.InvalidURL:
        raise TargetError(NO_ADDRESS) from None
