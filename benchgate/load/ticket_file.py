"""The tickets of a stage made before its clock starts and kept on disk: a million of them would fill the memory.

The heads stay in memory: they hold the API key, which must not come to any disk, and differ in the length alone. So do
the special ones among the requests, which the plan holds in any case.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from benchgate.load.spool import writing
from benchgate.load.tickets import Ticket
from benchgate.plan.model import PlannedRequest

_ROW = struct.Struct("<qqII")  # number, offset_ns, which head, length of the body
_HEAD_END = b"\r\n\r\n"
_NO_OFFSET = -1
_BUFFER_BYTES = 2**16  # reading that much in one go stops the event loop for some microseconds


@contextmanager
def kept_tickets(folder: Path, tickets: Iterable[Ticket]) -> Iterator[Iterator[Ticket]]:
    """All tickets, made at once and given back one by one from a nameless file in this folder.

    Raises StoreError when it cannot be written.
    """
    heads: list[bytes] = []
    special: dict[int, PlannedRequest] = {}
    with writing(folder):
        file = _written(folder, tickets, heads, special)
    with file:
        yield _read(file, heads, special)


def _written(
    folder: Path, tickets: Iterable[Ticket], heads: list[bytes], special: dict[int, PlannedRequest]
) -> IO[bytes]:
    """Fills `heads`, which are as many as there are lengths of bodies, and `special` by their numbers."""
    known: dict[bytes, int] = {}
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=_BUFFER_BYTES))
        for number, offset_ns, wire, request in tickets:
            if request is not None:
                special[number] = request
            head, end, body = wire.partition(_HEAD_END)
            which = known.setdefault(head + end, len(known))
            file.write(_ROW.pack(number, _NO_OFFSET if offset_ns is None else offset_ns, which, len(body)))
            file.write(body)
        heads.extend(known)
        file.seek(0)
        stack.pop_all()
        return file


def _read(file: IO[bytes], heads: Sequence[bytes], special: Mapping[int, PlannedRequest]) -> Iterator[Ticket]:
    while row := file.read(_ROW.size):
        number, offset_ns, which, length = _ROW.unpack(row)
        wire = heads[which] + file.read(length)
        yield Ticket(number, None if offset_ns == _NO_OFFSET else offset_ns, wire, special.get(number))
