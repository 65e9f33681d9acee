"""What servers and machines say of themselves while a stage runs: one vocabulary for every engine.

A *counter* only grows while its server lives, so its change over a window is what counts; a *gauge* is a state, so its
mean and its largest value are. What a server does not say is absent: never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from benchgate.model.deployment import Arm


class Gauge(StrEnum):
    """States. Ratios run from 0 to 1; `client_*` are of the load generator's machine, not of the server's."""

    RUNNING = "running_requests"
    WAITING = "waiting_requests"
    KV_USAGE = "kv_usage_ratio"
    ACCEPTANCE = "speculation_acceptance_ratio"  # where an engine tells only the ratio
    GPU_BUSY = "gpu_busy_ratio"
    GPU_BANDWIDTH = "gpu_memory_bandwidth_ratio"  # of the peak bandwidth of its memory
    GPU_MEMORY_BUSY = "gpu_memory_busy_ratio"  # share of the time in which memory was read or written at all
    GPU_MEMORY_USED = "gpu_memory_used_ratio"
    GPU_POWER = "gpu_power_w"  # of all accelerators together
    GPU_CLOCK = "gpu_clock_hz"  # of their multiprocessors, mean over all accelerators
    CLIENT_LOAD = "client_load_average"


class Counter(StrEnum):
    """What only grows. `*_s` add up seconds over requests, and `*_requests` beside them say over how many."""

    PROMPT_TOKENS = "prompt_tokens"  # those that came out of the prefix cache included
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


Word = Gauge | Counter

FIRST_LOOK_S = 0.5
"""When a stage is looked at first while it runs, after its start; then once a second."""

_AT_S = 1e-9  # instants this close are one
_UNDER_WAY = (Gauge.RUNNING, Gauge.WAITING)


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything read at about one instant, `at_s` seconds after the stage began; absent words were not told.

    `marker` changes when the server is another process than before; None where it says nothing of the kind.
    """

    at_s: float
    values: Mapping[Word, float]
    marker: str | None = None


@dataclass(frozen=True, slots=True)
class TelemetryWindow:
    """What was read around and during one stage of one arm in one block, in order of time.

    The first reading lies before the stage, the last one after the server had nothing more to do (`drained`) or was
    given up on. `ended_s` is when the stage's last answer was there. Without readings, `problems` say why.
    """

    stage: str
    arm: Arm
    block: int
    position: int
    engine: str | None  # whose names the page spoke; None when it was not read
    ended_s: float
    drained: bool
    readings: tuple[Reading, ...]
    problems: tuple[str, ...] = ()

    def change(self, word: Counter) -> float | None:
        """How much a counter grew from before the stage to after it; None when not told at both ends, or restarted."""
        if len(self.readings) < 2 or len(self.markers) > 1:
            return None
        before, after = self.readings[0].values.get(word), self.readings[-1].values.get(word)
        if before is None or after is None:
            return None
        told = [value for reading in self.readings if (value := reading.values.get(word)) is not None]
        return after - before if all(one <= other for one, other in pairwise(told)) else None

    def during(self, word: Gauge) -> tuple[float, ...]:
        """The values of a gauge while the stage ran; none where it was too short to look, or is not told."""
        return tuple(value for reading in self.busy if (value := reading.values.get(word)) is not None)

    @property
    def busy(self) -> tuple[Reading, ...]:
        """The looks during the stage, without those before its first and after its last request was under way.

        The stage as it is timed here begins with opening connections and ends with reading what was answered.
        """
        inside = tuple(reading for reading in self.readings[1:-1] if reading.at_s <= self.ended_s + _AT_S)
        at_work = [i for i, reading in enumerate(inside) if any(reading.values.get(word) for word in _UNDER_WAY)]
        return inside[at_work[0] : at_work[-1] + 1] if at_work else inside

    def mean(self, word: Gauge) -> float | None:
        """Mean of a gauge over the looks during the stage."""
        seen = self.during(word)
        return sum(seen) / len(seen) if seen else None

    def peak(self, word: Gauge) -> float | None:
        """Largest value of a gauge during the stage, as far as the looks caught it."""
        return max(self.during(word), default=None)

    def before(self, word: Gauge) -> float | None:
        """A gauge just before the stage."""
        return self.readings[0].values.get(word) if self.readings else None

    def after(self, word: Gauge) -> float | None:
        """A gauge once the stage was over and the server idle; None when it never became idle."""
        return self.readings[-1].values.get(word) if self.drained and self.readings else None

    def tells(self, word: Word) -> bool:
        """Whether any look found it told."""
        return any(word in reading.values for reading in self.readings)

    @property
    def markers(self) -> tuple[str, ...]:
        """Who answered, in order, each named once in a row."""
        told = [reading.marker for reading in self.readings if reading.marker is not None]
        return tuple(marker for i, marker in enumerate(told) if i == 0 or marker != told[i - 1])

    @property
    def restarted(self) -> bool:
        """Whether another process answered within the window, or a counter of the server went back."""
        return len(self.markers) > 1 or any(_fell(*pair) for pair in pairwise(self.readings))

    @property
    def prefix_hit_ratio(self) -> float | None:
        """Tokens found in the prefix cache over those looked up. None when not told, or nothing was looked up."""
        return _ratio(self.change(Counter.PREFIX_HITS), self.change(Counter.PREFIX_QUERIES))

    @property
    def acceptance_ratio(self) -> float | None:
        """Drafted tokens that the model accepted, over those drafted."""
        counted = _ratio(self.change(Counter.ACCEPTED), self.change(Counter.DRAFTED))
        return self.mean(Gauge.ACCEPTANCE) if counted is None else counted

    @property
    def energy_j(self) -> float | None:
        """What the accelerators used during the stage: by their own counter, else mean power times its length."""
        counted = self.change(Counter.GPU_ENERGY_J)
        if counted is not None:
            return counted
        power_w = self.mean(Gauge.GPU_POWER)
        return None if power_w is None else power_w * self.ended_s


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _fell(one: Reading, other: Reading) -> bool:
    """A counter never falls while its server lives. Energy is of the machine, not of the server."""
    told = (word for word in Counter if word is not Counter.GPU_ENERGY_J and word in one.values)
    return any(other.values.get(word, one.values[word]) < one.values[word] for word in told)
