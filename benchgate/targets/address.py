"""The base URL of a server, taken apart by one rule for every client, and what of it may be shown.

An address may come out of a secret. Only scheme, host and port ever stand in a message: paths of gateways hold tenants
and tokens.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from benchgate.errors import TargetError
from benchgate.suite.deployment import unix_parts

NO_ADDRESS = 'this is not the address of a server; write it like "http://host:8000"'


class ServerAddress(NamedTuple):
    """Where a server is asked. `prefix` is the path of its base URL, without a trailing slash.

    `socket` is the path of a Unix socket, over which HTTP is spoken without TLS to a host called localhost, as curl
    and docker do it; None when the server listens on a port.
    """

    scheme: str
    host: str
    port: int | None
    prefix: str
    socket: str | None = None

    @classmethod
    def of(cls, url: str) -> ServerAddress:
        """Of a base URL; TargetError, which repeats nothing of it but scheme and host, when it is none."""
        if not (url.isascii() and url.isprintable()) or " " in url:
            raise TargetError(NO_ADDRESS)
        try:
            unix = unix_parts(url)
        except ValueError as exc:
            raise TargetError(str(exc)) from None
        if unix is not None:
            return cls("unix", "localhost", None, unix[1], unix[0])
        try:
            parts = urlsplit(url)
            (parts.hostname or "").encode("idna")  # else looking it up would raise
        except ValueError:
            raise TargetError(NO_ADDRESS) from None
        if parts.username is not None or parts.password is not None:
            raise TargetError("the address of a server must not hold a user name or password; use an API key")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TargetError(NO_ADDRESS)
        shown = f"{parts.scheme}://{_host(parts.hostname)}"
        if parts.query or parts.fragment:
            raise TargetError(f'the address {shown}… must end with its path; remove what follows "?" or "#"')
        try:
            port = parts.port
        except ValueError:
            port = 0
        if port == 0:
            raise TargetError(f"the port in the address {shown}:… is not one from 1 to 65535")
        return cls(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))

    @property
    def http_url(self) -> str:
        """The base URL as any HTTP client takes it; the socket, if there is one, goes to its transport."""
        scheme = "http" if self.socket is not None else self.scheme
        return f"{scheme}://{self.netloc}{self.prefix}"

    @property
    def shown(self) -> str:
        """Scheme, host and port, or the socket: all of it that may be stored or shown."""
        return f"unix:{self.socket}" if self.socket is not None else f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """Host and port, as in a Host header."""
        return _host(self.host) if self.port is None else f"{_host(self.host)}:{self.port}"


def show_address(url: str) -> str:
    """What of an address may be stored or shown."""
    try:
        return ServerAddress.of(url).shown
    except TargetError:
        return "an address that is none"


def _host(name: str) -> str:
    return f"[{name}]" if ":" in name else name
