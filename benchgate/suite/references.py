"""Secrets by reference: `${env:NAME}` in a suite, resolved only at the moment of use, never stored, never shown.

No message here repeats a value that may be a secret; at most its length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from benchgate.errors import UsageError
from benchgate.suite.addresses import is_http_base, unix_parts, version_problem

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
