"""Load stages over one or several processes that share one schedule and one start.

One worker is this process itself. More are processes that live as long as the fleet, so that only the first stage
waits for them. A worker that is lost does not take the stage with it: what it had answered is read from its spool,
what it had not is recorded as never sent, and the stage says so.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from benchgate.load.drawn import Drawn, schedule_ns
from benchgate.load.lost import of_lost, read_left
from benchgate.load.options import BareOptions
from benchgate.load.worker import Level, Shard, StageResult, run_shard
from benchgate.load.worker_process import WorkerProcess
from benchgate.model.packing import joined
from benchgate.model.run import ClientUse
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Target

if TYPE_CHECKING:
    from benchgate.load.cluster import ClusterFleet

__all__ = ["CutShort", "Fleet", "merged", "run_fleet", "schedule_ns"]

_NS = 1_000_000_000
_START_IN_NS = 100_000_000  # between "all are ready" and the shared start
_READY_S = 120.0  # to start a process and open its connections


class Fleet:
    """Runs stages over `workers` processes. Use as a context manager.

    What is answered is kept in files of `folder` until a stage has been read; without one in a temporary folder.
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
        self._stack.close()

    def run(self, stage: Shard) -> StageResult:
        """Run a whole stage to its end: the same requests at the same instants for any number of workers.

        Raises TargetError when the target's address or key is none, StoreError when answers cannot be kept. A
        KeyboardInterrupt passes through with every socket closed; what had been answered by then is in `salvage`.
        """
        if self._folder is None:
            raise RuntimeError("a fleet is used as a context manager")
        self._stages += 1
        prefix = self._folder / f"stage-{self._stages}"
        self._shards = [
            replace(shard, spool=prefix.with_suffix(f".{shard.worker + 1}")) for shard in stage.split(self.workers)
        ]
        if len(self._shards) == 1:
            return run_shard(self._shards[0])
        return merged(self._run_together())

    def salvage(self) -> StageResult:
        """What was answered in a stage that was cut short; its files are gone afterwards."""
        whole = merged([read_left(shard) for shard in self._shards])
        return replace(whole, client=replace(whole.client, faults=("the stage was cut short",)))

    def _run_together(self) -> list[StageResult]:
        try:
            for shard in self._shards:
                self._process(shard).begin(shard)
            deadline = time.monotonic() + _READY_S
            ready = [shard for shard in self._shards if self._process(shard).is_ready(deadline)]
            start_ns = time.time_ns() + _START_IN_NS
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

    def _stop(self) -> None:
        while self._processes:
            _, process = self._processes.popitem()
            process.stop()


class CutShort(KeyboardInterrupt):
    """A load was interrupted; `left` is what had been answered by then."""

    def __init__(self, left: StageResult) -> None:
        super().__init__()
        self.left = left


def run_fleet(options: BareOptions, target: Target) -> StageResult:
    """Run a whole bare load over `options.workers` processes here, or over that many workers of a cluster.

    Raises CutShort when interrupted.
    """
    until_s = options.duration_s if options.concurrency is not None else None  # else the schedule ends by itself
    stage = Shard(
        target,
        Drawn(options),
        Level(options.concurrency, options.peak_rps, until_s),
        Limits(),
        options.endpoint,
        ignore_eos=target.dialect.ignore_eos is not None,
        audit=options.audit,
    )
    if options.cluster is not None:
        from benchgate.load.cluster import ClusterFleet  # which merges results as is done here

        with ClusterFleet(options.cluster, options.workers) as cluster:
            return _run_or_salvage(cluster, stage)
    with Fleet(options.workers or 1) as fleet:
        return _run_or_salvage(fleet, stage)


def _run_or_salvage(fleet: Fleet | ClusterFleet, stage: Shard) -> StageResult:
    try:
        return fleet.run(stage)
    except KeyboardInterrupt as stop:
        left = fleet.salvage()
        raise CutShort(replace(left, client=replace(left.client, faults=()))) from stop  # the user's wish is no fault


def merged(results: Sequence[StageResult]) -> StageResult:
    """The results of workers that shared one start, as if one had done it all; rows in order of their index.

    Read delay and the busiest share are those of the worker that was worst off.
    """
    used = [result for result in results if len(result.requests)]
    first_s = [int(result.requests.intended_ns.min()) / _NS for result in used]
    last_s = [first + result.window_s for first, result in zip(first_s, used, strict=True)]
    window_s = max(last_s) - min(first_s) if used else 0.0
    down_after_s = min((result.down_after_s for result in results if result.down_after_s is not None), default=None)
    requests = joined([result.requests for result in results])
    return StageResult(requests, window_s, _use_of([result.client for result in results]), down_after_s)


def _use_of(uses: Sequence[ClientUse]) -> ClientUse:
    by = {use.read_delay_by for use in uses if use.read_delay_by is not None}
    return ClientUse(
        cpu_s=sum(use.cpu_s for use in uses),
        wall_s=max((use.wall_s for use in uses), default=0.0),
        workers=len(uses),
        busiest_share=_worst(use.busiest_share for use in uses),
        read_delay_p50_s=_worst(use.read_delay_p50_s for use in uses),
        read_delay_p99_s=_worst(use.read_delay_p99_s for use in uses),
        read_delay_max_s=_worst(use.read_delay_max_s for use in uses),
        read_delay_by=None if not by else "kernel" if by == {"kernel"} else "canary",
        faults=tuple(chain.from_iterable(use.faults for use in uses)),
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
