"""Progress on stderr: a bar on a terminal, a line per phase and every few seconds in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchgate.cli.saying import log, stderr_console
from benchgate.escape import terminal_line
from benchgate.pipeline.progress import Progress

_LINE_EVERY_S = 5.0


@contextmanager
def make_progress(title: str) -> Iterator[Progress]:
    """Show progress during the block: a bar when stderr is a terminal, plain lines otherwise."""
    if not sys.stderr.isatty():
        yield _Lines(title)
        return
    bar = _Bar(title)
    with bar.bars:
        yield bar


class _Lines(Progress):
    """Plain lines for CI logs: every phase, and the state of a long one every few seconds."""

    def __init__(self, title: str) -> None:
        self._title, self._phase, self._steps, self._done, self._last_s = title, "", 0, 0, 0.0

    def begin(self, phase: str, steps: int) -> None:
        self._phase, self._steps, self._done, self._last_s = phase, steps, 0, time.monotonic()
        log(f"{self._title}: {phase}")

    def step(self, done: str) -> None:
        self._done += 1
        now_s = time.monotonic()
        if now_s - self._last_s >= _LINE_EVERY_S:
            self._last_s = now_s
            log(f"{self._title}: {self._phase} {self._done}/{self._steps}: {done}")

    def status(self, line: str) -> None:
        if time.monotonic() - self._last_s >= _LINE_EVERY_S:
            self._last_s = time.monotonic()
            log(f"{self._title}: {line}")

    def note(self, line: str) -> None:
        log(f"{self._title}: {line}")


class _Bar(Progress):
    """A rich progress bar, one line a phase."""

    def __init__(self, title: str) -> None:
        from rich import progress as rich_progress
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

        self._title = terminal_line(title)
        self.bars = rich_progress.Progress(
            TextColumn("{task.description}", markup=False),  # words of suites and servers are no markup
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[done]}", style="dim", markup=False),
            console=stderr_console(),
            redirect_stdout=False,  # else rich wraps others' lines, and a wrapped one may begin like a command
            redirect_stderr=False,
        )
        self._task = self.bars.add_task(self._title, total=None, done="")

    def begin(self, phase: str, steps: int) -> None:
        self.bars.update(self._task, visible=False)
        self._task = self.bars.add_task(f"{self._title}: {terminal_line(phase)}", total=steps, done="")

    def step(self, done: str) -> None:
        self.bars.update(self._task, advance=1, done=terminal_line(done))

    def status(self, line: str) -> None:
        self.bars.update(self._task, done=terminal_line(line))

    def note(self, line: str) -> None:
        self.bars.update(self._task, done=terminal_line(line))
