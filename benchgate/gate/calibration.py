"""Noise figures of a calibration: variation of metrics, self-disagreement of answers, and the false block rate.

Both arms of a calibration are the same deployment, so the arms of a block pair are exchangeable. For the false block
rate each draw takes as many block pairs as a run has at most, in random order with randomly exchanged arms, and is
judged like a run with all its interim analyses.
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
from benchgate.gate.interim import ContinueLoad, evidence_of_blocks, next_step
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
"""Metrics that are shares of a block's requests."""


def spreads(evidence: Evidence, suite: Suite) -> tuple[NoiseSpread, ...]:
    """Return the spread of every metric that both arms have in all of at least two blocks.

    A metric that a block lacks (no successful or applicable request) is omitted. Blocks that a high quantile needs
    together count as one, as in a check.
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
        if metric != "itl":  # it has many values per request, so its requests are not paired
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
    """Return the spread of a share of requests; None if a block has no request that counts."""
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
    """Return how often the deployment's two answers differ, per eval task (correctness, score) and on shadow prompts.

    Tasks whose items cannot be paired are omitted.
    """
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
    on_draw: Callable[[str], None] = lambda progress: None,
) -> FalseBlocks | None:
    """Return how often the suite's load checks block; None without a required load check or two blocks.

    Pairs are drawn with replacement only if the calibration has fewer than a run may have. All draws use the same few
    pairs: more draws make the rate more precise for these, not for the deployment. `on_draw` receives the progress.
    """
    policy = _of_load(suite)
    numbers = sorted({o.block for o in calibration.load})
    if policy is None or policy.load is None or len(numbers) < 2:
        return None
    pool = _BlockPool(calibration, policy)
    if not any(spec.check.required for spec in concrete_checks(policy, pool.without_load)):
        return None
    most = policy.load.blocks
    found: Counter[Outcome] = Counter()
    why: Counter[str] = Counter()
    for draw in range(draws):
        order = generator.choice(numbers, size=most, replace=most > len(numbers))
        exchanged = generator.integers(0, 2, size=most)
        verdict = _decided(policy, pool.arrange([int(n) for n in order], [bool(turn) for turn in exchanged]))
        found[verdict.outcome] += 1
        why.update(_invalid_by(verdict))
        on_draw(f"draw {draw + 1} of {draws}")
    blocked, inconclusive, invalid = (found[one] for one in (Outcome.BLOCK, Outcome.INCONCLUSIVE, Outcome.INVALID))
    by = tuple(sorted(why.items(), key=lambda one: (-one[1], one[0])))
    return FalseBlocks(draws, blocked, inconclusive, invalid, by)


def _of_load(suite: Suite) -> Suite | None:
    """Return the policy with only its load checks, which are measured in pairs; None if it has none."""
    checks = tuple(check for check in suite.gate.checks if METRICS[check.metric].scope in ("stage", "sweep"))
    if suite.load is None or not checks:
        return None
    gate = suite.gate.model_copy(update={"checks": checks})
    load = suite.load.model_copy(update={"capacity": None, "limit": None})
    unmeasured = dict.fromkeys(("quality", "divergence", "shadow", "start", "error_budget"))
    arms = {"candidate": suite.baseline, "candidates": ()}
    return suite.model_copy(update={"gate": gate, "load": load, **unmeasured, **arms})


def _decided(policy: Suite, whole: Evidence) -> Verdict:
    """Judge like a run: analyse the evidence at each interim analysis until the load ends."""
    assert policy.load is not None, "it has checks of its load"
    blocks = policy.load.looks[0] if policy.load.looks else policy.load.blocks
    while True:
        evidence = evidence_of_blocks(whole, blocks)
        step = next_step(policy, evidence)
        if isinstance(step, ContinueLoad):
            blocks = step.blocks
            continue
        ended = None if step is None else LoadEnd(blocks, policy.load.blocks, step.reason)
        return judge(policy, replace(evidence, ended=ended))


def _invalid_by(verdict: Verdict) -> set[str]:
    """Return the tripped guards of an INVALID verdict, or without any its INVALID checks."""
    if verdict.outcome is not Outcome.INVALID:
        return set()
    guards = {guard.id for guard in verdict.guards if guard.tripped}
    return guards or {check.id for check in verdict.checks if check.required and check.outcome is Outcome.INVALID}


@dataclass(frozen=True, slots=True)
class _Slot:
    """Position of a measured block in a draw, with its arms exchanged or not."""

    measured: int
    block: int
    exchanged: bool

    def arm(self, measured: Arm) -> Arm:
        return measured.other if self.exchanged else measured


class _BlockPool:
    """Measured blocks of a calibration, arranged into draws. Relabelled blocks are cached."""

    def __init__(self, calibration: Evidence, policy: Suite) -> None:
        run = replace(calibration.run, suite=policy.to_stored())
        self.without_load = Evidence(run, (), (), None, calibration.target_faults)
        self._load: dict[int, list[LoadObservation]] = {}
        self._telemetry: dict[int, list[TelemetryWindow]] = {}
        self._relabelled: dict[_Slot, tuple[list[LoadObservation], list[TelemetryWindow]]] = {}
        for execution in calibration.load:
            self._load.setdefault(execution.block, []).append(execution)
        for window in calibration.telemetry:
            self._telemetry.setdefault(window.block, []).append(window)

    def arrange(self, order: list[int], exchanged: list[bool]) -> Evidence:
        """Return evidence with these measured blocks as blocks 0, 1, …"""
        slots = [_Slot(n, block, turn) for block, (n, turn) in enumerate(zip(order, exchanged, strict=True))]
        blocks = [self._relabel(slot) for slot in slots]
        load = tuple(execution for executions, _ in blocks for execution in executions)
        telemetry = tuple(window for _, windows in blocks for window in windows)
        return replace(self.without_load, load=load, telemetry=telemetry)

    def _relabel(self, slot: _Slot) -> tuple[list[LoadObservation], list[TelemetryWindow]]:
        if slot not in self._relabelled:
            load, windows = self._load[slot.measured], self._telemetry.get(slot.measured, [])
            shift = slot.block * len(load) - min(execution.position for execution in load)
            self._relabelled[slot] = (
                [replace(o, block=slot.block, position=o.position + shift, arm=slot.arm(o.arm)) for o in load],
                [replace(w, block=slot.block, position=w.position + shift, arm=slot.arm(w.arm)) for w in windows],
            )
        return self._relabelled[slot]
