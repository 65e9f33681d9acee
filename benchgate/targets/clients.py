"""HTTP clients for all that is asked of a server beside the measured load, talking as the measured path talks.

No proxy but the deployment's own, no redirect, nothing from the environment, the same certificates, the same socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from benchgate.errors import TargetError
from benchgate.targets.address import NO_ADDRESS, ServerAddress
from benchgate.targets.dialect import Target
from benchgate.targets.route import tls_context


def client_of(target: Target, timeout: httpx2.Timeout) -> httpx2.Client:
    """A client with the target's base address and headers. TargetError when its address is none."""
    socket, context = ServerAddress.of(target.url).socket, tls_context(target.route)
    transport = None if socket is None else httpx2.HTTPTransport(verify=context, uds=socket)
    with _addressed():
        return httpx2.Client(transport=transport, timeout=timeout, **_way(target))


def async_client_of(target: Target, timeout: httpx2.Timeout, limits: httpx2.Limits) -> httpx2.AsyncClient:
    """The same for an event loop."""
    socket, context = ServerAddress.of(target.url).socket, tls_context(target.route)
    transport = None if socket is None else httpx2.AsyncHTTPTransport(verify=context, uds=socket, limits=limits)
    with _addressed():
        return httpx2.AsyncClient(transport=transport, timeout=timeout, limits=limits, **_way(target))


def _way(target: Target) -> dict[str, Any]:
    """How both kinds of client reach a target and what they show there."""
    return {
        "base_url": ServerAddress.of(target.url).http_url,
        "headers": target.headers(),
        "follow_redirects": False,
        "trust_env": False,
        "verify": tls_context(target.route),
        "proxy": target.route.proxy,
    }


@contextmanager
def _addressed() -> Iterator[None]:
    try:
        yield
    except httpx2.InvalidURL:
        raise TargetError(NO_ADDRESS) from None  # its message repeats parts of the address
