"""Progress on stderr: one live block of lines on a terminal, a plain line every 15 s in a log; both from one state."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from benchgate.cli.saying import fitting, inform, settings, stderr_console
from benchgate.escape import terminal_line
from benchgate.pipeline.progress import Phase, Progress
from benchgate.units import show_duration, show_number

if TYPE_CHECKING:
    from rich.text import Text

    from benchgate.load.live import LiveFigures
    from benchgate.model.deployment import Arm

_LINE_EVERY_S = 15.0
_BAR_WIDTH = 20
_LEAST_USD = 0.005
_BEFORE = ("warm-up", "load", "capacity")  # phases that others follow
_SECONDS_PER_HOUR = 3600.0


@contextmanager
def make_progress(title: str) -> Iterator[RunProgress]:
    """Show progress during the block: live lines when stderr is a terminal, plain ones otherwise, none if quiet."""
    live = sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    progress = RunProgress(title) if settings.quiet else LiveProgress(title) if live else PlainProgress(title)
    with progress.shown():
        yield progress
        progress.end()


class RunProgress(Progress):
    """State of a run under way: its phase and pace, the last figures of each arm, errors, and money spent."""

    watches_requests = True

    def __init__(self, title: str) -> None:
        self.title = title
        self.phase = Phase("", 0)
        self.done = 0  # steps of the phase
        self.arm: Arm | None = None
        self.place = ""
        self._stage = ""
        self._figures: dict[tuple[str, Arm], LiveFigures] = {}  # the last ones by stage and arm
        self.answered: tuple[int, int] | None = None  # items done and in all
        self.last_status = self.last_look = ""
        self._errors: dict[Arm, int] = {}  # of executions that ended
        self._step_s: list[float] = []
        self._began_s = self._phase_began_s = self._step_began_s = time.monotonic()
        self._usd_per_hour = self._billed_usd = 0.0
        self._after_load: Sequence[str] = ()
        self._priced_at_s = 0.0

    def begin(self, phase: Phase) -> None:
        """Start a phase."""
        self.end()
        self.phase, self.done, self._step_s = phase, 0, []
        self.arm, self.place, self.answered, self.last_status = None, "", None, ""
        self._stage, self._figures = "", {}
        self._phase_began_s = self._step_began_s = time.monotonic()

    def step(self, done: str) -> None:
        """Count a step, and its time."""
        now_s = time.monotonic()
        self._step_s.append(now_s - self._step_began_s)
        self._step_began_s = now_s
        self.done += 1
        self.last_status = ""

    def follow(self, parts: Sequence[str]) -> None:
        """Keep what is measured after the load, whose duration nobody knows yet."""
        self._after_load = parts

    def items(self, done: int, total: int) -> None:
        """Keep the number of answered items."""
        self.answered = done, total

    def status(self, line: str) -> None:
        """Keep the reason for a delay until a step is done."""
        self.last_status = line

    def look(self, line: str) -> None:
        """Keep what the last interim analysis settled."""
        self.last_look = line

    def stage(self, arm: Arm, stage: str, place: str) -> None:
        """Keep what is measured now."""
        self.arm, self._stage, self.last_status = arm, stage, ""
        self.place = f"{place}, stage {stage}" if place else f"stage {stage}"
        if (last := self._figures.get((stage, arm))) is not None:  # its latencies stay until there are others
            self._figures[stage, arm] = replace(last, failed=0)

    def figures(self, figures: LiveFigures) -> None:
        """Keep the figures of the arm that is measured now."""
        if self.arm is not None:
            self._figures[self._stage, self.arm] = figures

    def executed(self, figures: LiveFigures, billed_usd: float) -> None:
        """Keep an execution's last figures; add its errors and its price."""
        if self.arm is not None:
            self._figures[self._stage, self.arm] = figures
            self._errors[self.arm] = self._errors.get(self.arm, 0) + figures.failed
        self._billed_usd += billed_usd
        if self.arm is not None and settings.verbose:
            done = [f"{figures.ended:,} requests in {show_duration(figures.elapsed_s)}", *_figures_of(figures)]
            failed = [f"{figures.failed:,} failed: {'; '.join(figures.reasons)}"] if figures.failed else []
            self.note(f"{self.place} on {self.arm}: {', '.join([*done, *failed])}")
        self.arm = None

    def end(self) -> None:
        """Write how long the phase took, with `--verbose`."""
        if settings.verbose and self.phase.name:
            self.note(f"{self.phase.name} took {show_duration(time.monotonic() - self._phase_began_s)}")

    def price(self, usd_per_hour: float) -> None:
        """Count the time from here on at a price."""
        self._usd_per_hour, self._priced_at_s = usd_per_hour, time.monotonic()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the state during the block."""
        yield

    def errors(self, arm: Arm) -> int:
        """Return the failed requests of an arm so far."""
        last = self._figures.get((self._stage, arm))
        return self._errors.get(arm, 0) + (last.failed if last is not None and arm is self.arm else 0)

    @property
    def arms(self) -> dict[Arm, LiveFigures]:
        """Figures of the present stage by arm; of the arm that is not measured now, those of its last execution."""
        found = {arm: one for (stage, arm), one in list(self._figures.items()) if stage == self._stage}
        return dict(sorted(found.items()))

    @property
    def elapsed_s(self) -> float:
        """Time since the start of this session."""
        return time.monotonic() - self._began_s

    @property
    def usd(self) -> float:
        """Price of the deployments' time and tokens so far."""
        hours = (time.monotonic() - self._priced_at_s) / _SECONDS_PER_HOUR
        return self._billed_usd + self._usd_per_hour * hours

    @property
    def count(self) -> tuple[int, int]:
        """Steps or items of the phase that are done, and all of them."""
        return self.answered if self.answered is not None else (self.done, self.phase.steps)

    @property
    def per_s(self) -> float | None:
        """Pace of a phase of many small steps; None for a load, whose arms have paces of their own."""
        done, passed_s = self.count[0], time.monotonic() - self._phase_began_s
        return None if self.place or not done or passed_s < 1 else done / passed_s

    @property
    def left_s(self) -> float | None:
        """Time left of the phase, from the time that its like steps took; None before the first has ended."""
        # Other threads read it while the run goes on: each value is taken once.
        now_s, phase, answered, step_s = time.monotonic(), self.phase, self.answered, list(self._step_s)
        if answered is not None:
            done, total = answered
            return (now_s - self._phase_began_s) / done * (total - done) if done else None
        if not step_s:
            return None
        left_s = 0.0
        for number in range(len(step_s), phase.steps):
            alike = step_s[number % phase.cycle :: phase.cycle] if phase.cycle > 1 else []
            expected_s = fmean(alike or step_s)
            passed_s = now_s - self._step_began_s if number == len(step_s) else 0.0
            left_s += max(0.0, expected_s - passed_s)
        return left_s

    @property
    def following(self) -> str:
        """Return the phases after a load that is under way. Its pace does not predict their duration."""
        return f"then {', '.join(self._after_load)}" if self._after_load and self.phase.name in _BEFORE else ""

    @property
    def totals(self) -> str:
        """Time elapsed, time left of the phase and money spent: `12:31 elapsed, at most 31:10 left, $4.12 spent`."""
        parts = [f"{_clock(self.elapsed_s)} elapsed"]
        if (left_s := self.left_s) is not None and self.count[0] < self.count[1]:
            parts.append(f"{'at most ' if self.phase.at_most else 'about '}{_clock(left_s)} left of {self.phase.name}")
        if self.usd >= _LEAST_USD:
            parts.append(f"${self.usd:,.2f} spent")
        return ", ".join(parts)


class PlainProgress(RunProgress):
    """Lines for logs: every phase and finding, and the state every 15 seconds."""

    def begin(self, phase: Phase) -> None:
        """Start a phase."""
        super().begin(phase)
        inform(f"{self.title}: {phase.name}")

    def note(self, line: str) -> None:
        """Write a warning or a finding."""
        inform(f"{self.title}: {line}")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Write a line every 15 seconds of the block."""
        over = threading.Event()

        def write() -> None:
            while not over.wait(_LINE_EVERY_S):
                inform(plain_line(self))

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        try:
            yield
        finally:
            over.set()
            writer.join()


class LiveProgress(RunProgress):
    """A block of at most 8 lines that is renewed in place and leaves nothing behind; findings stay above it."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._console = stderr_console()

    def note(self, line: str) -> None:
        """Print a warning or a finding above the block."""
        from rich.text import Text

        for part in fitting(line, self._console.width):
            self._console.print(Text(part), soft_wrap=True)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the block on the terminal."""
        from rich.live import Live

        with Live(
            console=self._console,
            transient=True,
            get_renderable=lambda: block(self),
            redirect_stdout=False,  # else rich wraps others' lines, and a wrapped one may begin like a command
            redirect_stderr=False,
        ):
            yield


def plain_line(state: RunProgress) -> str:
    """Return the state as one line."""
    parts = [f"{state.title}: {_phase(state)}"]
    for arm, one in state.arms.items():
        parts.append(f"{arm} {', '.join(_figures_of(one))}, {state.errors(arm)} errors, {one.in_flight} in flight")
    parts += [state.last_look] if state.last_look else []
    parts += [state.last_status] if state.last_status else []
    return "; ".join(filter(None, [*parts, state.totals, state.following]))


def block(state: RunProgress) -> Text:
    """Return the state as lines for a terminal. The words of suites and servers are escaped, and no markup."""
    from rich.text import Text

    done, total = state.count
    filled = round(_BAR_WIDTH * done / total) if total else 0
    lines = [
        Text(terminal_line(state.title), "bold"),
        Text.assemble(("━" * filled, "cyan"), ("─" * (_BAR_WIDTH - filled), "dim"), f" {terminal_line(_phase(state))}"),
    ]
    if state.place:
        headings = ("", "TTFT p50", "TPOT p50", "rate", "errors", "in flight")
        lines.append(Text(_row(headings), "dim"))
        lines += [_arm_line(state, arm, one) for arm, one in state.arms.items()]
    if state.last_look:
        lines.append(Text(terminal_line(state.last_look)))
    if state.last_status:
        lines.append(Text(terminal_line(state.last_status), "yellow"))
    lines.append(Text(terminal_line(state.totals), "dim"))
    if state.following:
        lines.append(Text(terminal_line(state.following), "dim"))
    whole = Text("\n").join(lines)
    whole.no_wrap, whole.overflow = True, "ellipsis"  # a line that rich wrapped may begin like a command
    return whole


def _figures_of(one: LiveFigures) -> tuple[str, str, str]:
    return f"TTFT {_ms(one.ttft_p50_s)}", f"TPOT {_ms(one.tpot_p50_s)}", _rate(one.requests_per_s)


def _arm_line(state: RunProgress, arm: Arm, one: LiveFigures) -> Text:
    errors = state.errors(arm)
    cells = (
        f"{'▶' if arm is state.arm else ' '} {arm}",
        _ms(one.ttft_p50_s),
        _ms(one.tpot_p50_s),
        _rate(one.requests_per_s),
        f"{errors:,}",
        f"{one.in_flight:,}",
    )
    from rich.text import Text

    return Text(_row(cells), "red" if errors else "")


def _row(cells: tuple[str, ...]) -> str:
    return f"{cells[0]:<12}" + "".join(f"{cell:>12}" for cell in cells[1:])


def _phase(state: RunProgress) -> str:
    """Return phase, count, pace and place: `load 14/60, block 3 of 10, stage c8 on candidate`."""
    done, total = state.count
    parts = [f"{state.phase.name} {done:,}/{total:,}" if total else state.phase.name or "preparing"]
    if (per_s := state.per_s) is not None:
        parts.append(f"{show_number(per_s)}/s")
    if state.place:
        parts.append(state.place + (f" on {state.arm}" if state.arm is not None else ""))
    return ", ".join(parts)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else show_duration(seconds)


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{show_number(per_s)}/s"


def _clock(seconds: float) -> str:
    """Return minutes and seconds, with hours where there are some: `1:02:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
