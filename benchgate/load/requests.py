"""Planned requests encoded for the wire before the clock starts, and kept in a file: a million would fill the memory.

Request heads stay in memory, because they hold the API key, which must not be written to any disk. They differ only in
the length of the body.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from time import monotonic_ns
from typing import IO, NamedTuple

from benchgate.errors import TargetError
from benchgate.load.spool import writing
from benchgate.model.request import Endpoint, fill_conversation
from benchgate.plan.model import PlannedRequest, Turn
from benchgate.targets.address import ServerAddress, show_address
from benchgate.targets.dialect import Target
from benchgate.targets.endpoints import content_type, request_path, wire_body

_MAKE_NS = 300_000  # of preparing requests at a time, and
_MAKE_AGAIN_S = 0.003  # until the next time
_AHEAD = 2_000  # requests more than slots, prepared before the clock starts where it takes no longer than
_AHEAD_NS = 100_000_000  # and no more than
_AHEAD_BYTES = 2**23


class PreparedRequest(NamedTuple):
    """A request encoded for the wire. `offset_ns` is its intended send since the start; None in a closed loop.

    `plan` is set only for session turns, cancellations and answers that are no stream of chat or completions. For the
    last it may be another planned request with the same kind of answer.
    """

    number: int  # the planned request's index
    offset_ns: int | None
    wire: bytes
    plan: PlannedRequest | None = None

    @property
    def turn(self) -> Turn | None:
        """Return its turn of a session, or None."""
        return None if self.plan is None else self.plan.turn


class LookAhead(Iterator[PreparedRequest]):
    """Endless requests: one prepared for every slot, and more ahead where they are small and quick to prepare.

    Preparing a request when it is due would send it late, and hold up the answers of others. Preparing one between
    reads costs several times what it costs in a row. So more are prepared only when half of the slots would find none,
    a few at a time. Iterate inside a running event loop.
    """

    def __init__(self, requests: Iterator[PreparedRequest], slots: int, ahead: int = _AHEAD) -> None:
        self._requests = requests
        self._ready = deque(islice(requests, slots))
        self._slots = slots
        most = slots + ahead
        until_ns = monotonic_ns() + _AHEAD_NS
        left = _AHEAD_BYTES - sum(len(prepared.wire) for prepared in self._ready)
        while len(self._ready) < most and left > 0 and monotonic_ns() < until_ns and self._make_one():
            left -= len(self._ready[-1].wire)
        self._making: asyncio.TimerHandle | None = None
        self._broken: BaseException | None = None  # why no more can be made: nobody waits for a callback

    def __next__(self) -> PreparedRequest:
        if self._broken is not None and not self._ready:
            raise self._broken
        prepared = self._ready.popleft() if self._ready else next(self._requests)
        if self._making is None and 2 * len(self._ready) < self._slots:
            self._make_soon()
        return prepared

    def _make_soon(self) -> None:
        self._making = asyncio.get_running_loop().call_later(_MAKE_AGAIN_S, self._make_some)

    def _make_some(self) -> None:
        self._making = None
        until_ns = monotonic_ns() + _MAKE_NS
        try:
            while len(self._ready) < self._slots and monotonic_ns() < until_ns:
                if not self._make_one():
                    self._slots = 0  # there is an end after all: nothing more is to be made
        except BaseException as exc:  # whoever takes the next one has it raised
            self._broken, self._slots = exc, 0
            if not isinstance(exc, Exception):
                raise
        if len(self._ready) < self._slots:
            self._make_soon()

    def _make_one(self) -> bool:
        """Return False when there are no more."""
        ready = len(self._ready)
        self._ready.extend(islice(self._requests, 1))
        return len(self._ready) > ready


def prepare_requests(target: Target, requests: Iterable[PlannedRequest]) -> Iterator[PreparedRequest]:
    """Yield the requests as bytes, one at a time. Raises TargetError for an address or key that no request can hold."""
    heads = dict[str, bytes]()  # by the path
    alike: dict[tuple[Endpoint, bool], PlannedRequest] = {}
    for request in requests:
        endpoint, path = request.ask.endpoint, request_path(target, request.ask)
        if path not in heads:
            heads[path] = _request_head(target, path, endpoint)
        plan: PlannedRequest | None = request
        if request.turn is None and request.leave is None:
            # A million of them would fill memory: those that are read alike share one, the usual ones have none.
            usual = request.ask.stream and endpoint in ("chat", "completions")
            plan = None if usual else alike.setdefault((endpoint, request.ask.stream), request)
        wire = _wire(heads[path], wire_body(target, request.ask, seed=request.seed))
        yield PreparedRequest(request.index, request.offset_ns, wire, plan)


def request_wire(target: Target, request: PlannedRequest, earlier: Sequence[str] = ()) -> bytes:
    """Encode a request, with the `earlier` answers where it carries them. Raises TargetError, or ValueError."""
    carries = request.turn is not None and request.turn.carries
    ask = fill_conversation(request.ask, earlier) if carries else request.ask
    head = _request_head(target, request_path(target, ask), ask.endpoint)
    return _wire(head, wire_body(target, ask, seed=request.seed))


def _wire(head: bytes, body: bytes) -> bytes:
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def _request_head(target: Target, path: str, endpoint: Endpoint) -> bytes:
    """The head of every request of a stage, but for the length of its body."""
    server = ServerAddress.of(target.url)
    headers = {
        "host": server.netloc,
        "user-agent": "benchgate",
        **target.headers(),
        "content-type": content_type(endpoint),
    }
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise TargetError(
                f"the {name} header for {show_address(target.url)} has characters that no header may have"
            )
    through_proxy = target.route.proxy is not None and server.scheme == "http"
    place = server.page(path) if through_proxy else server.path(path)
    lines = [f"POST {place} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    return "".join(f"{line}\r\n" for line in lines).encode()


_ROW = struct.Struct("<qqII")  # number, offset_ns, which head, length of the body
_HEAD_END = b"\r\n\r\n"
_NO_OFFSET = -1
_BUFFER_BYTES = 2**16  # reading that much in one go stops the event loop for some microseconds


@contextmanager
def queued_in_file(folder: Path, requests: Iterable[PreparedRequest]) -> Iterator[Iterator[PreparedRequest]]:
    """Prepare all requests at once, and yield them from a nameless file. Raises StoreError if it cannot be written."""
    known: dict[bytes, int] = {}  # heads, which are as many as there are lengths of bodies, and their numbers
    plan: dict[int, PlannedRequest] = {}
    with ExitStack() as kept:
        with writing(folder), ExitStack() as stack:  # closing a file may write too
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=_BUFFER_BYTES))
            for number, offset_ns, wire, request in requests:
                if request is not None:
                    plan[number] = request
                head, end, body = wire.partition(_HEAD_END)
                which = known.setdefault(head + end, len(known))
                file.write(_ROW.pack(number, _NO_OFFSET if offset_ns is None else offset_ns, which, len(body)))
                file.write(body)
            file.seek(0)
            kept.enter_context(stack.pop_all())
        yield _read(file, list(known), plan)


def _read(file: IO[bytes], heads: Sequence[bytes], plan: Mapping[int, PlannedRequest]) -> Iterator[PreparedRequest]:
    while row := file.read(_ROW.size):
        number, offset_ns, which, length = _ROW.unpack(row)
        wire = heads[which] + file.read(length)
        yield PreparedRequest(number, None if offset_ns == _NO_OFFSET else offset_ns, wire, plan.get(number))
