"""Is the evidence usable at all? A tripped guard prevents PASS: nothing is said for or against the candidate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from benchgate.gate.arms_alike import arms_alike
from benchgate.gate.background_guard import background_guards
from benchgate.gate.comparison import Comparison, arms_of, load_of, quality_of
from benchgate.gate.guard import TO_ITS_END, held, tripped
from benchgate.gate.load_guards import load_guards
from benchgate.gate.places import places
from benchgate.gate.telemetry_guards import telemetry_guards
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import Evidence, QualityObservation, RunStatus
from benchgate.model.verdict import GuardResult
from benchgate.stats.proportions import tango_limits
from benchgate.suite.parts import task_stem
from benchgate.suite.schema import Suite

_EMPTY_GAP = 0.01  # arms whose empty-answer rates differ by more than a point did not do the same task
_IMPLAUSIBLE_GAIN = 0.05


def run_guards(comparison: Comparison, suite: Suite) -> tuple[GuardResult, ...]:
    """Every guard with its finding, tripped or not, in a fixed order."""
    runs = [comparison.judged] if comparison.reference is None else [comparison.reference, comparison.judged]
    results = [*_comparable(comparison)]
    for evidence in runs:
        results += [_targets_up(evidence), _complete(evidence), _all_measured(evidence, suite)]
        results += [*load_guards(evidence, suite), *background_guards(evidence, suite)]
        results += telemetry_guards(evidence, suite)
        results += [arms_alike(evidence, suite), _answers_not_empty(evidence, suite)]
    results += [_baseline_can_do_it(comparison), _gain_plausible(comparison, suite)]
    return tuple(results)


def _comparable(comparison: Comparison) -> Iterator[GuardResult]:
    """Two stored runs must have measured the same thing, beside the same baseline."""
    reference = comparison.reference
    if reference is None:
        return
    judged = comparison.judged
    if reference.run.measurement_sha256 != judged.run.measurement_sha256:
        what = "the two runs did not measure the same thing (workload, stages, tasks, prompts, seed or limits differ)"
        yield tripped("same-measurement", what, "measure both with the same suite and seed", _EVERYTHING)
    else:
        yield held("same-measurement", "both runs measured the same thing")
    clients = [_senders(evidence) for evidence in (reference, judged)]
    if clients[0] == clients[1]:
        yield held("same-client", f"both runs were sent by the same: {clients[0]}")
    else:
        what = f"the two runs were not sent by the same: one by {clients[0]}, the other by {clients[1]}"
        yield held("same-client", f"{what}; what that changes, it changes of each run's own baseline too")
    fingerprints = [evidence.run.arms[Arm.BASELINE].fingerprint for evidence in (reference, judged)]
    if fingerprints[0] != fingerprints[1]:
        what = "the two runs had different baselines beside them, so nothing ties their machines and moments together"
        yield tripped("same-baseline", what, "measure the two deployments in one run", _EVERYTHING)
    else:
        yield held("same-baseline", "both runs had the same baseline beside them")


def _senders(evidence: Evidence) -> str:
    """`4 load generator processes of a cluster`; where stages differ in their number, all of the numbers."""
    numbers = sorted({execution.client.workers for execution in evidence.load})
    spread = any(execution.client.start_uncertainty_s is not None for execution in evidence.load)
    told = " or ".join(map(str, numbers)) or "no"
    return f"{told} load generator process{'' if numbers == [1] else 'es'}{' of a cluster' if spread else ''}"


def _targets_up(evidence: Evidence) -> GuardResult:
    if evidence.target_faults:
        fault = evidence.target_faults[0]
        name = evidence.run.arms[fault.arm].name
        what = f"the {fault.arm.value} {name} did not answer {fault.when}: {fault.reason}"
        return tripped("targets-up", what, "see the server's log; start it and run again")
    return held("targets-up", "both deployments answered throughout")


def _complete(evidence: Evidence) -> GuardResult:
    if evidence.run.status is not RunStatus.COMPLETE:
        what = f"the run is {evidence.run.status.value}: not everything that was planned was measured"
        return tripped("run-complete", what, TO_ITS_END)
    return held("run-complete", "everything that was planned was measured")


def _all_measured(evidence: Evidence, suite: Suite) -> GuardResult:
    """Every planned request, task and prompt has its record on every arm measured: nothing was dropped on the way."""
    for task in map(task_stem, suite.quality.tasks if suite.quality else ()):
        for arm in Arm:
            if quality_of(evidence, arm, task) is None:
                return tripped("all-measured", f"task {task} was not run on the {arm.value}", TO_ITS_END)
    if suite.shadow is not None and evidence.shadow is None:
        return tripped("all-measured", "the shadow comparison was not made", TO_ITS_END)
    blocks = range(suite.load.blocks if suite.load else 0)
    for place, arm in product(places(suite), arms_of(evidence)):
        observed = load_of(evidence, place.name, arm)
        for block in blocks:
            rows = observed[block].recorded if block in observed else 0
            if block not in observed or place.requests not in (None, rows):  # in the background no number is planned
                where = f"stage {place.name}, block {block + 1}, {arm.value}"
                what = f"{where}: {rows} of {place.requests or 'the'} planned requests have a record"
                return tripped("all-measured", what, TO_ITS_END)
    return held("all-measured", "everything planned has its record")


def _answers_not_empty(evidence: Evidence, suite: Suite) -> GuardResult:
    allowed = suite.quality.max_empty_ratio if suite.quality else 0.0
    shares: dict[tuple[str, Arm], float] = {}
    for observation in evidence.quality:
        share = _empty_share(observation)
        shares[observation.task, observation.arm] = share
        if share > allowed:
            where = f"{share:.1%} of the {observation.arm.value}'s answers to {observation.task} are empty"
            return tripped("answers-not-empty", where, _EMPTY_REMEDY, ("quality",))
    for (task, arm), share in shares.items():
        if abs(share - shares.get((task, arm.other), share)) > _EMPTY_GAP:
            what = f"the arms' rates of empty answers to {task} differ"
            return tripped("answers-not-empty", what, _EMPTY_REMEDY, ("quality",))
    return held("answers-not-empty", "the answers are not empty")


def _baseline_can_do_it(comparison: Comparison) -> GuardResult:
    """What gets nothing right, and is what the candidate is held against, measures the harness, not the model."""
    for task in sorted({observation.task for observation in comparison.judged.quality}):
        observation = comparison.baseline_quality(task)
        if observation is None or observation.fault is not None or not observation.items:
            continue
        if not any(item.correct for item in observation.items):
            what = f"the baseline answers none of the {len(observation.items)} items of {observation.task} right"
            return tripped("baseline-able", what, "check the prompt, the chat template and the answer extraction")
    return held("baseline-able", "the baseline is able to do the tasks")


def _gain_plausible(comparison: Comparison, suite: Suite) -> GuardResult:
    """A candidate far better than its own baseline more likely shows a broken baseline than a better candidate."""
    tasks = sorted({o.task for o in comparison.judged.quality})
    for task in tasks:
        baseline, candidate = comparison.baseline_quality(task), comparison.candidate_quality(task)
        if baseline is None or candidate is None or not baseline.items:
            continue
        theirs = {item.item_id: item for item in baseline.items}
        pairs = [(theirs[item.item_id], item) for item in candidate.items if item.item_id in theirs]
        lost = sum(b.correct is True and c.correct is False for b, c in pairs)
        gained = sum(b.correct is False and c.correct is True for b, c in pairs)
        if pairs and tango_limits(lost, gained, len(pairs), suite.gate.alpha).upper < -_IMPLAUSIBLE_GAIN:
            what = f"the candidate is better than the baseline by more than 5 points on {task}, which is not plausible"
            return tripped("gain-plausible", what, "look for truncated, cached or mis-templated baseline answers")
    return held("gain-plausible", "no implausible gain")


def _empty_share(observation: QualityObservation) -> float:
    """Share of items that came back without an answer; a fault of the harness is reported by the check itself."""
    answered = [item for item in observation.items if item.error is None]
    return sum(map(_is_empty, answered)) / len(answered) if answered else 0.0


def _is_empty(item: EvalItem) -> bool:
    return not (item.answer or "").strip()


_EVERYTHING = ("load", "quality", "shadow")
_EMPTY_REMEDY = "raise `quality.max_tokens`, and see whether the server returns its answer in another field"
