"""Load stages over one or several processes that share one schedule and one start.

One worker is this process itself. More are processes that live as long as the fleet, so that only the first stage
waits for them. A worker that is lost does not take the stage with it: what it had answered is read from its spool,
what it had not is recorded as never sent, and the stage says so.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from benchgate.load.lost import of_lost, read_left, remove_spools
from benchgate.load.merging import merged
from benchgate.load.worker import Shard, StageResult, run_shard
from benchgate.load.worker_process import WorkerProcess

_START_IN_NS = 100_000_000  # between "all are ready" and the shared start
_READY_S = 120.0  # to start a process and open its connections

Begins = Callable[[int], None]


class Fleet:
    """Runs stages over `workers` processes. Use as a context manager.

    What is answered is kept in files of `folder` until the next stage begins or the fleet ends; without one in a
    temporary folder.
    """

    def __init__(self, workers: int = 1, folder: Path | None = None) -> None:
        self.workers = workers
        self._folder = folder
        self._stack = ExitStack()
        self._stages = 0
        self._processes: dict[int, WorkerProcess] = {}
        self._shards: list[Shard] = []  # of the stage under way, or of the last one

    def __enter__(self) -> Self:
        if self._folder is None:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="benchgate-load-")))
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._stop()
        self._clear()
        self._stack.close()

    def run(self, stage: Shard, begins: Begins | None = None) -> StageResult:
        """Run a whole stage to its end: the same requests at the same instants for any number of workers.

        `begins` is told the start, in ns since 1970, as soon as it is known.
        Raises TargetError when the target's address or key is none, StoreError when answers cannot be kept. A
        KeyboardInterrupt passes through with every socket closed; what had been answered by then is in `salvage`.
        """
        if self._folder is None:
            raise RuntimeError("a fleet is used as a context manager")
        self._clear()
        self._stages += 1
        prefix = self._folder / f"stage-{self._stages}"
        self._shards = [
            replace(shard, spool=prefix.with_suffix(f".{shard.worker + 1}")) for shard in stage.split(self.workers)
        ]
        if len(self._shards) == 1:
            return run_shard(self._shards[0], None if begins is None else lambda: _starting_now(begins))
        return merged(self._run_together(begins))

    def salvage(self) -> StageResult:
        """What was answered in a stage that was cut short, also by workers that were done with their share."""
        whole = merged([read_left(shard) for shard in self._shards])
        return replace(whole, client=replace(whole.client, faults=("the stage was cut short",)))

    def _run_together(self, begins: Begins | None) -> list[StageResult]:
        try:
            for shard in self._shards:
                self._process(shard).begin(shard)
            deadline = time.monotonic() + _READY_S
            ready = [shard for shard in self._shards if self._process(shard).is_ready(deadline)]
            start_ns = time.time_ns() + _START_IN_NS
            if begins is not None:
                begins(start_ns)
            for shard in ready:
                self._process(shard).start(start_ns)
            return [self._result(shard) for shard in self._shards]
        except BaseException:
            self._stop()  # the others would go on, or wait for a start that never comes
            raise

    def _result(self, shard: Shard) -> StageResult:
        result = self._process(shard).result()
        if result is not None:
            return result
        self._processes.pop(shard.worker).stop()
        return of_lost(shard)

    def _process(self, shard: Shard) -> WorkerProcess:
        if shard.worker not in self._processes:
            self._processes[shard.worker] = WorkerProcess()
        return self._processes[shard.worker]

    def _clear(self) -> None:
        for shard in self._shards:
            remove_spools(shard)
        self._shards = []

    def _stop(self) -> None:
        while self._processes:
            _, process = self._processes.popitem()
            process.stop()


def _starting_now(begins: Begins) -> int:
    start_ns = time.time_ns()
    begins(start_ns)
    return start_ns
