"""Addresses of servers and proxies as they are written: their shape alone, nothing is looked up. Pure.

Secrets by reference: `${env:NAME}` in a suite, resolved only at the moment of use, never stored, never shown.

No message here repeats a value that may be a secret; at most its length.

The header lines that a deployment's requests may carry beside our own. Pure; no message repeats a value.

How a deployment is reached beyond its address, as a suite says it: certificates, headers, a proxy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator

from benchgate.errors import UsageError
from benchgate.suite.types import Expected, Section, Text, Written, key, text

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


_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
REFERENCE_PATTERN = f"^{_REFERENCE.pattern}$"
"""What a reference looks like, for editors."""


def reference_name(text: str) -> str | None:
    """`"${env:NAME}"` → `"NAME"`; None for any other text."""
    match = _REFERENCE.fullmatch(text)
    return match[1] if match else None


def holds_reference(text: str) -> bool:
    """Whether a reference stands anywhere in a text."""
    return _REFERENCE.search(text) is not None


def check_reference(text: str) -> str:
    """Let a reference pass; ValueError, without the text itself, for a literal."""
    if reference_name(text) is None:
        raise ValueError(
            f"holds a literal of {len(text)} characters; a suite holds no secret: "
            "put it in an environment variable and write ${env:NAME}"
        )
    return text


def check_address(text: str) -> str:
    """A base address (http, https or unix) without its trailing slash, or a reference to one; ValueError otherwise.

    Credentials in the address are refused without being repeated; so are a query and a fragment, where keys hide too.
    """
    if reference_name(text) is not None:
        return text
    if "@" in text:
        raise ValueError("holds credentials; take them out of the address and write `api_key: ${env:NAME}`")
    if "?" in text or "#" in text:
        raise ValueError("has a query or a fragment; write the base address alone, like http://host:8000")
    if unix_parts(text) is None and not is_http_base(text):
        raise ValueError(
            f'"{text[:60]}" is not an address; write it like http://host:8000, unix:/run/server.sock or ${{env:NAME}}'
        )
    if (problem := version_problem(text)) is not None:
        raise ValueError(problem)
    return text.rstrip("/")


def resolve_secret(reference: str, environment: Mapping[str, str], by: str = "the suite") -> str:
    """The value a reference stands for; a text that is no reference stands for itself. `by` is where it is written.

    Raises UsageError, which names the variable and never its value, when it is not set, empty, or holds what cannot
    stand in an HTTP header.
    """
    name = reference_name(reference)
    if name is None:
        return reference
    value = environment.get(name)
    if not value:
        state = "is not set" if value is None else "is empty"
        raise UsageError(f"the environment variable {name} {state}, and {by} refers to it; set it and run again")
    if not (value.isascii() and value.isprintable()):
        raise UsageError(
            f"the environment variable {name} holds a line break or another character that cannot be sent; "
            "set it again without"
        )
    return value


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = "says how the message is framed, which the client itself must know"
_HOP = "is between one connection's two ends, which the client itself is one of"
_OURS = {
    "host": "is the address itself; write it in the address",
    "content-type": "is that of the body, which is always JSON",
    "content-length": _FRAMING,
    "transfer-encoding": _FRAMING,
    "te": _FRAMING,
    "trailer": _FRAMING,
    "expect": _FRAMING,
    "connection": _HOP,
    "keep-alive": _HOP,
    "upgrade": _HOP,
    "proxy-authorization": "is for a proxy and would reach the server",
    "proxy-connection": _HOP,
    "accept-encoding": "is always identity: a compressed stream comes in other pieces than the tokens were sent in",
}
_SECRET_WORDS = frozenset(
    {"auth", "authorization", "authentication", "cookie", "credential", "credentials", "key", "apikey", "passwd",
     "password", "secret", "signature", "token"}
)  # fmt: skip


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with their names in lower case; ValueError, which names the header, for one that may not be set.

    A value may be a reference only as a whole. One that a credential stands in by its name must be a reference.
    """
    checked: dict[str, str] = {}
    for name, value in headers.items():
        low = name.lower()
        if low in checked:
            raise ValueError(f'the header "{low}" is set twice; set it once')
        _check_name(name)
        _check_value(low, value)
        checked[low] = value
    return checked


def written_out(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers whose value is no reference: what may be stored and shown."""
    return {name: value for name, value in headers.items() if reference_name(value) is None}


def read_header(line: str) -> tuple[str, str]:
    """`NAME: VALUE` as typed; ValueError, without the value, when it is none or may not be set."""
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError("a header is written NAME:VALUE, and this one has no colon")
    ((low, checked),) = check_headers({name.strip(): value.strip()}).items()
    return low, checked


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is no name of a header; it has letters, digits and `-`")
    reason = _OURS.get(name.lower())
    if reason is not None:
        raise ValueError(f'the header "{name}" cannot be set: it {reason}; remove it')


def _check_value(name: str, value: str) -> None:
    if reference_name(value) is not None:
        return
    if holds_reference(value) or "${" in value:
        raise ValueError(
            f'the header "{name}" holds a reference among other text; put all of its value in the variable'
        )
    if _SECRET_WORDS & set(re.split(r"[-_.]", name)):
        raise ValueError(
            f'the header "{name}" holds a literal of {len(value)} characters; a secret is never written out: '
            "put it in an environment variable and write ${env:NAME}"
        )
    if not value or not (value.isascii() and value.isprintable()) or value != value.strip():
        raise ValueError(f'the header "{name}" is empty or has characters that no header may have')


Address = Annotated[
    str, AfterValidator(check_address), Expected('an address like "http://host:8000" or a reference like "${env:NAME}"')
]
Reference = Annotated[
    str,
    AfterValidator(check_reference),
    Expected('a reference like "${env:NAME}"'),
    Written(text(REFERENCE_PATTERN)),
]
Headers = Annotated[
    dict[str, str], AfterValidator(check_headers), Expected('a mapping of header names to texts, like {x-team: "ml"}')
]


def refuse_two_authorizations(api_key: str | None, headers: Mapping[str, str]) -> None:
    """Raises ValueError where a key and a header would both say who asks."""
    if api_key is not None and "authorization" in headers:
        raise ValueError("`api_key` is sent as the header authorization, which `headers` sets too; keep one of them")


def _check_proxy(address: str) -> str:
    return address if reference_name(address) is not None else check_proxy(address)


ProxyAddress = Annotated[
    str, AfterValidator(_check_proxy), Expected('an address like "http://proxy:3128" or a reference like "${env:NAME}"')
]


class Tls(Section):
    """Whose certificates are trusted and which one is shown. PEM files; paths are relative to the suite."""

    ca: Text | None = key("Trusted certificates, instead of the system's", default=None)
    cert: Text | None = key("Client certificate, with its chain", default=None)
    key: Text | None = key("The key of `cert`, without a passphrase", default=None)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.key is not None and self.cert is None:
            raise ValueError("`key` belongs to a `cert`, which is missing")
        if self.ca is None and self.cert is None:
            raise ValueError("needs at least one of `ca` and `cert`; without `tls` the system's trust decides")
        return self
