"""Reading a whole, not streamed, response to a generation request: pure, and the same for every client that asks."""

from __future__ import annotations

import json
from dataclasses import dataclass

from benchgate.errors import TargetError
from benchgate.model.records import ACCEPTED_FINISH
from benchgate.targets.dialect import Endpoint

MAX_BODY_BYTES = 16 * 1024 * 1024
"""A longer body is not an answer; clients stop reading there."""

_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered. `text` is None when it sent `null`, most often because reasoning ate the budget."""

    text: str | None
    finish_reason: str
    output_tokens: int | None


def read_answer(endpoint: Endpoint, status: int, body: bytes) -> Answer:
    """The answer in a response; TargetError with the server's own words when it is none.

    The status proves nothing: a 200 with an `error`, without choices or with a finish reason that is not one of a
    success is refused too.
    """
    if status != 200:
        raise TargetError(f"HTTP {status}: {_server_message(body)}")
    data = _json_object(body)
    if data.get("error"):
        raise TargetError(f"HTTP 200 with an error in it: {_server_message(body)}")
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise TargetError(f"HTTP 200 without choices: {_short(body)}")
    finish_reason = choices[0].get("finish_reason")
    if finish_reason not in ACCEPTED_FINISH:
        accepted = ", ".join(sorted(ACCEPTED_FINISH))
        raise TargetError(f"the answer ended with finish reason {finish_reason!r}, which is none of {accepted}")
    return Answer(_text(endpoint, choices[0], body), finish_reason, _output_tokens(data.get("usage")))


def _text(endpoint: Endpoint, choice: dict[str, object], body: bytes) -> str | None:
    holder = choice.get("message") if endpoint == "chat" else choice
    text = holder.get("content" if endpoint == "chat" else "text") if isinstance(holder, dict) else 0
    if text is None:
        return None
    if not isinstance(text, str):
        raise TargetError(f"HTTP 200 without a text in its first choice: {_short(body)}")
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair could be neither hashed nor stored


def _output_tokens(usage: object) -> int | None:
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


def _json_object(body: bytes) -> dict[str, object]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise TargetError(f"HTTP 200 with a body that is not a JSON object: {_short(body)}")
    return data


def _server_message(body: bytes) -> str:
    """The message of an error body in the spellings engines use, else the start of the body itself."""
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        return _short(body)
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return _short(found.encode() if isinstance(found, str) else body)


def _short(body: bytes) -> str:
    text = " ".join(body.decode("utf-8", "replace").split())
    if not text:
        return "an empty body"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
