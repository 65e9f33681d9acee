"""Delivery of a verdict to web addresses: a signed webhook, Slack, a Pushgateway.

Webhooks are signed by Standard Webhooks 1.0.0 (symmetric, `v1`), over id, time of the try and body. The id is a hash of
the body, so a receiver that goes by ids takes the same verdict once. Secrets come from the environment by name and are
in no message, error or command line. A delivery is bounded in time, retried where that is safe, and never redirected.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from urllib.parse import quote, unquote, urlsplit

import httpx2

from benchgate import __version__, credentials
from benchgate.errors import PublishError, UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PRINTABLE = re.compile(r"[\x21-\x7e]{1,2000}")
# Metadata services beside those on link-local addresses: Alibaba, Azure, Oracle, AWS (and of its pods), Google.
_METADATA = tuple(
    map(ipaddress.ip_network, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::/32", "fd20:ce::254"))
)
_HOLDS_IPV4 = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/96", "::/96")))  # the last 32 bits of them


@dataclass(frozen=True, slots=True)
class Destination:
    """An address for messages. `name` is its name in errors, without anything that could be a secret."""

    name: str
    scheme: str
    host: str
    port: int
    target: str  # path and query, as they are sent; they may be secret

    def __repr__(self) -> str:
        return f"Destination({self.name} at {self.origin})"

    @property
    def origin(self) -> str:
        """The part of the address that is no secret."""
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}"

    @property
    def host_header(self) -> str:
        """The Host header."""
        usual = self.port == (443 if self.scheme == "https" else 80)
        return _bracketed(self.host) if usual else f"{_bracketed(self.host)}:{self.port}"

    def at(self, address: Address) -> str:
        """Return the URL at one of its host's IP addresses."""
        return f"{self.scheme}://{_bracketed(str(address))}:{self.port}{self.target}"


def destination(url: str, name: str) -> Destination:
    """Parse an address. Raises UsageError, which does not show it, if nothing may be sent there."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"{name}: expected an address like https://host/path") from None
    if not _PRINTABLE.fullmatch(url) or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"{name}: expected an address like https://host/path, with blanks and others percent-encoded")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise UsageError(f"{name}: its address has a user, a password or a fragment; leave that out")
    if parts.scheme == "http" and not is_here(parts.hostname):
        raise UsageError(f"{name}: its address is plain http, which others can read and change; use https")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(name, parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), target)


def addresses(to: Destination) -> Sequence[Address]:
    """Resolve the host. Raises PublishError for a forbidden address, and gaierror for an unknown host."""
    found = socket.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
    known = list(dict.fromkeys(ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found))
    for address in known:
        if _is_forbidden(address):
            raise PublishError(
                f"{to.name} at {to.origin}: it is at {address}, a metadata service or an address of this link alone; "
                "nothing is sent there"
            )
        if to.scheme == "http" and not address.is_loopback:
            raise PublishError(f"{to.name} at {to.origin}: it is at {address}, not on this machine; use https")
    return known


def _is_forbidden(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):  # which may hold an IPv4 address
        inner = address.ipv4_mapped or address.sixtofour
        if any(address in network for network in _HOLDS_IPV4) and int(address) > 1:  # `::` and `::1` are themselves
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _is_forbidden(inner)
    nowhere = address.is_unspecified or (address.version == 4 and address.packed[0] == 0)
    metadata = any(address in network for network in _METADATA)
    return nowhere or metadata or address.is_link_local or address.is_multicast


def is_here(host: str) -> bool:
    """Return True if a host is this machine by name or address alone, so that nobody else reads http to it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


_MOST_TRIES = 4
_LONGEST_S = 60.0  # all tries and waits together
_TRY_S = 20.0
_CONNECT_S = 5.0
_LONGEST_WAIT_S = 30.0
_STATUSES = frozenset(int(status) for status in HTTPStatus)
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_NOT_TAKEN = frozenset({429, 503})  # by which a server says that it did nothing
_SECONDS = re.compile(r"[0-9]{1,6}")
_REMEDIES = {
    400: "; the server rejects the body",
    401: "; its key or its signing secret is not the server's",
    403: "; its key or its signing secret is not the server's, or requests from here are forbidden",
    404: "; is its address right, and not withdrawn?",
    410: "; its address was withdrawn",
    413: "; the message is too large for the server",
}


@dataclass(frozen=True, slots=True)
class Clock:
    """Time source, which tests replace."""

    monotonic: Callable[[], float] = time.monotonic
    unix: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


CLOCK = Clock()


def deliver(
    method: str,
    to: Destination,
    body: bytes,
    headers: Callable[[], Mapping[str, str]],
    *,
    repeatable: bool,
    clock: Clock = CLOCK,
) -> None:
    """Send a body, and return once the server took it.

    `headers` returns those of one try. A body that is not `repeatable` is sent again only if the server cannot have
    taken it. Raises PublishError, which shows only the origin of the destination.
    """
    ends_s = clock.monotonic() + _LONGEST_S
    trusted = ssl.create_default_context() if to.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    failed, trouble = f"{to.name} at {to.origin} failed", ""
    for tries in range(_MOST_TRIES):
        wait_s = 2.0**tries
        try:
            status, retry_after_s = _try(method, to, body, headers(), trusted, lambda: ends_s - clock.monotonic())
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            trouble = _words(error)
        except (socket.gaierror, UnicodeError):  # the latter of a name that none can have
            trouble = "there is no host of that name"
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            trouble = _words(error)
            if not repeatable:
                raise PublishError(f"{failed}: {trouble}; it is unknown if it arrived") from None
        else:
            if 200 <= status < 300:
                return
            phrase = f" ({HTTPStatus(status).phrase})" if status in _STATUSES else ""
            trouble = f"it answers HTTP {status}{phrase}"
            if status not in (_PASSING if repeatable else _NOT_TAKEN):
                moved = "; redirects are not followed" if 300 <= status < 400 else _REMEDIES.get(status, "")
                raise PublishError(f"{failed}: {trouble}{moved}")
            wait_s = wait_s if retry_after_s is None else min(retry_after_s, _LONGEST_WAIT_S)
        if tries + 1 < _MOST_TRIES:
            if clock.monotonic() + wait_s >= ends_s:
                break
            clock.sleep(wait_s)
    raise PublishError(f"{failed}: {trouble}, again and again; publish once more when it is there")


def _try(
    method: str,
    to: Destination,
    body: bytes,
    headers: Mapping[str, str],
    trusted: ssl.SSLContext,
    left_s: Callable[[], float],
) -> tuple[int, float | None]:
    """Return the status of one answer and its Retry-After (s). Raises httpx2's errors, TimeoutError too."""
    missed: httpx2.ConnectError | httpx2.ConnectTimeout | None = None
    every = {"User-Agent": f"benchgate/{__version__}", **headers, "Host": to.host_header}
    names = {"sni_hostname": to.host} if to.scheme == "https" else {}
    for address in addresses(to):
        request = httpx2.Request(method, to.at(address), content=body, headers=every, extensions=names)
        try:
            return asyncio.run(_send(request, trusted, min(left_s(), _TRY_S)))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            missed = error
    raise missed or httpx2.ConnectError("its host has no address")


async def _send(request: httpx2.Request, trusted: ssl.SSLContext, limit_s: float) -> tuple[int, float | None]:
    """Send in an event loop, which alone can limit the total time of a server that answers byte by byte."""
    timeout = httpx2.Timeout(limit_s, connect=min(_CONNECT_S, limit_s))
    request.extensions["timeout"] = timeout.as_dict()
    async with (
        asyncio.timeout(limit_s),
        httpx2.AsyncClient(verify=trusted, trust_env=False, follow_redirects=False) as client,
    ):
        response = await client.send(request, stream=True)
        await response.aclose()  # its body is not used
    retry_after = response.headers.get("Retry-After", "")
    return response.status_code, float(retry_after) if _SECONDS.fullmatch(retry_after) else None


def _words(error: Exception) -> str:
    """Describe an error without the library's words, which may repeat the address."""
    if isinstance(error, httpx2.ConnectTimeout):
        return "no connection in time"
    if isinstance(error, (httpx2.TimeoutException, TimeoutError)):
        return "no answer in time"
    if isinstance(error, httpx2.ConnectError):
        cause = error.__cause__ or error.__context__
        while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__ or cause.__context__
        return "its certificate is not trusted here" if cause is not None else "it refuses connections"
    return "the connection broke"


SECRET = "BENCHGATE_WEBHOOK_SECRET"
SLACK_URL = "BENCHGATE_SLACK_URL"
OTLP_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"  # as OpenTelemetry's own exporters read it
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LEAST_KEY, _MOST_KEY = 24, 64  # bytes, as the specification asks
_EXPECTED = f"expected `whsec_` and {_LEAST_KEY} to {_MOST_KEY} random bytes as base64"


def webhook_key(environment: Mapping[str, str]) -> bytes:
    """Return the signing key in BENCHGATE_WEBHOOK_SECRET (`whsec_` and base64). Raises UsageError."""
    secret = environment.get(SECRET, "").strip()
    if not secret:
        raise UsageError(f"{SECRET} is not set, and a webhook is signed; {_EXPECTED}")
    credentials.register(secret, secret.removeprefix("whsec_"))
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith("whsec_") or not _LEAST_KEY <= len(key) <= _MOST_KEY:
        raise UsageError(f"{SECRET} is no signing secret; {_EXPECTED}")
    return key


def send_webhook(to: Destination, body: str, key: bytes, *, clock: Clock = CLOCK) -> str:
    """Send a signed body, and return its message id. Raises PublishError."""
    data = body.encode()
    message_id = f"msg_{hashlib.sha256(data).hexdigest()[:32]}"

    def headers() -> dict[str, str]:
        at = str(int(clock.unix()))
        return {
            "Content-Type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": at,
            "webhook-signature": signature(key, message_id, at, data),
        }

    deliver("POST", to, data, headers, repeatable=True, clock=clock)
    return message_id


def signature(key: bytes, message_id: str, at: str, body: bytes) -> str:
    """Return the signature that a receiver compares: `v1,` and the HMAC-SHA256 of `id.time.body` as base64."""
    signed = b".".join((message_id.encode(), at.encode(), body))
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


def slack_destination(environment: Mapping[str, str]) -> Destination:
    """Return the secret address in BENCHGATE_SLACK_URL. Raises UsageError if it is missing."""
    url = environment.get(SLACK_URL, "").strip()
    if not url:
        raise UsageError(f"{SLACK_URL} is not set; expected the address of an incoming webhook, as a secret of the CI")
    to = destination(url, SLACK_URL)
    credentials.register(to.target)  # Slack's addresses have their token in the path
    return to


def send_slack(to: Destination, message: str, *, clock: Clock = CLOCK) -> None:
    """Post a message; never again if the first may have arrived. Raises PublishError."""
    headers = {"Content-Type": "application/json; charset=utf-8"}
    deliver("POST", to, message.encode(), lambda: headers, repeatable=False, clock=clock)


def otlp_headers(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers in OTEL_EXPORTER_OTLP_HEADERS, like `Authorization=Basic%20…`. Raises UsageError."""
    headers = {}
    for pair in filter(str.strip, environment.get(OTLP_HEADERS, "").split(",")):
        name, found, value = pair.partition("=")
        header = unquote(value.strip())
        if not found or not _HEADER.fullmatch(name.strip()) or not header.isascii() or not header.isprintable():
            raise UsageError(f"{OTLP_HEADERS}: expected name=value pairs with commas between them, percent-encoded")
        credentials.register(header)
        headers[name.strip()] = header
    return headers


def send_otlp(
    to: Destination, trace: str, histograms: str, headers: Mapping[str, str], *, clock: Clock = CLOCK
) -> None:
    """Post a trace and metrics to an OTLP/HTTP endpoint, whose base address is `to`. Raises PublishError."""
    path, _, query = to.target.partition("?")
    every = {**headers, "Content-Type": "application/json"}
    for signal, body in (("traces", trace), ("metrics", histograms)):
        target = f"{path.rstrip('/')}/v1/{signal}" + (f"?{query}" if query else "")
        deliver("POST", replace(to, target=target), body.encode(), lambda: every, repeatable=True, clock=clock)


def push_metrics(to: Destination, text: str, suite: str, *, clock: Clock = CLOCK) -> None:
    """Replace a suite's metrics in a Pushgateway. `to` is the gateway's own address. Raises PublishError."""
    encoded = base64.urlsafe_b64encode(suite.encode(errors="replace")).decode()
    path, _, query = to.target.partition("?")
    target = f"{path.rstrip('/')}/metrics/job/benchgate/suite@base64/{quote(encoded)}" + (f"?{query}" if query else "")
    group = replace(to, target=target)
    headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    deliver("PUT", group, text.encode(), lambda: headers, repeatable=True, clock=clock)
