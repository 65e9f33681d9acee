"""The verdict server: Flagger's webhook and Argo Rollouts' web metric, answered from a store that is only read.

    POST /flagger         Flagger's JSON; its `metadata` names the run. 200 lets the canary go on, all else stops it
    GET  /verdict/RUN     the verdict of a run as JSON; `promotes` is true or false
    GET  /verdict?suite=SUITE&candidate=NAME    the same of the newest run
    GET  /healthz         that the store can be read

Requests, headers, bodies, times and connections are bounded; what cannot be answered is never a yes.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, unquote

from benchgate.errors import BenchgateError, StoreError, UsageError
from benchgate.escape import terminal_line
from benchgate.pipeline.environment import utc_now
from benchgate.release.answer import Answer, NoRun, answer
from benchgate.release.question import question
from benchgate.store.repository import Store

_LONGEST_BODY_BYTES = 64 * 1024
_LENGTH = re.compile(r"[0-9]{1,9}")  # `int` refuses longer ones by an error of its own
_TIMEOUT_S = 10.0  # of one step of a request
_LONGEST_S = 60.0  # of all of it
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Served:
    """What the server answers from and how: no run older than `max_age_s`, and with `strict` no WARN."""

    store: str
    max_age_s: float
    strict: bool
    told: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Said:
    """What is sent: the sentence, or the document of which it is a part."""

    status: HTTPStatus
    why: str
    document: Mapping[str, object] = field(default_factory=dict)


_NOTHING_HERE = _Said(HTTPStatus.NOT_FOUND, "there is nothing here; GET /verdict/RUN and POST /flagger are answered")


class VerdictServer(ThreadingHTTPServer):
    """Bound to an address when it is made; `serve_forever` answers."""

    daemon_threads = True
    request_queue_size = 64  # who waits for a connection would else wait for its second try

    def __init__(self, host: str, port: int, served: Served) -> None:
        self.served, self._room = served, threading.BoundedSemaphore(_AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """Where it answers; the port is the one that it was given."""
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def server_bind(self) -> None:
        """Without looking up a name for the address, which may take as long as a DNS server likes."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """One more at once than is allowed is not answered: who asks takes that for a no, and asks again."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one within its time, and make room for the next."""
        end = threading.Timer(_LONGEST_S, _cut, [request])
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that is gone is nobody's fault; anything else is a defect, and the next one is answered."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: VerdictServer
    timeout = _TIMEOUT_S  # of every read and write
    server_version = "benchgate"
    sys_version = ""

    def do_GET(self) -> None:
        """Verdicts as JSON; 200 for every run that is there, whatever its verdict."""
        path, _, query = self.path.partition("?")
        if path == "/healthz":
            self._tell(self._health)
        elif path == "/verdict" or path.startswith("/verdict/"):
            run = path.removeprefix("/verdict").lstrip("/")
            self._tell(lambda: self._verdict(run, query), as_json=True)
        else:
            self._send(_NOTHING_HERE)

    def do_POST(self) -> None:
        """Flagger's webhook: 200 where the candidate may be promoted, with the sentence that says why (not)."""
        if self.path.partition("?")[0] == "/flagger":
            self._tell(self._flagger)
        else:
            self._send(_NOTHING_HERE)

    def log_message(self, format: str, *args: object) -> None:
        """One line for each answer is written elsewhere, with its reason."""

    def _verdict(self, run: str, query: str) -> _Said:
        found = self._answer(_in_address(run, query))
        return _Said(HTTPStatus.OK, found.why, found.document)

    def _flagger(self) -> _Said:
        metadata = _object(self._body()).get("metadata")
        if not isinstance(metadata, dict):
            raise UsageError("the webhook has no metadata; name a `run`, or a `suite` and its `candidate`, in it")
        found = self._answer(metadata)
        return _Said(HTTPStatus.OK if found.promotes else HTTPStatus.FORBIDDEN, found.why)

    def _answer(self, said: Mapping[str, object]) -> Answer:
        served = self.server.served
        asked = question(said, max_age_s=served.max_age_s, strict=served.strict)
        with opened(served.store) as store:
            return answer(store, asked, utc_now())

    def _health(self) -> _Said:
        with opened(self.server.served.store):
            return _Said(HTTPStatus.OK, "ok")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not _LENGTH.fullmatch(length) or int(length) > _LONGEST_BODY_BYTES:
            raise UsageError(f"expected a body with a Content-Length of at most {_LONGEST_BODY_BYTES:,} bytes")
        content = self.rfile.read(int(length))
        if len(content) != int(length):
            raise UsageError("the body ended before it was whole")
        return content

    def _tell(self, ask: Callable[[], _Said], *, as_json: bool = False) -> None:
        """Send what comes of it; what goes wrong on the way is told, and is no yes."""
        try:
            said = ask()
        except NoRun as error:
            said = _no(HTTPStatus.NOT_FOUND, error)
        except UsageError as error:
            said = _no(HTTPStatus.BAD_REQUEST, error)
        except BenchgateError as error:
            said = _no(HTTPStatus.SERVICE_UNAVAILABLE, error)
        self._send(said, as_json=as_json)

    def _send(self, said: _Said, *, as_json: bool = False) -> None:
        text = json.dumps(said.document, sort_keys=True) if as_json else said.why
        content = f"{text}\n".encode("utf-8", "replace")
        self.send_response(said.status)
        self.send_header("Content-Type", "application/json" if as_json else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)
        if self.path != "/healthz":
            line = f"{self.command} {self.path[:200]}: {said.status.value} {said.why[:400]}"
            self.server.served.told(terminal_line(line))


def _no(status: HTTPStatus, error: BenchgateError) -> _Said:
    return _Said(status, str(error), {"promotes": False, "reason": str(error)})


def _cut(request: socket.socket) -> None:
    """End a connection on both sides: who sends a byte now and then would else be read from for ever."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


@contextmanager
def opened(address: str) -> Iterator[Store]:
    """The store as it is, to read. Raises StoreError where there is none."""
    store = Store.open_as_is(address)
    if store is None:
        raise StoreError("there is no store of this benchgate's schema where one was named")
    with store:
        yield store


def _in_address(run: str, query: str) -> dict[str, object]:
    """What a GET asks for. Raises UsageError."""
    try:
        said = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=20)
        return _only_once([*([("run", unquote(run, errors="strict"))] if run else []), *said])
    except ValueError:
        raise UsageError("the address is not readable: expected /verdict/RUN, and behind a ? NAME=VALUE") from None


def _object(content: bytes) -> dict[str, Any]:
    """The JSON object in a body, in which no name stands twice. Raises UsageError."""
    try:
        document = json.loads(content, object_pairs_hook=_only_once)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UsageError("the body is no JSON object with each name once")
    return document


def _only_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found
