"""The body of a response: its raw bytes with the instants of their reads, and its payload.

While a stage runs, the bytes of a response are only kept: removing their framing would stop every other stream.
"""

from __future__ import annotations

import ctypes
import re
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from benchgate.load.http.library import address_of, library
from benchgate.load.http.parser import Dechunker, MalformedResponse, whole_chunk


class Template(NamedTuple):
    """The bytes of an event before and after its text, quotes included. A JSON string is one token."""

    before: bytes
    after: bytes


Read = tuple[int, bytes]  # bytes of a body and the instant (monotonic ns) at which the last of them was read
_CRLF = b"\r\n"
_STRING = re.compile(rb'[^"\\\x00-\x1f]*(?:\\["\\/bfnrt][^"\\\x00-\x1f]*)*')


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
        """Return the reason why a chunked body does not end with its last chunk where it seemed to, or None."""
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
    """A run of like events: number, instants of output, and texts (JSON without quotes, each ended by LF)."""

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
            edges = whole_chunk(self._raw, self._at)
            self._between = False
            if edges is None:
                found: list[Read] = []
                dechunker, at = Dechunker(), self._at
                with suppress(MalformedResponse):  # the response has it as its fault
                    while self._at < len(self._raw):
                        dechunker.take(*self._next_unframed(), found)
                self._at = at
                self._others = iter(found)
            else:
                self._begin, self._end = edges
                self._at = self._end + len(_CRLF)
        if self._others is not None:
            return next(self._others)
        at_ns, came = self._read_over(self._begin)
        data = self._raw[self._begin : min(came, self._end)]
        self._begin += len(data)
        self._between = self._begin == self._end
        return at_ns, data

    @property
    def ended(self) -> bool:
        """Return True if nothing follows but the empty last chunk of a chunked body."""
        left = self._raw[self._at :]
        return left == b"0\r\n\r\n" if self._chunked else not left

    @property
    def read_ns(self) -> int:
        """Return the instant of the read that brought the last byte so far."""
        return self._marks[2 * self._mark]

    @property
    def between_chunks(self) -> bool:
        """Return True if the last read ended a chunk, or if the body has none or is broken."""
        return self._between or self._others is not None or not self._chunked

    def skip_run(self, template: Template) -> Run:
        """Skip the chunks that match the template byte for byte: as reading event after event does, at less cost."""
        if not self._between:
            return _NO_RUN
        compiled = library()
        if compiled is None:
            return self._skip_run_uncompiled(template)
        before, after = template
        left = len(self._raw) - self._at
        most = left // (len(before) + len(after)) + 1
        output_ns, outputs = array("q", bytes(most * 8)), ctypes.c_int64()
        texts, texts_size = bytearray(left + 1), ctypes.c_int64()  # each event is longer than its text
        place = array("q", (self._at, self._mark, self._came - self._marks[2 * self._mark + 1]))
        events: int = compiled.skip_run(
            self._raw, len(self._raw), self._chunked, before, len(before), after, len(after),
            address_of(self._marks), len(self._marks) // 2, address_of(place),
            address_of(output_ns), ctypes.byref(outputs),
            ctypes.byref(ctypes.c_char.from_buffer(texts)), ctypes.byref(texts_size),
        )  # fmt: skip
        self._at, self._mark, began = place
        self._came = began + self._marks[2 * self._mark + 1]
        return Run(events, output_ns[: outputs.value].tolist(), bytes(texts[: texts_size.value]))

    def _skip_run_uncompiled(self, template: Template) -> Run:
        """Do as `skip_run` of reader.c does, but for texts with `\\u`, which are left to the parser."""
        raw, at, marks, mark, came = self._raw, self._at, self._marks, self._mark, self._came
        before, after = template
        tail = after + _CRLF if self._chunked else after
        heads: dict[int, bytes] = {}  # size and `before`, by the bytes up to `after`: of few lengths, so parsed once
        output_ns: list[int] = []
        texts: list[bytes] = []
        while (end := raw.find(tail, at)) >= 0:
            head = heads.get(end - at)
            if head is None or not raw.startswith(head, at):
                edges = whole_chunk(raw, at) if self._chunked else (at, end + len(after))
                if edges is None or edges[1] != end + len(after) or edges[0] + len(before) > end:
                    break
                if not raw.startswith(before, edges[0]):
                    break
                head = heads[end - at] = raw[at : edges[0]] + before
            text = raw[at + len(head) : end]
            if _STRING.fullmatch(text) is None:
                break
            texts.append(text)
            while came < end + len(after):
                mark += 1
                came += marks[2 * mark + 1]
            if text:
                output_ns.append(marks[2 * mark])
            at = end + len(tail)
        self._at, self._mark, self._came = at, mark, came
        return Run(len(texts), output_ns, b"".join([text + b"\n" for text in texts]))

    def _next_unframed(self) -> Read:
        if self._at >= len(self._raw):
            raise StopIteration
        at_ns, came = self._read_over(self._at)
        data = self._raw[self._at : came]
        self._at += len(data)
        return at_ns, data

    def _read_over(self, at: int) -> tuple[int, int]:
        """Return the instant of the byte at this offset and the end of its read. Offsets only grow."""
        while self._came <= at:
            self._mark += 1
            self._came += self._marks[2 * self._mark + 1]
        return self._marks[2 * self._mark], self._came
