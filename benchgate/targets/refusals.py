"""What a server says when it refuses, in whichever of the shapes in use, made safe to store and show."""

from __future__ import annotations

import json

LONGEST_DETAIL = 300  # characters


def said(body: bytes) -> str:
    """The message in an error body: JSON of any known shape, or plain text. Empty when it says nothing."""
    document = json_object(body)
    return (document and message(document)) or body[: 4 * LONGEST_DETAIL].decode("utf-8", "replace")


def message(document: dict[str, object]) -> str | None:
    """`{"error": {"message"}}`, `{"error": "…"}`, `{"message"}`, `{"detail": "…"}` or `{"detail": […]}`."""
    for found in (document.get("error"), document.get("message"), document.get("detail")):
        if isinstance(found, dict) and found:
            return str(found.get("message") or json.dumps(found))
        if isinstance(found, list) and found:
            return json.dumps(found)
        if isinstance(found, str) and found:
            return found
    return None


def json_object(text: bytes | str) -> dict[str, object] | None:
    """The JSON object that a text is; None when it is anything else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def one_line(text: str, longest: int = LONGEST_DETAIL, secret: str | None = None) -> str:
    """Printable, on one line, of bounded length, without the key that some servers repeat in their refusals."""
    if secret:
        text = text.replace(secret, "[redacted]")
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
