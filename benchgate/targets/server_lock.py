"""Locks of servers that are measured: two loads on one server at once would each measure the other's too.

A lock is a locked file in the user's state folder, one for each address and model. It goes with the process that holds
it, however that ends.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.system import open_locked, remove_locked
from benchgate.targets.address import ServerAddress, show_address
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import one_line

_POLL_S = 0.5
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


@contextmanager
def locked_servers(
    targets: Sequence[Target], waiting: Callable[[str], None] | None = None
) -> Iterator[Callable[[str], None]]:
    """Hold the locks of servers during the block. Yields a function that names the holder, like `run 0197…`.

    With `waiting`, which is called with the reason about twice a second, waits for the locks. Otherwise raises
    UsageError, which names the other holder.
    """
    folder, files = _folder(), list[int]()

    def name_holder(holder: str) -> None:
        text = f"{holder} (process {os.getpid()} on {socket.gethostname()})\n".encode()
        for file in files:
            os.truncate(file, 0)
            os.pwrite(file, text, 0)

    with ExitStack() as stack:
        # In one order everywhere, so that two processes never wait for each other. One server is locked once.
        for key, target in sorted({_key(target): target for target in targets}.items()):
            path = folder / f"{key}.lock"
            while (file := open_locked(path)) is None:
                other = f"the server at {show_address(target.url)} is being measured by {_holder(path)}"
                if waiting is None:
                    why = "two loads at once would spoil each other"
                    raise UsageError(f"{other}; {why}: wait for its end, as `run --wait` does")
                waiting(f"waiting: {other}")
                time.sleep(_POLL_S)
            stack.callback(remove_locked, file, path)
            files.append(file)
        name_holder("another run")
        yield name_holder


def _folder() -> Path:
    """Return the folder of the locks, made if it is missing: a temporary one for a user without a writable home."""
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    for folder in (Path(state) / "benchgate" / "servers", Path(tempfile.gettempdir()) / f"benchgate-{os.getuid()}"):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = folder.lstat()
        except OSError:
            continue
        # In a folder for everybody's temporary files, another user may have made it, or planted a link.
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and os.access(folder, os.W_OK):
            return folder
    raise UsageError(f"no folder for locks can be made in {state}; name one by XDG_STATE_HOME")


def _key(target: Target) -> str:
    """Return a name for the server and model of a target, the same for every spelling of this machine."""
    address = ServerAddress.of(target.url)
    host = address.host.rstrip(".").lower()
    place = address.socket or f"{'localhost' if host in _LOOPBACK else host}:{address.tcp_port}"
    whole = (place, address.prefix, target.model, sorted(target.open_headers.items()))
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:32]


def _holder(path: Path) -> str:
    try:
        return one_line(path.read_text(encoding="utf-8", errors="replace")) or "another run"
    except OSError:  # it has just ended
        return "another run"
