"""The body of a response as it came over the wire, taken out of its framing only when somebody reads it.

While a stage runs, the bytes of a response are only kept: taking them apart would stop every other stream.
"""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from benchgate.load.http1 import Dechunker, MalformedResponse, whole_chunk
from benchgate.load.native import address_of, library
from benchgate.load.template import Template, are_texts

Read = tuple[int, bytes]
"""Bytes of a body and the instant (monotonic ns) at which the last of them was read."""

_CRLF = b"\r\n"
_LONGEST_SIZE = 8  # bytes of the line that says how long a chunk is: events are shorter than a mebibyte
_NEEDLE = 12  # bytes


@dataclass(frozen=True, slots=True)
class RawBody:
    """Bytes from the beginning of the response, and of each read its instant and how many they were.

    The body begins at `begins`; it is in chunks, or of a declared `length`, or ends with the connection. Iterating
    gives its reads; what is no valid chunk ends it.
    """

    raw: bytes | bytearray
    marks: array[int]
    begins: int = 0
    length: int | None = None
    chunked: bool = False

    @classmethod
    def of(cls, reads: Iterable[Read]) -> RawBody:
        """A body that has no framing."""
        raw, marks = bytearray(), array("q")
        for at_ns, data in reads:
            raw += data
            marks.extend((at_ns, len(data)))
        return cls(raw, marks)

    def __iter__(self) -> Reads:
        return Reads(self)

    def flaw(self) -> str | None:
        """Why a body in chunks does not end where it seemed to, with its last chunk; None when it does, or has none."""
        if not self.chunked:
            return None
        dechunker = Dechunker()
        try:
            dechunker.take(0, bytes(self.raw[self.begins :]), None)
        except MalformedResponse as exc:
            return str(exc)
        if not dechunker.complete:
            return "its chunks do not end where the response seemed to end"
        return None


class Run(NamedTuple):
    """How many like events there were, and the instants of those with output."""

    events: int
    output_ns: list[int]


class Reads(Iterator[Read]):
    """Goes through a body: whole chunks each by itself, cut where a read ended inside one."""

    def __init__(self, body: RawBody) -> None:
        last = None if body.chunked or body.length is None else body.begins + body.length
        self._raw = bytes(body.raw[:last])
        self._at = body.begins
        self._marks = body.marks
        self._native = library()
        self._instants_ns = body.marks[::2]
        sizes: list[int] = np.asarray(body.marks, np.int64)[1::2].cumsum().tolist()
        self._sizes = sizes  # how many there were with each
        self._mark = 0
        self._chunked = body.chunked
        self._between = not body.chunked  # whether a chunk may begin here: not inside one, nor past a broken one
        self._reads = self._in_chunks() if body.chunked else self._from(self._at)

    def __next__(self) -> Read:
        return next(self._reads)

    @property
    def ended(self) -> bool:
        """Whether nothing follows but, in chunks, the last one, which is empty."""
        left = self._raw[self._at :]
        return left == b"0\r\n\r\n" if self._chunked else not left

    def run(self, template: Template) -> Run:
        """Pass over the events that come next and are the template's, each with a text of its own and in its own chunk.

        They are taken out, put together again, and compared with what is there. So a run is what reading one event
        after another finds too, at less cost.
        """
        if not self._between:
            return Run(0, [])
        if self._native is not None:
            return self._run_compiled(self._native, template)
        before = template.before
        tail = template.after + _CRLF if self._chunked else template.after
        fixed = len(before) + len(template.after)
        for texts in _guesses(self._raw[self._at :], before, tail, _LONGEST_SIZE if self._chunked else 0):
            lengths = list(map(len, texts))
            heads = {n: (b"%x\r\n%b" % (fixed + n, before) if self._chunked else before) for n in set(lengths)}
            pieces = zip(map(heads.__getitem__, lengths), texts, repeat(tail))  # no step of it in Python: it is most
            whole = b"".join(chain.from_iterable(pieces))  # of what reading costs
            if texts and are_texts(texts) and self._raw.startswith(whole, self._at):
                break
        else:
            return Run(0, [])
        steps = {n: len(head) + n + len(tail) for n, head in heads.items()}
        ends = self._at + np.fromiter(map(steps.__getitem__, lengths), np.int64, len(lengths)).cumsum()
        self._at += len(whole)
        payload_ends = ends - len(_CRLF) if self._chunked else ends
        if 0 in heads:
            payload_ends = payload_ends[np.array(lengths) > 0]
        came_with = np.asarray(self._sizes).searchsorted(payload_ends)
        return Run(len(texts), np.asarray(self._instants_ns)[came_with].tolist())

    def _run_compiled(self, library: ctypes.CDLL, template: Template) -> Run:
        before, after = template
        most = (len(self._raw) - self._at) // (len(before) + len(after)) + 1
        output_ns, outputs = array("q", bytes(most * 8)), ctypes.c_int64()
        place = array("q", (self._at, self._mark, self._sizes[self._mark - 1] if self._mark else 0))
        events: int = library.run(
            self._raw, len(self._raw), self._chunked, before, len(before), after, len(after),
            address_of(self._marks), len(self._marks) // 2, address_of(place),
            address_of(output_ns), ctypes.byref(outputs),
        )  # fmt: skip
        self._at, self._mark, _ = place
        return Run(events, output_ns[: outputs.value].tolist())

    def _from(self, begin: int) -> Iterator[Read]:
        """What came with each read, from a place on, without framing."""
        self._at = begin
        while self._at < len(self._raw):
            at_ns, end = self._read_over(self._at)
            data = self._raw[self._at : end]
            self._at += len(data)
            yield at_ns, data

    def _in_chunks(self) -> Iterator[Read]:
        while (edges := whole_chunk(self._raw, self._at)) is not None:
            begin, end = edges
            self._at = end + len(_CRLF)
            self._between = False
            while (read := self._read_over(begin))[1] < end:
                yield read[0], self._raw[begin : read[1]]
                begin = read[1]
            self._between = True
            yield read[0], self._raw[begin:end]
        self._between = False
        found: list[Read] = []
        dechunker = Dechunker()
        at = self._at
        with suppress(MalformedResponse):  # the response has it as its fault
            for at_ns, data in self._from(at):
                dechunker.take(at_ns, data, found)
        self._at = at
        yield from found

    def _read_over(self, at: int) -> tuple[int, int]:
        """When the byte at this place came, and where the read that brought it ended. Places only grow."""
        self._mark = bisect_right(self._sizes, at, self._mark)
        return self._instants_ns[self._mark], self._sizes[self._mark]


def _guesses(raw: bytes, before: bytes, tail: bytes, longest_between: int) -> Iterator[list[bytes]]:
    """What may stand between these two, time after time, as long as little else stands between one time and the next.

    Guesses, to be held against the bytes: both are looked for by a few bytes, which is much faster. The first takes it
    that there is as much after every text as after the first one, as the sizes of chunks have mostly as many digits.
    """
    needle, ending = before[-_NEEDLE:], tail[:_NEEDLE]
    between, *pieces = raw.split(needle)
    longest = longest_between + len(before) - len(needle) + len(tail)
    if pieces and len(between) + len(tail) <= longest:
        *pieces, last = pieces
        after = len(pieces[0]) - pieces[0].find(ending) if pieces else 0
        texts = [piece[:-after] for piece in pieces]
        end = last.find(ending)
        is_like = end >= 0 and last.startswith(tail, end)  # the last text of an answer often says why it ended
        yield [*texts, last[:end]] if is_like else texts
        yield _texts([*pieces, last], tail, longest)


def _texts(pieces: list[bytes], tail: bytes, longest: int) -> list[bytes]:
    """What is before the tail in each piece, up to the first one that has none, or much after it."""
    texts: list[bytes] = []
    for piece in pieces:
        end = piece.find(tail[:_NEEDLE])
        if end < 0 or not piece.startswith(tail, end):
            break
        texts.append(piece[:end])
        if len(piece) - end > longest:
            break
    return texts
