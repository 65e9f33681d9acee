"""Two stored runs by their derived numbers alone, where raw records are gone: something to look at, never a decision.

A check is a test over blocks, requests or items, and those are what was removed. Two numbers with their intervals tell
how far apart the candidates were; whether that is allowed is left open, whatever they say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow

Key = tuple[str, str | None, str | None, str | None]
"""Name, statistic, stage and task of a number."""


@dataclass(frozen=True, slots=True)
class NumberPair:
    """One number of both runs: of their candidates, and of the baselines each was measured beside; None: not there.

    Only times and rates have a baseline here: of the same items, another day's baseline answers as this one's does.
    """

    name: str
    statistic: str | None
    stage: str | None
    task: str | None
    reference: MetricRow | None
    judged: MetricRow | None
    reference_baseline: MetricRow | None
    judged_baseline: MetricRow | None

    @property
    def change_ratio(self) -> float | None:
        """The judged candidate over the reference's, minus 1. None where one is missing, or the reference's is 0."""
        return _change(self.reference, self.judged)

    @property
    def change_beside_baselines_ratio(self) -> float | None:
        """The same of each candidate over its own baseline: what two machines, or two days, do not explain."""
        then, now = _change(self.reference_baseline, self.reference), _change(self.judged_baseline, self.judged)
        return None if then is None or now is None or then <= -1 else (1 + now) / (1 + then) - 1


def number_pairs(reference: Sequence[MetricRow], judged: Sequence[MetricRow]) -> tuple[NumberPair, ...]:
    """Every number that one of the candidates has, in the order of the judged run, then of the reference."""
    theirs, ours = _by_arm(reference), _by_arm(judged)
    keys = dict.fromkeys([*ours[Arm.CANDIDATE], *theirs[Arm.CANDIDATE]])
    return tuple(
        NumberPair(
            *key,
            reference=theirs[Arm.CANDIDATE].get(key),
            judged=ours[Arm.CANDIDATE].get(key),
            reference_baseline=theirs[Arm.BASELINE].get(key) if _is_of_load(key) else None,
            judged_baseline=ours[Arm.BASELINE].get(key) if _is_of_load(key) else None,
        )
        for key in keys
    )


def _is_of_load(key: Key) -> bool:
    return key[2] is not None


def _by_arm(rows: Sequence[MetricRow]) -> Mapping[Arm, dict[Key, MetricRow]]:
    return {arm: {(r.name, r.statistic, r.stage, r.task): r for r in rows if r.arm is arm} for arm in Arm}


def _change(before: MetricRow | None, after: MetricRow | None) -> float | None:
    if before is None or after is None or before.value == 0:
        return None
    return after.value / before.value - 1
