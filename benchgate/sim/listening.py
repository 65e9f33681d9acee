"""Where a practice server listens: a TCP port or a Unix socket, in the clear or over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.sim.settings import SimSettings
from benchgate.stamping import ask_for_stamps

_BACKLOG = 4096


async def listen(settings: SimSettings, protocol: Callable[[], asyncio.BaseProtocol]) -> tuple[asyncio.Server, str]:
    """Take the address and give its URL; connections are refused until the server is told to start serving.

    Raises UsageError when the address cannot be had or a certificate cannot be used.
    """
    tls = _tls(settings)
    sock, url = _bound_uds(settings.uds) if settings.uds is not None else _bound_tcp(settings, tls)
    with contextlib.suppress(OSError):
        ask_for_stamps(sock)
    loop = asyncio.get_running_loop()
    create = loop.create_server if settings.uds is None else loop.create_unix_server
    server = await create(protocol, sock=sock, ssl=tls, backlog=_BACKLOG, start_serving=False)
    if not settings.ready_after_s:
        await server.start_serving()
    return server, url


def raise_file_limit() -> None:
    """Allow as many open connections as the system does."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS knows a lower limit of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _bound_tcp(settings: SimSettings, tls: ssl.SSLContext | None) -> tuple[socket.socket, str]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise UsageError(f"cannot listen on {settings.host} port {settings.port}: {reason}; try --port 0") from error
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return sock, f"{'http' if tls is None else 'https'}://{host}:{sock.getsockname()[1]}"


def _bound_uds(path: str) -> tuple[socket.socket, str]:
    """A socket file left by a server that is gone is replaced; one that answers is somebody's."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).is_socket() and not _answers(path):
            Path(path).unlink()
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise UsageError(f"cannot listen on the socket {path}: {error.strerror or error}") from error
    return sock, f"unix:{Path(path).resolve()}"


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def _tls(settings: SimSettings) -> ssl.SSLContext | None:
    if settings.cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.cert, settings.key)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        named = f"{settings.cert}, {settings.key}" + (f", {settings.client_ca}" if settings.client_ca else "")
        raise UsageError(f"a certificate cannot be used ({named}): {error}") from error
    return context
