"""Releases that lost a little each, or nothing, and how often the line on slow creep says so.

Each release was promoted by a run of its own, or by several that were all made beside the same baseline: then the way
on which most harm adds up is taken, and the more runs there are to choose from, the further it lies from the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.history import PastArm, PastCheck, PastRun, past_arm
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence
from benchgate.model.verdict import Scale, Unit
from benchgate.stats.means import paired_t
from benchgate.suite.schema import Creep
from benchmarks.gate_cells import seeded
from benchmarks.made_runs import Judged, executions, load_suite, run_of

_STAGE, _CHECK = "c2", "ttft-p50@c2"
_BLOCKS, _RELEASES = 20, 10
_ALPHA, _MARGIN, _CREEP = 0.05, math.log1p(0.05), math.log1p(0.10)
_TTFT_S = 0.1


@dataclass(frozen=True, slots=True)
class CreepCell:
    """Ten promotions that lost so many creep margins between them, each promoted by so many runs.

    `cv` is the spread of the executions of one arm; a run is of 20 blocks, and promotes where the margin of its own,
    5 %, is kept: what did not is no part of a history.
    """

    cv: float
    effect: float
    runs: int

    @property
    def name(self) -> str:
        """All that it is."""
        return f"creep of {self.effect:g} margins, {self.runs} runs a release, CV {self.cv:g}"

    def gates(self) -> Callable[[int], Judged]:
        """The line of the tenth promotion's run."""
        check: dict[str, object] = {"metric": "ttft", "margin": "5%", "stage": _STAGE}
        errors: dict[str, object] = {"metric": "error_rate", "max": "99%"}
        suite = load_suite([check, errors], [_STAGE], [_BLOCKS])
        gate = suite.gate.model_copy(update={"creep": Creep(releases=_RELEASES)})  # 10 % over all of them
        suite = suite.model_copy(update={"gate": gate})
        run = run_of(suite)
        own = past_arm(run.arms[Arm.BASELINE], run.environment)
        last = replace(own, release=own.fingerprint)  # nothing else tells the two made servers apart

        def judged(number: int) -> Judged:
            generator = seeded(self.name, number)
            history = self._history(generator, last)
            values = self._executions(generator)
            evidence = Evidence(run, tuple(executions(_STAGE, values)), (), None, (), history=history)
            (line,) = [one for one in judge(suite, evidence).checks if one.id == f"creep:{_CHECK}"]
            assert line.n == _RELEASES, "every promotion is counted"
            return Judged(line.outcome)

        return judged

    def _history(self, generator: np.random.Generator, last: PastArm) -> tuple[PastRun, ...]:
        """All promotions before this run's, the oldest first."""
        releases = [*(PastArm(f"r{k}", f"r{k}", f"r{k}", last.hardware) for k in range(_RELEASES - 1)), last]
        return tuple(
            self._promotion(generator, step * self.runs + again, releases[step], releases[step + 1])
            for step in range(_RELEASES - 1)
            for again in range(self.runs)
        )

    def _promotion(self, generator: np.random.Generator, number: int, baseline: PastArm, candidate: PastArm) -> PastRun:
        while True:
            values = np.log(self._executions(generator))
            harm = float(np.mean(values[:, 1] - values[:, 0]))
            found = paired_t(values[:, 1] - values[:, 0], _ALPHA)
            if found is not None and found.limits.upper < _MARGIN:
                break
        past = PastCheck(
            id=_CHECK, unit=Unit.SECONDS, scale=Scale.LOG_RATIO, baseline=_TTFT_S, candidate=_TTFT_S, harm=harm,
            lower=found.limits.lower, upper=found.limits.upper, alpha=_ALPHA, n=_BLOCKS,
        )  # fmt: skip
        day = f"{2000 + number // 12}-{number % 12 + 1:02}-01T00:00:00Z"
        return PastRun(f"run-{number:04}", day, None, baseline, candidate, {_CHECK: past})

    def _executions(self, generator: np.random.Generator) -> FloatArray:
        """By block and arm; the candidate slower by its share of what all of them lost."""
        harms = np.array([0.0, self.effect * _CREEP / _RELEASES])
        values: FloatArray = _TTFT_S * np.exp(generator.normal(0, self.cv, size=(_BLOCKS, 2)) + harms)
        return values
