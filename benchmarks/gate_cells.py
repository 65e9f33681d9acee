"""Cells of a table of error rates: one kind of noise, one effect, one policy, and how often each verdict comes out.

A cell's runs are dealt out to processes in batches. Each is drawn from a seed that follows from the cell's name and its
number, so a cell has the same runs on any machine, whatever else is simulated.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol
from zlib import crc32

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.model.run import Run
from benchgate.model.verdict import Outcome
from benchgate.stats.proportions import clopper_pearson
from benchgate.suite.schema import Suite
from benchmarks.made_runs import REQUESTS, Judged, abba, decided, executions, load_suite, one_after_the_other, run_of

SEED = 6
_BATCH = 100
_ERROR = 0.025  # on each side of a simulated share


@dataclass(frozen=True, slots=True)
class Tally:
    """How so many simulated gates ended."""

    outcomes: dict[str, int]
    blocks: int = 0  # used, in all

    @property
    def gates(self) -> int:
        """All of them."""
        return sum(self.outcomes.values())

    def share(self, *outcomes: Outcome) -> float:
        """Of them that ended so."""
        return sum(self.outcomes.get(outcome.value, 0) for outcome in outcomes) / self.gates

    @property
    def promoted(self) -> float:
        """PASS or WARN."""
        return self.share(Outcome.PASS, Outcome.WARN)

    @property
    def blocked(self) -> float:
        """BLOCK."""
        return self.share(Outcome.BLOCK)

    @property
    def undecided(self) -> float:
        """INCONCLUSIVE or INVALID."""
        return self.share(Outcome.INCONCLUSIVE, Outcome.INVALID)

    def limits(self, share: float) -> tuple[float, float]:
        """Between what values a simulated share lies, at 95 %."""
        found = clopper_pearson(round(share * self.gates), self.gates, _ERROR)
        return found.lower, found.upper

    def __add__(self, other: Tally) -> Tally:
        return Tally(dict(Counter(self.outcomes) + Counter(other.outcomes)), self.blocks + other.blocks)


class Cell(Protocol):
    """What can be simulated: it has a name, and a gate for every generator."""

    @property
    def name(self) -> str:
        """Unlike any other cell's; its seed follows from it."""

    def gates(self) -> Callable[[int], Judged]:
        """The function that makes and judges a run, by its number; what all of them share is made once."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What moves a block's value without any effect of the candidate.

    `cv` is the spread of the executions of one arm. `drift` is how much slower the machine is at the end of the session
    than at its beginning, `memory` the correlation of an execution with the one before it, `shared` that of one check
    with another in the same execution. `requests` gives every execution so many of its own, whose times are correlated
    (`request_memory`) and spread by `request_spread`; without, an execution is its value.
    """

    cv: float
    drift: float = 0.0
    memory: float = 0.0
    shared: float = 0.0
    interleaved: bool = True
    requests: int = 0
    request_spread: float = 0.0
    request_memory: float = 0.0


@dataclass(frozen=True, slots=True)
class Made:
    """What all runs of one suite of load share."""

    suite: Suite
    run: Run
    rate: bool = False

    def decided(self, values: FloatArray) -> Judged:
        """The run whose checks have these values, of shape (checks, blocks, arms), or (..., requests)."""
        assert self.suite.load is not None, "a suite of load"
        made = [
            executions(stage.name, of_stage, rate=self.rate)
            for stage, of_stage in zip(self.suite.load.sweep, values, strict=True)
        ]
        return decided(self.suite, self.run, lambda blocks: tuple(o for of in made for o in of[: 2 * blocks]))


@dataclass(frozen=True, slots=True)
class LoadCell:
    """Load checks of one metric, of which the first is harmed: `effect` margins of it."""

    noise: Noise
    effect: float
    margin: float
    looks: tuple[int, ...] = (5, 10, 20)  # after how many blocks; one: a fixed number of them
    checks: int = 1
    rate: bool = False
    block_when: str = "harm"

    @property
    def name(self) -> str:
        """All that it is."""
        return json.dumps(asdict(self), sort_keys=True)

    def gates(self) -> Callable[[int], Judged]:
        """As `Cell` says."""
        stages = [f"s{number}" for number in range(self.checks)]
        metric = "output_throughput" if self.rate else "ttft"
        bound = {"margin": f"{self.margin * 100:g}%", "block_when": self.block_when}
        checks: list[dict[str, object]] = [{"metric": metric, "stage": stage, **bound} for stage in stages]
        suite = load_suite(checks, stages, self.looks, self.noise.requests or REQUESTS)
        return partial(self._gate, Made(suite, run_of(suite), self.rate))

    def _gate(self, made: Made, number: int) -> Judged:
        generator = seeded(self.name, number)
        logs = drawn(self.noise, self.checks, self.looks[-1], generator)
        logs[0, :, 1] += self.harm
        values = np.exp(-logs if self.rate else logs)
        return made.decided(_with_requests(values, self.noise, generator) if self.noise.requests else values)

    @property
    def harm(self) -> float:
        """The effect as a log ratio: of a rate, what is lost is a part of the baseline's."""
        amount = self.effect * self.margin
        return -math.log1p(-amount) if self.rate else math.log1p(amount)


def seeded(name: str, number: int) -> np.random.Generator:
    """What a cell's run of that number is drawn from."""
    return np.random.default_rng([SEED, crc32(name.encode()), number])


def drawn(noise: Noise, checks: int, blocks: int, generator: np.random.Generator) -> FloatArray:
    """Log values without any effect, of shape (checks, blocks, arms)."""
    turns = abba(blocks) if noise.interleaved else one_after_the_other(blocks)
    own = _remembering(noise.memory, generator.normal(size=(checks, 2 * blocks)))
    common = _remembering(noise.memory, generator.normal(size=(1, 2 * blocks)))
    in_time = noise.cv * (math.sqrt(noise.shared) * common + math.sqrt(1 - noise.shared) * own)
    in_time += np.log1p(noise.drift * np.linspace(0, 1, 2 * blocks))
    logs: FloatArray = in_time[:, turns]
    return logs


def _remembering(memory: float, steps: FloatArray) -> FloatArray:
    """A stationary first-order autoregression along the last axis, of variance 1."""
    if memory == 0:
        return steps
    out = steps.copy()
    for at in range(1, out.shape[-1]):
        out[..., at] = memory * out[..., at - 1] + math.sqrt(1 - memory**2) * steps[..., at]
    return out


def _with_requests(values: FloatArray, noise: Noise, generator: np.random.Generator) -> FloatArray:
    """The time of every request around the values of their executions."""
    steps = generator.normal(size=(*values.shape, noise.requests))
    scaled: FloatArray = values[..., None] * np.exp(noise.request_spread * _remembering(noise.request_memory, steps))
    return scaled


def simulated(cells: Sequence[tuple[Cell, int]], kept: Path | None, processes: int) -> Iterator[tuple[Cell, Tally]]:
    """Every cell with so many gates, in order. What `kept` has already is not done again, and it gets what is."""
    known = _read(kept)
    with ProcessPoolExecutor(processes) as pool:
        for cell, gates in cells:
            name = f"{type(cell).__name__} {cell.name} x {gates}"
            if name not in known:
                batches = [(cell, at, min(_BATCH, gates - at)) for at in range(0, gates, _BATCH)]
                known[name] = _sum(pool.map(_simulate, batches))
                _write(kept, known)
            yield cell, known[name]


def _simulate(batch: tuple[Cell, int, int]) -> Tally:
    """Some gates of one cell."""
    cell, first, count = batch
    gate, outcomes, blocks = cell.gates(), Counter[str](), 0
    for number in range(first, first + count):
        judged = gate(number)
        outcomes[judged.outcome.value] += 1
        blocks += judged.blocks
    return Tally(dict(outcomes), blocks)


def _sum(tallies: Iterable[Tally]) -> Tally:
    total = Tally({})
    for tally in tallies:
        total += tally
    return total


def _read(kept: Path | None) -> dict[str, Tally]:
    if kept is None or not kept.exists():
        return {}
    return {name: Tally(**tally) for name, tally in json.loads(kept.read_text(encoding="utf-8")).items()}


def _write(kept: Path | None, known: dict[str, Tally]) -> None:
    if kept is not None:
        part = kept.with_suffix(".part")
        part.write_text(json.dumps({name: asdict(tally) for name, tally in known.items()}, indent=1), encoding="utf-8")
        part.replace(kept)


def shown_looks(looks: tuple[int, ...]) -> str:
    """`5, 10 and 20`."""
    return " and ".join(filter(None, (", ".join(map(str, looks[:-1])), str(looks[-1]))))


def usual_processes() -> int:
    """As many as this process may use cores."""
    return len(os.sched_getaffinity(0))
