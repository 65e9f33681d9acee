"""Is the evidence usable at all? A tripped guard prevents PASS: nothing is said for or against the candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from benchgate.gate.arms_alike import arms_alike, bounds_load_alone, sides_alike
from benchgate.gate.background_guard import background_guards
from benchgate.gate.comparison import Comparison, arms_of, load_of, measured_twice, quality_of
from benchgate.gate.guard import compared, held, looked_at, spoils_comparisons_alone, tripped, unknown
from benchgate.gate.load_guards import guards_apart, load_guards
from benchgate.gate.looks import blocks_measured
from benchgate.gate.places import places
from benchgate.gate.quality_guards import quality_guards
from benchgate.gate.replica_guard import replica_guards
from benchgate.gate.shadow_guards import shadow_guards
from benchgate.gate.sittings import sitting_guards, to_its_end
from benchgate.gate.specs import concrete_checks, judged_units
from benchgate.gate.telemetry_guards import telemetry_guards
from benchgate.gate.what_differs import what_differs
from benchgate.gate.who_answers import two_deployments
from benchgate.model.deployment import Arm
from benchgate.model.replicas import NOT_ALL_READY, NOT_COUNTABLE
from benchgate.model.run import CANNOT_SCORE, CHANGED, ONE_SERVER, REFUSES, Evidence, RunStatus
from benchgate.model.verdict import GuardResult
from benchgate.suite.metric_kinds import TASK_METRICS
from benchgate.suite.schema import Quality, Suite


def run_guards(comparison: Comparison, suite: Suite) -> tuple[GuardResult, ...]:
    """Every guard with its finding, tripped or not, in a fixed order; one that had nothing to look at says so."""
    runs = [comparison.judged] if comparison.reference is None else [comparison.reference, comparison.judged]
    results = [*_no_calibration(runs), *_comparable(comparison, suite)]
    for evidence in runs:
        results += [_targets_up(evidence), _complete(evidence), _all_measured(evidence, suite)]
        results += sitting_guards(evidence)
        results += replica_guards(evidence)
        results += looked_at(load_guards(evidence, suite), None if evidence.load else "no load was measured")
        results += background_guards(evidence, suite)
        results += telemetry_guards(evidence, suite)
        results += looked_at([arms_alike(evidence, suite)], _NOT_ASKED if evidence.run.imported else None)
        results.append(two_deployments(evidence))
        results += shadow_guards(evidence)
    results += looked_at(guards_apart(comparison, suite), None if comparison.judged.load else "no load was measured")
    results += quality_guards(comparison, suite)
    if not bounds_load_alone(suite):
        return tuple(results)
    return tuple(_held_where_nothing_is_compared(one) if spoils_comparisons_alone(one) else one for one in results)


def _held_where_nothing_is_compared(guard: GuardResult) -> GuardResult:
    """Report a finding against comparisons as held, where every check of the load has a bound of its own."""
    return held(guard.id, f"{guard.reason}; no check of the load is held against the baseline, so none rests on that")


def _no_calibration(runs: Sequence[Evidence]) -> Iterator[GuardResult]:
    """A calibration measured one deployment twice: whatever its checks find, nobody in it is a candidate."""
    for evidence in runs:
        if evidence.run.calibrates:
            name = evidence.run.arms[Arm.BASELINE].name if Arm.BASELINE in evidence.run.arms else "its baseline"
            what = f"run {evidence.run.id} is a calibration: it measured {name} against itself, so it judges nobody"
            yield tripped("no-calibration", what, "measure a candidate with `benchgate run`", _EVERYTHING)


def _comparable(comparison: Comparison, suite: Suite) -> Iterator[GuardResult]:
    """Two stored runs must have measured the same thing, beside the same baseline."""
    reference = comparison.reference
    if reference is None:
        return
    judged = comparison.judged
    if reference.run.measurement_sha256 != judged.run.measurement_sha256:
        what = f"the two runs did not measure the same thing: {what_differs(reference.run.suite, judged.run.suite)}"
        yield tripped("same-measurement", what, "measure both with the same suite and seed", _EVERYTHING)
    else:
        yield held("same-measurement", "both runs measured the same thing")
    clients = [_senders(evidence) for evidence in (reference, judged)]
    if clients[0] == clients[1]:
        yield held("same-client", f"both runs were sent by the same: {clients[0]}")
    elif comparison.apart:
        what = f"the two runs were not sent by the same: one by {clients[0]}, the other by {clients[1]}"
        yield tripped("same-client", what, "measure the two deployments in one run", compared("load"))
    else:
        what = f"the two runs were not sent by the same: one by {clients[0]}, the other by {clients[1]}"
        yield held("same-client", f"{what}; what that changes, it changes of each run's own baseline too")
    fingerprints = [evidence.run.arms[Arm.BASELINE].fingerprint for evidence in (reference, judged)]
    if comparison.apart:
        yield unknown(
            "same-baseline", "a run measured its candidate alone: margins are held to a noise profile instead"
        )
    elif fingerprints[0] != fingerprints[1]:
        what = "the two runs had different baselines beside them, so nothing ties their machines and moments together"
        yield tripped("same-baseline", what, "measure the two deployments in one run", _EVERYTHING)
    else:
        yield held("same-baseline", "both runs had the same baseline beside them")
    yield from looked_at([sides_alike(comparison, suite)], _NOT_ASKED if judged.run.imported else None)


def _senders(evidence: Evidence) -> str:
    """`4 load generator processes of a cluster`; where stages differ in their number, all of the numbers."""
    numbers = sorted({execution.client.workers for execution in evidence.load})
    spread = any(execution.client.start_uncertainty_s is not None for execution in evidence.load)
    told = " or ".join(map(str, numbers)) or "no"
    return f"{told} load generator process{'' if numbers == [1] else 'es'}{' of a cluster' if spread else ''}"


def _targets_up(evidence: Evidence) -> GuardResult:
    if evidence.target_faults:
        marks = [next((one for one in _REMEDIES if one in fault.reason), None) for fault in evidence.target_faults]
        states = [
            f"the {fault.arm.value} {evidence.run.arms[fault.arm].name} "
            f"{'cannot be measured' if mark else f'did not answer {fault.when}'}: {fault.reason}"
            for fault, mark in zip(evidence.target_faults, marks, strict=True)
        ]
        remedies = dict.fromkeys(_REMEDIES[mark] if mark else _DOWN for mark in marks)
        return tripped("targets-up", "; and ".join(states), "; ".join(remedies))
    if evidence.run.imported:
        return unknown("targets-up", "the evals were made elsewhere: whether a deployment was ever down is not known")
    return held("targets-up", "both deployments answered throughout")


_NOT_ASKED = "the evals were made elsewhere: no server was asked what it is"
_DOWN = "see whether its address is right and the server runs (its log tells); then run again"
_REMEDIES = {
    REFUSES: (
        "it is there; correct in the suite what it refuses (the model's name, the key, fields of requests) "
        "and run again"
    ),
    ONE_SERVER: "correct the suite and run again",
    CANNOT_SCORE: "correct the suite and run again",
    NOT_ALL_READY: "bring all of its replicas up, or correct `ready.replicas` in the suite, and run again",
    NOT_COUNTABLE: "correct `ready` in the suite and run again",
    CHANGED: "let nobody deploy to it or change it while it is measured, and run again",
}
"""Of a deployment that is there, by what its fault says."""


def _once_more(evidence: Evidence) -> str:
    """What to do about what is missing; after a fault of a deployment nothing else helps than to mend that."""
    if evidence.target_faults:
        return "mend what `targets-up` tells; what is missing here follows from it"
    return to_its_end(evidence)


def _complete(evidence: Evidence) -> GuardResult:
    if evidence.run.status is not RunStatus.COMPLETE:
        what = f"the run is {evidence.run.status.value}: not everything that was planned was measured"
        return tripped("run-complete", what, _once_more(evidence))
    return held("run-complete", "everything that was planned was measured")


def _all_measured(evidence: Evidence, suite: Suite) -> GuardResult:
    """Every planned start, request, task and prompt has its record, once, on every arm: nothing was dropped."""
    amiss = measured_twice(evidence) or _not_started(evidence, suite)
    if amiss is not None:
        return tripped("all-measured", amiss, _once_more(evidence))
    quality = suite.quality
    for name in quality.names if quality is not None else ():
        for arm in Arm:
            if not any(o.arm is arm and o.repeat == 0 and _is_of(quality, o.task, name) for o in evidence.quality):
                return tripped("all-measured", f"task {name} was not run on the {arm.value}", _once_more(evidence))
    for task, arm in product(dict.fromkeys(o.task for o in evidence.quality), Arm):
        observation = quality_of(evidence, arm, task)
        if observation is None:
            return tripped("all-measured", f"task {task} was not run on the {arm.value}", _once_more(evidence))
        group, leaves = task.partition("/")[0], observation.harness.get("leaves")
        found = sum(o.arm is arm and o.repeat == 0 and o.task.startswith(f"{group}/") for o in evidence.quality)
        if leaves is not None and found != leaves:
            what = f"{found} of the {leaves} tasks of {group} were run on the {arm.value}"
            return tripped("all-measured", what, _once_more(evidence))
    unheld = _stopped_unheld(evidence, suite)
    if unheld is not None:
        what = f"the evals were stopped early because harm was certain, and no required check looks at task {unheld}"
        return tripped("all-measured", what, _once_more(evidence))
    if suite.divergence is not None and evidence.divergence is None:
        return tripped("all-measured", "the fixed texts were not read", _once_more(evidence))
    if suite.shadow is not None and evidence.shadow is None:
        return tripped("all-measured", "the shadow comparison was not made", _once_more(evidence))
    blocks = range(_blocks_due(evidence, suite))
    for place, arm in product(places(suite), arms_of(evidence)):
        observed = load_of(evidence, place.name, arm)
        for block in blocks:
            rows = observed[block].recorded_planned if block in observed else 0
            if block not in observed or place.requests not in (None, rows):  # in the background no number is planned
                where = f"stage {place.name}, block {block + 1}, {arm.value}"
                what = f"{where}: {rows} of {place.requests or 'the'} planned requests have a record"
                return tripped("all-measured", what, _once_more(evidence))
    return held("all-measured", "everything planned has its record")


def _not_started(evidence: Evidence, suite: Suite) -> str | None:
    """What starts are missing, or there twice; a few quick ones are not what all of them took."""
    if suite.start is None:
        return None
    for arm in arms_of(evidence):
        found = sorted(start.number for start in evidence.starts if start.arm is arm)
        if found != list(range(suite.start.times)):
            return f"{len(found)} starts of the {arm.value} have a time, of {suite.start.times} planned"
    return None


def _blocks_due(evidence: Evidence, suite: Suite) -> int:
    """How many blocks there must be: all of them, or those before the look at which the run says that its load ended.

    Without that word a run that lacks blocks was cut short, however few would have done.
    """
    if suite.load is None:
        return 0
    ended = evidence.ended
    at_a_look = ended is not None and ended.of == suite.load.blocks and ended.blocks in suite.load.looks
    if ended is not None and at_a_look and blocks_measured(suite, evidence) == ended.blocks:
        return ended.blocks
    return suite.load.blocks


def _stopped_unheld(evidence: Evidence, suite: Suite) -> str | None:
    """A task that was stopped early, and whose harm another policy than the one that stopped it does not look at.

    A required check that looks at it can only block, or find that it cannot say.
    """
    stopped = [o.task for o in evidence.quality if o.repeat == 0 and o.harness.get("stopped_early")]
    if not stopped:
        return None
    comparison = Comparison(evidence)
    specs = [s for s in concrete_checks(suite, evidence) if s.check.required and s.check.metric in TASK_METRICS]
    held_to = {task for s in specs for tasks in judged_units(s, suite, comparison).values() for task in tasks}
    return next((task for task in stopped if task not in held_to), None)


def _is_of(quality: Quality | None, task: str, name: str) -> bool:
    """Whether an observed task is the one that the suite calls so, or one of that group."""
    entry = quality.entry(task) if quality is not None else None
    return task == name or (entry is not None and entry.name == name)


_EVERYTHING = ("load", "quality", "divergence", "shadow")
