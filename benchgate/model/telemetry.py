"""Telemetry of servers and machines during a stage, under the same metric names for every engine.

A *counter* only grows while its server lives, so its change over a window counts. A *gauge* is a state, so its mean and
maximum count. Values that a server does not report are absent, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, pairwise

from benchgate.model.deployment import Arm


class Gauge(StrEnum):
    """Gauges. Ratios run from 0 to 1; `client_*` are of the load generator's machine, not of the server's."""

    RUNNING = "running_requests"
    WAITING = "waiting_requests"
    KV_USAGE = "kv_usage_ratio"  # of several replicas the largest
    KV_USAGE_MEAN = "kv_usage_mean_ratio"  # over replicas; of a single one not reported
    ACCEPTANCE = "speculation_acceptance_ratio"  # of engines that report only the ratio
    GPU_BUSY = "gpu_busy_ratio"
    GPU_BANDWIDTH = "gpu_memory_bandwidth_ratio"  # of peak memory bandwidth
    GPU_MEMORY_BUSY = "gpu_memory_busy_ratio"  # share of time with any memory access
    GPU_MEMORY_USED = "gpu_memory_used_ratio"
    GPU_POWER = "gpu_power_w"  # sum over accelerators
    GPU_CLOCK = "gpu_clock_hz"  # of multiprocessors, mean over accelerators
    CLIENT_LOAD = "client_load_average"


class Counter(StrEnum):
    """Counters. `*_s` are sums of seconds over requests, and `*_requests` next to them count those requests."""

    PROMPT_TOKENS = "prompt_tokens"  # cached ones included
    GENERATION_TOKENS = "generation_tokens"
    REQUESTS = "finished_requests"
    PREFIX_QUERIES = "prefix_cache_queries_tokens"
    PREFIX_HITS = "prefix_cache_hits_tokens"
    DRAFTED = "speculation_drafted_tokens"
    ACCEPTED = "speculation_accepted_tokens"
    PREEMPTIONS = "preemptions"
    QUEUE_S = "queue_s"
    QUEUED = "queued_requests"
    PREFILL_S = "prefill_s"
    PREFILLED = "prefilled_requests"
    DECODE_S = "decode_s"
    DECODED = "decoded_requests"
    GPU_ENERGY_J = "gpu_energy_j"


TelemetryMetric = Gauge | Counter


class Role(StrEnum):
    """Part of a request that a replica serves, where prefill and decode are split."""

    PREFILL = "prefill"
    DECODE = "decode"


_BY_ONE_ROLE: Mapping[TelemetryMetric, Role] = {
    Counter.PROMPT_TOKENS: Role.PREFILL,
    Counter.PREFIX_QUERIES: Role.PREFILL,
    Counter.PREFIX_HITS: Role.PREFILL,
    Counter.PREFILL_S: Role.PREFILL,
    Counter.PREFILLED: Role.PREFILL,
    Counter.GENERATION_TOKENS: Role.DECODE,
    Counter.REQUESTS: Role.DECODE,
    Counter.QUEUED: Role.DECODE,
    Counter.DRAFTED: Role.DECODE,
    Counter.ACCEPTED: Role.DECODE,
    Counter.DECODE_S: Role.DECODE,
    Counter.DECODED: Role.DECODE,
    Gauge.ACCEPTANCE: Role.DECODE,
}
"""Metrics that both roles report for one request; only those of this role count."""
_ADDED_UP = frozenset({Gauge.RUNNING, Gauge.WAITING, Gauge.GPU_POWER, *Counter})


def combine_replicas(
    replicas: Sequence[tuple[Role | None, Mapping[TelemetryMetric, float]]],
) -> dict[TelemetryMetric, float]:
    """Return the values of a whole deployment: sums, the fullest KV cache, and means of the other ratios.

    A metric that one of its replicas lacks has no value. Where prefill and decode are split, a request passes through
    both roles and is counted once.
    """
    combined: dict[TelemetryMetric, float] = {}
    is_split = {role for role, _ in replicas} >= set(Role)
    for metric in dict.fromkeys(metric for _, values in replicas for metric in values):
        counting = _BY_ONE_ROLE.get(metric) if is_split else None
        values = [values.get(metric) for role, values in replicas if counting in (None, role) or role is None]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            combined[metric] = sum(known) if metric in _ADDED_UP else sum(known) / len(known)
            if metric is Gauge.KV_USAGE:
                combined |= {metric: max(known), Gauge.KV_USAGE_MEAN: combined[metric]}
    return combined


FIRST_SAMPLE_S = 0.5  # time of the first sample after a stage's start; later ones come every second
_AT_S = 1e-9  # tolerance of equal instants
_UNDER_WAY = (Gauge.RUNNING, Gauge.WAITING)


@dataclass(frozen=True, slots=True)
class TelemetrySample:
    """Sample of all values at about one instant; unreported ones are absent."""

    at_s: float  # after the stage began
    values: Mapping[TelemetryMetric, float]
    marker: str | None = None  # changes when another server process answers; None if unreported


@dataclass(frozen=True, slots=True)
class Replica:
    """Samples of one replica, at the instants of its window's; one without values: it did not answer."""

    name: str
    role: Role | None
    readings: tuple[TelemetrySample, ...]


@dataclass(frozen=True, slots=True)
class TelemetryWindow:
    """Samples before, during and after one stage of one side in one block, in order of time.

    `readings` are those of the whole deployment; `replicas` are known where its metrics tell them apart.
    """

    stage: str
    arm: Arm
    block: int
    position: int
    engine: str | None  # engine by the metric names of the page; None when it was not read
    ended_s: float  # arrival of the stage's last answer
    drained: bool  # the last sample follows the end of all work on the server, not a time limit
    readings: tuple[TelemetrySample, ...]
    problems: tuple[str, ...] = ()  # why samples, or figures of them, are missing
    replicas: tuple[Replica, ...] = ()

    def of(self, replica: Replica) -> TelemetryWindow:
        """Return the window of one replica alone."""
        return replace(self, readings=replica.readings, replicas=())

    @property
    def restarted_replicas(self) -> tuple[str, ...]:
        """Return the names of replicas that were restarted within the window, as far as they report it."""
        return tuple(replica.name for replica in self.replicas if self.of(replica).restarted)

    def change(self, word: Counter) -> float | None:
        """Return the growth of a counter over the stage; None when not reported at both ends, or after a restart."""
        if len(self.readings) < 2 or len(self.markers) > 1 or self.restarted_replicas:
            return None
        before, after = self.readings[0].values.get(word), self.readings[-1].values.get(word)
        if before is None or after is None:
            return None
        reported = [value for reading in self.readings if (value := reading.values.get(word)) is not None]
        return after - before if all(one <= other for one, other in pairwise(reported)) else None

    def during(self, word: Gauge) -> tuple[float, ...]:
        """Return the values of a gauge during the stage; empty for a short stage or an unreported gauge."""
        return tuple(value for reading in self.busy if (value := reading.values.get(word)) is not None)

    @property
    def busy(self) -> tuple[TelemetrySample, ...]:
        """Return the samples during the stage, from the first to the last with a request under way.

        The timed stage also includes opening connections and reading the last answers.
        """
        inside = tuple(reading for reading in self.readings[1:-1] if reading.at_s <= self.ended_s + _AT_S)
        at_work = [i for i, reading in enumerate(inside) if any(reading.values.get(word) for word in _UNDER_WAY)]
        return inside[at_work[0] : at_work[-1] + 1] if at_work else inside

    def mean(self, word: Gauge) -> float | None:
        """Return the mean of a gauge during the stage; None without samples."""
        values = self.during(word)
        return sum(values) / len(values) if values else None

    def peak(self, word: Gauge) -> float | None:
        """Return the largest sampled value of a gauge during the stage; None without samples."""
        return max(self.during(word), default=None)

    def after(self, word: Gauge) -> float | None:
        """Return a gauge when the server had become idle after the stage; None if it never did."""
        return self.readings[-1].values.get(word) if self.drained and self.readings else None

    def reports(self, word: TelemetryMetric) -> bool:
        """Return True if any sample reports this value."""
        return any(word in reading.values for reading in self.readings)

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the markers of the answering processes in order, without repeats in a row."""
        markers = [reading.marker for reading in self.readings if reading.marker is not None]
        return tuple(marker for marker, _ in groupby(markers))

    @property
    def restarted(self) -> bool:
        """Return True if another process answered within the window, or a counter of the server (not energy) fell.

        Each value is compared with the last one that was reported: a server that is down in between reports nothing.
        """
        counters = [word for word in Counter if word is not Counter.GPU_ENERGY_J]
        reported = ([v for r in self.readings if (v := r.values.get(word)) is not None] for word in counters)
        fell = any(other < one for values in reported for one, other in pairwise(values))
        return fell or len(self.markers) > 1 or bool(self.restarted_replicas)

    def ratio(self, part: Counter, whole: Counter) -> float | None:
        """Return the growth of one counter over that of another; None if unreported or nothing was counted."""
        value, over = self.change(part), self.change(whole)
        return value / over if value is not None and over else None

    @property
    def prefix_hit_ratio(self) -> float | None:
        """Return tokens found in the prefix cache over those looked up; None if unreported or none were looked up."""
        return self.ratio(Counter.PREFIX_HITS, Counter.PREFIX_QUERIES)

    @property
    def acceptance_ratio(self) -> float | None:
        """Return accepted over drafted tokens; where the engine reports only a ratio, its mean. None if unknown."""
        if self.reports(Counter.DRAFTED):
            return self.ratio(Counter.ACCEPTED, Counter.DRAFTED)
        return self.mean(Gauge.ACCEPTANCE)

    @property
    def energy_j(self) -> float | None:
        """Return the energy of the accelerators during the stage: by their counter, else mean power times duration.

        An accelerator always draws power, so a counter that did not grow was not refreshed.
        """
        counted = self.change(Counter.GPU_ENERGY_J)
        if counted:
            return counted
        power_w = self.mean(Gauge.GPU_POWER)
        return None if power_w is None else power_w * self.ended_s


def total_change(windows: Iterable[TelemetryWindow], counter: Counter) -> float | None:
    """Return the growth of a counter over the windows that report it; None if none does."""
    changes = [change for window in windows if (change := window.change(counter)) is not None]
    return sum(changes) if changes else None


def ratio_of_changes(windows: Iterable[TelemetryWindow], part: Counter, whole: Counter) -> float | None:
    """Return the growth of one counter over that of another, over the windows that report both.

    A counter that a server shows from its first event on is missing from the first window alone. None where nothing was
    counted.
    """
    both = [(window.change(part), window.change(whole)) for window in windows]
    known = [(value, over) for value, over in both if value is not None and over is not None]
    total = sum(over for _, over in known)
    return sum(value for value, _ in known) / total if total else None
