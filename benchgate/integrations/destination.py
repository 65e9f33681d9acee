"""Where a message goes that leaves this machine: checked before anything is sent, and asked at the checked address.

An address may hold a secret (Slack's is one), so of any of them only the origin is ever shown. Plain http is for this
machine alone. The host's addresses are looked up once, refused where one is of a cloud's metadata service or of this
link, and the connection goes to one of just these: a name that is answered differently the next time gains nothing.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchgate.errors import PublishError, UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_PRINTABLE = re.compile(r"[\x21-\x7e]{1,2000}")
_METADATA = tuple(
    map(ipaddress.ip_network, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::/32", "fd20:ce::254"))
)
"""Metadata services of clouds beside those on link-local addresses: Alibaba, Azure, Oracle, AWS (and its credentials
of pods), Google.
"""
_HOLDS_IPV4 = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/96", "::/96")))  # the last 32 bits of them


@dataclass(frozen=True, slots=True)
class Destination:
    """An address that a message may be sent to. `what` names it in errors, without anything that could be a secret."""

    what: str
    scheme: str
    host: str
    port: int
    target: str  # path and query, as they are sent; they may be secret

    def __repr__(self) -> str:
        return f"Destination({self.what} at {self.origin})"

    @property
    def origin(self) -> str:
        """What may be shown of it."""
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}"

    @property
    def host_header(self) -> str:
        """Its name, as the server knows it."""
        usual = self.port == (443 if self.scheme == "https" else 80)
        return _bracketed(self.host) if usual else f"{_bracketed(self.host)}:{self.port}"

    def at(self, address: Address) -> str:
        """The same at one of its host's addresses."""
        return f"{self.scheme}://{_bracketed(str(address))}:{self.port}{self.target}"


def destination(url: str, what: str) -> Destination:
    """The address, taken apart. Raises UsageError, which shows nothing of it, for one that nothing may be sent to."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UsageError(f"{what}: expected an address like https://host/path") from None
    if not _PRINTABLE.fullmatch(url) or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"{what}: expected an address like https://host/path, with blanks and others percent-encoded")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise UsageError(f"{what}: its address has a user, a password or a fragment; leave that out")
    if parts.scheme == "http" and not is_here(parts.hostname):
        raise UsageError(f"{what}: its address is plain http, which others can read and change; use https")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(what, parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), target)


def addresses(to: Destination) -> Sequence[Address]:
    """Where its host is now. Raises PublishError where no message goes, gaierror where there is no such host."""
    found = socket.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
    known = list(dict.fromkeys(ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found))
    for address in known:
        if _is_forbidden(address):
            raise PublishError(
                f"{to.what} at {to.origin}: it is at {address}, a metadata service or an address of this link alone; "
                "nothing is sent there"
            )
        if to.scheme == "http" and not address.is_loopback:
            raise PublishError(f"{to.what} at {to.origin}: it is at {address}, not on this machine; use https")
    return known


def _is_forbidden(address: Address) -> bool:
    inner = _inside(address)
    if inner is not None:
        return _is_forbidden(inner)
    nowhere = address.is_unspecified or (address.version == 4 and address.packed[0] == 0)
    metadata = any(address in network for network in _METADATA)
    return nowhere or metadata or address.is_link_local or address.is_multicast


def _inside(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for, if any."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if any(address in network for network in _HOLDS_IPV4) and int(address) > 1:  # `::` and `::1` are themselves
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def is_here(host: str) -> bool:
    """Whether a host is this machine by its name or address alone, so that http to it is read by nobody else."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
