"""The header lines that a deployment's requests may carry beside our own. Pure; no message repeats a value."""

from __future__ import annotations

import re
from collections.abc import Mapping

from benchgate.suite.references import holds_reference, reference_name

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
