"""Samples of telemetry before, during and after the stages of one deployment, taken by a thread of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self, TypeVar

from benchgate.model.deployment import Arm
from benchgate.model.telemetry import FIRST_SAMPLE_S, Gauge, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.suite.deployment import NVIDIA_SMI
from benchgate.targets.dialect import Target
from benchgate.telemetry.engine_metrics import BadPageError, Page, read_dcgm, read_page
from benchgate.telemetry.sources import Fetched, PageSource, SmiSource, Sources, UnreadError

_T = TypeVar("_T")

_EVERY_S = 1.0
_DRAIN_S = 2.0  # how long a server may go on with requests that nobody waits for any more
_DRAIN_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The unparsed pages of one instant of a stage, and the reasons for missing ones."""

    at_s: float
    page: Fetched | None
    gpu: Fetched | Mapping[TelemetryMetric, float] | None
    client_load: float | None
    problems: tuple[UnreadError, ...] = ()


@dataclass(slots=True)
class Snapshots:
    """All snapshots of one stage. `ended_s` is the time of its last answer."""

    taken: list[Snapshot] = field(default_factory=list)
    ended_s: float = 0.0
    drained: bool = False


class Sampler:
    """Samples the telemetry of one deployment. Use as a context manager, and `stage` around every stage."""

    def __init__(self, sources: Sources, target: Target) -> None:
        self._sources = sources
        self._target = target
        self._stack = ExitStack()
        self._page: Callable[[], Fetched] | None = None
        self._gpu: Callable[[], Fetched | Mapping[TelemetryMetric, float]] | None = None
        self._given_up: dict[str, UnreadError] = {}  # a missing page will not appear later

    def __enter__(self) -> Self:
        sources, enter = self._sources, self._stack.enter_context
        if sources.page is not None:
            self._page = enter(PageSource(sources.page, self._target)).fetch
        if sources.gpu == NVIDIA_SMI:
            self._gpu = enter(SmiSource(sources.devices)).fetch
        elif sources.gpu is not None:
            self._gpu = enter(PageSource(sources.gpu, self._target)).fetch
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def reads(self) -> bool:
        """True if there is anything to read."""
        return self._page is not None or self._gpu is not None

    @contextmanager
    def stage(self) -> Iterator[Snapshots]:
        """Take a snapshot before the block, every second while it runs, and after it until the server has drained."""
        snapshots = Snapshots()
        if self.reads:
            # Requests cancelled before, of a warm-up or a background, may still run; they are none of this stage's.
            first, _ = self._when_idle(lambda: 0.0, time.monotonic() + _DRAIN_S)
            snapshots.taken.append(first)
        there = [name for name, source in (("page", self._page), ("gpu", self._gpu)) if source is not None]
        if all(name in self._given_up for name in there):
            yield snapshots
            return
        began_s, over = time.monotonic(), threading.Event()
        thread = threading.Thread(target=self._sample_stage, args=(snapshots, began_s, over), daemon=True)
        thread.start()
        try:
            yield snapshots
        finally:
            snapshots.ended_s = time.monotonic() - began_s
            over.set()
            thread.join()
        # Until nothing runs or waits: the counters then hold all of the stage.
        last, snapshots.drained = self._when_idle(
            lambda: max(time.monotonic() - began_s, snapshots.ended_s), began_s + snapshots.ended_s + _DRAIN_S
        )
        snapshots.taken.append(last)

    def window(self, snapshots: Snapshots, stage: str, arm: Arm, block: int, position: int) -> TelemetryWindow | None:
        """Parse the snapshots of one stage. None where there was nothing to read."""
        if not self.reads:
            return None
        problems: dict[str, None] = {}  # each once, in order
        engines, readings, has_values = set(), [], False
        for snapshot in snapshots.taken:
            problems.update(dict.fromkeys(map(str, snapshot.problems)))
            page, values = self._parse(snapshot, problems)
            has_values = has_values or bool(values)
            if page is not None:
                engines.add(page.engine)
            if snapshot.client_load is not None:
                values[Gauge.CLIENT_LOAD] = snapshot.client_load
            readings.append(TelemetrySample(snapshot.at_s, values, page.marker if page is not None else None))
        return TelemetryWindow(
            stage=stage,
            arm=arm,
            block=block,
            position=position,
            engine=", ".join(sorted(engines)) or None,
            ended_s=snapshots.ended_s,
            drained=snapshots.drained,
            readings=tuple(readings) if has_values else (),
            problems=tuple(problems),
        )

    def _sample_stage(self, snapshots: Snapshots, began_s: float, over: threading.Event) -> None:
        due_s = FIRST_SAMPLE_S
        while not over.wait(max(0.0, due_s - (time.monotonic() - began_s))):
            snapshot = self._snapshot(time.monotonic() - began_s)
            snapshots.taken.append(snapshot)
            due_s = max(due_s + _EVERY_S, snapshot.at_s)

    def _when_idle(self, at_s: Callable[[], float], until_s: float) -> tuple[Snapshot, bool]:
        """Return the first snapshot of an idle server, or the last one before `until_s`; and whether it was idle.

        A server that does not report its running requests is not waited for, and counts as not idle.
        """
        while True:
            snapshot = self._snapshot(at_s())
            _, values = self._parse(snapshot, {})
            under_way = [values[gauge] for gauge in (Gauge.RUNNING, Gauge.WAITING) if gauge in values]
            if not any(under_way) or time.monotonic() >= until_s:
                return snapshot, bool(under_way) and not any(under_way)
            time.sleep(_DRAIN_EVERY_S)

    def _snapshot(self, at_s: float) -> Snapshot:
        problems = list(self._given_up.values())
        page = None if self._page is None else self._fetch("page", self._page, problems)
        gpu = None if self._gpu is None else self._fetch("gpu", self._gpu, problems)
        load = None
        with suppress(OSError):
            load = os.getloadavg()[0]  # of this machine over the last minute
        return Snapshot(at_s, page, gpu, load, tuple(problems))

    def _fetch(self, name: str, fetch: Callable[[], _T], problems: list[UnreadError]) -> _T | None:
        if name in self._given_up:
            return None
        try:
            return fetch()
        except UnreadError as exc:
            if exc.hopeless:
                self._given_up[name] = exc
            problems.append(exc)
            return None

    def _parse(self, snapshot: Snapshot, problems: dict[str, None]) -> tuple[Page | None, dict[TelemetryMetric, float]]:
        """Return the parsed page and all values. A source that serves no metrics page is given up."""
        page, values = None, dict[TelemetryMetric, float]()
        try:
            if snapshot.page is not None:
                page = read_page(snapshot.page.text, self._target.model, snapshot.page.start_time)
                values.update(page.values)
        except BadPageError as exc:
            problems[self._give_up("page", f"the page of metrics cannot be used: {exc}")] = None
        try:
            if isinstance(snapshot.gpu, Fetched):
                values.update(read_dcgm(snapshot.gpu.text, self._sources.devices))
            elif snapshot.gpu is not None:
                values.update(snapshot.gpu)
        except BadPageError as exc:
            problems[self._give_up("gpu", f"the accelerators' page of metrics cannot be used: {exc}")] = None
        return page, values

    def _give_up(self, name: str, reason: str) -> str:
        self._given_up[name] = UnreadError(reason, hopeless=True)
        return reason
