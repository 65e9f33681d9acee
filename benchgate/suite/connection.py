"""Connections of deployments: addresses, secret references, headers, certificates, proxies.

Nothing is looked up. Messages never repeat a value that may be a secret; at most its length.
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
    """Return socket and base path of `unix:/run/server.sock:/base`; None for another scheme.

    The base path has no trailing slash. `unix:///run/server.sock` is accepted too. Raises ValueError for a path that no
    socket can have.
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
    """Return True for an address with a host and one of these schemes, in characters that a request can carry."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises when it is no port
    except ValueError:
        return False
    readable = address.isascii() and address.isprintable() and " " not in address and "$" not in address
    return readable and parts.scheme in schemes and bool(parts.hostname)


def version_problem(address: str) -> str | None:
    """Return why an address that ends in the API's version is refused; None for any other."""
    address = address.rstrip("/")
    if not address.endswith("/v1"):
        return None
    return f'ends in /v1, which benchgate adds itself; write "{address.removesuffix("/v1").rstrip(":")}"'


def check_proxy(address: str) -> str:
    """Return a proxy's address without its trailing slash. Raises ValueError, without the address, for others."""
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
    """Return the name in a reference: `"${env:NAME}"` → `"NAME"`; None for any other text."""
    match = _REFERENCE.fullmatch(text)
    return match[1] if match else None


def check_reference(text: str) -> str:
    """Return a reference as it is. Raises ValueError, without the text, for a literal."""
    if reference_name(text) is None:
        raise ValueError(
            f"holds a literal of {len(text)} characters; a suite holds no secret: "
            "put it in an environment variable and write ${env:NAME}"
        )
    return text


def check_address(text: str) -> str:
    """Return a base address (http, https or unix) without its trailing slash, or a reference to one.

    Raises ValueError for anything else. Credentials, queries and fragments, where keys hide too, are refused.
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
    """Return the value of a reference, or a text that is no reference. `by` names the file for messages.

    Raises UsageError with the name of the variable, never its value, if it is not set, empty, or does not fit into an
    HTTP header.
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
    """Return the headers with names in lower case. Raises ValueError, naming the header, for one that may not be set.

    A value is either a reference or has none. A header whose name means a credential must be a reference.
    """
    checked: dict[str, str] = {}
    for name, value in headers.items():
        low = name.lower()
        if low in checked:
            raise ValueError(f'the header "{low}" is set twice; set it once')
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r} is no name of a header; it has letters, digits and `-`")
        if low in _OURS:
            raise ValueError(f'the header "{name}" cannot be set: it {_OURS[low]}; remove it')
        _check_value(low, value)
        checked[low] = value
    return checked


def written_out(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that are no references: those that may be stored and shown."""
    return {name: value for name, value in headers.items() if reference_name(value) is None}


def read_header(line: str) -> tuple[str, str]:
    """Parse `NAME: VALUE`. Raises ValueError, without the value, for text that is no header or may not be set."""
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError("a header is written NAME:VALUE, and this one has no colon")
    ((low, checked),) = check_headers({name.strip(): value.strip()}).items()
    return low, checked


def _check_value(name: str, value: str) -> None:
    if reference_name(value) is not None:
        return
    if "${" in value:
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
    """Raise ValueError if `api_key` and `headers` both set the authorization."""
    if api_key is not None and "authorization" in headers:
        raise ValueError("`api_key` is sent as the header authorization, which `headers` sets too; keep one of them")


ProxyAddress = Annotated[
    str,
    AfterValidator(lambda address: address if reference_name(address) is not None else check_proxy(address)),
    Expected('an address like "http://proxy:3128" or a reference like "${env:NAME}"'),
]


class Service(Section):
    """A server beside the deployments: its address and authorization."""

    url: Address = key("Base address, without `/v1`")
    api_key: Reference | None = key("Sent as a bearer token", default=None)
    headers: Headers = key("Further headers", default_factory=dict)

    @model_validator(mode="after")
    def _one_authorization(self) -> Self:
        refuse_two_authorizations(self.api_key, self.headers)
        return self


class Tls(Section):
    """Trusted certificates, and the client certificate. PEM files; paths are relative to the suite."""

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
