"""The verdict server: Flagger's webhook and Argo Rollouts' web metric, answered from a store that is only read.

    POST /flagger         Flagger's JSON; its `metadata` names the run. 200 lets the canary go on, all else stops it
    GET  /verdict/RUN     the verdict of a run as JSON; `promotes` is true or false
    GET  /verdict?suite=SUITE&candidate=NAME    the same of the newest run
    GET  /healthz         200 if the store can be read

Requests, headers, bodies, times and connections are bounded. Nothing is judged or stored here. Whatever is missing,
old, withdrawn or not understood does not promote.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, unquote

from benchgate.errors import BenchgateError, StoreError, UsageError
from benchgate.escape import one_line, terminal_line
from benchgate.model.deployment import Arm
from benchgate.model.run import Run
from benchgate.pipeline.environment import utc_now
from benchgate.release.eligibility import (
    Obstacle,
    ObstacleKind,
    Requirements,
    promotion_obstacles,
    run_obstacles,
    verdict_obstacles,
)
from benchgate.store.repository import Store, StoredVerdict
from benchgate.suite.formats import load_json, unique_keys
from benchgate.units import parse_duration_s

_LONGEST_VALUE = 300
_NEWEST_RUNS = 100  # of a suite, searched for one of a candidate
_LONGEST_BODY_BYTES = 64 * 1024
_LENGTH = re.compile(r"[0-9]{1,9}")  # `int` refuses longer ones by an error of its own
_STEP_TIMEOUT_S = 10.0  # of every read and write
_REQUEST_TIMEOUT_S = 60.0
_MAX_CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class VerdictQuery:
    """Query for `run` (an id or a label), or for the newest run of `suite` that judges its deployment `candidate`.

    `revision` is the one that the candidate's weights must have been measured at, `max_age_s` the longest time since
    the run's end. With `promoted` a recorded promotion must stand, with `strict` a WARN does not promote, with
    `require_pinned` weights without a known revision do not.
    """

    run: str | None = None
    suite: str | None = None
    candidate: str | None = None
    revision: str | None = None
    max_age_s: float = 0.0
    promoted: bool = False
    strict: bool = False
    require_pinned: bool = False


_PARAMETERS = ("run", "suite", "candidate", "revision", "max_age", "promoted", "strict")


def parse_query(values: Mapping[str, object], *, max_age_s: float, strict: bool, require_pinned: bool) -> VerdictQuery:
    """Parse a caller's parameters, which may tighten `max_age_s` and `strict`, and never loosen a demand.

    Raises UsageError for an unknown name or value, and where no run is named: a misspelled condition must not be lost.
    """
    texts: dict[str, str] = {}
    for name, value in values.items():
        if not isinstance(value, str) or not value or len(value) > _LONGEST_VALUE or not value.isprintable():
            raise UsageError(f"{one_line(name)}: expected a text of 1 to {_LONGEST_VALUE} characters on one line")
        texts[name] = value
    for name in texts:
        if name not in _PARAMETERS:
            near = get_close_matches(name, _PARAMETERS, n=1, cutoff=0)[0]
            raise UsageError(
                f"unknown parameter {one_line(name)}; did you mean {near}? Known: {', '.join(_PARAMETERS)}"
            )
    run, suite, candidate = (texts.get(name) for name in ("run", "suite", "candidate"))
    if (run is None) == (suite is None):
        raise UsageError("name either a `run`, or a `suite` and its `candidate`")
    if (suite is None) != (candidate is None):
        raise UsageError("a `suite` may have several candidates: name the `candidate` beside it, and only there")
    if run is not None and run.startswith("@"):
        raise UsageError(f"{one_line(run)} means another run every day; name one by its id or label, or a suite")
    try:
        own_max_age_s = parse_duration_s(texts["max_age"]) if "max_age" in texts else max_age_s
    except ValueError as error:
        raise UsageError(f"max_age: {error}") from error
    return VerdictQuery(
        run=run,
        suite=suite,
        candidate=candidate,
        revision=texts.get("revision"),
        max_age_s=min(max_age_s, own_max_age_s),
        promoted=_flag("promoted", texts.get("promoted")),
        strict=strict or _flag("strict", texts.get("strict")),
        require_pinned=require_pinned,
    )


def _flag(name: str, value: str | None) -> bool:
    if value not in (None, "true", "false"):
        raise UsageError(f"{name}: expected true or false")
    return value == "true"


class RunNotFound(UsageError):
    """The store has no run of this name, or more than one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its reason in a sentence; `document` is the same and more, as plain JSON."""

    promotes: bool
    reason: str
    document: dict[str, object]


def answer(store: Store, query: VerdictQuery, now: str) -> Answer:
    """Answer by the stored verdict at the instant `now` (RFC 3339 UTC). Raises RunNotFound."""
    run = _find_run(store, query)
    verdict = store.own_verdict(run.id)
    obstacle = next(_obstacles(store, query, run, verdict, now), None)
    verdict_reason = one_line(str(verdict.document.get("reason", ""))) if verdict is not None else ""
    reason = obstacle.reason if obstacle is not None else verdict_reason or "its verdict lets it through"
    outcome = verdict.outcome if verdict is not None else "no verdict"
    document: dict[str, object] = {
        "run": run.id,
        "suite": run.suite_name,
        "candidate": _candidate(run),
        "verdict": verdict.outcome.value if verdict is not None else None,
        "promotes": obstacle is None,
        "reason": reason,
        "decided_at": verdict.decided_at if verdict is not None else None,
        "finished_at": run.finished_at,
        "verdict_sha256": verdict.sha256 if verdict is not None else None,
    }
    return Answer(obstacle is None, f"run {run.id} of suite {run.suite_name}: {outcome}; {reason}", document)


def _obstacles(
    store: Store, query: VerdictQuery, run: Run, verdict: StoredVerdict | None, now: str
) -> Iterator[Obstacle]:
    requirements = Requirements(query.max_age_s, require_pinned=query.require_pinned, revision=query.revision)
    yield from run_obstacles(run, now, requirements)
    if verdict is None:
        yield Obstacle(ObstacleKind.VERDICT, "it was never judged")
        return
    reason = one_line(str(verdict.document.get("reason", "its verdict does not promote")))
    yield from verdict_obstacles(verdict.outcome, reason, strict=query.strict)
    if verdict.document.get("promotes") is not True:
        yield Obstacle(ObstacleKind.VERDICT, reason)
    yield from promotion_obstacles(run, store.promotions(run.suite_name), required=query.promoted)


def _find_run(store: Store, query: VerdictQuery) -> Run:
    """Return the run of a name, or the newest that judges a candidate, even if it failed: an older one is no answer."""
    if query.run is not None:
        try:
            return store.run(store.resolve(query.run, whole=True))
        except UsageError as error:
            raise RunNotFound(one_line(str(error))) from error
    for run in store.runs(query.suite, _NEWEST_RUNS):
        if run.judges_candidate and _candidate(run) == query.candidate:
            return run
    raise RunNotFound(f"the newest runs of suite {query.suite!r} have none that judges {query.candidate!r}")


def _candidate(run: Run) -> str:
    """Return the name of the run's candidate; by its suite if it was never reached."""
    found = run.arms.get(Arm.CANDIDATE)
    return found.name if found is not None else str(run.suite.get("candidate", ""))


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """A server's store, its demands on every run, and the function that logs a line."""

    store: str
    max_age_s: float
    strict: bool
    require_pinned: bool
    log: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Response:
    """A response: the sentence, or the document that has it."""

    status: HTTPStatus
    reason: str
    document: Mapping[str, object] = field(default_factory=dict)


_NOT_FOUND = _Response(HTTPStatus.NOT_FOUND, "nothing is here; use GET /verdict/RUN or POST /flagger")


class VerdictServer(ThreadingHTTPServer):
    """HTTP server, bound to its address when it is made; `serve_forever` answers."""

    daemon_threads = True
    request_queue_size = 64  # a client over the backlog would wait for its second try

    def __init__(self, host: str, port: int, settings: ServerSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._open: dict[socket.socket, bool] = {}  # oldest first; True once the whole request was read
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """The server's address, with the port that it was given."""
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def server_bind(self) -> None:
        """Bind without looking up a name for the address, which may take long."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Make room for a connection by closing the oldest one whose request is not complete.

        Slow clients thus keep nobody out. If every connection waits for its answer, the new one is closed unanswered:
        callers take that for a no, and try again.
        """
        with self._lock:
            slow = next((one for one, is_read in self._open.items() if not is_read), None)
            is_full = len(self._open) >= _MAX_CONNECTIONS
            if is_full and slow is not None:
                del self._open[slow]
                _shut_down(slow)
            if not is_full or slow is not None:
                self._open[request] = False
        if request in self._open:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def request_read(self, request: Any) -> None:
        """Keep this connection until it is answered: its request is complete."""
        with self._lock:
            if request in self._open:
                self._open[request] = True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request within its time, and make room for the next."""
        end = threading.Timer(_REQUEST_TIMEOUT_S, _shut_down, (request,))  # for one who sends a byte now and then
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report defects; a lost connection is none."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _shut_down(request: socket.socket) -> None:
    """End a connection from another thread than the one that reads it."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: VerdictServer
    timeout = _STEP_TIMEOUT_S
    server_version = "benchgate"
    sys_version = ""

    def do_GET(self) -> None:
        """Send a verdict as JSON, with 200 for every run in the store, or the health."""
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._respond(self._health)
        elif path == "/verdict" or path.startswith("/verdict/"):
            self._respond(self._verdict, as_json=True)
        else:
            self._send(_NOT_FOUND)

    def do_POST(self) -> None:
        """Answer Flagger's webhook: 200 if the candidate may be promoted, and the reason."""
        if self.path.partition("?")[0] == "/flagger":
            self._respond(self._flagger)
        else:
            self._send(_NOT_FOUND)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing here: `_send` logs one line for each answer, with its reason."""

    def _verdict(self) -> _Response:
        path, _, query = self.path.partition("?")
        run = path.removeprefix("/verdict").lstrip("/")
        try:
            pairs = parse_qsl(
                query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=20
            )
            parameters = unique_keys([*([("run", unquote(run, errors="strict"))] if run else []), *pairs])
        except ValueError:
            raise UsageError("the address is not readable: expected /verdict/RUN, and behind a ? NAME=VALUE") from None
        found = self._answer(parameters)
        return _Response(HTTPStatus.OK, found.reason, found.document)

    def _flagger(self) -> _Response:
        length = self.headers.get("Content-Length", "")
        if not _LENGTH.fullmatch(length) or int(length) > _LONGEST_BODY_BYTES:
            raise UsageError(f"expected a body with a Content-Length of at most {_LONGEST_BODY_BYTES:,} bytes")
        content = self.rfile.read(int(length))
        if len(content) != int(length):
            raise UsageError("the body ended before it was complete")
        try:
            document = load_json(content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise UsageError("the body is no JSON object with each name once")
        metadata = document.get("metadata")
        if not isinstance(metadata, dict):
            raise UsageError("the webhook has no metadata; name a `run`, or a `suite` and its `candidate`, in it")
        found = self._answer(metadata)
        return _Response(HTTPStatus.OK if found.promotes else HTTPStatus.FORBIDDEN, found.reason)

    def _answer(self, parameters: Mapping[str, object]) -> Answer:
        settings = self.server.settings
        self.server.request_read(self.request)
        query = parse_query(
            parameters,
            max_age_s=settings.max_age_s,
            strict=settings.strict,
            require_pinned=settings.require_pinned,
        )
        with opened(settings.store) as store:
            return answer(store, query, utc_now())

    def _health(self) -> _Response:
        self.server.request_read(self.request)
        with opened(self.server.settings.store):
            return _Response(HTTPStatus.OK, "ok")

    def _respond(self, make: Callable[[], _Response], *, as_json: bool = False) -> None:
        """Send a response; an error is sent with its reason, and never promotes."""
        try:
            response = make()
        except BenchgateError as error:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            if isinstance(error, UsageError):
                status = HTTPStatus.NOT_FOUND if isinstance(error, RunNotFound) else HTTPStatus.BAD_REQUEST
            response = _Response(status, str(error), {"promotes": False, "reason": str(error)})
        self._send(response, as_json=as_json)

    def _send(self, response: _Response, *, as_json: bool = False) -> None:
        text = json.dumps(response.document, sort_keys=True) if as_json else response.reason
        content = f"{text}\n".encode("utf-8", "replace")
        self.send_response(response.status)
        self.send_header("Content-Type", "application/json" if as_json else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)
        if self.path != "/healthz":
            line = f"{self.command} {self.path[:200]}: {response.status.value} {response.reason[:400]}"
            self.server.settings.log(terminal_line(line))


@contextmanager
def opened(address: str) -> Iterator[Store]:
    """Open the store read-only, as it is. Raises StoreError if there is none."""
    store = Store.open_as_is(address)
    if store is None:
        raise StoreError("there is no store of this benchgate's schema where one was named")
    with store:
        yield store
