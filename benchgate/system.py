"""Files: read text within a limit, lock, write atomically (a reader finds the old file or the new, never a part).

Also the command that installs a missing extra.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from benchgate import credentials

SUITE_BYTES = 2**20
"""Limit of a file in the suite language: its limit in characters, of four bytes each."""

OWNER_ONLY = 0o600
"""Permissions of a file with texts of users."""

RECORDED_BYTES = 2**30
"""Limit of a file of prompts or texts, which is held in memory whole."""

_PIECE_BYTES = 2**20
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.part", re.DOTALL)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Put `data`, less every known credential, in the place of `path`, on the disk on return.

    Raises OSError and leaves the old file then.
    """
    with atomic_file(path, mode=mode) as file:
        file.write(credentials.redact_bytes(data))


@contextmanager
def atomic_file(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of `path` when the block ends, or is removed when it raises.

    Creates the folder. Keeps the permissions of the file that it replaces, but those of others where `mode` has none; a
    new one has `mode` less the umask. A link at `path` is replaced, not followed. Raises OSError where it cannot be
    written, and for a device or a pipe.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is no regular file")
    descriptor, temporary = create_temporary(path, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        replace_durably(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def create_temporary(path: Path, mode: int = 0o666) -> tuple[int, Path]:
    """Create an empty file under an unpredictable name beside `path`, and open it for reading and writing.

    Exclusive creation follows no link that somebody has planted there.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode)
    try:
        replaced = path.lstat()
    except FileNotFoundError:
        return descriptor, temporary
    if stat.S_ISREG(replaced.st_mode):
        os.fchmod(descriptor, replaced.st_mode & (0o777 if mode & 0o077 else 0o700))
    return descriptor, temporary


def replace_durably(temporary: Path, path: Path) -> None:
    """Rename a synced file to `path` and sync the folder: the new name survives the loss of power."""
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def temporary_for(file: Path) -> Path | None:
    """Return the path that a file was a temporary file for, by its name; None for any other file."""
    match = _TEMPORARY.fullmatch(file.name)
    return None if match is None else file.with_name(match[1])


class NotTextError(OSError):
    """A file that exists and cannot be read as text; `strerror` says why, as for other errors of files."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.strerror = why


def read_text_file(file: Path, limit_bytes: int = SUITE_BYTES, encoding: str = "utf-8") -> str:
    """Return the text of a regular file, with every line ended by `\\n`.

    A device or pipe is refused: it may give bytes without end, or never one. Raises OSError where the file cannot be
    read or is too large, UnicodeDecodeError where it is no text.
    """
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise NotTextError("it is no regular file")
        data = read_at_most(opened, limit_bytes + 1) if found.st_size <= limit_bytes else None
    if data is None or len(data) > limit_bytes:
        raise NotTextError(f"it is larger than {limit_bytes:,} bytes")
    text = data.decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_at_most(file: BinaryIO, n_bytes: int) -> bytes:
    """Read in pieces: Python reserves as much memory as it is asked to read, however little there is."""
    pieces = []
    while n_bytes > 0 and (piece := file.read(min(n_bytes, _PIECE_BYTES))):
        pieces.append(piece)
        n_bytes -= len(piece)
    return b"".join(pieces)


def try_file_lock(handle: int) -> bool:
    """Lock an open file without waiting. Returns False where another process has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_locked(path: Path) -> int | None:
    """Open a file, made if it is missing, and lock it without waiting. None where another process has it.

    The lock goes with this process, and is not inherited by those that it starts.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        if not try_file_lock(handle):
            os.close(handle)
            return None
        if is_same_file(handle, path):
            return handle
        os.close(handle)  # its last holder removed it, and a third process may have made another


def remove_locked(handle: int, path: Path) -> None:
    """Remove a file of `open_locked` while it is locked, so that a process waiting for it notices; then close it."""
    try:
        if is_same_file(handle, path):
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def is_same_file(handle: int, path: Path) -> bool:
    """Return True if an open file is the one of this name."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)


def lacking(what: str, extra: str) -> str:
    """Return the message for a missing extra, with the command that installs it."""
    is_uv_tool = (Path(sys.prefix) / "uv-receipt.toml").is_file()  # an environment without pip
    command = "uv tool install" if is_uv_tool else "pip install"
    return f"{what}; install the extra `{extra}` of benchgate: {command} {_requirement(extra)}"


def _requirement(extra: str) -> str:
    """Return the quoted argument of `pip install` for an extra, from the source that the installer recorded (PEP 610).

    Only a benchgate that came from an index is named alone: elsewhere its name could be somebody else's package.
    """
    from importlib import metadata

    try:
        recorded = metadata.distribution("benchgate").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # a source tree on PYTHONPATH
        return f"'/path/to/benchgate[{extra}]'"
    if recorded is None:
        return f"'benchgate[{extra}]'"
    source = json.loads(recorded)
    url, vcs = source["url"], source.get("vcs_info")
    if vcs is not None:
        return shlex.quote(f"benchgate[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    if not url.startswith("file:"):
        return shlex.quote(f"benchgate[{extra}] @ {url}")
    editable = "-e " if source.get("dir_info", {}).get("editable") else ""
    return f"{editable}{shlex.quote(f'{unquote(urlsplit(url).path)}[{extra}]')}"


def usable_cpus() -> int:
    """Return the number of cores this process may use; a container or `taskset` can reduce it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
