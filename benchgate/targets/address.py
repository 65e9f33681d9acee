"""Server addresses, parsed by one rule for every client, and the way to a server: certificates and proxy.

An address may come out of a secret. Only scheme, host and port ever stand in a message: paths of gateways hold tenants
and tokens.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from benchgate.errors import TargetError, UsageError
from benchgate.suite.address import check_scheduler, is_versioned, unix_parts
from benchgate.system import lacking

NO_ADDRESS = 'this is not the address of a server; write it like "http://host:8000"'


class ServerAddress(NamedTuple):
    """A server's base URL. `prefix` is its path, without a trailing slash.

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
        """Parse a base URL. Raises TargetError, which repeats nothing of it but scheme and host."""
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
            (parts.hostname or "").encode("idna")  # else resolving it would raise
        except ValueError:
            raise TargetError(NO_ADDRESS) from None
        if parts.username is not None or parts.password is not None:
            raise TargetError("the address of a server must not hold a user name or password; use an API key")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TargetError(NO_ADDRESS)
        shown = f"{parts.scheme}://{_bracketed(parts.hostname)}"
        if parts.query or parts.fragment:
            raise TargetError(f'the address {shown}… must end with its path; remove what follows "?" or "#"')
        try:
            port = parts.port
        except ValueError:
            port = 0
        if port == 0:
            raise TargetError(f"the port in the address {shown}:… is not one from 1 to 65535")
        return cls(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))

    def path(self, path: str) -> str:
        """Return the path of a page or endpoint at this server, like `/openai/v1/models` of `/v1/models`.

        A base path with a version of its own replaces that of an endpoint: `/v1beta/openai/models`.
        """
        if not is_versioned(self.prefix):
            return f"{self.prefix}{path}"
        if path.startswith("/v1/"):
            return f"{self.prefix}{path.removeprefix('/v1')}"
        return f"{self.prefix.removesuffix('/v1')}{path}"

    def page(self, path: str) -> str:
        """Return the URL of a page or endpoint as any HTTP client takes it; a socket goes to its transport."""
        scheme = "http" if self.socket is not None else self.scheme
        return f"{scheme}://{self.netloc}{self.path(path)}"

    @property
    def shown(self) -> str:
        """Scheme, host and port, or the socket: all of it that may be stored or shown."""
        return f"unix:{self.socket}" if self.socket is not None else f"{self.scheme}://{self.netloc}"

    @property
    def tcp_port(self) -> int:
        """The port that is connected to: without a stated one, that of the scheme."""
        return self.port or (443 if self.scheme == "https" else 80)

    @property
    def netloc(self) -> str:
        """Host and port, as in a Host header."""
        return _bracketed(self.host) if self.port is None else f"{_bracketed(self.host)}:{self.port}"


def http_form(grpc: str) -> str:
    """Return an address of gRPC with `http` for `grpc`, and `https` for `grpcs`."""
    return grpc.replace("grpc", "http", 1)


def require_scheduler(address: str) -> None:
    """Raise UsageError for an address that can be no scheduler's, and without dask.distributed.

    Cheap: the library is only looked up, not imported.
    """
    try:
        check_scheduler(address)
    except ValueError as error:
        raise UsageError(f"--cluster: {error}") from None
    if find_spec("distributed") is None:
        raise UsageError(lacking("--cluster needs dask.distributed, which is not installed", "cluster"))


def show_address(url: str) -> str:
    """Return the part of an address that may be stored or shown."""
    try:
        return ServerAddress.of(url).shown
    except TargetError:
        return "an address that is none"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True, slots=True)
class Route:
    """Certificates and proxy for a server. Paths are of PEM files; `key` may be None when it stands in `cert`'s file.

    `ca` is trusted instead of the system's certificates; verification cannot be switched off. `proxy` is an address
    like `http://proxy:3128`; without one a server is reached directly, whatever the environment says. Holds paths and
    no key, so that it can be passed to another process.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    proxy: str | None = None


DIRECT = Route()


class _KeyIsEncrypted(Exception):
    """A passphrase is needed, which would be read from the terminal in the middle of a run."""


@lru_cache(maxsize=16)
def tls_context(route: Route) -> ssl.SSLContext:
    """Return verifying TLS settings, their files read once. Raises UsageError, which names a file, never quotes it."""
    for what, path in (("CA certificates", route.ca), ("client certificate", route.cert), ("key", route.key)):
        if path is not None:
            try:
                with Path(path).open("rb") as file:
                    file.read(1)
            except OSError as exc:
                raise UsageError(f"the {what} in {path} could not be read: {exc.strerror}") from exc
    # Not `ssl.create_default_context`: it writes session keys where the environment says, and differs between Pythons.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if route.ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(route.ca)
        except ssl.SSLError as exc:
            raise UsageError(f"the CA certificates in {route.ca} are none in PEM form: {_reason(exc)}") from exc
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trusted whether or not somebody else vouches for them
    if route.cert is not None:
        where = route.cert if route.key is None else f"{route.cert} with the key in {route.key}"
        try:
            context.load_cert_chain(route.cert, route.key, password=_refuse)
        except _KeyIsEncrypted:
            key = route.key or route.cert
            raise UsageError(f"the key in {key} is encrypted; give one without a passphrase") from None
        except ssl.SSLError as exc:
            raise UsageError(f"the client certificate {where} cannot be used: {_reason(exc)}") from exc
    return context


def _refuse() -> str:
    raise _KeyIsEncrypted


def tls_fault(error: ssl.SSLError) -> str:
    """Describe a failed handshake, with the remedy where the server misses a client certificate."""
    text = str(error)
    if "CERTIFICATE_REQUIRED" in text:
        return f"the server asks for a client certificate, and none was shown: {_SHOW_ONE}"
    if "WRONG_VERSION_NUMBER" in text:
        return "the port does not speak TLS; write the address with http://, or name the port that does"
    if "HANDSHAKE_FAILURE" in text:  # all that TLS 1.2 says of it, and of much else
        return f"the server refused the TLS handshake ({_reason(error)}); if it asks for a certificate, {_SHOW_ONE}"
    return text


_SHOW_ONE = "give one by `tls: {cert, key}` of the deployment, or --cert and --key"


def _reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's word for an error, without the place in its source."""
    return (error.reason or "it is not in PEM form").lower().replace("_", " ")
