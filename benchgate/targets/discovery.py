"""Discovery of an unknown server by single requests, for `init` and `doctor`. Nothing here waits for a server to start.

`list_models` reads the list of models, `try_completion` sends one completion request, whole or streamed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import StrEnum

import httpx2

from benchgate.errors import UsageError
from benchgate.escape import visible
from benchgate.model.records import ACCEPTED_FINISH
from benchgate.model.request import ENDPOINTS, Endpoint, text_request
from benchgate.targets.answers import (
    finish_reason,
    first_object,
    holds_output,
    is_hidden_reasoning,
    output_count,
    token_count,
)
from benchgate.targets.client import AsyncJsonClient, Response, TlsError
from benchgate.targets.dialect import Target
from benchgate.targets.endpoints import answer_document, request_content, request_path
from benchgate.targets.engine_detection import detect_engine, model_entries
from benchgate.targets.error_messages import RequestError, error_text, event_error, json_object
from benchgate.targets.grpc_client import InferenceProblem, inference_problem
from benchgate.targets.probe import probe_request

WITHIN_S = 60.0  # the first answer of a cold engine includes compiling and loading
STREAMED: tuple[Endpoint, ...] = ("chat", "completions")  # the endpoints whose streams are tried
_PROMPT = "Write a few sentences about rivers."
_TOKENS = 32
_LARGEST_STREAM_BYTES = 4 * 2**20
_STREAM_SHARE = 0.9  # of the time limit: a stream is left before the limit would discard what came
_MOST_MODELS = 1000
_MOST_SHOWN = 8
_SHORTEST_SECRET = 8  # characters: a shorter one is a word that names have too


class Trouble(StrEnum):
    """The kind of obstacle to an answer."""

    AWAY = "away"  # nobody answers there
    TLS = "tls"  # one end does not accept the other's certificate, or does not speak TLS
    AUTH = "auth"  # the server wants a key, or another one
    MODEL = "model"  # it does not serve the requested model or path
    REFUSED = "refused"  # any other status than 200
    ODD = "odd"  # it answers, and not with what was requested


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for a missing answer, in one line without credentials."""

    trouble: Trouble
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The server at an address. `models` is empty where it has no list of them.

    `clock_ahead_s` is by how much its clock is ahead of ours, to the second of a `Date` header; `certificate_ends_s`
    the end of its certificate, as Unix time. None where it does not show them.
    """

    fault: Fault | None
    models: tuple[str, ...] = ()
    engine: str = "openai"
    clock_ahead_s: float | None = None
    certificate_ends_s: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A completion. Tokens are the server's own count; times are from the request to the first output and the end.

    `events` counts those with output, 1 for an answer that came whole. `model` is the name in the answer.
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
        """Time for each further token of a stream, if it can be known."""
        if self.first_s is None or self.whole_s is None or (self.output_tokens or 0) < 2 or self.events < 2:
            return None
        return (self.whole_s - self.first_s) / ((self.output_tokens or 0) - 1)


def list_models(target: Target, *, within_s: float = WITHIN_S) -> Listing:
    """Read a server's list of models. Raises TargetError for an address that is none, and for nothing else."""
    return asyncio.run(_list_models(target, within_s))


async def _list_models(target: Target, within_s: float) -> Listing:
    async with _client(target, within_s) as client:
        try:
            async with client.stream("GET", "/v1/models") as response:
                ahead_s, now_s = None, time.time()
                with suppress(KeyError, ValueError):
                    ahead_s = parsedate_to_datetime(response.headers["date"]).timestamp() - now_s
                ends_s = _certificate_ends_s(response)
                content = await client.read_body(response)
        except RequestError as error:
            return Listing(_no_answer(error))
        status = response.status_code
        if status in (401, 403):
            return Listing(_refusal(status, content, target), (), "openai", ahead_s, ends_s)
        engine = await detect_engine(client, target, Response(status, content, response.headers, 0))
    entries = model_entries(json_object(content) or {}) if status == 200 else []
    ids = (str(entry["id"]) for entry in entries[:_MOST_MODELS] if isinstance(entry.get("id"), str))
    names = [" ".join(visible(name).split()) for name in ids]  # with a credential in them, which `only_model` refuses
    return Listing(None, tuple(dict.fromkeys(names)), engine, ahead_s, ends_s)


def only_model(target: Target, models: tuple[str, ...], where: str, remedy: str) -> str:
    """Return the only model of a server's list. Raises UsageError, with the remedy, for none and for several."""
    if any(len(part) >= _SHORTEST_SECRET and part in name for name in models for part in target.secrets):
        raise UsageError(f"{where} shows its key among the names of its models; {remedy}")
    if len(models) == 1:
        return models[0]
    if not models:
        raise UsageError(f"{where} does not list its models; {remedy}")
    more = f" and {len(models) - _MOST_SHOWN} more" if len(models) > _MOST_SHOWN else ""
    raise UsageError(f"{where} serves {len(models)} models: {', '.join(models[:_MOST_SHOWN])}{more}; {remedy}")


def try_completion(target: Target, endpoint: Endpoint, *, stream: bool, within_s: float = WITHIN_S) -> Trial:
    """Send one short request, as the load does. Raises TargetError for an address that is none."""
    return asyncio.run(_try_completion(target, endpoint, stream, within_s))


async def _try_completion(target: Target, endpoint: Endpoint, stream: bool, within_s: float) -> Trial:
    ask = probe_request(endpoint)
    if ENDPOINTS[endpoint].by_grpc:
        began_s = time.monotonic()
        problem = await asyncio.to_thread(inference_problem, target, ask, within_s)
        whole_s = time.monotonic() - began_s
        return Trial(None, whole_s=whole_s, events=1) if problem is None else Trial(_failed_call(problem))
    if endpoint in STREAMED:
        ask = replace(text_request(endpoint, _PROMPT, _TOKENS), stream=stream)
    body = request_content(target, ask, seed=0)
    async with _client(target, within_s) as client:
        began_s = time.monotonic()
        try:
            async with client.stream("POST", request_path(target, ask), body) as response:
                if stream and response.status_code == 200:
                    return await _streamed(response, began_s, began_s + _STREAM_SHARE * within_s, target)
                content = await client.read_body(response)
        except RequestError as error:
            return Trial(_no_answer(error))
    whole_s = time.monotonic() - began_s
    if response.status_code != 200:
        return Trial(_refusal(response.status_code, content, target))
    try:
        document = answer_document(endpoint, 200, content)
    except RequestError as error:
        return _faulty(str(error.redacted(target.redact)))
    return Trial(None, _tokens(document), _finish(document), None, whole_s, 1, _model(document, target))


def _client(target: Target, within_s: float) -> AsyncJsonClient:
    return AsyncJsonClient(target, connect_s=10.0, total_s=within_s)


_TROUBLES: dict[int | None, Trouble] = {401: Trouble.AUTH, 403: Trouble.AUTH, 404: Trouble.MODEL}


def _no_answer(error: RequestError) -> Fault:
    return Fault(Trouble.TLS if isinstance(error, TlsError) else Trouble.AWAY, str(error))


def _refusal(status: int, content: bytes, target: Target) -> Fault:
    trouble = _TROUBLES.get(status, Trouble.REFUSED)
    return Fault(trouble, target.redact(f"HTTP {status}: {error_text(content)}"))


def _failed_call(problem: InferenceProblem) -> Fault:
    if not problem.code:
        return Fault(Trouble.ODD, problem.reason)
    is_away = problem.is_unconnected or problem.code == "DEADLINE_EXCEEDED"
    return Fault(Trouble.AWAY if is_away else _TROUBLES.get(problem.status, Trouble.REFUSED), problem.reason)


def _faulty(reason: str) -> Trial:
    return Trial(Fault(Trouble.ODD, reason))


async def _streamed(response: httpx2.Response, began_s: float, until_s: float, target: Target) -> Trial:
    first_s: float | None = None
    tokens, finish, events, is_hidden, model = None, None, 0, False, None
    async for event in _events(response, until_s):
        error = event_error(event)
        if error is not None:
            return _faulty(target.redact(f"an error in the stream: {error}"))
        choice = first_object(event.get("choices")) or {}
        delta = choice.get("delta")
        if holds_output(delta) if isinstance(delta, dict) else choice.get("text"):
            events += 1
            first_s = time.monotonic() - began_s if first_s is None else first_s
        tokens, finish = _tokens(event) or tokens, _finish(event) or finish
        model = model or _model(event, target)
        is_hidden = is_hidden or is_hidden_reasoning(finish, event.get("usage"))
    if not events and not is_hidden:
        return _faulty("HTTP 200, and a stream without any output in it")
    return Trial(None, tokens, finish, first_s, time.monotonic() - began_s, events, model)


async def _events(response: httpx2.Response, until_s: float) -> AsyncIterator[dict[str, object]]:
    """Yield the JSON objects of server-sent events up to the last, however long the connection stays open."""
    size = 0
    async for line in response.aiter_lines():
        size += len(line)
        is_last = line.partition("data:")[2].strip() == "[DONE]"
        if is_last or size > _LARGEST_STREAM_BYTES or time.monotonic() > until_s:
            return
        event = json_object(line[5:].strip()) if line.startswith("data:") else None
        if event is not None:
            yield event


def _tokens(document: dict[str, object]) -> int | None:
    details = document.get("details")  # of TGI
    generated = token_count(details.get("generated_tokens")) if isinstance(details, dict) else None
    return output_count(document.get("usage")) or generated


def _model(document: dict[str, object], target: Target) -> str | None:
    """Return the answer's name of its model; None without one, or where it is no plain line or holds a credential."""
    name = document.get("model")
    return name if isinstance(name, str) and name and target.redact(name) == name else None


def _finish(document: dict[str, object]) -> str | None:
    reason = finish_reason((first_object(document.get("choices")) or {}).get("finish_reason"))
    return reason if reason in ACCEPTED_FINISH else None


def _certificate_ends_s(response: httpx2.Response) -> float | None:
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("ssl_object")
    if not isinstance(connection, ssl.SSLObject):
        return None
    ends = (connection.getpeercert() or {}).get("notAfter")
    return ssl.cert_time_to_seconds(ends) if isinstance(ends, str) else None
