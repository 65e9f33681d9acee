"""Error messages of servers, in every shape in use, made safe to store and show."""

from __future__ import annotations

import json
from collections.abc import Callable

from pydantic_core import from_json

from benchgate import credentials
from benchgate.errors import TargetError

LONGEST_DETAIL = 300  # characters
WORDLESS_ERROR = "an error without a message"

_REFUSED = 400  # an HTTP status, which some gateways give as the `code` of an event

Secret = str | tuple[str, ...] | None  # a text, or several, that must not be shown


class RequestError(TargetError):
    """A request without a usable response.

    `summary` is benchgate's own text. `detail` may quote the server or what was sent to it, so a caller that must keep
    neither shows the summary alone. `is_transient`: another attempt may succeed.
    """

    def __init__(self, summary: str, detail: str = "", *, is_transient: bool = False) -> None:
        super().__init__(one_line(f"{summary}: {detail}" if detail else summary))
        self.summary = summary
        self.detail = detail
        self.is_transient = is_transient

    def redacted(self, redact: Callable[[str], str]) -> RequestError:
        """Return this error with its detail redacted."""
        return RequestError(self.summary, redact(self.detail), is_transient=self.is_transient)


def success_document(status: int, body: bytes) -> dict[str, object]:
    """Return the JSON object of a successful response; a 200 may hold an error. Raises RequestError, unredacted."""
    detail = error_text(body) or "an empty body"
    if status != 200:
        raise RequestError(f"HTTP {status}", detail)
    document = json_object(body)
    if document is None:
        raise RequestError("HTTP 200 with a body that is not a JSON object", detail)
    if document.get("error") or document.get("object") == "error":
        raise RequestError("HTTP 200 with an error in it", detail)
    return document


def stated_status(status: int, body: bytes) -> int:
    """Return the status of a response, or the `code` of an error that came with HTTP 200, as from TorchServe."""
    document = json_object(body) or {}
    code = document.get("code")
    return code if status == 200 and document.get("object") == "error" and isinstance(code, int) else status


def error_text(body: bytes) -> str:
    """Return the message of an error body, uncut: `one_line` must redact before it cuts. Empty if it has none."""
    document = json_object(body.strip().removeprefix(b"data:"))  # Triton sends an event with a status of 400
    return (document and error_message(document)) or body.decode("utf-8", "replace")


def error_message(document: dict[str, object]) -> str | None:
    """Read `{"error": {"message"}}`, `{"error": "…"}`, `{"errors": […]}`, `{"message"}` or `{"detail": …}`."""
    for found in (document.get(name) for name in ("error", "errors", "message", "detail")):
        if isinstance(found, dict) and found:
            return str(found.get("message") or json.dumps(found))
        if isinstance(found, list) and found:
            messages = []
            for entry in found:
                if not isinstance(entry, dict) or not isinstance(entry.get("msg"), str):
                    return json.dumps(found)
                place = entry.get("loc")
                where = f" ({'.'.join(map(str, place))})" if isinstance(place, list) and place else ""
                messages.append(f"{entry['msg']}{where}")
            return "; ".join(messages)
        if isinstance(found, str) and found:
            return found
    return None


def event_error(event: dict[str, object]) -> str | None:
    """Return the error that an event of a stream reports, if it reports one.

    `message`, `detail`, the `code` of a refusal, the `status` error and an empty `error` are errors only in an event
    without any part of an answer: servers add fields as they like.
    """
    error = event.get("error")
    if error or event.get("errors") or event.get("object") == "error" or event.get("type") == "error":
        return error_message(event) or WORDLESS_ERROR
    if event.get("choices") or event.get("usage"):
        return None
    code = event.get("code")
    fails = error is not None or event.get("status") == "error" or (isinstance(code, int) and code >= _REFUSED)
    return error_message(event) or (str(event.get("msg") or WORDLESS_ERROR) if fails else None)


def json_object(text: bytes | str) -> dict[str, object] | None:
    """Parse a JSON object. None for anything else."""
    try:
        document = from_json(text)  # three times as fast as `json`, and this runs for every token that is streamed
    except ValueError:
        try:  # what only `json` accepts: lone surrogates, deep nesting; broken UTF-8 is replaced
            document = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError):
            return None
    return document if isinstance(document, dict) else None


def redact(text: str, secret: Secret) -> str:
    """Replace these credentials and all others that are known. Call it before anything is cut off or quoted."""
    return credentials.redact(text, *_listed(secret))


def _listed(secret: Secret) -> tuple[str, ...]:
    return (secret,) if isinstance(secret, str) else secret or ()


def one_line(text: str, longest: int = LONGEST_DETAIL, secret: Secret = None) -> str:
    """Make a text printable, one line long, of bounded length and free of credentials, which some servers repeat.

    Also free of their beginnings and ends: a message may quote a part of what came.
    """
    others = _listed(secret)
    few = credentials.redact(text, *others)[: 4 * longest]  # a body may be megabytes, and each character costs
    bare = credentials.redact_parts(few, *others)
    line = " ".join("".join(char if char.isprintable() else " " for char in bare).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
