"""One load generator process: gets shards over a pipe, does one after the other, and lives until it is stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import cast

from benchgate.errors import BenchgateError
from benchgate.escaped_streams import escape_streams
from benchgate.load.worker import Shard, StageResult, run_shard


class WorkerProcess:
    """The parent's end. Everything it says of a process that has died is that it is not ready and has no result."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_live, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        """The id of the process."""
        return self._process.pid

    def begin(self, shard: Shard) -> None:
        """Give it a shard. It opens its connections and waits."""
        with suppress(OSError):  # it is dead, and will not be ready
            self._pipe.send(shard)

    def is_ready(self, deadline_s: float) -> bool:
        """Whether its connections are open; waits for that until the deadline on `time.monotonic`.

        Raises the BenchgateError that kept it from it.
        """
        if self._pipe.poll(max(0.0, deadline_s - time.monotonic())):
            return self._receive() == _READY
        self._process.kill()  # whatever it does, it is not taking part
        return False

    def start(self, start_ns: int) -> None:
        """Tell it the shared start, in ns since 1970."""
        with suppress(OSError):
            self._pipe.send(start_ns)

    def has_word(self, within_s: float) -> bool:
        """Whether it has something to say, or was lost; waits that long for it."""
        return self._pipe.poll(within_s)

    def result(self) -> StageResult | None:
        """What came of its shard; None when the process was lost. Raises the BenchgateError that ended it."""
        told = self._receive()
        return told if isinstance(told, StageResult) else None

    def stop(self) -> None:
        """End it at once."""
        self._process.terminate()
        self._process.join()
        self._pipe.close()

    def _receive(self) -> object:
        try:
            told = self._pipe.recv()
        except (EOFError, OSError):
            return None
        if isinstance(told, BenchgateError):
            raise told
        return told


_READY = "ready"


def _live(pipe: Pipe) -> None:
    """The life of one load generator process. Ctrl-C is the parent's, who then ends this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    escape_streams()
    threading.Thread(target=_leave_with_parent, daemon=True).start()

    def start() -> int:
        pipe.send(_READY)
        return cast(int, pipe.recv())

    while True:
        try:
            shard = pipe.recv()
        except EOFError:
            return
        try:
            told: StageResult | BenchgateError = run_shard(shard, start)
        except BenchgateError as refused:
            told = refused
        pipe.send(told)


def _leave_with_parent() -> None:
    """A parent that was killed cannot end its workers, and nobody else would stop their requests."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
