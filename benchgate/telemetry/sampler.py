"""Samples of telemetry before, during and after the stages of one deployment, taken by a thread of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Self, TypeVar

from benchgate.model.deployment import Arm
from benchgate.model.telemetry import (
    FIRST_SAMPLE_S,
    Counter,
    Gauge,
    Replica,
    TelemetryMetric,
    TelemetrySample,
    TelemetryWindow,
    combine_replicas,
)
from benchgate.targets.dialect import Target
from benchgate.telemetry.accelerators import AcceleratorReading, read_accelerators
from benchgate.telemetry.engine_metrics import (
    PAGES,
    BadPageError,
    ReplicaPage,
    UnreadError,
    read_page,
    read_samples,
)
from benchgate.telemetry.prometheus import PrometheusSource, QueryResult
from benchgate.telemetry.smi import SMI_TOOLS, SmiSource
from benchgate.telemetry.sources import Fetched, PageSource, Sources, join_markers
from benchgate.units import show_duration

_T = TypeVar("_T")

_EVERY_S = 1.0
_DRAIN_S = 2.0  # how long a server may go on with requests that nobody waits for any more
_DRAIN_EVERY_S = 0.05
_SCRAPE_S = 65.0  # how long to wait for the next scrape of a Prometheus: intervals are up to a minute
_SCRAPE_EVERY_S = 0.5
_AT_ONCE = 16
_UNDER_WAY = (Gauge.RUNNING, Gauge.WAITING)
_OF_ACCELERATORS = frozenset(word for word in (*Gauge, *Counter) if word.startswith("gpu_"))
_OF_ENERGY = frozenset({Gauge.GPU_POWER, Counter.GPU_ENERGY_J})
_LEAST_CHANGES, _ENOUGH_CHANGES = 2, 10
_SELDOM = (
    "the accelerators' page changed too seldom during the stage, so their power and energy are left out; let the "
    "exporter collect every second (DCGM's: `-c 1000`)"
)
_SELDOM_OF_ENGINE = (
    "the server refreshed the accelerators' figures on its page too seldom during the stage, so their power and energy "
    "are left out; let it do so every second (Triton's: `--metrics-interval-ms=1000`), or set `gpu`"
)


def _left_out(ended_s: float, seldom: str) -> str:
    """Return why power and energy are left out. A page that changes every second needs two for enough changes."""
    least_s = _LEAST_CHANGES * _EVERY_S
    if ended_s >= least_s:
        return seldom
    took = show_duration(ended_s, digits=2)
    return (
        f"the stage was over after {took}, too short for power and energy from the accelerators' page; make it last "
        f"well over {show_duration(least_s, digits=2)}"
    )


def _page_name(number: int) -> str:
    return f"page {number}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The unparsed pages of one instant of a stage (time.monotonic), and the reasons for missing ones."""

    taken_s: float
    pages: tuple[Fetched | QueryResult | None, ...]  # as the sources of metrics, None where one did not answer
    gpu: Fetched | AcceleratorReading | None
    client_load: float | None
    problems: tuple[UnreadError, ...] = ()


@dataclass(slots=True)
class _Parsed:
    """The values of a snapshot. `age_s` is that of the oldest scrape of a Prometheus, and `scrape` its time."""

    engines: set[str] = field(default_factory=set)
    values: dict[TelemetryMetric, float] = field(default_factory=dict)  # of one page
    accelerators: dict[TelemetryMetric, float] = field(default_factory=dict)
    marker: str | None = None
    replicas: dict[str, ReplicaPage] = field(default_factory=dict)
    age_s: float = 0.0
    scrape: float | None = None


@dataclass(slots=True)
class Snapshots:
    """All snapshots of one stage. It began at `began_s` (time.monotonic) and lasted `ended_s`.

    That is the block of `Sampler.stage`, unless its load reports when it began and ended: before, the load generator
    prepares requests, and afterwards it decodes answers, while the server is idle.
    """

    taken: list[Snapshot] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    is_over: bool = False
    drained: bool = False
    changed: threading.Event = field(default_factory=threading.Event)  # began or ended: wakes the sampler

    def begin(self, start_ns: int) -> None:
        """Take the start of the load, in ns since 1970."""
        self.began_s = time.monotonic() + (start_ns - time.time_ns()) * 1e-9
        self.changed.set()

    def end(self, last_answer_s: float | None = None) -> None:
        """Take the end of the load: its last answer, in seconds after its start. None: it ended just now."""
        self.ended_s = time.monotonic() - self.began_s if last_answer_s is None else last_answer_s
        self.is_over = True
        self.changed.set()


def _is_refreshed(readings: Sequence[Mapping[TelemetryMetric, float]]) -> bool:
    """Return True if a page's figures of accelerators changed often enough to be those of the stage.

    A page may be read more often than its figures are collected: DCGM's every 30 s by default, AMD's at most every
    15 s, Triton's every 2 s. A shorter stage would get the power of the time before it. So any figure must differ
    in half of the pairs of successive readings, and in two at least; ten changes are enough for any stage.
    """
    changes = sum(one != other for one, other in pairwise(readings))
    return changes >= min(_ENOUGH_CHANGES, max(_LEAST_CHANGES, (len(readings) - 1) // 2))


def _keep_refreshed(
    pages: Sequence[Mapping[TelemetryMetric, float]], start: int, end: int
) -> list[dict[TelemetryMetric, float]]:
    """Return a page's values at every snapshot, without power and energy if they were refreshed too seldom.

    The figures of accelerators alone decide: a server's own counters change with every request.
    """
    figures = [{word: value for word, value in page.items() if word in _OF_ACCELERATORS} for page in pages]
    left_out = frozenset() if _is_refreshed([one for one in figures[start : end + 1] if one]) else _OF_ENERGY
    return [{word: value for word, value in page.items() if word not in left_out} for page in pages]


def _bound_energy(parsed: Sequence[_Parsed], start: int, end: int) -> None:
    """Hold the energy counter at its value at the stage's start and end: the last snapshot may be a minute later."""
    for number, one in enumerate(parsed):
        edge = parsed[min(max(number, start), end)]
        one.values = _with_energy(one.values, edge.values)
        one.accelerators = _with_energy(one.accelerators, edge.accelerators)
        for name, page in one.replicas.items():
            at_edge = edge.replicas[name].values if name in edge.replicas else {}
            one.replicas[name] = replace(page, values=_with_energy(page.values, at_edge))


def _with_energy(
    values: Mapping[TelemetryMetric, float], at_edge: Mapping[TelemetryMetric, float]
) -> dict[TelemetryMetric, float]:
    """Return the values with the energy of the others, or without energy if those have none."""
    bounded = dict(values)
    bounded.pop(Counter.GPU_ENERGY_J, None)
    energy_j = at_edge.get(Counter.GPU_ENERGY_J)
    if energy_j is not None:
        bounded[Counter.GPU_ENERGY_J] = energy_j
    return bounded


class Sampler:
    """Samples the telemetry of one deployment. Use as a context manager, and `stage` around every stage."""

    def __init__(self, sources: Sources, target: Target) -> None:
        self._sources = sources
        self._target = target
        self._stack = ExitStack()
        self._pages: list[Callable[[], Fetched | QueryResult]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._gpu: Callable[[], Fetched | AcceleratorReading] | None = None
        self._read_before: set[str] = set()  # sources that were read: a server or its route may be away for a while
        self._given_up: dict[str, UnreadError] = {}  # others: a missing page will not appear later

    def __enter__(self) -> Self:
        sources, enter = self._sources, self._stack.enter_context
        self._pages = [enter(PageSource(address, self._target)).fetch for address in sources.addresses]
        if sources.prometheus is not None:
            self._pages = [enter(PrometheusSource(sources.prometheus)).fetch]
        if len(self._pages) > 1:
            self._threads = enter(ThreadPoolExecutor(min(len(self._pages), _AT_ONCE), "benchgate-metrics"))
        if (tool := SMI_TOOLS.get(sources.gpu or "")) is not None:
            self._gpu = enter(SmiSource(tool, sources.devices)).fetch
        elif sources.gpu is not None:
            self._gpu = enter(PageSource(sources.gpu, self._target)).fetch
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def reads(self) -> bool:
        """True if there is anything to read."""
        return bool(self._pages) or self._gpu is not None

    @contextmanager
    def stage(self, *, awaits_idle: bool = False) -> Iterator[Snapshots]:
        """Take a snapshot before the block, every second while it runs, and after it until the server has drained.

        An engine whose gauges lag (`idle_delay_s`) is waited for only with `awaits_idle`.
        """
        snapshots = Snapshots()
        if self.reads:
            # Requests cancelled before, of a warm-up or a background, may still run; they are none of this stage's.
            first, _ = self._when_idle(time.monotonic())
            snapshots.taken.append(first)
        there = [*map(_page_name, range(len(self._pages))), *(["gpu"] if self._gpu is not None else [])]
        if all(name in self._given_up for name in there):
            yield snapshots
            return
        snapshots.began_s = time.monotonic()
        thread = threading.Thread(target=self._sample_stage, args=(snapshots,), daemon=True)
        thread.start()
        try:
            yield snapshots
        finally:
            if not snapshots.is_over:
                snapshots.end()
            thread.join()
        # Until nothing runs or waits: the counters then hold all of the stage.
        last, snapshots.drained = self._when_idle(snapshots.began_s + snapshots.ended_s, awaits_idle)
        snapshots.taken.append(last)

    def window(self, snapshots: Snapshots, stage: str, arm: Arm, block: int, position: int) -> TelemetryWindow | None:
        """Parse the snapshots of one stage. None where there was nothing to read."""
        if not self.reads:
            return None
        problems: dict[str, None] = {}  # each once, in order
        parsed = []
        for snapshot in snapshots.taken:
            problems.update(dict.fromkeys(map(str, snapshot.problems)))
            parsed.append(self._parse(snapshot, problems))
        times_s = [snapshot.taken_s - snapshots.began_s for snapshot in snapshots.taken]
        start = max((number for number, at_s in enumerate(times_s) if at_s <= 0), default=0)
        end = next((number for number, at_s in enumerate(times_s) if at_s >= snapshots.ended_s), len(parsed) - 1)
        stale = self._drop_outdated(parsed, start, end)
        problems.update(dict.fromkeys(_left_out(snapshots.ended_s, seldom) for seldom in stale))
        _bound_energy(parsed, start, end)
        names = self._replica_names(parsed, problems)
        roles = {name: page.role for one in parsed for name, page in one.replicas.items()}
        roles |= {replica.name: replica.role for replica in self._sources.replicas}
        taken, last_scrape = list[tuple[TelemetrySample, _Parsed]](), None
        for number, (snapshot, one) in enumerate(zip(snapshots.taken, parsed, strict=True)):
            at_s, is_edge = max(0.0, times_s[number]), number in (0, len(parsed) - 1)
            beside, values, marker = dict(one.accelerators), dict(one.values), one.marker
            if snapshot.client_load is not None:
                beside[Gauge.CLIENT_LOAD] = snapshot.client_load
            if not is_edge:
                at_s = times_s[number] - one.age_s
                if one.scrape is not None and beside and times_s[number] >= 0:
                    # What a Prometheus has is as old as its last scrape, and the rest was read now.
                    taken.append((TelemetrySample(times_s[number], beside), _Parsed()))
                    beside = {}
                if at_s < 0 or (one.scrape is not None and one.scrape == last_scrape):
                    continue
            last_scrape = one.scrape
            if self._combines:
                pages = {name: one.replicas.get(name) for name in names}
                values |= combine_replicas([(roles.get(n), page.values if page else {}) for n, page in pages.items()])
                marker = join_markers([page.marker if page else None for page in pages.values()])
            taken.append((TelemetrySample(at_s, values | beside, marker), one))
        taken[1:-1] = sorted(taken[1:-1], key=lambda pair: pair[0].at_s)
        has_values = any(one.values or one.accelerators or one.replicas for one in parsed)
        engines = {engine for one in parsed for engine in one.engines}
        replicas = [
            Replica(
                name,
                roles.get(name),
                tuple(
                    TelemetrySample(sample.at_s, page.values, page.marker)
                    if (page := one.replicas.get(name)) is not None
                    else TelemetrySample(sample.at_s, {})
                    for sample, one in taken
                ),
            )
            for name in names
        ]
        return TelemetryWindow(
            stage=stage,
            arm=arm,
            block=block,
            position=position,
            engine=", ".join(sorted(engines)) or None,
            ended_s=snapshots.ended_s,
            drained=snapshots.drained,
            readings=tuple(sample for sample, _ in taken) if has_values else (),
            problems=tuple(problems),
            replicas=tuple(replicas) if has_values else (),
        )

    def _drop_outdated(self, parsed: Sequence[_Parsed], start: int, end: int) -> list[str]:
        """Leave out power and energy of a page that changes too seldom for them to be those of the stage.

        Return a problem for each kind of page.
        """
        problems: dict[str, None] = {}
        if self._sources.gpu not in SMI_TOOLS:
            for one, kept in zip(parsed, _keep_refreshed([p.accelerators for p in parsed], start, end), strict=True):
                if len(kept) < len(one.accelerators):
                    one.accelerators, problems[_SELDOM] = kept, None
        if self._sources.prometheus is not None:
            return [*problems]  # its samples are dated by their scrapes, and hold no energy
        for one, kept in zip(parsed, _keep_refreshed([p.values for p in parsed], start, end), strict=True):
            if one.values.keys() - kept.keys() - one.accelerators.keys():  # those of accelerators come first
                problems[_SELDOM_OF_ENGINE] = None
            one.values = kept
        for name in {name for one in parsed for name in one.replicas}:
            pages = [one.replicas[name].values if name in one.replicas else {} for one in parsed]
            for one, kept in zip(parsed, _keep_refreshed(pages, start, end), strict=True):
                if name not in one.replicas:
                    continue
                if len(kept) < len(one.replicas[name].values):
                    problems[_SELDOM_OF_ENGINE] = None
                one.replicas[name] = replace(one.replicas[name], values=kept)
        return [*problems]

    @property
    def _combines(self) -> bool:
        """True if the values of the deployment are made of those of its replicas."""
        return bool(self._sources.replicas) or self._sources.prometheus is not None

    def _replica_names(self, parsed: Sequence[_Parsed], problems: dict[str, None]) -> list[str]:
        """Return every replica of the window: one that is missing at an instant leaves no sum then."""
        names = [replica.name for replica in self._sources.replicas]
        names += sorted({name for one in parsed for name in one.replicas} - {*names})
        if not self._combines and len(names) < 2:
            return []  # the label of a single server says nothing
        expected = self._sources.expected
        if self._sources.prometheus is not None and names and expected is not None and len(names) < expected:
            problems[f"Prometheus has series of {len(names)} replicas, and `ready` declares {expected}"] = None
            names += [f"not scraped #{number + 1}" for number in range(expected - len(names))]
        return names

    def _sample_stage(self, snapshots: Snapshots) -> None:
        began_s, due_s = snapshots.began_s, FIRST_SAMPLE_S
        while not snapshots.is_over:
            if snapshots.changed.wait(max(0.0, began_s + due_s - time.monotonic())):
                snapshots.changed.clear()
                began_s, due_s = snapshots.began_s, FIRST_SAMPLE_S
                continue
            snapshot = self._snapshot()
            snapshots.taken.append(snapshot)
            due_s = max(due_s + _EVERY_S, snapshot.taken_s - began_s)
        snapshots.taken.append(self._snapshot())  # the energy of the stage ends here

    def _when_idle(self, since_s: float, awaits_idle: bool = False) -> tuple[Snapshot, bool]:
        """Return the first snapshot of an idle server, or the last one within a limit; and whether it was idle.

        What a Prometheus reports must have been scraped after `since_s`. A server that does not report its running
        requests, or not that none are, is not waited for, and counts as not idle. An engine whose gauges lag
        (`idle_delay_s`) is waited for only with `awaits_idle`.
        """
        limit_s, every_s = (
            (_DRAIN_S, _DRAIN_EVERY_S) if self._sources.prometheus is None else (_SCRAPE_S, _SCRAPE_EVERY_S)
        )
        while True:
            snapshot = self._snapshot()
            now_s = snapshot.taken_s  # before the query: a scrape may look older than it is, never fresher
            parsed = self._parse(snapshot, {})
            pages = [parsed.values, *(page.values for page in parsed.replicas.values())]
            under_way = [values[gauge] for values in pages for gauge in _UNDER_WAY if gauge in values]
            scraped_s = now_s - parsed.age_s
            delay_s = max((PAGES[engine].idle_delay_s for engine in parsed.engines), default=0.0)
            never = not all(PAGES[engine].shows_idle for engine in parsed.engines)
            is_fresh = parsed.scrape is None or scraped_s >= since_s
            is_idle = not any(under_way) and (not delay_s or scraped_s >= since_s + delay_s)
            if is_fresh and (is_idle or never or (delay_s and not awaits_idle)):
                return snapshot, is_idle and bool(under_way) and not never
            if now_s >= since_s + limit_s + delay_s:
                if not is_fresh:
                    stale = UnreadError(f"Prometheus has no scrape of the {limit_s:g} s after the load ended")
                    snapshot = replace(snapshot, pages=(None,), problems=(*snapshot.problems, stale))
                return snapshot, False
            time.sleep(max(every_s, _SCRAPE_EVERY_S if delay_s else 0.0))

    def _snapshot(self) -> Snapshot:
        taken_s, problems = time.monotonic(), list(self._given_up.values())

        def fetch(number: int) -> Fetched | QueryResult | None:
            return self._fetch(_page_name(number), self._pages[number], problems)

        numbers = range(len(self._pages))
        pages = tuple(map(fetch, numbers) if self._threads is None else self._threads.map(fetch, numbers))
        gpu = None if self._gpu is None else self._fetch("gpu", self._gpu, problems)
        load = None
        with suppress(OSError):
            load = os.getloadavg()[0]  # of this machine over the last minute
        return Snapshot(taken_s, pages, gpu, load, tuple(problems))

    def _fetch(self, name: str, fetch: Callable[[], _T], problems: list[UnreadError]) -> _T | None:
        if name in self._given_up:
            return None
        try:
            return fetch()
        except UnreadError as exc:
            if exc.hopeless and name not in self._read_before:
                self._given_up[name] = exc
            problems.append(exc)
            return None

    def _parse(self, snapshot: Snapshot, problems: dict[str, None]) -> _Parsed:
        """Return the values of a snapshot. A source that never served any metrics is given up."""
        parsed = _Parsed()
        for number, fetched in enumerate(snapshot.pages):
            if fetched is None:
                continue
            try:
                if isinstance(fetched, QueryResult):
                    self._parse_series(fetched, parsed)
                else:
                    self._parse_page(number, fetched, parsed)
                self._read_before.add(_page_name(number))
            except BadPageError as exc:
                if isinstance(fetched, QueryResult):
                    problems[str(exc)] = None  # replicas that are not scraped yet may be later
                else:
                    reason = f"the page of metrics cannot be used: {exc}"
                    problems[self._give_up(_page_name(number), reason)] = None
        try:
            reading = snapshot.gpu
            if isinstance(reading, Fetched):
                reading = read_accelerators(reading.text, self._sources.devices)
            if reading is not None:
                parsed.accelerators.update(reading.values)
                problems.update(dict.fromkeys(reading.problems))
                self._read_before.add("gpu")
        except BadPageError as exc:
            problems[self._give_up("gpu", f"the accelerators' page of metrics cannot be used: {exc}")] = None
        return parsed

    def _parse_page(self, number: int, fetched: Fetched, parsed: _Parsed) -> None:
        page = read_page(fetched.text, self._target.model, fetched.start_time)
        parsed.engines.add(page.engine)
        if self._sources.replicas:
            replica = self._sources.replicas[number]
            parsed.replicas[replica.name] = ReplicaPage(page.values, page.marker, replica.role)
        else:
            parsed.values.update(page.values)
            parsed.marker, parsed.replicas = page.marker, dict(page.replicas)

    def _parse_series(self, result: QueryResult, parsed: _Parsed) -> None:
        query = self._sources.prometheus
        assert query is not None, "it was the source"
        samples, parsed.age_s, parsed.scrape = result.read()
        for name, role, own in query.replicas(samples):
            page = read_samples(own, self._target.model)
            parsed.engines.add(page.engine)
            # Idle replicas use energy too: from one scrape to another it is more than that of the stage.
            values = dict(page.values)
            values.pop(Counter.GPU_ENERGY_J, None)
            parsed.replicas[name] = ReplicaPage(values, page.marker, role)

    def _give_up(self, name: str, reason: str) -> str:
        if name not in self._read_before:
            self._given_up[name] = UnreadError(reason, hopeless=True)
        return reason
