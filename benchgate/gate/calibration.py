"""Figures of a calibration: the noise of every metric, how often answers differ, and false blocks of the policy.

Both arms of a calibration are one deployment, so their names may be exchanged. Each draw of the false-block rate takes
as many pairs of blocks as a run would have, in random order, and exchanges the arms of each at random. It is decided
like a run: look by look, until the gate stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchgate.gate.comparison import paired_load, quality_of
from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence.blocks import Measure, block_pairs
from benchgate.gate.evidence.items import pair_task, usable_rows
from benchgate.gate.evidence.shares import tally_of
from benchgate.gate.interim import ContinueLoad, evidence_of_blocks, next_step
from benchgate.gate.judge import judge
from benchgate.gate.policy import concrete_checks
from benchgate.model.deployment import Arm
from benchgate.model.metric import MEAN, MEAN_METRICS, METRICS, QUANTILES, REGIONAL_METRICS, THROUGHPUT_METRICS
from benchgate.model.noise import FalseBlocks, NoiseSpread, SelfDisagreement
from benchgate.model.records import FloatArray
from benchgate.model.request_metrics import LATENCIES
from benchgate.model.run import Evidence, LoadEnd, LoadObservation
from benchgate.model.telemetry import TelemetryWindow
from benchgate.model.verdict import Outcome, Verdict
from benchgate.stats.distributions import pooled_deviation
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import region_name

SHARES = (
    "error_rate",
    "goodput",
    "rejected",
    "validity",
    "session_success",
)  # metrics that are shares of a block's requests


def spreads(evidence: Evidence, suite: Suite) -> tuple[NoiseSpread, ...]:
    """Return the spread of every load metric at every place that both arms have in each of at least two blocks.

    A metric without a value in some block has no spread, and is left out. Blocks that are pooled for a high quantile
    count as one, as in a check.
    """
    measures: list[Measure] = []
    for metric in LATENCIES:
        measures += [Measure(metric, q, statistic) for statistic, q in QUANTILES.items()]
        if metric in MEAN_METRICS:
            measures.append(Measure(metric, 0.5, MEAN))
    measures += [Measure(metric, 0.5) for metric in (*THROUGHPUT_METRICS, "output_length")]
    found: list[NoiseSpread | None] = []
    regions = (None, *suite.regions)
    places = [(place, region_name(place.name, region)) for place in traffic_classes(suite) for region in regions]
    for place, name in places:
        for measure in measures:
            if name != place.name and measure.metric not in REGIONAL_METRICS:
                continue
            try:
                pairs = block_pairs(evidence, name, measure)
            except CannotJudge:
                continue
            values = np.concatenate([pairs.baseline, pairs.candidate])
            if np.isfinite(values).all() and values.min() > 0:
                logs = np.log(pairs.baseline), np.log(pairs.candidate)
                found.append(_spread(measure.metric, measure.statistic, name, *logs))
        for metric in SHARES:
            if (metric == "goodput" and place.slo is None) or (name != place.name and metric not in REGIONAL_METRICS):
                continue
            tally = tally_of(metric, place.slo)
            counted = [[tally(execution) for execution in pair] for pair in paired_load(evidence, name)]
            if all(of > 0 for pair in counted for _, of in pair):
                first, second = (np.array([pair[side][0] / pair[side][1] for pair in counted]) for side in (0, 1))
                found.append(_spread(metric, None, name, first, second))
    return tuple(one for one in found if one is not None)


def _spread(
    metric: str, statistic: str | None, place: str, first: FloatArray, second: FloatArray
) -> NoiseSpread | None:
    deviation = pooled_deviation(first, second)
    if deviation is None:
        return None
    return NoiseSpread(metric, statistic, place, deviation, float(np.std(second - first, ddof=1)), len(first))


def disagreements(evidence: Evidence) -> tuple[SelfDisagreement, ...]:
    """Return the share of eval items and shadow prompts that the deployment, queried twice, answered differently.

    Of an item its correctness or score counts. Tasks that cannot be paired are left out.
    """
    found = []
    for task in dict.fromkeys(o.task for o in evidence.quality if o.repeat == 0):
        first, again = (quality_of(evidence, arm, task) for arm in Arm)
        if first is None or again is None:
            continue
        try:
            pairs = pair_task(first, again)
        except CannotJudge:
            continue
        if len(pairs):
            share = float(np.mean(pairs.baseline != pairs.candidate))
            found.append(SelfDisagreement("task", task, share, len(pairs)))
    try:
        twice = [row for row in usable_rows(evidence) if not row.once]
    except CannotJudge:
        twice = []
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
    progress: Callable[[str], None] = lambda step: None,
) -> FalseBlocks | None:
    """Count the outcomes of the suite's load checks over draws; None without a required one, or below two blocks.

    Pairs are drawn with replacement only if the calibration has fewer than a run may have. All draws use the same few
    pairs: more of them make the share precise for these pairs, not for the deployment. `progress` is called after each.
    """
    policy = _load_policy(suite)
    numbers = sorted({o.block for o in calibration.load})
    if policy is None or policy.load is None or len(numbers) < 2:
        return None
    resampled = _Resampled(calibration, policy)
    if not any(spec.check.required for spec in concrete_checks(policy, resampled.without_load)):
        return None
    most = policy.load.blocks
    found: Counter[Outcome] = Counter()
    causes: Counter[str] = Counter()
    for draw in range(draws):
        order = generator.choice(numbers, size=most, replace=most > len(numbers))
        exchanged = generator.integers(0, 2, size=most)
        verdict = _decide(policy, resampled.run([int(n) for n in order], [bool(turn) for turn in exchanged]))
        found[verdict.outcome] += 1
        if verdict.outcome is Outcome.INVALID:  # the guards that tripped, else the required INVALID checks
            tripped = {guard.id for guard in verdict.guards if guard.tripped}
            required = (check for check in verdict.checks if check.required)
            causes.update(tripped or {check.id for check in required if check.outcome is Outcome.INVALID})
        progress(f"draw {draw + 1} of {draws}")
    blocked, inconclusive, invalid = (found[one] for one in (Outcome.BLOCK, Outcome.INCONCLUSIVE, Outcome.INVALID))
    by = tuple(sorted(causes.items(), key=lambda one: (-one[1], one[0])))
    return FalseBlocks(draws, blocked, inconclusive, invalid, by)


def _load_policy(suite: Suite) -> Suite | None:
    """Return the suite with its checks of stages and of the sweep alone, which are paired; None if it has none."""
    checks = tuple(check for check in suite.gate.checks if METRICS[check.metric].scope in ("stage", "sweep"))
    if suite.load is None or not checks:
        return None
    gate = suite.gate.model_copy(update={"checks": checks})
    load = suite.load.model_copy(update={"capacity": None, "limit": None})
    unmeasured = dict.fromkeys(("quality", "divergence", "shadow", "start", "error_budget"))
    # Counts of replicas belong to the blocks as they were measured, and are not redrawn.
    deployment = suite.deployments[suite.baseline].model_copy(update={"ready": None})
    arms = {"candidate": suite.baseline, "candidates": (), "deployments": {suite.baseline: deployment}}
    return suite.model_copy(update={"gate": gate, "load": load, **unmeasured, **arms})


def _decide(policy: Suite, whole: Evidence) -> Verdict:
    """Decide like a run: at each look over the blocks measured by then, until the gate stops."""
    assert policy.load is not None, "it has checks of its load"
    blocks = policy.load.looks[0] if policy.load.looks else policy.load.blocks
    while True:
        measured = evidence_of_blocks(whole, blocks)
        step = next_step(policy, measured)
        if isinstance(step, ContinueLoad):
            blocks = step.blocks
            continue
        ended = None if step is None else LoadEnd(blocks, policy.load.blocks, step.reason)
        return judge(policy, replace(measured, ended=ended))


class _Resampled:
    """Measured blocks of a calibration, rearranged into runs. Each moved block is cached, with all that is computed
    from it."""

    def __init__(self, calibration: Evidence, policy: Suite) -> None:
        run = replace(calibration.run, suite=policy.to_stored())  # as if it had been measured for the policy
        self.without_load = Evidence(run, (), (), None, calibration.target_faults, redrawn=True)
        self._load: dict[int, list[LoadObservation]] = {}
        self._telemetry: dict[int, list[TelemetryWindow]] = {}
        self._moved: dict[tuple[int, int, bool], tuple[list[LoadObservation], list[TelemetryWindow]]] = {}
        for execution in calibration.load:
            self._load.setdefault(execution.block, []).append(execution)
        for window in calibration.telemetry:
            self._telemetry.setdefault(window.block, []).append(window)

    def run(self, order: list[int], exchanged: list[bool]) -> Evidence:
        """Return the measured blocks `order` as blocks 0, 1, … of a run, with the arms of some exchanged."""
        blocks = [self._move(n, block, turn) for block, (n, turn) in enumerate(zip(order, exchanged, strict=True))]
        load = tuple(execution for executions, _ in blocks for execution in executions)
        telemetry = tuple(window for _, windows in blocks for window in windows)
        return replace(self.without_load, load=load, telemetry=telemetry)

    def _move(self, measured: int, block: int, exchanged: bool) -> tuple[list[LoadObservation], list[TelemetryWindow]]:
        key = measured, block, exchanged
        if key not in self._moved:
            load, windows = self._load[measured], self._telemetry.get(measured, [])
            later = block * len(load) - min(execution.position for execution in load)
            arms = {arm: arm.other if exchanged else arm for arm in Arm}
            self._moved[key] = (
                [replace(one, block=block, position=one.position + later, arm=arms[one.arm]) for one in load],
                [replace(one, block=block, position=one.position + later, arm=arms[one.arm]) for one in windows],
            )
        return self._moved[key]
