"""Reports of many runs, as `benchgate report` makes them, with a link to the site's first page, in parallel."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from benchgate.errors import BenchgateError, PublishError
from benchgate.escaped_streams import escape_streams
from benchgate.pipeline.judge import decide_stored, report_html
from benchgate.site.folder import write_whole
from benchgate.store.repository import Store
from benchgate.system import usable_cpus

FEW = 8
"""Reports that are worth a process: with fewer it takes longer to start than they take."""


@dataclass(frozen=True, slots=True)
class ReportJob:
    """A report to write: its run and its file."""

    run_id: str
    file: Path


@dataclass(frozen=True, slots=True)
class Rendered:
    """A written report: its size and outcome, or the reason why there is none."""

    run_id: str
    n_bytes: int = 0
    outcome: str | None = None
    fault: str | None = None


def rendered(store: Store, address: str, jobs: Sequence[ReportJob]) -> Iterator[Rendered]:
    """Write the reports of runs of an open store, also opened by its address in each process; yield each when done.

    Raises PublishError if a file cannot be written, or a process ends early.
    """
    processes = min(usable_cpus(), len(jobs) // FEW)
    if processes < 2:
        yield from (_render(store, one) for one in jobs)
        return
    workers = [_Worker(address, jobs[number::processes]) for number in range(processes)]
    try:
        waiting = {worker.results: worker for worker in workers}
        while waiting:
            for ready in wait(list(waiting)):
                assert isinstance(ready, Connection), "nothing else is waited for"
                result = waiting[ready].next()
                if result is None:
                    del waiting[ready]
                else:
                    yield result
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process with its share of the reports. It is a daemon, so it ends with this process."""

    def __init__(self, address: str, jobs: Sequence[ReportJob]) -> None:
        # Spawned, not forked: threads of the drawing library and connections to the store do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.results, result = context.Pipe(duplex=False)
        self._left = len(jobs)
        self._process = context.Process(target=_work, args=(address, jobs, result), daemon=True)
        self._process.start()
        result.close()

    def next(self) -> Rendered | None:
        """Return the next result; None after the last one."""
        if self._left == 0:
            return None
        try:
            result: Rendered | str = self.results.recv()
        except EOFError:
            self._process.join()
            raise PublishError(
                f"a process that was making reports ended with {self._process.exitcode}, {self._left} of them before "
                "its end; build the site again, which goes on from here"
            ) from None
        if isinstance(result, str):
            raise PublishError(result)
        self._left -= 1
        return result

    def end(self) -> None:
        """End the process, finished or not."""
        if self._left:
            self._process.terminate()
        self._process.join()
        self.results.close()


def _work(address: str, jobs: Sequence[ReportJob], results: Connection) -> None:
    escape_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the one that waits ends the others
    with Store.open(address, create=False) as store:
        for one in jobs:
            try:
                results.send(_render(store, one))
            except PublishError as error:
                results.send(str(error))


def _render(store: Store, jobs: ReportJob) -> Rendered:
    try:
        decision = decide_stored(store, jobs.run_id, keep=False)
        content = report_html(decision, in_site=True).encode()
    except (BenchgateError, ValueError) as error:  # ValueError: a suite that no benchgate would have stored
        return Rendered(jobs.run_id, fault=str(error))
    write_whole(jobs.file, content, private=decision.evidence.run.keeps_texts)
    return Rendered(jobs.run_id, len(content), decision.verdict.outcome.value)
