"""Events of one answer that differ from each other in nothing but a text.

The body of a response as it came over the wire, taken out of its framing only when somebody reads it.

While a stage runs, the bytes of a response are only kept: taking them apart would stop every other stream.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
from pydantic_core import from_json

from benchgate.load.http.library import address_of, library
from benchgate.load.http.parser import Dechunker, MalformedResponse, whole_chunk
from benchgate.model.records import IntArray

_CONTROL = bytes(range(0x20))


class Template(NamedTuple):
    """What comes before and after the text in a read that is one event, the quotes around it among that.

    Of JSON, a string is one token, and so is any other string in its place: everything around it, and so the meaning of
    the event, stays what it was.
    """

    before: bytes
    after: bytes


def are_texts(pieces: list[bytes]) -> bool:
    """Whether each of these, between quotes, is one JSON string. Says no of some that are, yes of none that is not."""
    joined = b"\0".join(pieces)
    if len(joined.translate(None, _CONTROL)) != len(joined) - (len(pieces) - 1):
        return False
    if b"\\" not in joined:
        return b'"' not in joined
    unescaped = joined.replace(b"\\\\", b"").replace(b'\\"', b"")
    if b'"' in unescaped or b"\\\0" in unescaped or unescaped.endswith(b"\\"):
        return False  # the quotes around one of them would not be those that end it
    try:
        strings = from_json(b'["' + joined.replace(b"\0", b'","') + b'"]')
    except ValueError:
        return False
    return isinstance(strings, list) and len(strings) == len(pieces)


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
    """How many like events there were, the instants of those with output, and their texts.

    The texts are JSON strings without their quotes, each ended by a line feed, which no JSON string holds as it is.
    """

    events: int
    output_ns: list[int]
    texts: bytes


_NO_RUN = Run(0, [], b"")


class Reads(Iterator[Read]):
    """Goes through a body: whole chunks each by itself, cut where a read ended inside one."""

    def __init__(self, body: RawBody) -> None:
        last = None if body.chunked or body.length is None else body.begins + body.length
        self._raw = bytes(body.raw[:last])
        self._at = body.begins
        self._marks = body.marks
        self._mark = 0
        self._came = body.marks[1] if body.marks else 0  # up to the end of that read
        self._chunked = body.chunked
        self._begin = self._end = 0  # of what is left of the chunk that is being gone through
        self._between = not body.chunked  # whether a chunk may begin here: not inside one, nor past a broken one
        self._others: Iterator[Read] | None = None  # where no whole chunk was found any more

    def __next__(self) -> Read:
        if not self._chunked:
            return self._next_unframed()
        if self._begin == self._end and self._others is None:
            self._next_chunk()
        if self._others is not None:
            return next(self._others)
        at_ns, came = self._read_over(self._begin)
        data = self._raw[self._begin : min(came, self._end)]
        self._begin += len(data)
        self._between = self._begin == self._end
        return at_ns, data

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
            return _NO_RUN
        compiled = library()
        return self._run_in_python(template) if compiled is None else self._run_compiled(compiled, template)

    def _run_in_python(self, template: Template) -> Run:
        before = template.before
        if not self._begins_with(before):
            return _NO_RUN  # else all that is left would be copied for nothing, again and again
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
            return _NO_RUN
        steps = {n: len(head) + n + len(tail) for n, head in heads.items()}
        ends = self._at + np.fromiter(map(steps.__getitem__, lengths), np.int64, len(lengths)).cumsum()
        self._at += len(whole)
        payload_ends = ends - len(_CRLF) if self._chunked else ends
        if 0 in heads:
            payload_ends = payload_ends[np.array(lengths) > 0]
        instants_ns, sizes = self._instants_and_sizes
        output_ns = instants_ns[sizes.searchsorted(payload_ends)].tolist()
        return Run(len(texts), output_ns, b"\n".join([*texts, b""]))

    def _begins_with(self, before: bytes) -> bool:
        """Whether what comes next does, in its chunk where there are chunks."""
        if not self._chunked:
            return self._raw.startswith(before, self._at)
        size_end = self._raw.find(_CRLF, self._at, self._at + _LONGEST_SIZE + len(_CRLF))
        return size_end >= 0 and self._raw.startswith(before, size_end + len(_CRLF))

    @cached_property
    def _instants_and_sizes(self) -> tuple[IntArray, IntArray]:
        """Of each read its instant, and how many bytes there were with it."""
        marks = np.asarray(self._marks, np.int64)
        return marks[::2], marks[1::2].cumsum()

    def _run_compiled(self, library: ctypes.CDLL, template: Template) -> Run:
        before, after = template
        left = len(self._raw) - self._at
        most = left // (len(before) + len(after)) + 1
        output_ns, outputs = array("q", bytes(most * 8)), ctypes.c_int64()
        texts, texts_size = bytearray(left + 1), ctypes.c_int64()  # each event is longer than its text
        place = array("q", (self._at, self._mark, self._came - self._marks[2 * self._mark + 1]))
        events: int = library.skip_run(
            self._raw, len(self._raw), self._chunked, before, len(before), after, len(after),
            address_of(self._marks), len(self._marks) // 2, address_of(place),
            address_of(output_ns), ctypes.byref(outputs),
            ctypes.byref(ctypes.c_char.from_buffer(texts)), ctypes.byref(texts_size),
        )  # fmt: skip
        self._at, self._mark, began = place
        self._came = began + self._marks[2 * self._mark + 1]
        return Run(events, output_ns[: outputs.value].tolist(), bytes(texts[: texts_size.value]))

    def _next_unframed(self) -> Read:
        """What came with the next read, or is left of it."""
        if self._at >= len(self._raw):
            raise StopIteration
        at_ns, came = self._read_over(self._at)
        data = self._raw[self._at : came]
        self._at += len(data)
        return at_ns, data

    def _next_chunk(self) -> None:
        edges = whole_chunk(self._raw, self._at)
        self._between = False
        if edges is None:
            self._others = iter(self._dechunked())
        else:
            self._begin, self._end = edges
            self._at = self._end + len(_CRLF)

    def _dechunked(self) -> list[Read]:
        """All that is left, and may be no more than a part of a chunk."""
        found: list[Read] = []
        dechunker, at = Dechunker(), self._at
        with suppress(MalformedResponse):  # the response has it as its fault
            while self._at < len(self._raw):
                dechunker.take(*self._next_unframed(), found)
        self._at = at
        return found

    def _read_over(self, at: int) -> tuple[int, int]:
        """When the byte at this place came, and where the read that brought it ended. Places only grow."""
        while self._came <= at:
            self._mark += 1
            self._came += self._marks[2 * self._mark + 1]
        return self._marks[2 * self._mark], self._came


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
