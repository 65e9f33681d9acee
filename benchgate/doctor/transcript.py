"""Transcripts of a server: exchanges with fixed requests, their bytes and the time of every read, redacted.

The files are those of tests/captures: NAME.http is the request, a blank line, and the response without chunk framing;
NAME.arrivals.txt has a line for each read, milliseconds since the request was written and bytes.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from benchgate.doctor.redaction import Redaction
from benchgate.errors import PublishError, TargetError
from benchgate.model.request import ENDPOINTS, Endpoint, text_request
from benchgate.quality.logprobs import COMPLETION, TOKENIZE, n_probs_fields, read_token_ids, tokenize_fields
from benchgate.system import write_atomic
from benchgate.targets.address import ServerAddress, tls_context
from benchgate.targets.answers import first_object, holds_output, output_count
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.endpoints import ask_body, content_type, request_content
from benchgate.targets.engine_detection import model_entries
from benchgate.targets.error_messages import json_object
from benchgate.targets.multipart import FormBody
from benchgate.targets.probe import FLAGS, LABEL, OF_WEIGHTS, probe_request
from benchgate.telemetry.engine_metrics import MODEL_LABELS, PAGES, BadPageError, read_page

_PROMPT = "Write a few sentences about rivers."
_TOKENS = 16
_TOP = 8  # log-probabilities of a place
_TIMEOUT_S = 120.0
_READ_BYTES = 65536
_LARGEST_BYTES = 4 * 2**20
_LARGEST_CONTEXT = 200_000  # tokens: longer prompts would be megabytes
_SHOWN_CHARACTERS = 300  # of a long request
_MODELS = "/v1/models"
NO_PAGE = "no such page"
# Headers that say nothing of a person or a place.
_KEPT_HEADERS = (
    "content-type", "content-length", "transfer-encoding", "connection", "server", "date", "retry-after",
    "cache-control", "process-start-time-unix", "x-litellm-version",
)  # fmt: skip
_KEPT_LABELS = (
    "engine", "finished_reason", "request_type", "kv_cache_block_type", "status", "priority", "cache_source", "method",
    "le", "quantile",
)  # fmt: skip
_KEPT_STRINGS = frozenset(
    {"status", "version", "litellm_version", "build_info", "name", "object", "router", "owned_by", "message"}
    | {name for names in (*FLAGS.values(), *OF_WEIGHTS.values()) for name in names}
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An exchange that was written, or left out with a `reason`. `status` is None if no response came."""

    name: str
    status: int | None
    bytes: int = 0
    reads: int = 0
    note: str = ""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Response:
    status_line: str
    headers: tuple[tuple[str, str], ...]
    framed: bytes
    reads: tuple[tuple[float, int], ...]  # seconds, and bytes of `framed` that had come by then

    @property
    def status(self) -> int:
        return int(self.status_line.split()[1])

    @property
    def is_chunked(self) -> bool:
        return ("transfer-encoding", "chunked") in self.headers

    @property
    def body(self) -> bytes:
        return b"".join(_chunks(self.framed)) if self.is_chunked else self.framed


def record(target: Target, folder: Path) -> Iterator[Recorded]:
    """Write the transcript of a server, whose dialect was detected, and yield each exchange as it is done."""
    redaction = Redaction(target)
    server = ServerAddress.of(target.url)
    models = _exchange(target, "GET", server.path(_MODELS))
    document: dict[str, object] = {}
    if isinstance(models, str):
        yield Recorded("models", None, reason=models)
    elif models.status != 200:
        yield _write(folder, redaction, "models", f"GET {_MODELS}", "", models, models.body)
    else:
        document = json_object(models.body) or {}
        listed = json.dumps(_models_of(document, target.model)).encode()
        yield _write(folder, redaction, "models", f"GET {_MODELS}", "", models, listed)
    for name, (endpoint, body) in _requests(target, _context_of(document, target.model)).items():
        if body is None:
            yield Recorded(name, None, reason=f"the server reports no context of at most {_LARGEST_CONTEXT} tokens")
            continue
        text, content = (body.shown, body.content) if isinstance(body, FormBody) else (body, body.encode())
        path = ENDPOINTS[endpoint].path_for(target.model, stream='"stream": true' in text)
        response = _exchange(target, "POST", server.path(path), content, content_type(endpoint))
        if isinstance(response, str):
            yield Recorded(name, None, reason=response)
        elif name in _TRIED and response.status != 200:
            yield Recorded(name, response.status, reason="the server does not have this endpoint for this model")
        else:
            yield _write(folder, redaction, name, f"POST {path}", text, response, None)
    if target.dialect.engine == "llamacpp":
        yield from _next_token(target, redaction, folder)
    known = {
        path for one in DIALECTS.values() for path in (one.health_path, *one.about_at, *(one.version_at or ())[:1])
    }
    for path in sorted(path for path in known if path is not None):
        yield _page(target, redaction, folder, path)
    yield _metrics(target, redaction, folder)


_OTHER_ENDPOINTS = tuple(
    name for name, spec in ENDPOINTS.items() if name not in ("chat", "completions") and not spec.by_grpc
)
_TRIED = (
    *("completions_nonstream", "completions_stream_usage", "completions_echo_logprobs"),
    *_OTHER_ENDPOINTS,
    "transcriptions_stream",
)


def _requests(target: Target, context: int | None) -> dict[str, tuple[Endpoint, str | FormBody | None]]:
    """Return the requests by name, each with its body; None for a body that cannot be made."""

    def shortest(endpoint: Endpoint, *, stream: bool = False) -> str | FormBody:
        ask = probe_request(endpoint)
        content = request_content(target, replace(ask, stream=stream or ask.stream))
        return content if isinstance(content, FormBody) else json.dumps(content)

    def body(endpoint: Endpoint, *, stream: bool, **changes: object) -> str:
        ask = text_request(endpoint, _PROMPT, _TOKENS, ignore_eos="ignore_eos" in changes)
        made = ask_body(target, replace(ask, stream=stream))
        return json.dumps({**made, **{name: value for name, value in changes.items() if name != "ignore_eos"}})

    plain = json.loads(body("chat", stream=True))
    plain.pop("stream_options", None)
    long_prompt = None
    if context is not None and context < _LARGEST_CONTEXT:
        long_prompt = body("chat", stream=False, messages=[{"role": "user", "content": "word " * (context + 64)}])
    return {
        "chat_nonstream": ("chat", body("chat", stream=False)),
        "chat_stream": ("chat", json.dumps(plain)),
        "chat_stream_usage": ("chat", body("chat", stream=True)),
        "chat_stream_ignore_eos": ("chat", body("chat", stream=True, ignore_eos=True)),
        "completions_nonstream": ("completions", body("completions", stream=False)),
        "completions_stream_usage": ("completions", body("completions", stream=True)),
        "completions_echo_logprobs": (
            "completions",
            body("completions", stream=False, max_tokens=1, echo=True, logprobs=1),
        ),
        **{name: (name, shortest(name)) for name in _OTHER_ENDPOINTS},
        "transcriptions_stream": ("transcriptions", shortest("transcriptions", stream=True)),
        "err_bad_model": ("chat", body("chat", stream=False, model="no-such-model")),
        "err_no_messages": ("chat", json.dumps({"model": target.model})),
        "err_invalid_json": ("chat", '{"model": "m", "messages": '),
        "err_unknown_field": ("chat", body("chat", stream=False, frobnicate=1)),
        "err_long_prompt": ("chat", long_prompt),
    }


def _next_token(target: Target, redaction: Redaction, folder: Path) -> Iterator[Recorded]:
    """Record llama.cpp's tokens of a text, and its log-probabilities of the last one after all the others."""
    server = ServerAddress.of(target.url)
    ids: tuple[int, ...] = (0, 0)
    for name, path in (("tokenize", TOKENIZE), ("completion_n_probs", COMPLETION)):
        text = json.dumps(tokenize_fields(_PROMPT) if path == TOKENIZE else n_probs_fields(ids[:-1], ids[-1], _TOP))
        response = _exchange(target, "POST", server.path(path), text.encode(), content_type("completions"))
        if isinstance(response, str):
            yield Recorded(name, None, reason=response)
            return
        yield _write(folder, redaction, name, f"POST {path}", text, response, None)
        if path == TOKENIZE:
            try:
                ids = read_token_ids(json_object(response.body) or {})
            except TargetError:
                return


def _exchange(
    target: Target, method: str, path: str, content: bytes = b"", content_type: str | None = None
) -> _Response | str:
    """Send one request on a connection of its own. Return the response, or the reason why there is none."""
    server = ServerAddress.of(target.url)
    headers = {"host": server.netloc, "user-agent": "benchgate", **target.headers(), "connection": "close"}
    if content_type is not None:
        headers |= {"content-type": content_type, "content-length": str(len(content))}
    head = "".join(f"{line}\r\n" for line in [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())])
    wire, reads = bytearray(), list[tuple[float, int]]()
    try:
        with closing(_connect(target, server)) as connection:
            connection.sendall(f"{head}\r\n".encode() + content)
            began_s = time.monotonic()
            while part := connection.recv(_READ_BYTES):
                wire += part
                reads.append((time.monotonic() - began_s, len(wire)))
                if len(wire) > _LARGEST_BYTES:
                    return f"the response is larger than {_LARGEST_BYTES // 2**20} MiB"
                if reads[-1][0] > _TIMEOUT_S:
                    return f"the response did not end within {_TIMEOUT_S:g} s"
                if _is_whole(bytes(wire)):  # some servers keep the connection open all the same
                    break
    except OSError as error:
        return f"the connection failed ({type(error).__name__})"
    raw_head, separator, framed = bytes(wire).partition(b"\r\n\r\n")
    status_line, *lines = raw_head.decode("latin-1").split("\r\n")
    if not separator or not re.match(r"HTTP/1\.\d \d{3}", status_line):
        return "the response is not HTTP/1"
    pairs = tuple((name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
    kept = tuple((name, "chunked" if name == "transfer-encoding" else value) for name, value in pairs)
    begin = len(raw_head) + len(separator)
    return _Response(status_line, kept, framed, tuple((at_s, max(0, came - begin)) for at_s, came in reads))


def _is_whole(wire: bytes) -> bool:
    head, separator, framed = wire.partition(b"\r\n\r\n")
    if re.search(rb"(?im)^transfer-encoding:\s*chunked", head):
        return framed.endswith(b"0\r\n\r\n") and (framed == b"0\r\n\r\n" or framed.endswith(b"\r\n0\r\n\r\n"))
    length = re.search(rb"(?im)^content-length:\s*(\d+)", head)
    return bool(separator) and length is not None and len(framed) >= int(length[1])


def _connect(target: Target, server: ServerAddress) -> socket.socket:
    if server.socket is not None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_TIMEOUT_S)
        connection.connect(server.socket)
        return connection
    connection = socket.create_connection((server.host, server.tcp_port), timeout=_TIMEOUT_S)
    if server.scheme == "https":
        return tls_context(target.route).wrap_socket(connection, server_hostname=server.host)
    return connection


def _chunks(framed: bytes) -> Iterator[bytes]:
    while framed:
        size_line, _, rest = framed.partition(b"\r\n")
        try:
            size = int(size_line.partition(b";")[0], 16)
        except ValueError:
            return  # cut off within the framing
        if size == 0:
            return
        yield rest[:size]
        framed = rest[size + 2 :]


def _write(
    folder: Path,
    redaction: Redaction,
    name: str,
    request: str,
    text: str,
    response: _Response,
    changed: bytes | None,
) -> Recorded:
    """Write one exchange, with `changed` as its body if that is not the server's own. One that is not clean is not."""
    body = redaction.apply(response.body if changed is None else changed)
    shown = text if len(text) <= _SHOWN_CHARACTERS * 2 else f"[{len(text)} characters: {text[:_SHOWN_CHARACTERS]}...]"
    sent = redaction.apply(shown.encode())
    lines = [f"{key}: {value}" for key, value in response.headers if key in _KEPT_HEADERS and key != "content-length"]
    if not response.is_chunked:
        lines.append(f"content-length: {len(body)}")
    head = redaction.apply("\n".join([response.status_line, *lines]).encode())
    dropped = sum(key not in _KEPT_HEADERS for key, _ in response.headers)
    content = request.encode() + b"\n" + (sent + b"\n" if text else b"") + b"\n" + head + b"\n\n" + body
    if not redaction.is_clean(content) or not redaction.is_clean(body):
        return Recorded(name, response.status, reason="it repeats a credential or a host name in pieces")
    _keep(folder / f"{name}.http", content)
    reads = 0
    if changed is None and "_stream" in name:
        arrivals = _arrivals(response, len(head) + head.count(b"\n") + 4)
        listed = "".join(f"{ms:.3f} {size}\n" for ms, size in arrivals)
        _keep(folder / f"{name}.arrivals.txt", listed.encode())
        reads = len(arrivals)
    notes = [_understood(body)] if response.status == 200 else []
    notes += [f"{dropped} headers left out"] if dropped else []
    note = redaction.apply("; ".join(filter(None, notes)).encode()).decode("utf-8", "replace")
    return Recorded(name, response.status, len(content), reads, note)


def _arrivals(response: _Response, head_bytes: int) -> list[tuple[float, int]]:
    """Return milliseconds and bytes of each read, of the response with one event in a chunk, as it is given back."""
    body = response.body
    *events, rest = body.split(b"\n\n")
    sizes = [len(event) + 2 for event in events] + ([len(rest)] if rest else [])
    arrivals, before = [], 0
    for at_s, came in response.reads:
        is_last = came == len(response.framed)
        if not response.is_chunked:
            place = head_bytes + came
        else:
            place = head_bytes + _framed_size(sizes, sum(map(len, _chunks(response.framed[:came]))), is_last)
        if place > before and (came or is_last):
            arrivals.append((at_s * 1e3, place - before))
            before = place
    return arrivals


def _framed_size(sizes: list[int], body_bytes: int, is_last: bool) -> int:
    """Return how many bytes these first bytes of a body take with a chunk for each event."""
    total = 0
    for size in sizes:
        if body_bytes <= 0:
            break
        part = min(size, body_bytes)
        total += len(f"{size:x}") + 2 + part + (2 if part == size else 0)
        body_bytes -= part
    return total + (5 if is_last else 0)


def _understood(body: bytes) -> str:
    """Describe what benchgate reads of an answer: tokens by its usage, events with output, and why it ended."""
    text = body.decode("utf-8", "replace")
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")] or [text]
    tokens, events, finish = None, 0, None
    for document in filter(None, map(json_object, lines)):
        choice = first_object(document.get("choices")) or {}
        part = choice.get("delta") or choice.get("message")
        events += bool(holds_output(part) if isinstance(part, dict) else choice.get("text"))
        tokens = output_count(document.get("usage")) or tokens
        finish = choice.get("finish_reason") or finish
    if not events:
        return ""
    counted = "no usage" if tokens is None else f"{tokens} tokens by usage"
    return f"{counted}, {events} events with output, finish reason {finish}"


def _context_of(document: dict[str, object], model: str) -> int | None:
    lengths = [entry.get("max_model_len") for entry in model_entries(document) if entry.get("id") == model]
    return lengths[0] if lengths and isinstance(lengths[0], int) else None


def _fetch(target: Target, path: str) -> _Response | str:
    """Return the page beside the API at the server's own port."""
    url = target.page(path)
    return _exchange(target, "GET", url[url.index("/", url.index("://") + 3) :])


def _page(target: Target, redaction: Redaction, folder: Path, path: str) -> Recorded:
    name = path.strip("/").replace("/", "_")
    response = _fetch(target, path)
    if isinstance(response, str):
        return Recorded(name, None, reason=response)
    document = json_object(response.body) if response.status == 200 else None
    if document is None:
        missing = NO_PAGE if response.status != 200 else "the page is no JSON object"
        return Recorded(name, response.status, reason=missing)
    body = json.dumps(_outline(document, "")).encode()
    return _write(folder, redaction, name, f"GET {path}", "", response, body)


def _outline(value: object, key: str) -> object:
    """Return a document with its numbers, and only those texts that benchgate reads."""
    if isinstance(value, dict):
        return {name: _outline(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [_outline(inner, key) for inner in value[:3]]
    if isinstance(value, str) and key not in _KEPT_STRINGS:
        return "left out"
    return value


def _models_of(document: dict[str, object], model: str) -> dict[str, object]:
    """Return a list of models in which only the one used has its name."""
    entries: list[dict[str, object]] = []
    for number, entry in enumerate(model_entries(document)):
        if entry.get("id") == model:
            entries.append(entry)
        else:
            kept = {key: entry[key] for key in ("object", "created", "owned_by") if key in entry}
            entries.append(kept | {"id": f"model-{number}"})
    return {"object": "list", "data": entries}


def _keep(file: Path, content: bytes) -> None:
    try:
        write_atomic(file, content)
    except OSError as error:
        raise PublishError(f"{file} could not be written: {error.strerror}") from error


def _metrics(target: Target, redaction: Redaction, folder: Path) -> Recorded:
    name, usual = "metrics_after_load", PAGES.get(target.dialect.engine)
    response = _fetch(target, "/metrics" if usual is None else usual.path)
    if isinstance(response, str):
        return Recorded(name, None, reason=response)
    if response.status != 200:
        return Recorded(name, response.status, reason=NO_PAGE)
    lines = response.body.decode("utf-8", "replace").splitlines()
    starts = {sample for one in PAGES.values() for sample in one.start_times}
    others: dict[str, str] = {}  # names of other models

    def kept_label(found: re.Match[str]) -> str:
        label, value = found.groups()
        if label in _KEPT_LABELS or (label in MODEL_LABELS and value.lower() == target.model.lower()):
            return found[0]
        known = others.setdefault(value, f"model-{len(others)}") if label in MODEL_LABELS else "left out"
        return f'{label}="{known}"'

    kept = [
        LABEL.sub(kept_label, line)
        for line in lines
        if line and not line.startswith("#")
        if not ("_bucket{" in line or "_created" in line) or line.split("{")[0].split(" ")[0] in starts
    ]
    text = redaction.apply("".join(f"{line}\n" for line in kept).encode())
    if not redaction.is_clean(text):
        return Recorded(name, 200, reason="it repeats a credential or a host name in pieces")
    try:
        found = read_page(text.decode(), target.model)
        note = f"a page of {found.engine} with {len(found.values)} values that are read"
    except BadPageError as error:
        name, note = "unknown_metrics", str(error)
    _keep(folder / f"{name}.txt", text)
    return Recorded(name, 200, len(text), 0, note)
