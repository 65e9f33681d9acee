"""Reading a whole, not streamed, response to a generation request: pure, and the same for every client that asks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchgate.model.records import ACCEPTED_FINISH
from benchgate.model.request import Endpoint
from benchgate.targets.content import arguments_text, calls_in, holds_thinking, text_in
from benchgate.targets.error_messages import RequestError, Secret, error_text, redact, success_document
from benchgate.targets.finish import finish_reason
from benchgate.targets.usage import input_count, output_count

MAX_BODY_BYTES = 16 * 1024 * 1024
"""A longer body is not an answer; clients stop reading there."""


_SHORTEST_SECRET = 8  # characters; a shorter one ("EMPTY", "eu") is a word that answers use


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool that an answer calls, with its arguments as they were written: JSON, if all is well."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered. `text` is None when it sent `null`, most often because reasoning ate the budget.

    An answer that only calls tools has no text either. `refusal` is what some servers say apart when they refuse.
    """

    text: str | None
    finish_reason: str
    output_tokens: int | None
    calls: tuple[ToolCall, ...] = ()
    refusal: str | None = None
    input_tokens: int | None = None


def read_answer(
    endpoint: Endpoint,
    status: int,
    body: bytes,
    *,
    secret: Secret = None,
    accepted: frozenset[str] = ACCEPTED_FINISH,
) -> Answer:
    """The answer in a response; RequestError with the server's own words, less the secret, when it is none.

    The status proves nothing: a 200 with an `error`, without choices or with a finish reason that is not one of a
    success (`accepted`) is refused too. Answers are stored, shown and sent to judges, so secrets of 8 characters and
    more are blotted out of them too: a gateway under debugging repeats what it was sent.
    """
    try:
        return _blotted(_read(endpoint, status, body, accepted), secret)
    except RequestError as error:
        raise error.redacted(lambda text: redact(text, secret)) from None


def _blotted(answer: Answer, secret: Secret) -> Answer:
    parts = (secret,) if isinstance(secret, str) else secret or ()
    hidden = tuple(part for part in parts if len(part) >= _SHORTEST_SECRET)
    if not hidden:
        return answer
    return replace(
        answer,
        text=None if answer.text is None else redact(answer.text, hidden),
        calls=tuple(ToolCall(redact(call.name, hidden), redact(call.arguments, hidden)) for call in answer.calls),
        refusal=None if answer.refusal is None else redact(answer.refusal, hidden),
    )


def _read(endpoint: Endpoint, status: int, body: bytes, accepted: frozenset[str]) -> Answer:
    data = success_document(status, body)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise RequestError("HTTP 200 without choices", error_text(body))
    told = choices[0].get("finish_reason")
    reason = finish_reason(told)
    if reason is None or reason not in accepted:
        named = ", ".join(sorted(accepted))
        raise RequestError("the answer ended with finish reason", f"{told!r}, which is none of {named}")
    text, holder = _text(endpoint, choices[0]), choices[0].get("message")
    message = holder if isinstance(holder, dict) else {}
    refusal = message.get("refusal")
    return Answer(
        text,
        reason,
        output_count(data.get("usage")),
        _calls(message.get("tool_calls")),
        _whole(refusal) if isinstance(refusal, str) and refusal else None,
        input_count(data.get("usage")),
    )


def _text(endpoint: Endpoint, choice: dict[str, object]) -> str | None:
    holder = choice.get("message") if endpoint == "chat" else choice
    key = "content" if endpoint == "chat" else "text"
    if not isinstance(holder, dict):
        raise RequestError("HTTP 200 without a message in its first choice")
    told = holder.get(key)
    if told is None:
        return None
    text = text_in(told)
    if text is None and not holds_thinking(told):
        raise RequestError(f"HTTP 200 with a {key} that is not a text in its first choice")
    return None if text is None else _whole(text)


def _whole(text: str) -> str:
    """Half a surrogate pair could be neither hashed nor stored."""
    return text.encode("utf-8", "replace").decode()


def _calls(found: object) -> tuple[ToolCall, ...]:
    """The calls of a message in their order; RequestError for what is none, for an answer must not lose one."""
    if found is None:
        return ()
    told = calls_in(found)
    if told is None:
        raise RequestError("HTTP 200 with tool_calls that are no list in its first choice")
    calls = []
    for call in told:
        function = call.get("function") if isinstance(call, dict) else None
        name, written = (function or {}).get("name"), (function or {}).get("arguments")
        arguments = arguments_text(written)
        if not isinstance(function, dict) or not isinstance(name, str) or (arguments is None and written is not None):
            raise RequestError("HTTP 200 with a tool call that has no name, or arguments that are no text")
        calls.append(ToolCall(_whole(name), _whole(arguments or "")))
    return tuple(calls)
