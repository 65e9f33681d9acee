"""Runs on a dask worker: one shard at a time, in a load generator process of its own.

The functions here are called remotely (`cluster`). `do_shard` is the task that the scheduler sees, in a thread of the
worker. The others run in the worker's event loop, return at once and raise nothing. A shard is assigned once and taken
once: a task that the scheduler runs a second time finds nothing to send.

The load has a process of its own so that nothing else of the worker competes for its interpreter, and so that it can
be ended in the middle of a stage.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchgate.load.results import StageResult, lost_worker, remove_spools, salvage
from benchgate.load.shards import Shard
from benchgate.load.workers import WorkerProcess

_LEASE_S = 30.0  # without a word from the client: nobody is left to want this load
_LOOK_S = 0.1


@dataclass(slots=True, eq=False)
class _Job:
    """A shard, from when it was handed over until it is done or given up. `place` is the worker's address."""

    fleet: str
    place: str
    shard: Shard
    taken: bool = False
    is_ready: bool = False
    given_up: bool = False
    start_ns: int = 0
    started: threading.Event = field(default_factory=threading.Event)
    heard_s: float = field(default_factory=time.monotonic)

    @property
    def is_orphan(self) -> bool:
        """Return True if the client has gone silent."""
        return time.monotonic() - self.heard_s > _LEASE_S


_JOBS: dict[str, _Job] = {}
_PROCESSES: dict[str, tuple[str, WorkerProcess]] = {}  # by place: whose it is, and the process; kept between stages


def assign(fleet: str, name: str, shard: Shard, dask_worker: Any) -> str | None:
    """Take a shard to do under this name; why not, when another load test is busy here."""
    place = dask_worker.address
    for other, job in _at(place):
        if job.fleet != fleet and not (job.given_up or job.is_orphan):
            return "is busy with another load test"
        _end(other, job)
    spool = Path(dask_worker.local_directory) / f"{name}.answers"  # the scheduler's own care removes it with the place
    _JOBS[name] = _Job(fleet, place, replace(shard, spool=spool))
    return None


def is_ready(name: str) -> bool:
    """Return True if its connections are open. Renews the job's lease."""
    job = _heard(name)
    return job is not None and job.is_ready


def start(name: str, start_ns: int) -> bool:
    """Tell a job the start: ns since 1970 on this machine's clock. False when it is over."""
    job = _heard(name)
    if job is not None:
        job.start_ns = start_ns
        job.started.set()
    return job is not None


def give_up(name: str) -> None:
    """Have a job end at once with what was answered."""
    job = _JOBS.get(name)
    if job is not None:
        _end(name, job)


def release(fleet: str, dask_worker: Any) -> None:
    """The load test is over: end what it left here."""
    place = dask_worker.address
    for name, job in _at(place):
        if job.fleet == fleet:
            _end(name, job)
    if not any(job.fleet == fleet for _, job in _at(place)) and _PROCESSES.get(place, ("", None))[0] == fleet:
        _stop(place)


def do_shard(name: str) -> StageResult | None:
    """Run a shard that was assigned; None when it was done before, or elsewhere. Raises its BenchgateError."""
    job = _JOBS.get(name)
    if job is None or job.taken:
        return None
    job.taken = True
    try:
        process = _process(job)
        process.begin(job.shard)
        if not (_awaited(job, process) and process.is_ready(time.monotonic())):
            return _left(job)
        job.is_ready = True
        while not job.started.wait(_LOOK_S):
            if job.given_up or job.is_orphan:
                return _left(job)
        process.start(job.start_ns)
        result = process.result() if _awaited(job, process) else None
        return _left(job) if result is None else result
    finally:
        _JOBS.pop(name, None)
        remove_spools(job.shard)


def _awaited(job: _Job, process: WorkerProcess) -> bool:
    """Wait until the process has a message, or is lost. Return False when it hangs, or nobody waits for it any more."""
    process.watch()
    while not process.has_message(_LOOK_S):
        if job.given_up or job.is_orphan or process.is_stuck():
            return False
    return True


def _left(job: _Job) -> StageResult:
    """Return what an interrupted job has. Unless the client interrupted it, what is missing counts as lost."""
    _stop(job.place)
    return salvage(job.shard) if job.given_up else lost_worker(job.shard)


def _process(job: _Job) -> WorkerProcess:
    fleet, process = _PROCESSES.get(job.place, ("", None))
    if process is None or fleet != job.fleet:
        _stop(job.place)
        # Workers under a nanny are daemons, which multiprocessing forbids children. Ours leave with their parent.
        this = multiprocessing.current_process()
        was, this.daemon = this.daemon, False
        try:
            process = WorkerProcess()
        finally:
            this.daemon = was
        _PROCESSES[job.place] = job.fleet, process
    return process


def _stop(place: str) -> None:
    _, process = _PROCESSES.pop(place, ("", None))
    if process is not None:
        process.stop()


def _at(place: str) -> list[tuple[str, _Job]]:
    return [(name, job) for name, job in _JOBS.items() if job.place == place]


def _end(name: str, job: _Job) -> None:
    """Give up a job. One that was taken ends in its own thread, which stops the process too."""
    job.given_up = True
    if not job.taken:
        _JOBS.pop(name, None)


def _heard(name: str) -> _Job | None:
    job = _JOBS.get(name)
    if job is not None:
        job.heard_s = time.monotonic()
    return job
