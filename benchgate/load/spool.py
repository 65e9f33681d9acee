"""Raw answers on disk until the stage is over: memory holds what is in flight, and a killed process loses only that.

One frame per response, little-endian, written by one call: length and CRC-32 of what follows, then `_FIXED`, the head,
the fault in words, the instants and sizes of the reads, and the bytes as they came. The file holds what the server
said, so only its owner may read it, and who has read it removes it.

Answers on their way to disk while a stage runs: kept soon, but never all of those that end together at once.
"""

from __future__ import annotations

import asyncio
import os
import struct
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import lru_cache
from pathlib import Path
from time import monotonic_ns
from typing import NamedTuple, Self

import numpy as np

from benchgate.errors import NothingKept, StoreError
from benchgate.load.decode.body import RawBody
from benchgate.load.http.exchange import Failure, Response
from benchgate.load.http.parser import Head, split_head
from benchgate.model.records import ErrorClass

_FRAME = struct.Struct("<II")
_BEGINNING = struct.Struct("<IIq")  # of a frame, with the number of its request
# number, intended_ns, epoch_ns, sent_ns, over_ns, where the body begins and its length, flags, error, reconnects,
# how long its connection was being opened, sizes of head, words and marks
_FIXED = struct.Struct("<qqqqqqqBBIqIII")
_ERROR, _HEAD_SIZE = 8, 11  # their places in it
_STATUS_BYTES = len(b"HTTP/1.1 200")  # at the beginning of the head
_SENT, _WHOLE, _UNANSWERED, _CHUNKED, _LEFT, _LEAD, _TAIL = 1, 2, 4, 8, 16, 32, 64
_NONE = -1  # instead of a length or a time
_ERRORS = tuple(ErrorClass)  # a fault's class by its place, from 1; 0 is no fault


class Phase(Enum):
    """Part of a stage in which a request began. The first and last are ramp; the value is its mark in the spool."""

    LEAD = _LEAD
    MEASURED = 0
    TAIL = _TAIL


class SpoolEntry(NamedTuple):
    """A response as it was, and what it answered: request `number`, due at `intended_ns` after `epoch_ns`."""

    number: int
    intended_ns: int
    epoch_ns: int
    response: Response
    phase: Phase = Phase.MEASURED


class Spool:
    """A new file of responses. Use as a context manager; raises NothingKept when it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def append(self, spooled: SpoolEntry) -> None:
        """Keep one response."""
        parts = _framed(spooled)
        size = sum(map(len, parts))
        try:
            written = os.writev(self._fd, parts)
            if written < size:  # a full disk: the next write says so
                left = memoryview(b"".join(parts))[written:]
                while left:
                    left = left[os.write(self._fd, left) :]
        except OSError as error:
            raise _not_kept(self.path, error) from error


def read_spool(path: Path) -> Iterator[SpoolEntry]:
    """The responses of a spool in order of their requests; of a torn file those before the tear."""
    with path.open("rb", buffering=0) as file:
        for at, end in _places(file.fileno()):
            spooled = _read_at(file.fileno(), at, end)
            if spooled is not None:
                yield spooled


def _frames(fd: int, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield the request's number, begin and end of every complete frame from `at` on."""
    size = os.fstat(fd).st_size
    while at + _FRAME.size + _FIXED.size <= size:
        length, _, number = _BEGINNING.unpack(os.pread(fd, _BEGINNING.size, at))
        end = at + _FRAME.size + length
        if length < _FIXED.size or end > size:
            return
        yield number, at, end
        at = end


def _places(fd: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of every complete frame, in order of their requests."""
    numbers, places, ends = array("q"), array("q"), array("q")
    for number, at, end in _frames(fd, 0):
        numbers.append(number)
        places.append(at)
        ends.append(end)
    for which in np.argsort(np.array(numbers, dtype=np.int64), kind="stable"):
        yield places[which], ends[which]


class SpoolTail:
    """Reader of a spool that grows: each call goes on where the last one ended. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._at = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def new_places(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of every frame that was completed since the last call."""
        if self._fd is None:
            with suppress(FileNotFoundError):  # its worker has not begun
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        if self._fd is None:
            return
        for _, at, end in _frames(self._fd, self._at):
            self._at = end
            yield at, end

    def entry(self, place: tuple[int, int]) -> SpoolEntry | None:
        """Return the response at a place; None if its bytes are damaged."""
        return None if self._fd is None else _read_at(self._fd, *place)

    def has_fault(self, place: tuple[int, int]) -> bool:
        """Return True if the exchange at a place failed or its status is not 200. The body is not read."""
        if self._fd is None:
            return False
        begin = os.pread(self._fd, _FRAME.size + _FIXED.size + _STATUS_BYTES, place[0])
        fixed = _FIXED.unpack_from(begin, _FRAME.size)
        return bool(fixed[_ERROR]) or (fixed[_HEAD_SIZE] > 0 and not begin.endswith(b" 200"))


def _read_at(fd: int, at: int, end: int) -> SpoolEntry | None:
    """Return the response in the frame at this place; None when its bytes are not those that were written."""
    frame = os.pread(fd, end - at, at)
    payload = memoryview(frame)[_FRAME.size :]  # tens of kilobytes, which are copied only once
    return _unpacked(payload) if zlib.crc32(payload) == _FRAME.unpack_from(frame)[1] else None


def _framed(spooled: SpoolEntry) -> list[bytes | bytearray]:
    """The frame in parts: an answer is not copied once more only to be written."""
    number, intended_ns, epoch_ns, response, phase = spooled
    body = response.body if isinstance(response.body, RawBody) else RawBody.of(response.body)
    head = b"" if response.head is None else response.head.as_bytes
    words = b"" if response.fault is None else response.fault.detail.encode("utf-8", "surrogatepass")
    marks = body.marks.tobytes()
    fixed = _FIXED.pack(
        number,
        intended_ns,
        epoch_ns,
        response.sent_ns or 0,
        response.over_ns,
        body.begins,
        _NONE if body.length is None else body.length,
        (
            _SENT * (response.sent_ns is not None)
            | _WHOLE * response.whole
            | _UNANSWERED * response.unanswered
            | _LEFT * response.left
            | _CHUNKED * body.chunked
        )
        | phase.value,
        0 if response.fault is None else 1 + _ERRORS.index(response.fault.error),
        response.reconnects,
        _NONE if response.connecting_ns is None else response.connecting_ns,
        len(head),
        len(words),
        len(marks),
    )
    about = b"".join((fixed, head, words, marks))
    crc = zlib.crc32(body.raw, zlib.crc32(about))
    return [_FRAME.pack(len(about) + len(body.raw), crc), about, body.raw]


def _unpacked(payload: memoryview) -> SpoolEntry:
    (
        number, intended_ns, epoch_ns, sent_ns, over_ns, begins, length, flags, error, reconnects,
        connecting_ns, head_size, words_size, marks_size,
    ) = _FIXED.unpack_from(payload)  # fmt: skip
    at = _FIXED.size
    head, at = bytes(payload[at : at + head_size]), at + head_size
    words, at = bytes(payload[at : at + words_size]), at + words_size
    marks, at = array("q", bytes(payload[at : at + marks_size])), at + marks_size
    response = Response(
        sent_ns=sent_ns if flags & _SENT else None,
        over_ns=over_ns,
        head=_head_of(head),
        body=RawBody(bytes(payload[at:]), marks, begins, None if length == _NONE else length, bool(flags & _CHUNKED)),
        whole=bool(flags & _WHOLE),
        fault=Failure(_ERRORS[error - 1], words.decode("utf-8", "surrogatepass")) if error else None,
        unanswered=bool(flags & _UNANSWERED),
        reconnects=reconnects,
        left=bool(flags & _LEFT),
        connecting_ns=None if connecting_ns == _NONE else connecting_ns,
    )
    return SpoolEntry(number, intended_ns, epoch_ns, response, Phase(flags & (_LEAD | _TAIL)))


@lru_cache(maxsize=8)  # the answers of a server share a head but for its date
def _head_of(raw: bytes) -> Head | None:
    split = split_head(raw) if raw else None
    return None if split is None else split[0]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of writing a stage's file into a NothingKept that says what to do."""
    try:
        yield
    except OSError as error:
        raise _not_kept(path, error) from error


def _not_kept(path: Path, error: OSError) -> NothingKept:
    return NothingKept(
        f"a load stage could not write {path}: {error.strerror}; "
        "free some space there, or choose another place (--work-dir, or TMPDIR for a bare load)"
    )


_KEEP_NS = 1_000_000  # of keeping answers at a time, and
_KEEP_AGAIN_S = 0.002  # until the next time: five hundred answers that end together must not hold up what arrives


class SpoolWriter:
    """Puts the answers of one class into its spool. `count` is how many there were so far."""

    def __init__(self, spool: Spool) -> None:
        self.count = 0
        self._spool = spool
        self._unkept: deque[SpoolEntry] = deque()
        self._keeping = False
        self._unkeepable: StoreError | None = None

    def keep(self, spooled: SpoolEntry) -> None:
        """Keep an answer at once, those that end with it a little later. Raises StoreError, also for earlier ones."""
        if self._unkeepable is not None:
            raise self._unkeepable
        self.count += 1
        if self._keeping:
            self._unkept.append(spooled)
        else:
            self._keeping = True
            asyncio.get_running_loop().call_soon(self._keep_some)
            self._spool.append(spooled)

    def flush(self) -> None:
        """Keep what is still waiting. Raises StoreError when answers could not be kept."""
        if self._unkeepable is not None:
            raise self._unkeepable
        while self._unkept:
            self._spool.append(self._unkept.popleft())

    def _keep_some(self) -> None:
        until_ns = monotonic_ns() + _KEEP_NS
        try:
            while self._unkept:
                self._spool.append(self._unkept.popleft())
                if monotonic_ns() > until_ns:
                    asyncio.get_running_loop().call_later(_KEEP_AGAIN_S, self._keep_some)
                    return
        except StoreError as exc:  # nobody waits for a callback: the next answer, or the end of the stage, raises it
            self._unkeepable = exc
        self._keeping = False
