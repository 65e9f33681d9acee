"""Addresses of servers and proxies as they are written: their shape alone, nothing is looked up. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

_UNIX = "unix:"
_LONGEST_SOCKET = 107  # bytes, of what the operating system has room for with the zero that ends it


def unix_parts(address: str) -> tuple[str, str] | None:
    """Socket and base path of `unix:/run/server.sock` or `unix:/run/server.sock:/base`; None for another scheme.

    The base path has no trailing slash. `unix:///run/server.sock` is the same, as in any URL. Raises ValueError for a
    path that cannot be a socket's.
    """
    if not address.startswith(_UNIX):
        return None
    if not (address.isascii() and address.isprintable()) or " " in address or "$" in address:
        raise ValueError("a unix: address has no space and no other character that a request could not carry")
    path, colon, base = address.removeprefix(_UNIX).partition(":")
    if path.startswith("//"):
        path = path.removeprefix("//")
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError("the socket of a unix: address is a whole path; write it like unix:/run/server.sock")
    if len(path.encode()) > _LONGEST_SOCKET:
        raise ValueError(f"the path of a socket has at most {_LONGEST_SOCKET} bytes; move the socket to a shorter one")
    if colon and not base.startswith("/"):
        raise ValueError("the base path after the socket starts with a slash, as in unix:/run/server.sock:/base")
    return path, base.rstrip("/")


def is_http_base(address: str, schemes: tuple[str, ...] = ("http", "https")) -> bool:
    """Whether this is an address of one of these schemes with a host, in characters a request can carry."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises when it is no port
    except ValueError:
        return False
    readable = address.isascii() and address.isprintable() and " " not in address and "$" not in address
    return readable and parts.scheme in schemes and bool(parts.hostname)


def version_problem(address: str) -> str | None:
    """Why an address that ends in the API's version is refused; None for any other."""
    address = address.rstrip("/")
    if not address.endswith("/v1"):
        return None
    return f'ends in /v1, which benchgate adds itself; write "{address.removesuffix("/v1").rstrip(":")}"'


def check_proxy(address: str) -> str:
    """A proxy's address without its trailing slash; ValueError, which repeats nothing of it, for anything else."""
    if "@" in address:
        raise ValueError("holds credentials; a proxy that asks for them is not supported")
    address = address.rstrip("/")
    if not is_http_base(address, ("http",)) or urlsplit(address)._replace(scheme="", netloc="").geturl():
        raise ValueError("is not the address of a proxy; write it like http://proxy:3128")
    return address
