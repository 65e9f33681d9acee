"""Addresses, headers and references to environment variables, as suites and the command line write them.

Nothing is looked up. Messages never repeat a value that may be a secret; at most its length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from benchgate import credentials
from benchgate.errors import UsageError
from benchgate.model.request import ENDPOINT_PATHS, VERSIONLESS_PATHS, endpoint_at
from benchgate.suite.types import Expected, Written, checked, text
from benchgate.units import show_found

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


_HOST = r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])"
_HOST_AND_PORT = re.compile(rf"{_HOST}:\d+(?:/.*)?")
_HOST_ALONE = re.compile(rf"{_HOST}(?:/.*)?")
_API = re.compile(f"(?:{ENDPOINT_PATHS}|/v1(?:/models)?|/chat/completions)$")
_VERSIONED_API = re.compile(f"(?:{VERSIONLESS_PATHS}|/models)$")
_VERSION = re.compile(r"/v\d+(?:(?:alpha|beta)\d*)?(?=/|$)")


def is_versioned(path: str) -> bool:
    """Return True for a base path with an API version of its own, like `/v1beta/openai`: no `/v1` is added to it."""
    return _VERSION.search(path) is not None


def split_address(address: str) -> tuple[str, str]:
    """Split a server's address into its base and the path of the API that it ends in: "", "/v1" or an endpoint's.

    `host:8000` means `http://host:8000`. A path that has a version before its end, like `/v2/tenant/v1`, is all base.
    """
    address = address.rstrip("/")
    if _HOST_AND_PORT.fullmatch(address):
        address = f"http://{address}"
    is_unix = address.startswith(_UNIX)
    begin = address.find(":", len(_UNIX)) + 1 if is_unix else address.find("/", address.find("://") + 3)
    if begin <= 0:
        return address, ""
    place, path = address[:begin], address[begin:]
    api = _API.search(path)
    if is_versioned(path if api is None else path[: api.start()]):
        api = _VERSIONED_API.search(path)
    if api is None:
        return address, ""
    base = path[: api.start()].rstrip("/")
    return (f"{place}{base}" if base else place.removesuffix(":")), api[0]


def nearest_address(text: str) -> str | None:
    """Return the address that a host without a scheme and a port may mean; None for any other text."""
    return f"http://{text}" if _HOST_ALONE.fullmatch(text) else None


def base_address(address: str) -> str:
    """Return the base of a server's address, which may end in `/v1`. Raises ValueError for one that names an endpoint.

    The message repeats the path of the endpoint and nothing else.
    """
    base, path = split_address(address)
    if (endpoint_at(path) or [""])[0] == "predictions":
        return f"{base}{path}"  # beneath it TorchServe serves OpenAI's API
    if path not in ("", "/v1"):
        raise ValueError(f"ends in {path}, which benchgate adds itself; remove it")
    return base


def check_proxy(address: str) -> str:
    """Return a proxy's address without its trailing slash. Raises ValueError, without the address, for others."""
    if "@" in address:
        raise ValueError("holds credentials; a proxy that asks for them is not supported")
    address = address.rstrip("/")
    if not is_http_base(address, ("http",)) or urlsplit(address)._replace(scheme="", netloc="").geturl():
        raise ValueError("is not the address of a proxy; write it like http://proxy:3128")
    return address


_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
REFERENCE_PATTERN = f"^{_REFERENCE.pattern}$"  # pattern of a reference, for editors


def reference_name(text: str) -> str | None:
    """Return the name in a reference: `"${env:NAME}"` → `"NAME"`; None for any other text."""
    match = _REFERENCE.fullmatch(text)
    return match[1] if match else None


def check_address(text: str) -> str:
    """Return a base address (http, https or unix) without a trailing slash or `/v1`, or a reference to one.

    Raises ValueError for anything else. Credentials, queries and fragments, where keys hide too, are refused.
    """
    if reference_name(text) is not None:
        return text
    if "@" in text:
        raise ValueError("holds credentials; take them out of the address and write `api_key: ${env:NAME}`")
    if "?" in text or "#" in text:
        raise ValueError("has a query or a fragment; write the base address alone, like http://host:8000")
    base = base_address(text)
    if unix_parts(base) is None and not is_http_base(base):
        near = nearest_address(text[:60]) or "http://host:8000"
        raise ValueError(
            f'"{text[:60]}" is not an address; write it like {near}, unix:/run/server.sock or ${{env:NAME}}'
        )
    return base


class UnsetVariable(UsageError):
    """A variable of the environment that a suite refers to is not set, empty, or cannot be sent."""

    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(f"the environment variable {variable} {problem}")
        self.variable = variable


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
        raise UnsetVariable(name, f"{state}, and {by} refers to it; set it and run again")
    if not (value.isascii() and value.isprintable()):
        problem = "holds a line break or another character that cannot be sent; set it again without"
        raise UnsetVariable(name, problem)
    credentials.register(value)
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
        checked[low] = value
        if reference_name(value) is not None:
            continue
        if "${" in value:
            remedy = "put all of its value in the variable"
            raise ValueError(f'the header "{low}" holds a reference among other text; {remedy}')
        if _SECRET_WORDS & set(re.split(r"[-_.]", low)):
            remedy = "put it in an environment variable and write ${env:NAME}"
            held = f"a literal of {len(value)} characters; a secret is never written out"
            raise ValueError(f'the header "{low}" holds {held}: {remedy}')
        if not value or not (value.isascii() and value.isprintable()) or value != value.strip():
            raise ValueError(f'the header "{low}" is empty or has characters that no header may have')
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


Address = Annotated[
    str, AfterValidator(check_address), Expected('an address like "http://host:8000" or a reference like "${env:NAME}"')
]


# A variable as another tool refers to it. Without braces it needs a `_`: a password may begin with `$` too.
_VARIABLE = re.compile(r"\$(?:\{(?:(?i:env)[:.])?([A-Z_][A-Z0-9_]*)\}|([A-Z]+(?:_[A-Z0-9]+)+))")


def _check_reference(text: str) -> None:
    if reference_name(text) is None:
        variable = _VARIABLE.fullmatch(text)
        remedy = "put it in an environment variable and write ${env:NAME}"
        if variable is not None:
            remedy = f"did you mean ${{env:{variable[1] or variable[2]}}}?"
        raise ValueError(f"holds a literal of {len(text)} characters; a suite holds no secret: {remedy}")


Reference = Annotated[
    str, checked(_check_reference), Expected('a reference like "${env:NAME}"'), Written(text(REFERENCE_PATTERN))
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


_GRPC = re.compile(r"(?:grpcs?://)?([^\s/:@?#]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})/?")


def check_grpc(address: str) -> str:
    """Return an address of gRPC as `grpc://host:port` or `grpcs://host:port`. Raises ValueError for any other."""
    found = _GRPC.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 2**16:
        raise ValueError("is no address of gRPC; write it like host:8001, or grpcs://host:8001 for TLS")
    return f"{'grpcs' if address.startswith('grpcs:') else 'grpc'}://{found[1]}:{found[2]}"


GrpcAddress = Annotated[str, AfterValidator(check_grpc), Expected('an address like "host:8001" or "grpcs://host:8001"')]


_SCHEDULER = re.compile(r"(?:(?:tcp|tls|ws|wss|ucx)://)?(?:[\w.-]+|\[[0-9A-Fa-f:.%\w]+\]):[0-9]{1,5}", re.ASCII)


def check_scheduler(address: str) -> None:
    """Raise ValueError for an address that can be no dask scheduler's."""
    if _SCHEDULER.fullmatch(address) is None:
        raise ValueError(f"{show_found(address)} is not a scheduler's address; write tcp://HOST:8786")


SchedulerAddress = Annotated[
    str, checked(check_scheduler), Expected('the address of a dask scheduler like "tcp://load-eu:8786"'),
    Written(text(f"^{_SCHEDULER.pattern}$")),
]  # fmt: skip
