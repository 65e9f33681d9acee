"""The file that a run's rows are written to before the database gets them; what stands in it is `spooled`.

Each line is on the disk before the next thing is done.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from benchgate.errors import StoreError
from benchgate.store import rows
from benchgate.store.spooled import FORMAT, Beginning, chained
from benchgate.system import create_temporary, replace_durably

FILE_NAME = "spool.jsonl"


class Spool:
    """The file while its run is measured. Locked by this process, so that nobody takes the run for a dead one."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._end = 0
        self._last = ""
        self._clean = True

    @classmethod
    def create(cls, path: Path, beginning: Beginning, kept: Iterable[tuple[str, rows.Row]] = ()) -> Spool:
        """A spool with this beginning and these rows, in place of whatever has its name; whole when the name is there.

        Raises StoreError when it cannot be written.
        """
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, part = create_temporary(path, 0o600)
        spool = cls(path, descriptor)
        try:
            _lock(spool._descriptor, path)
            spool._append({"format": FORMAT, "run": beginning.run, "arms": beginning.arms, "plan": beginning.plan})
            for table, row in kept:
                spool._append({"table": table, "row": row})
            with _writing(path):
                replace_durably(part, path)
        except BaseException:
            spool.close()
            _drop(part)
            raise
        return spool

    def append(self, table: str, row: rows.Row) -> None:
        """Adds a row of a table, or the columns that end the run (`run`): on the disk on return, or StoreError."""
        self._append({"table": table, "row": row})

    def close(self) -> None:
        """Lets go of the file, which stays."""
        os.close(self._descriptor)

    def remove(self) -> None:
        """Closes and deletes the file, and its folder where nothing else is in it."""
        self.close()
        _drop(self.path)

    def _append(self, said: Mapping[str, object]) -> None:
        text = json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_base64).encode("ascii")
        digest = chained(self._last, text)
        with _writing(self.path):
            if not self._clean:  # an earlier line was not finished: nothing of it may stand behind this one
                os.ftruncate(self._descriptor, self._end)
            self._clean = False
            length = _write_at(self._descriptor, self._end, b"%s %s\n" % (digest.encode(), text))
            os.fsync(self._descriptor)
        self._end, self._last, self._clean = self._end + length, digest, True


@contextmanager
def spool_lock(path: Path) -> Iterator[None]:
    """Holds a spool that nobody writes. Raises StoreError when the process that measures its run is alive."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as exc:
        raise StoreError(f"the spool {path} cannot be read: {exc.strerror}; check its name") from exc
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"the run of {path} is still being measured; wait for it to end, or stop it") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        advice = "make room there, or give --work-dir a folder that can be written"
        raise StoreError(f"the spool {path} cannot be written: {exc.strerror}; {advice}") from exc


def _write_at(descriptor: int, at: int, data: bytes) -> int:
    """Writes all of it; the operating system may take less at a time."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], at + done)
    return done


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)
    with suppress(OSError):  # logs of the run are in it
        path.parent.rmdir()


def _base64(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} is nothing that a spool keeps")
    return base64.b64encode(value).decode("ascii")
