"""Is a deployment there, and what does it say it is? Ready means that it really completed something.

Health endpoints answer long before a model does, and some servers have none: only a completion with text counts.
"""

from __future__ import annotations

import math
import re
import ssl
import time
from collections.abc import Callable
from typing import NamedTuple

import httpx2

from benchgate.errors import TargetError
from benchgate.model.request import Endpoint
from benchgate.model.run import REFUSES_REQUESTS
from benchgate.targets.address import ServerAddress, show_address
from benchgate.targets.clients import client_of
from benchgate.targets.dialect import PATHS, Target, ask_body
from benchgate.targets.error_messages import error_message, error_text, json_object, one_line
from benchgate.targets.proof import answered, missing, probe_ask
from benchgate.targets.route import tls_fault
from benchgate.targets.told import beside_weights, cache_flags, facts_of, flags_of

_LARGEST_BODY_BYTES = 4 * 2**20
_POLL_S = 0.25
_NOTE_EVERY_S = 5.0
_ANSWER_S = 60.0  # the first completion of a cold engine compiles and loads
_ALIVE_S = 10.0
_HOPELESS = frozenset({401, 403, 405, 422})  # waiting does not mend these
_DOUBTFUL = frozenset({400, 404})  # said of a wrong request and a wrong name, and for a moment of a model not yet there
_SURE_AFTER_S = 3.0  # of one of those
_COMING = re.compile(
    r"\b(not (yet )?(ready|loaded|started|initiali[sz]ed)|(is|still|being|currently) loading|loading (the )?model"
    r"|starting(?! with)|start-?up|sleeping|asleep|waking|warming|initiali[sz]ing)\b",
    re.IGNORECASE,
)
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "library": "ollama"}  # "owned_by" of a model
_FACTS = ("ftype", "n_params", "size", "n_vocab", "n_embd", "n_ctx_train", "max_model_len")


def wait_ready(
    target: Target,
    *,
    endpoint: Endpoint,
    ready_s: float,
    connect_s: float,
    waiting: Callable[[str], None] = lambda line: None,
) -> dict[str, object]:
    """Wait until the target completes a request, and return what it says of itself.

    The facts are only those that identify the engine and the model, so that the same deployment gives the same ones.
    `waiting` is told every few seconds that it is not there yet, and why.
    Raises TargetError with arm, host and last reason when it is not ready within `ready_s`, or cannot become so: it
    refuses in a way that time does not mend. Where that may be said of a model that is still coming too, it is so when
    the answer has stayed the same for a few seconds.
    """
    where = f"the {target.arm} at {show_address(target.url)}"
    began_s = last_s = time.monotonic()
    deadline = began_s + ready_s
    refused, refused_since_s = None, began_s
    with _client(target, connect_s, min(_ANSWER_S, ready_s)) as client:
        while True:
            answer = _complete(client, target, endpoint)
            if answer.problem is None:
                return _facts(client, target)
            now_s = time.monotonic()
            if answer.refused != refused:
                refused, refused_since_s = answer.refused, now_s
            over = now_s + _POLL_S >= deadline
            if now_s - refused_since_s >= answer.hopeless_after_s or (over and answer.hopeless_after_s < math.inf):
                others = _others(client, target, answer.problem)
                said = f"{answer.problem.rstrip('.')}; it serves {others}" if others else answer.problem
                raise TargetError(f"{where} {REFUSES_REQUESTS}: {said}")
            if now_s - last_s >= _NOTE_EVERY_S:
                last_s = now_s
                waiting(f"{where} is not ready after {now_s - began_s:.0f} s of {ready_s:g}: {answer.problem}")
            if over:
                waited = f"was not ready within {ready_s:g} s"
                raise TargetError(f"{where} {waited}; the last reason: {answer.problem}")
            time.sleep(_POLL_S)


def _others(client: httpx2.Client, target: Target, said: str) -> str:
    """The models that are there, where the one asked for is not among them and the server did not name them itself."""
    if not said.startswith("HTTP 404"):
        return ""
    served = [str(entry["id"]) for entry in entries_of(_get(client, "/v1/models")) if entry.get("id")]
    if not served or target.model in served or any(name in said for name in served):
        return ""
    return in_one_line(", ".join(served), target)


def still_alive(target: Target, *, endpoint: Endpoint = "chat", within_s: float = _ALIVE_S) -> str | None:
    """Why the target no longer completes a short request; None when it does."""
    try:
        with _client(target, within_s, within_s) as client:
            return _complete(client, target, endpoint).problem
    except TargetError as exc:
        return str(exc)


def detect_engine(target: Target, *, within_s: float = 5.0) -> str:
    """Which dialect a server speaks, by who it says owns its models; "openai", the plain one, when it does not say.

    The target's own dialect does not matter. Raises TargetError when the address is none.
    """
    with _client(target, within_s, within_s) as client:
        return engine_of(entries_of(_get(client, "/v1/models")))


def engine_of(entries: list[dict[str, object]]) -> str:
    """The dialect by who owns the models in a server's list of them."""
    owners = {str(entry.get("owned_by")) for entry in entries}
    found = {_OWNERS[owner] for owner in owners if owner in _OWNERS}
    return found.pop() if len(found) == 1 else "openai"


class _Answer(NamedTuple):
    """The outcome of one completion: `problem` is None when it came with output.

    `refused` is the status of one that was refused in a way that waiting does not mend; that is sure when it has been
    for as long as `hopeless_after_s`.
    """

    problem: str | None
    refused: int | None = None
    hopeless_after_s: float = math.inf


def _client(target: Target, connect_s: float, answer_s: float) -> httpx2.Client:
    return client_of(target, httpx2.Timeout(answer_s, connect=min(connect_s, answer_s)))


def _complete(client: httpx2.Client, target: Target, endpoint: Endpoint) -> _Answer:
    body = ask_body(target, probe_ask(endpoint), seed=0)
    try:
        status, content = _fetch(client, "POST", PATHS[endpoint], body)
    except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
        broken = tls_error(exc)
        reason = str(exc) if broken is None else tls_fault(broken)
        never = _is_about_certificates(broken)
        return _Answer(in_one_line(reason or type(exc).__name__, target), None, 0.0 if never else math.inf)
    document = answered(endpoint, content)
    if status != 200:
        problem = in_one_line(f"HTTP {status}: {error_text(content)}", target)
        # A gateway's 404 may pass; one in an engine's own words is about the model name or the path.
        in_own_words = document is not None and error_message(document) is not None
        if status in _HOPELESS:
            return _Answer(problem, status, 0.0)
        if _COMING.search(error_text(content).replace(target.model, "")):
            return _Answer(problem)
        if status in _DOUBTFUL and (status != 404 or in_own_words):
            return _Answer(problem, status, _SURE_AFTER_S)
        return _Answer(problem)
    if document is None:
        return _Answer(in_one_line(f"HTTP 200 without a JSON object: {error_text(content)}", target))
    if document.get("error"):
        return _Answer(in_one_line(f"HTTP 200 with an error: {error_message(document)}", target))
    return _Answer(missing(endpoint, document))


def tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """What TLS itself said, beneath what the client made of it."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _is_about_certificates(error: ssl.SSLError | None) -> bool:
    """Whether one end does not accept the other's certificate."""
    if error is None:
        return False
    return isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE" in (error.reason or "")


def in_one_line(text: str, target: Target) -> str:
    """A reason in one line, without the key and the path that servers repeat in their refusals."""
    prefix = ServerAddress.of(target.url).prefix
    return one_line(text.replace(prefix, "[path]") if prefix else text, secret=target.secrets)


def _fetch(client: httpx2.Client, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Status and body, cut off where no honest answer of this kind would still go on. Raises httpx2.HTTPError."""
    content = bytearray()
    with client.stream(method, path, json=body) as response:
        for piece in response.iter_bytes():
            content += piece
            if len(content) > _LARGEST_BODY_BYTES:
                break
    return response.status_code, bytes(content)


def what_it_says(target: Target, *, within_s: float = _ALIVE_S) -> dict[str, object]:
    """What the target says of itself now, as `wait_ready` gives it. Raises TargetError when the address is none."""
    with _client(target, within_s, within_s) as client:
        return _facts(client, target)


def _facts(client: httpx2.Client, target: Target) -> dict[str, object]:
    """What the server says of its engine and model. Nothing here is required of a server."""
    dialect, facts = target.dialect, dict[str, object]()
    documents: dict[str, dict[str, object]] = {}

    def at(path: str) -> dict[str, object]:
        if path not in documents:
            documents[path] = _get(client, path)
        return documents[path]

    if dialect.version_at is not None:
        path, key = dialect.version_at
        version = at(path).get(key)
        if isinstance(version, str):
            facts["engine_version"] = one_line(version)
    entry = _model_entry(at("/v1/models"), target.model)
    meta = entry.get("meta")
    told = {**entry, **meta} if isinstance(meta, dict) else entry
    for name in _FACTS:
        value = told.get(name)
        if isinstance(value, int | str):
            facts[name] = one_line(value) if isinstance(value, str) else value
    about = next((document for path in dialect.about_at if (document := at(path))), {})
    if dialect.version_at is None and isinstance(about.get("version"), str):
        facts["engine_version"] = one_line(str(about["version"]))
    of_model = beside_weights(about) if len(_base_models(at("/v1/models"))) > 1 else about
    facts |= facts_of(dialect.engine, {**{name: entry.get(name) for name in ("root", "parent")}, **of_model})
    flags = flags_of(dialect.engine, about)
    if dialect.flags_page is not None:
        flags |= cache_flags(_text(client, dialect.flags_page))
    return facts | ({"flags": flags} if flags else {})


def _get(client: httpx2.Client, path: str) -> dict[str, object]:
    try:
        status, content = _fetch(client, "GET", path)
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return {}
    return (json_object(content) or {}) if status == 200 else {}


def _text(client: httpx2.Client, path: str) -> str:
    try:
        status, content = _fetch(client, "GET", path)
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return ""
    return content.decode("utf-8", "replace") if status == 200 else ""


def entries_of(models: dict[str, object]) -> list[dict[str, object]]:
    """The models in a server's list of them."""
    listed = models.get("data")
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _base_models(models: dict[str, object]) -> list[dict[str, object]]:
    """Those that are no adapters of others."""
    return [entry for entry in entries_of(models) if not entry.get("parent")]


def _model_entry(models: dict[str, object], model: str) -> dict[str, object]:
    """The entry of the model asked for, or the only one there is."""
    entries = entries_of(models)
    named = [entry for entry in entries if entry.get("id") == model] or (entries if len(entries) == 1 else [])
    return named[0] if named else {}
