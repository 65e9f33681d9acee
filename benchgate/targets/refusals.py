"""What a server says when it refuses, in whichever of the shapes in use, made safe to store and show."""

from __future__ import annotations

import json

from pydantic_core import from_json

LONGEST_DETAIL = 300  # characters
WORDLESS_ERROR = "an error without a message"

_REFUSED = 400  # a status of HTTP, which some gateways give as the `code` of an event

Secret = str | tuple[str, ...] | None
"""What may not be shown: one text or several."""


def said(body: bytes) -> str:
    """The message in an error body: JSON of any known shape, or plain text. Empty when it says nothing.

    Not cut, for half a credential would not be known as one: `one_line` blots them out, then cuts.
    """
    document = json_object(body)
    return (document and message(document)) or body.decode("utf-8", "replace")


def message(document: dict[str, object]) -> str | None:
    """`{"error": {"message"}}`, `{"error": "…"}`, `{"errors": […]}`, `{"message"}`, `{"detail": …}`."""
    for found in (document.get(name) for name in ("error", "errors", "message", "detail")):
        if isinstance(found, dict) and found:
            return str(found.get("message") or json.dumps(found))
        if isinstance(found, list) and found:
            return _findings(found)
        if isinstance(found, str) and found:
            return found
    return None


def event_error(event: dict[str, object]) -> str | None:
    """What an event of a stream reports as an error; None when it reports none.

    `message`, `detail`, the `code` of a refusal, the `status` error and an `error` that says nothing are errors only
    where nothing of an answer stands beside them: servers add fields as they like.
    """
    error = event.get("error")
    if error or event.get("errors") or event.get("object") == "error" or event.get("type") == "error":
        return message(event) or WORDLESS_ERROR
    if event.get("choices") or event.get("usage"):
        return None
    code = event.get("code")
    fails = error is not None or event.get("status") == "error" or (isinstance(code, int) and code >= _REFUSED)
    return message(event) or (str(event.get("msg") or WORDLESS_ERROR) if fails else None)


def _findings(found: list[object]) -> str:
    """FastAPI's list of findings: what was said of which field, without the input, which it repeats too."""
    said_of = []
    for entry in found:
        if not isinstance(entry, dict) or not isinstance(entry.get("msg"), str):
            return json.dumps(found)
        place = entry.get("loc")
        where = f" ({'.'.join(map(str, place))})" if isinstance(place, list) and place else ""
        said_of.append(f"{entry['msg']}{where}")
    return "; ".join(said_of)


def json_object(text: bytes | str) -> dict[str, object] | None:
    """The JSON object that a text is; None when it is anything else."""
    try:
        document = from_json(text)  # three times as fast as `json`, and this runs for every token that is streamed
    except ValueError:
        document = _lenient(text)
    return document if isinstance(document, dict) else None


def _lenient(text: bytes | str) -> object:
    """What the strict reader refuses and `json` takes: half surrogate pairs, deep nesting; broken UTF-8 is replaced."""
    try:
        return json.loads(text if isinstance(text, str) else text.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None


def without(text: str, secret: Secret) -> str:
    """A text with its credentials blotted out: of all of it, before any of it is cut off or quoted."""
    hidden = (secret,) if isinstance(secret, str) else secret or ()
    for part in sorted(hidden, key=len, reverse=True):  # the longest first: one may be part of another
        if part:
            text = text.replace(part, "[redacted]")
    return text


def one_line(text: str, longest: int = LONGEST_DETAIL, secret: Secret = None) -> str:
    """Printable, on one line, of bounded length, without the credentials that some servers repeat in their refusals."""
    few = without(text, secret)[: 4 * longest]  # a body may be megabytes, and each character costs
    line = " ".join("".join(char if char.isprintable() else " " for char in few).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
