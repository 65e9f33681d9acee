"""What a server shows of itself to a handful of requests, each asked once: nothing here waits for a server to come.

`look_up` asks for the list of models and says who answers, `try_out` asks for one completion, whole or as a stream.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum

import httpx2

from benchgate.model.records import ACCEPTED_FINISH
from benchgate.model.request import Endpoint
from benchgate.targets.clients import client_of
from benchgate.targets.dialect import PATHS, Target, ask_body, request_body
from benchgate.targets.error_messages import error_message, error_text, event_error, json_object, one_line
from benchgate.targets.finish import finish_reason
from benchgate.targets.probe import engine_of, entries_of, in_one_line, tls_error
from benchgate.targets.proof import answered, holds_output, missing, probe_ask, thought_unseen
from benchgate.targets.route import tls_fault
from benchgate.targets.usage import output_count

WITHIN_S = 60.0
"""The first answer of a cold engine compiles and loads."""
STREAMED: tuple[Endpoint, ...] = ("chat", "completions")
"""The endpoints whose streams are looked at."""

_PROMPT = "Write a few sentences about rivers."
_TOKENS = 32
_LARGEST_BYTES = 4 * 2**20
_MOST_MODELS = 1000


class Trouble(StrEnum):
    """What kind of thing stands between us and an answer."""

    AWAY = "away"  # nobody answers there
    TLS = "tls"  # one end does not accept the other's certificate, or does not speak TLS
    AUTH = "auth"  # the server wants a key, or another one
    MODEL = "model"  # it does not serve what was asked for
    REFUSED = "refused"  # any other status than 200
    ODD = "odd"  # it answers, and not with what was asked for


@dataclass(frozen=True, slots=True)
class Fault:
    """Why there is no answer, in one line without credentials."""

    trouble: Trouble
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Who answers at an address. `models` are those that it lists, none where it has no such list.

    `clock_ahead_s` is by how much its clock is ahead of ours, to the second that a `Date` header tells;
    `certificate_ends_s` when its certificate does, as Unix time. None of what it does not show.
    """

    fault: Fault | None
    models: tuple[str, ...] = ()
    engine: str = "openai"
    clock_ahead_s: float | None = None
    certificate_ends_s: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One completion. Tokens are the server's own count; times are from the request to the first output and the end.

    `events` are those that carried output; 1 of an answer that came whole. `model` is the name that the answer gives.
    """

    fault: Fault | None
    output_tokens: int | None = None
    finish_reason: str | None = None
    first_s: float | None = None
    whole_s: float | None = None
    events: int = 0
    model: str | None = None

    @property
    def pace_s(self) -> float | None:
        """Time for each further token of a stream; None where it cannot be told."""
        if self.first_s is None or self.whole_s is None or (self.output_tokens or 0) < 2 or self.events < 2:
            return None
        return (self.whole_s - self.first_s) / ((self.output_tokens or 0) - 1)


def look_up(target: Target, *, within_s: float = WITHIN_S) -> Listing:
    """Ask who is there. Raises TargetError when the address is none; whatever comes or does not is in the result."""
    with _client(target, within_s) as client:
        try:
            with client.stream("GET", "/v1/models") as response:
                asked_s = time.time()
                status, ends_s = response.status_code, _certificate_ends_s(response)
                ahead_s = _clock_ahead_s(response, asked_s)
                content = _read(response, time.monotonic() + within_s)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return Listing(_broken(error, target))
    if status in (401, 403):
        return Listing(_refused(status, content, target), (), "openai", ahead_s, ends_s)
    entries = entries_of(json_object(content) or {}) if status == 200 else []
    named = [one_line(str(entry["id"])) for entry in entries[:_MOST_MODELS] if isinstance(entry.get("id"), str)]
    return Listing(None, tuple(dict.fromkeys(named)), engine_of(entries), ahead_s, ends_s)


def try_out(target: Target, endpoint: Endpoint, *, stream: bool, within_s: float = WITHIN_S) -> Trial:
    """One short request, as the load asks. Raises TargetError when the address is none."""
    if endpoint in STREAMED:
        body = request_body(target, endpoint, _PROMPT, _TOKENS, stream=stream, seed=0, ignore_eos=True)
    else:
        body = ask_body(target, probe_ask(endpoint), seed=0)
    with _client(target, within_s) as client:
        began_s = time.monotonic()
        until_s = began_s + within_s
        try:
            with client.stream("POST", PATHS[endpoint], json=body) as response:
                if response.status_code != 200:
                    return Trial(_refused(response.status_code, _read(response, until_s), target))
                if stream:
                    return _streamed(response, began_s, until_s, target)
                content = _read(response, until_s)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return Trial(_broken(error, target))
        return _whole(endpoint, content, time.monotonic() - began_s, target)


def _client(target: Target, within_s: float) -> httpx2.Client:
    return client_of(target, httpx2.Timeout(within_s, connect=min(10.0, within_s)))


def _read(response: httpx2.Response, until_s: float) -> bytes:
    """The body, cut off where no honest one of its kind would still go on."""
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > _LARGEST_BYTES or time.monotonic() > until_s:
            break
    return bytes(content)


def _broken(error: Exception, target: Target) -> Fault:
    broken = tls_error(error)
    reason = str(error) if broken is None else tls_fault(broken)
    return Fault(Trouble.AWAY if broken is None else Trouble.TLS, in_one_line(reason or type(error).__name__, target))


def _refused(status: int, content: bytes, target: Target) -> Fault:
    """A status that is no success. What an engine says in its own words of a 404 is about the model or the path."""
    trouble = {401: Trouble.AUTH, 403: Trouble.AUTH, 404: Trouble.MODEL}.get(status, Trouble.REFUSED)
    return Fault(trouble, in_one_line(f"HTTP {status}: {error_text(content)}", target))


def _odd(reason: str, target: Target) -> Trial:
    return Trial(Fault(Trouble.ODD, in_one_line(reason, target)))


def _whole(endpoint: Endpoint, content: bytes, whole_s: float, target: Target) -> Trial:
    document = answered(endpoint, content)
    if document is None:
        return _odd(f"HTTP 200 without a JSON object: {error_text(content)}", target)
    if document.get("error"):
        return _odd(f"HTTP 200 with an error: {error_message(document)}", target)
    if (lack := missing(endpoint, document)) is not None:
        return _odd(lack, target)
    return Trial(None, _tokens(document), _finish(document), None, whole_s, 1, _model(document, target))


def _streamed(response: httpx2.Response, began_s: float, until_s: float, target: Target) -> Trial:
    """What came of a stream: when its first output did, its end, its count of tokens, and how it finished."""
    first_s: float | None = None
    tokens, finish, events, hidden, model = None, None, 0, False, None
    for event in _events(response, until_s):
        error = event_error(event)
        if error is not None:
            return _odd(f"an error in the stream: {error}", target)
        if _holds_output(event):
            events += 1
            first_s = time.monotonic() - began_s if first_s is None else first_s
        tokens, finish = _tokens(event) or tokens, _finish(event) or finish
        model = model or _model(event, target)
        hidden = hidden or thought_unseen(finish, event.get("usage"))
    if not events and not hidden:
        return _odd("HTTP 200, and a stream without any output in it", target)
    return Trial(None, tokens, finish, first_s, time.monotonic() - began_s, events, model)


def _events(response: httpx2.Response, until_s: float) -> Iterator[dict[str, object]]:
    """The JSON objects of a stream of server-sent events, as far as an honest one goes: connections may stay open."""
    size = 0
    for line in response.iter_lines():
        size += len(line)
        if size > _LARGEST_BYTES or time.monotonic() > until_s or line.partition("data:")[2].strip() == "[DONE]":
            return
        event = json_object(line[5:].strip()) if line.startswith("data:") else None
        if event is not None:
            yield event


def _choice(document: dict[str, object]) -> dict[str, object]:
    choices = document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _holds_output(event: dict[str, object]) -> bool:
    choice = _choice(event)
    delta = choice.get("delta")
    return holds_output(delta) if isinstance(delta, dict) else bool(choice.get("text"))


def _tokens(document: dict[str, object]) -> int | None:
    return output_count(document.get("usage"))


def _model(document: dict[str, object], target: Target) -> str | None:
    """Return the answer's name of its model; None without one, or where it is no plain line or holds a credential."""
    name = document.get("model")
    return name if isinstance(name, str) and name and in_one_line(name, target) == name else None


def _finish(document: dict[str, object]) -> str | None:
    reason = finish_reason(_choice(document).get("finish_reason"))
    return reason if reason in ACCEPTED_FINISH else None


def _clock_ahead_s(response: httpx2.Response, now_s: float) -> float | None:
    try:
        return parsedate_to_datetime(response.headers["date"]).timestamp() - now_s
    except (KeyError, ValueError):
        return None


def _certificate_ends_s(response: httpx2.Response) -> float | None:
    """When the certificate of whoever we are connected with ends; it was verified, so it has an end."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if not isinstance(connection, ssl.SSLSocket):
        return None
    ends = (connection.getpeercert() or {}).get("notAfter")
    return ssl.cert_time_to_seconds(ends) if isinstance(ends, str) else None
