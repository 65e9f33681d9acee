"""Accuracy over items that share passages: how often the gate is wrong, told of the passages and not told.

Each item fares as its passage does with a probability whose square is the correlation of two items of a passage; else
it fares by itself. To fare is to be lost, gained, right in both arms or wrong in both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, Run
from benchgate.suite.schema import Suite
from benchmarks.gate_cells import seeded
from benchmarks.made_runs import Judged, answers, eval_suite, run_of

_RIGHT = 0.85  # of the items that both arms answer alike


@dataclass(frozen=True, slots=True)
class ClusterCell:
    """So many passages of so many items; `discordance` is the share of items that one arm alone gets right."""

    passages: int
    items: int
    discordance: float
    correlation: float
    effect: float
    margin: float
    told: bool  # whether the suite says which items share a passage

    @property
    def name(self) -> str:
        """All that it is."""
        return json.dumps(asdict(self), sort_keys=True)

    def gates(self) -> Callable[[int], Judged]:
        """As `gate_cells.Cell` says."""
        checks: list[dict[str, object]] = [{"metric": "accuracy", "margin": f"{self.margin * 100:g} points"}]
        suite = eval_suite(checks, told=self.told)
        return partial(self._gate, suite, run_of(suite))

    def _gate(self, suite: Suite, run: Run, number: int) -> Judged:
        generator = seeded(self.name, number)
        passage = np.repeat(np.arange(self.passages), self.items)
        harm = self.effect * self.margin
        lost, gained = (self.discordance + harm) / 2, (self.discordance - harm) / 2
        kinds, weights = 4, [lost, gained, (1 - lost - gained) * _RIGHT, (1 - lost - gained) * (1 - _RIGHT)]
        own = generator.choice(kinds, size=passage.size, p=weights)
        common = generator.choice(kinds, size=self.passages, p=weights)[passage]
        fate = np.where(generator.random(passage.size) < math.sqrt(self.correlation), common, own)
        arms = {Arm.BASELINE: (fate == 0) | (fate == 2), Arm.CANDIDATE: (fate == 1) | (fate == 2)}
        shared = passage.tolist() if self.told else None
        quality = tuple(answers(arm, right.tolist(), shared) for arm, right in arms.items())
        return Judged(judge(suite, Evidence(run, (), quality, None, ())).outcome)
