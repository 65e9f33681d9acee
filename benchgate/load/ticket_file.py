"""The tickets of a stage made before its clock starts and kept on disk: a million of them would fill the memory."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from benchgate.load.spool import writing
from benchgate.load.tickets import Ticket

_HEAD = struct.Struct("<qqI")  # number, offset_ns, length of the request
_NO_OFFSET = -1
_BUFFER_BYTES = 2**16  # reading that much in one go stops the event loop for some microseconds


@contextmanager
def kept_tickets(folder: Path, tickets: Iterable[Ticket]) -> Iterator[Iterator[Ticket]]:
    """All tickets, made at once and given back one by one from a nameless file in this folder.

    Raises StoreError when it cannot be written.
    """
    with writing(folder):
        file = _written(folder, tickets)
    with file:
        yield _read(file)


def _written(folder: Path, tickets: Iterable[Ticket]) -> IO[bytes]:
    with ExitStack() as stack:
        file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=_BUFFER_BYTES))
        for number, offset_ns, wire in tickets:
            file.write(_HEAD.pack(number, _NO_OFFSET if offset_ns is None else offset_ns, len(wire)))
            file.write(wire)
        file.seek(0)
        stack.pop_all()
        return file


def _read(file: IO[bytes]) -> Iterator[Ticket]:
    while head := file.read(_HEAD.size):
        number, offset_ns, length = _HEAD.unpack(head)
        yield Ticket(number, None if offset_ns == _NO_OFFSET else offset_ns, file.read(length))
