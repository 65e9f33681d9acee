"""The body of a response as it came over the wire, taken out of its framing only when somebody reads it.

While a stage runs, the bytes of a response lie in one piece and cost nothing but their copying. A list of small reads
would be spread over the whole memory, and going through it when the response ends would stop every other stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchgate.load.http1 import Dechunker, MalformedResponse, whole_chunks

Read = tuple[int, bytes]
"""Bytes of a body and the instant (monotonic ns) at which the last of them was read."""


@dataclass(frozen=True, slots=True)
class RawBody:
    """Bytes from the beginning of the response, and after each read its instant and how many there were by then.

    The body begins at `begins`; it is in chunks, or of a declared `length`, or ends with the connection. Iterating
    gives its reads; what is no valid chunk ends it.
    """

    raw: bytes | bytearray
    marks: Sequence[int]
    begins: int = 0
    length: int | None = None
    chunked: bool = False

    @classmethod
    def of(cls, reads: Iterable[Read]) -> RawBody:
        """A body that has no framing."""
        raw, marks = bytearray(), list[int]()
        for at_ns, data in reads:
            raw += data
            marks.extend((at_ns, len(raw)))
        return cls(raw, marks)

    def __iter__(self) -> Iterator[Read]:
        raw = bytes(self.raw)
        if not self.chunked:
            last = len(raw) if self.length is None else self.begins + self.length
            yield from self._reads(raw, self.begins, last)
            return
        edges, at = whole_chunks(raw, self.begins)
        yield from self._cut(raw, edges)
        found: list[Read] = []
        dechunker = Dechunker()
        with suppress(MalformedResponse):  # the response has it as its fault
            for at_ns, data in self._reads(raw, at, len(raw)):
                dechunker.take(at_ns, data, found)
        yield from found

    def _reads(self, raw: bytes, begin: int, last: int) -> Iterator[Read]:
        """What came with each read between two places."""
        marks = iter(self.marks)
        for at_ns, end in zip(marks, marks, strict=True):
            if begin < end and begin < last:
                yield at_ns, raw[begin : min(end, last)]
                begin = end

    def _cut(self, raw: bytes, edges: list[tuple[int, int]]) -> Iterator[Read]:
        """These parts of the whole, cut where a read ended inside one."""
        marks = iter(self.marks)
        at_ns, end = 0, 0
        for begin, after in edges:
            while end <= begin:
                at_ns, end = next(marks), next(marks)
            while end < after:
                yield at_ns, raw[begin:end]
                begin = end
                at_ns, end = next(marks), next(marks)
            yield at_ns, raw[begin:after]
