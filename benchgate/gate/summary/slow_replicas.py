"""Replicas that are slower than the others of their deployment. For notes only; no check uses it.

A gray replica passes its health checks and serves its share of the requests, slowly. The pace of a replica is the time
that it spends on a token (on a prompt, where it only reads prompts), by its own counters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Counter, Replica, Role, TelemetryWindow
from benchgate.stats.means import paired_t
from benchgate.units import show_multiple

_SLOWER = 1.25  # times the others' pace: a replica with more traffic has larger batches, and is a little slower
_ALPHA = 0.01  # of all replicas, stages and arms of a run together
_LEAST_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class SlowReplica:
    """A replica, how many times slower than the others it is, and the lower bound of that."""

    arm: Arm
    stage: str
    replica: str
    role: Role | None
    others: int
    factor: float
    least_factor: float

    @property
    def shown(self) -> str:
        """The finding in words."""
        kind = f"{self.role.value} replica" if self.role is not None else "replica"
        others = f"the other {self.others}" if self.others > 1 else "the other one"
        figures = f"{show_multiple(self.factor)} the time per {'prompt' if self.role is Role.PREFILL else 'token'}"
        least = f"at least {show_multiple(self.least_factor)}"
        return f"stage {self.stage}, {self.arm.value}: {kind} {self.replica} takes {figures} of {others} ({least})"


def slow_replicas(run: Evidence) -> tuple[SlowReplica, ...]:
    """Return the replicas that are demonstrably slower: a t-test over blocks of ln(own pace / pace of the others).

    The level is divided by the number of tests of the run (Bonferroni).
    """
    stages = dict.fromkeys(window.stage for window in run.telemetry)
    pairs = list(product(Arm, stages))
    found = [(arm, stage, *one) for arm, stage in pairs for one in _log_ratios(_windows(run, arm, stage))]
    slow = []
    for arm, stage, replica, others, ratios in found:
        test = paired_t(np.array(ratios), _ALPHA / len(found), margin=math.log(_SLOWER))
        assert test is not None, "there are three finite ratios or more"
        if test.limits.lower > math.log(_SLOWER):
            figures = math.exp(test.mean), math.exp(test.limits.lower)
            slow.append(SlowReplica(arm, stage, replica.name, replica.role, others, *figures))
    return tuple(slow)


def slow_replica_notes(run: Evidence) -> tuple[str, ...]:
    """Return a note on every slow replica."""
    return tuple(one.shown for one in slow_replicas(run))


def _windows(run: Evidence, arm: Arm, stage: str) -> list[TelemetryWindow]:
    return [window for window in run.telemetry if window.arm is arm and window.stage == stage and window.replicas]


def _log_ratios(windows: Sequence[TelemetryWindow]) -> Iterator[tuple[Replica, int, list[float]]]:
    """Yield each replica with the number of others of its role and ln(own pace / their pace) of every block."""
    ratios: dict[str, list[float]] = {}
    known: dict[str, tuple[Replica, int]] = {}
    for window in windows:
        work = [(replica, _work(window, replica)) for replica in window.replicas]
        for replica, own in work:
            others = [one for other, one in work if other.name != replica.name and other.role is replica.role]
            measured = [one for one in others if one is not None]
            if own is None or not measured or len(measured) < len(others):
                continue
            seconds, count = (sum(part) for part in zip(*measured, strict=True))
            ratios.setdefault(replica.name, []).append(math.log(own[0] / own[1]) - math.log(seconds / count))
            known[replica.name] = replica, len(others)
    yield from ((*known[name], found) for name, found in ratios.items() if len(found) >= _LEAST_BLOCKS)


def _work(window: TelemetryWindow, replica: Replica) -> tuple[float, float] | None:
    """Return a replica's seconds of service in a stage and its tokens (or prompts); None if it served nothing."""
    own = window.of(replica)
    if replica.role is Role.PREFILL:
        seconds, count = own.change(Counter.PREFILL_S), own.change(Counter.PREFILLED)
    else:
        seconds, count = own.change(Counter.DECODE_S), own.change(Counter.GENERATION_TOKENS)
    return (seconds, count) if seconds and count else None
