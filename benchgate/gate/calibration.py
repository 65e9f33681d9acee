"""From a calibration's evidence to figures: how much each number varies by itself, and how often answers differ.

How often a suite's own policy would block what has not changed: the gate itself, over exchanged pairs.

Both arms of a calibration are one deployment, so which of the two a measurement is called says nothing. Each draw takes
as many pairs as a run would have at most, in an order of its own, names the arms of each by a coin, and is decided like
a run: look by look, until the gate stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.comparison import Place, paired_load, places, quality_of
from benchgate.gate.decision import Problem
from benchgate.gate.evidence.blocks import LATENCIES, Measure, block_pairs
from benchgate.gate.evidence.items import pair_task
from benchgate.gate.evidence.prompts import usable_rows
from benchgate.gate.evidence.shares import tally_of
from benchgate.gate.interim import ContinueLoad, next_step
from benchgate.gate.judge import judge
from benchgate.gate.policy import concrete_checks
from benchgate.model.deployment import Arm
from benchgate.model.metric import MEAN, METRICS, QUANTILES, THROUGHPUT_METRICS
from benchgate.model.noise import FalseBlocks, NoiseSpread, SelfDisagreement
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence, LoadEnd, LoadObservation
from benchgate.model.telemetry import TelemetryWindow
from benchgate.model.verdict import Outcome, Verdict
from benchgate.stats.distributions import pooled_deviation
from benchgate.suite.schema import Suite

SHARES = ("error_rate", "goodput", "rejected", "validity")
"""The shares of requests that a block has."""


def spreads(evidence: Evidence, suite: Suite) -> tuple[NoiseSpread, ...]:
    """Every number of every place of the load that both arms have in each of two blocks at least.

    A number that a block lacks (nothing succeeded, nothing of the kind was asked) has no spread, and is left out.
    Blocks that a high quantile needs together count as one, as in a check.
    """
    found: list[NoiseSpread] = []
    for place in places(suite):
        ratios = (_of_ratio(evidence, place, measure) for measure in _measures())
        shares = (_of_share(evidence, place, metric) for metric in SHARES)
        found += [one for one in (*ratios, *shares) if one is not None]
    return tuple(found)


def _measures() -> Iterator[Measure]:
    for metric in LATENCIES:
        for statistic, q in QUANTILES.items():
            yield Measure(metric, q, statistic)
        if metric != "itl":  # it has many values a request, so its requests are not paired
            yield Measure(metric, 0.5, MEAN)
    for metric in (*THROUGHPUT_METRICS, "output_length"):
        yield Measure(metric, 0.5)


def _of_ratio(evidence: Evidence, place: Place, measure: Measure) -> NoiseSpread | None:
    pairs = block_pairs(evidence, place.name, measure)
    if isinstance(pairs, Problem):
        return None
    values = np.concatenate([pairs.baseline, pairs.candidate])
    if not np.isfinite(values).all() or values.min() <= 0:
        return None
    return _spread(measure.metric, measure.statistic, place, np.log(pairs.baseline), np.log(pairs.candidate))


def _of_share(evidence: Evidence, place: Place, metric: str) -> NoiseSpread | None:
    """Of requests that missed, in every block of both arms; None where a block has none that could."""
    if metric == "goodput" and place.slo is None:
        return None
    tally = tally_of(metric, place.slo)
    counted = [[tally(execution) for execution in pair] for pair in paired_load(evidence, place.name)]
    if any(of == 0 for pair in counted for _, of in pair):
        return None
    first, second = (np.array([pair[side][0] / pair[side][1] for pair in counted]) for side in (0, 1))
    return _spread(metric, None, place, first, second)


def _spread(
    metric: str, statistic: str | None, place: Place, first: FloatArray, second: FloatArray
) -> NoiseSpread | None:
    deviation = pooled_deviation(first, second)
    if deviation is None:
        return None
    return NoiseSpread(metric, statistic, place.name, deviation, float(np.std(second - first, ddof=1)), len(first))


def disagreements(evidence: Evidence) -> tuple[SelfDisagreement, ...]:
    """How often the deployment, asked twice, answered an item of each task otherwise (right one time, wrong the other;
    another score), and a shadow prompt. What could not be paired is left out."""
    found = []
    for task in dict.fromkeys(o.task for o in evidence.quality if o.repeat == 0):
        first, again = (quality_of(evidence, arm, task) for arm in Arm)
        pairs = pair_task(first, again) if first is not None and again is not None else None
        if pairs is not None and not isinstance(pairs, Problem) and len(pairs):
            share = float(np.mean(pairs.baseline != pairs.candidate))
            found.append(SelfDisagreement("task", task, share, len(pairs)))
    rows = usable_rows(evidence) if evidence.shadow is not None else ()
    twice = [row for row in rows if not row.once] if not isinstance(rows, Problem) else []
    if twice:
        share = sum(row.differs_itself for row in twice) / len(twice)
        found.append(SelfDisagreement("shadow", "shadow", share, len(twice)))
    return tuple(found)


def false_blocks(
    suite: Suite,
    calibration: Evidence,
    generator: np.random.Generator,
    *,
    draws: int = 200,
    told: Callable[[str], None] = lambda done: None,
) -> FalseBlocks | None:
    """What the suite's checks of load say of so many draws; None where it has no required one, or no two blocks.

    Pairs are drawn with replacement only where the calibration has fewer than a run may have. Draws are of the same few
    pairs: their number says how finely the share is known for these, not for the deployment. `told` hears of each.
    """
    policy = _of_load(suite)
    numbers = sorted({o.block for o in calibration.load})
    if policy is None or policy.load is None or len(numbers) < 2:
        return None
    cards = _Cards(calibration, policy)
    if not any(spec.check.required for spec in concrete_checks(policy, cards.without_load)):
        return None
    most = policy.load.blocks
    found: Counter[Outcome] = Counter()
    why: Counter[str] = Counter()
    for draw in range(draws):
        order = generator.choice(numbers, size=most, replace=most > len(numbers))
        exchanged = generator.integers(0, 2, size=most)
        verdict = _decided(policy, cards.dealt([int(n) for n in order], [bool(turn) for turn in exchanged]))
        found[verdict.outcome] += 1
        why.update(_invalid_by(verdict))
        told(f"draw {draw + 1} of {draws}")
    blocked, inconclusive, invalid = (found[one] for one in (Outcome.BLOCK, Outcome.INCONCLUSIVE, Outcome.INVALID))
    by = tuple(sorted(why.items(), key=lambda one: (-one[1], one[0])))
    return FalseBlocks(draws, blocked, inconclusive, invalid, by)


def _of_load(suite: Suite) -> Suite | None:
    """The same policy with its checks of the sweep alone: what is measured in pairs. None where it has none."""
    checks = tuple(check for check in suite.gate.checks if METRICS[check.metric].scope in ("stage", "sweep"))
    if suite.load is None or not checks:
        return None
    gate = suite.gate.model_copy(update={"checks": checks})
    load = suite.load.model_copy(update={"capacity": None, "limit": None})
    unmeasured = dict.fromkeys(("quality", "divergence", "shadow", "start", "error_budget"))
    arms = {"candidate": suite.baseline, "candidates": ()}
    return suite.model_copy(update={"gate": gate, "load": load, **unmeasured, **arms})


def _decided(policy: Suite, whole: Evidence) -> Verdict:
    """As a run is: at each look what there is by then, until it is settled."""
    assert policy.load is not None, "it has checks of its load"
    blocks = policy.load.looks[0] if policy.load.looks else policy.load.blocks
    while True:
        seen = _first(whole, blocks)
        step = next_step(policy, seen)
        if isinstance(step, ContinueLoad):
            blocks = step.blocks
            continue
        ended = None if step is None else LoadEnd(blocks, policy.load.blocks, step.reason)
        return judge(policy, replace(seen, ended=ended))


def _invalid_by(verdict: Verdict) -> set[str]:
    """The guards that tripped, or the checks that are INVALID without one; nothing of another outcome."""
    if verdict.outcome is not Outcome.INVALID:
        return set()
    guards = {guard.id for guard in verdict.guards if guard.tripped}
    return guards or {check.id for check in verdict.checks if check.required and check.outcome is Outcome.INVALID}


def _first(evidence: Evidence, blocks: int) -> Evidence:
    return replace(
        evidence,
        load=tuple(o for o in evidence.load if o.block < blocks),
        telemetry=tuple(w for w in evidence.telemetry if w.block < blocks),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a measurement is put: which measured block, as which block of the draw, with its arms exchanged or not."""

    measured: int
    block: int
    exchanged: bool

    def arm(self, measured: Arm) -> Arm:
        """What an arm is called there."""
        return measured.other if self.exchanged else measured


class _Cards:
    """The measured blocks of a calibration, to be dealt again and again; what was dealt once so is kept, and computed
    from only once."""

    def __init__(self, calibration: Evidence, policy: Suite) -> None:
        run = replace(calibration.run, suite=policy.to_stored())  # as if it had been measured for the policy
        self.without_load = Evidence(run, (), (), None, calibration.target_faults)
        self._load: dict[int, list[LoadObservation]] = {}
        self._telemetry: dict[int, list[TelemetryWindow]] = {}
        self._dealt: dict[_Place, tuple[list[LoadObservation], list[TelemetryWindow]]] = {}
        for execution in calibration.load:
            self._load.setdefault(execution.block, []).append(execution)
        for window in calibration.telemetry:
            self._telemetry.setdefault(window.block, []).append(window)

    def dealt(self, order: list[int], exchanged: list[bool]) -> Evidence:
        """These measured blocks as blocks 0, 1, … of a run."""
        hands = [
            self._hand(_Place(n, block, turn)) for block, (n, turn) in enumerate(zip(order, exchanged, strict=True))
        ]
        load = tuple(execution for hand, _ in hands for execution in hand)
        telemetry = tuple(window for _, hand in hands for window in hand)
        return replace(self.without_load, load=load, telemetry=telemetry)

    def _hand(self, place: _Place) -> tuple[list[LoadObservation], list[TelemetryWindow]]:
        if place not in self._dealt:
            load, windows = self._load[place.measured], self._telemetry.get(place.measured, [])
            later = place.block * len(load) - min(execution.position for execution in load)
            self._dealt[place] = (
                [
                    replace(one, block=place.block, position=one.position + later, arm=place.arm(one.arm))
                    for one in load
                ],
                [
                    replace(one, block=place.block, position=one.position + later, arm=place.arm(one.arm))
                    for one in windows
                ],
            )
        return self._dealt[place]
