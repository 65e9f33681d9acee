"""The reports of many runs, each as `benchgate report` gives it but for its way back to the site's first page, in as
many processes as the machine has cores.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from benchgate.errors import BenchgateError, PublishError
from benchgate.escaped_streams import escape_streams
from benchgate.pipeline.judge import decide_stored, report_html
from benchgate.site.shelf import write_whole
from benchgate.store.repository import Store

FEW = 8
"""Reports that are worth a process: with fewer it takes longer to start than they take."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The report of a run, and the file that it goes to."""

    run_id: str
    file: Path


@dataclass(frozen=True, slots=True)
class Rendered:
    """What became of it: its size and what its verdict says, or why there is none."""

    run_id: str
    n_bytes: int = 0
    outcome: str | None = None
    fault: str | None = None


def rendered(store: Store, address: str, wanted: Sequence[Wanted]) -> Iterator[Rendered]:
    """Writes the reports of runs of the store at this address, which is open; each is told as it is there.

    Raises PublishError where one cannot be written, or a process is gone before its work was done.
    """
    processes = min(_cores(), len(wanted) // FEW)
    if processes < 2:
        yield from (_render(store, one) for one in wanted)
        return
    workers = [_Worker(address, wanted[number::processes]) for number in range(processes)]
    try:
        waiting = {worker.results: worker for worker in workers}
        while waiting:
            for ready in wait(list(waiting)):
                assert isinstance(ready, Connection), "nothing else is waited for"
                told = waiting[ready].next()
                if told is None:
                    del waiting[ready]
                else:
                    yield told
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process with its share of the reports. Where this process is gone it ends with the report it is at."""

    def __init__(self, address: str, wanted: Sequence[Wanted]) -> None:
        # Spawned, not forked: threads of the drawing library and connections to the store do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.results, told = context.Pipe(duplex=False)
        self._left = len(wanted)
        self._process = context.Process(target=_work, args=(address, wanted, told), daemon=True)
        self._process.start()
        told.close()

    def next(self) -> Rendered | None:
        """What it tells next; None once it has told all."""
        if self._left == 0:
            return None
        try:
            told: Rendered | str = self.results.recv()
        except EOFError:
            self._process.join()
            raise PublishError(
                f"a process that was making reports ended with {self._process.exitcode}, {self._left} of them before "
                "its end; build the site again, which goes on from here"
            ) from None
        if isinstance(told, str):
            raise PublishError(told)
        self._left -= 1
        return told

    def end(self) -> None:
        """Its end, whether or not it has told all."""
        if self._left:
            self._process.terminate()
        self._process.join()
        self.results.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(address: str, wanted: Sequence[Wanted], told: Connection) -> None:
    escape_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the one that waits ends the others
    with Store.open(address, create=False) as store:
        for one in wanted:
            try:
                told.send(_render(store, one))
            except PublishError as error:
                told.send(str(error))


def _render(store: Store, wanted: Wanted) -> Rendered:
    try:
        decision = decide_stored(store, wanted.run_id, keep=False)
        content = report_html(decision, in_site=True).encode()
    except (BenchgateError, ValueError) as error:  # ValueError: a suite that no benchgate would have stored
        return Rendered(wanted.run_id, fault=str(error))
    write_whole(wanted.file, content)
    return Rendered(wanted.run_id, len(content), decision.verdict.outcome.value)
