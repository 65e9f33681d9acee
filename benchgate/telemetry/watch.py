"""Telemetry around and during the stages of one deployment, read by a thread so that the load never waits for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from benchgate.model.deployment import Arm
from benchgate.model.telemetry import FIRST_SAMPLE_S, Gauge, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.suite.deployment import NVIDIA_SMI
from benchgate.targets.dialect import Target
from benchgate.telemetry.page import BadPageError
from benchgate.telemetry.smi import SmiSource
from benchgate.telemetry.sources import Fetched, PageSource, Sources, UnreadError
from benchgate.telemetry.words import Page, read_dcgm, read_page

_T = TypeVar("_T")

_EVERY_S = 1.0
_DRAIN_S = 2.0  # how long a server may go on with requests that nobody waits for any more
_DRAIN_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Look:
    """What was fetched at one instant of a stage, not yet understood, and why something was not."""

    at_s: float
    page: Fetched | None
    gpu: Fetched | Mapping[TelemetryMetric, float] | None
    client_load: float | None
    problems: tuple[UnreadError, ...] = ()


@dataclass(slots=True)
class Looks:
    """All looks at one stage. `ended_s` is when its last answer was there."""

    taken: list[Look] = field(default_factory=list)
    ended_s: float = 0.0
    drained: bool = False


class Watch:
    """Reads what one deployment says of itself. Use as a context manager, and `stage` around every stage."""

    def __init__(self, sources: Sources, target: Target) -> None:
        self._sources = sources
        self._target = target
        self._stack = ExitStack()
        self._page: Callable[[], Fetched] | None = None
        self._gpu: Callable[[], Fetched | Mapping[TelemetryMetric, float]] | None = None
        self._given_up: dict[str, UnreadError] = {}  # what has no such page will not have one later

    def __enter__(self) -> Self:
        sources, enter = self._sources, self._stack.enter_context
        if sources.page is not None:
            self._page = enter(PageSource(sources.page, self._target)).fetch
        if sources.gpu == NVIDIA_SMI:
            self._gpu = enter(SmiSource(sources.devices)).fetch
        elif sources.gpu is not None:
            self._gpu = enter(PageSource(sources.gpu, self._target)).fetch
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    @property
    def reads(self) -> bool:
        """Whether there is anything to read."""
        return self._page is not None or self._gpu is not None

    @contextmanager
    def stage(self) -> Iterator[Looks]:
        """Looks once before the block runs, every second while it does, and after it until the server has drained."""
        looks = Looks()
        if self.reads:
            # The server may still be at what was cut before, of a warm-up or a background: none of this stage's.
            first, _ = self._once_idle(lambda: 0.0, time.monotonic() + _DRAIN_S)
            looks.taken.append(first)
        if self._nothing_there():
            yield looks
            return
        began_s, over = time.monotonic(), threading.Event()
        thread = threading.Thread(target=self._follow, args=(looks, began_s, over), daemon=True)
        thread.start()
        try:
            yield looks
        finally:
            looks.ended_s = time.monotonic() - began_s
            over.set()
            thread.join()
        self._drain(looks, began_s)

    def window(self, looks: Looks, stage: str, arm: Arm, block: int, position: int) -> TelemetryWindow | None:
        """What the looks at one stage say; None where there was nothing to read."""
        if not self.reads:
            return None
        problems: dict[str, None] = {}  # each once, in order
        engines, readings, told = set(), [], False
        for look in looks.taken:
            problems.update(dict.fromkeys(map(str, look.problems)))
            page, values = self._understood(look, problems)
            told = told or bool(values)
            if page is not None:
                engines.add(page.engine)
            if look.client_load is not None:
                values[Gauge.CLIENT_LOAD] = look.client_load
            readings.append(TelemetrySample(look.at_s, values, page.marker if page is not None else None))
        return TelemetryWindow(
            stage=stage,
            arm=arm,
            block=block,
            position=position,
            engine=", ".join(sorted(engines)) or None,
            ended_s=looks.ended_s,
            drained=looks.drained,
            readings=tuple(readings) if told else (),
            problems=tuple(problems),
        )

    def _nothing_there(self) -> bool:
        """Whether everything that there was to read has turned out not to be there."""
        there = [name for name, source in (("page", self._page), ("gpu", self._gpu)) if source is not None]
        return all(name in self._given_up for name in there)

    def _follow(self, looks: Looks, began_s: float, over: threading.Event) -> None:
        due_s = FIRST_SAMPLE_S
        while not over.wait(max(0.0, due_s - (time.monotonic() - began_s))):
            look = self._look(time.monotonic() - began_s)
            looks.taken.append(look)
            due_s = max(due_s + _EVERY_S, look.at_s)

    def _drain(self, looks: Looks, began_s: float) -> None:
        """Look until nothing runs or waits: the counters then hold all of the stage, and caches are at their rest."""
        patience_s = began_s + looks.ended_s + _DRAIN_S
        last, looks.drained = self._once_idle(lambda: max(time.monotonic() - began_s, looks.ended_s), patience_s)
        looks.taken.append(last)

    def _once_idle(self, at_s: Callable[[], float], until_s: float) -> tuple[Look, bool]:
        """The first look at which nothing runs or waits, or the last one before `until_s`; and whether it was idle.

        Who does not tell what is under way is not waited for, and nothing is known of its rest.
        """
        while True:
            look = self._look(at_s())
            _, values = self._understood(look, {})
            under_way = [values[word] for word in (Gauge.RUNNING, Gauge.WAITING) if word in values]
            if not any(under_way) or time.monotonic() >= until_s:
                return look, bool(under_way) and not any(under_way)
            time.sleep(_DRAIN_EVERY_S)

    def _look(self, at_s: float) -> Look:
        problems = list(self._given_up.values())
        page = None if self._page is None else self._tried("page", self._page, problems)
        gpu = None if self._gpu is None else self._tried("gpu", self._gpu, problems)
        return Look(at_s, page, gpu, _client_load(), tuple(problems))

    def _tried(self, name: str, fetch: Callable[[], _T], problems: list[UnreadError]) -> _T | None:
        if name in self._given_up:
            return None
        try:
            return fetch()
        except UnreadError as exc:
            if exc.hopeless:
                self._given_up[name] = exc
            problems.append(exc)
            return None

    def _understood(self, look: Look, problems: dict[str, None]) -> tuple[Page | None, dict[TelemetryMetric, float]]:
        """The page of the engine, and every value of it and of the accelerators. What is no page is not asked again."""
        page, values = None, dict[TelemetryMetric, float]()
        try:
            if look.page is not None:
                page = read_page(look.page.text, self._target.model, look.page.born)
                values.update(page.values)
        except BadPageError as exc:
            problems[self._give_up("page", f"the page of metrics cannot be used: {exc}")] = None
        try:
            if isinstance(look.gpu, Fetched):
                values.update(read_dcgm(look.gpu.text, self._sources.devices))
            elif look.gpu is not None:
                values.update(look.gpu)
        except BadPageError as exc:
            problems[self._give_up("gpu", f"the accelerators' page of metrics cannot be used: {exc}")] = None
        return page, values

    def _give_up(self, name: str, reason: str) -> str:
        self._given_up[name] = UnreadError(reason, hopeless=True)
        return reason


def _client_load() -> float | None:
    """The load average of this machine over the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
