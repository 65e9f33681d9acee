"""A run that was cut short and went on: what it says of itself, and how often that may be.

What was only begun when it was cut short is measured again, so whoever ends runs can choose what is thrown away: blocks
in which nothing goes well so far. What that is worth at most to somebody who sees all stands in docs/decisions.md.

In what two stored suites do not ask the same, said so that someone can mend it.

Did every deployment have the replicas that its suite declares, whenever they were counted during the run?

Is the evidence usable at all? A tripped guard prevents PASS: nothing is said for or against the candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from benchgate.gate.comparison import Comparison, arms_of, blocks_measured, load_of, measured_twice, places, quality_of
from benchgate.gate.guards.answers import quality_guards, shadow_guards
from benchgate.gate.guards.arms import arms_alike, bounds_load_alone, sides_alike, two_deployments
from benchgate.gate.guards.base import (
    TO_ITS_END,
    compared,
    gravest,
    held,
    looked_at,
    spoils_comparisons_alone,
    spoils_of,
    tripped,
    unknown,
)
from benchgate.gate.guards.load import background_guards, guards_apart, load_guards
from benchgate.gate.guards.server import restarts_between, telemetry_guards
from benchgate.gate.policy import concrete_checks, judged_units
from benchgate.model.deployment import Arm
from benchgate.model.metric import TASK_METRICS
from benchgate.model.run import (
    AT_THE_END,
    AT_THE_START,
    CANNOT_SCORE,
    CHANGED,
    NOT_ALL_READY,
    NOT_COUNTABLE,
    ONE_SERVER,
    REFUSES,
    Evidence,
    ReplicaCount,
    Resumption,
    RunStatus,
)
from benchgate.model.verdict import GuardResult
from benchgate.suite.capacity import level_of_stage
from benchgate.suite.schema import Quality, Suite
from benchgate.units import show_found

MOST_RESUMPTIONS = 1

_EVERYTHING = ("load", "quality", "divergence", "shadow")


def sitting_guards(evidence: Evidence) -> Iterator[GuardResult]:
    """Whether a run was cut short too often; nothing of one that never was."""
    times = len(evidence.resumptions)
    if times > MOST_RESUMPTIONS:
        what = f"the run was cut short and went on {times} times, each time without what it had only begun"
        remedy = "run the suite from its beginning, and let nothing end it more than once"
        yield tripped("few-interruptions", what, remedy, _EVERYTHING)
    elif times:
        yield held("few-interruptions", "the run was cut short and went on once, which is allowed")


def sitting_notes(evidence: Evidence) -> tuple[str, ...]:
    """Sentences that tell of the sittings, and of servers that were restarted meanwhile; none where there was one."""
    found = evidence.resumptions
    if not found:
        return ()
    went_on = "; ".join(f"cut short, went on at {one.at}{_without(one)}{_again(one)}" for one in found)
    return (f"measured in {len(found) + 1} sittings: {went_on}", *_restarts(evidence))


def to_its_end(evidence: Evidence) -> str:
    """What to do about a run that did not measure everything."""
    run = evidence.run
    if run.status is RunStatus.COMPLETE or run.finished_at is not None or run.calibrates or run.imported:
        return TO_ITS_END
    if len(evidence.resumptions) >= MOST_RESUMPTIONS:
        return "it was cut short and went on once already, and does so no more: run the suite from its beginning"
    running = "wait for it to end; where what measured it was killed, " if run.status is RunStatus.RUNNING else ""
    return f"{running}go on with it: `benchgate run SUITE --resume --run {run.id}`"


def _again(one: Resumption) -> str:
    return f", and measured again from the beginning: {', '.join(one.again)}" if one.again else ""


def _without(one: Resumption) -> str:
    """Nobody can say what was in a spool that was not there, or is an older copy: whole blocks that went badly."""
    if one.without_spool:
        gone = "without the spool in which records were kept (--without-spool)"
        return f" {gone}, so what was measured may be missing here"
    if one.by_spool:
        return " with what store and spool had of it, and nobody can vouch that the spool is all of what was kept"
    return ""


def _restarts(evidence: Evidence) -> Iterator[str]:
    """What benchgate starts itself is started anew in every sitting; of others the metrics tell, where they do.

    As each sitting begins they are asked: what they said while load was sent may be of the first sitting alone.
    """
    known = evidence.run.arms
    theirs = [arm for arm in arms_of(evidence) if arm in known and known[arm].url is not None]
    yield from restarts_between(evidence, theirs)
    silent = [arm for arm in theirs if not _same_in_all(arm, evidence.resumptions)]
    if silent:
        who = " and ".join(f"the {arm}" for arm in silent)
        yield f"whether the server of {who} was restarted between the sittings is not known"


def _same_in_all(arm: Arm, found: Sequence[Resumption]) -> bool:
    return all(arm.value in one.same_process for one in found)


_ASKED = ("seed", "start", "load", "quality", "divergence", "shadow", "limits")
_OF_THE_CLIENT = ("load.workers", "load.audit", "load.looks", "load.limit")  # how it is asked, and not what
_NAMED = 3  # differences; more are counted


def what_differs(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """`load.blocks is 4 in the first and 8 in the second`, and how many more there are.

    Nothing of the suites differs where a file that they name was another one.
    """
    asked = [dict(leaves({key: suite.get(key) for key in _ASKED})) for suite in (one, other)]
    names = [name for name in dict.fromkeys([*asked[0], *asked[1]]) if asked[0].get(name) != asked[1].get(name)]
    names = [name for name in names if not name.startswith(_OF_THE_CLIENT)]
    if not names:
        return "their suites ask the same, so a file that these name (prompts, tasks, a trace) was another one"
    told = [
        f"{name} is {_shown(asked[0].get(name))} in the first and {_shown(asked[1].get(name))} in the second"
        for name in names[:_NAMED]
    ]
    more = len(names) - _NAMED
    return "; ".join(told) + (f"; and {more} more {'differs' if more == 1 else 'differ'}" if more > 0 else "")


def _shown(value: object) -> str:
    return "not there" if value is None else show_found(value)


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every single value below, by where it stands: `load.sweep[0].concurrency`."""
    inside: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        inside = [(f"{path}.{key}" if path else str(key), one) for key, one in value.items()]
    elif isinstance(value, list | tuple):
        inside = [(f"{path}[{place}]", one) for place, one in enumerate(value)]
    if not inside:
        yield path, value
    for at, one in inside:
        yield from leaves(one, at)


_NAME = "replicas-changed"
_MOST_SHOWN = 3
_REMEDY = (
    "see why replicas came or went (the scheduler's and the servers' logs), keep their number as it is declared, and "
    "run the suite again"
)


def replica_guards(evidence: Evidence) -> Iterator[GuardResult]:
    """Trip where a count differs from the declared number, could not be taken or is missing.

    Nothing for a run whose suite declares no replicas.
    """
    declared = {arm: wanted for arm in arms_of(evidence) if (wanted := _declared(evidence, arm)) is not None}
    if not declared:
        return
    found = [one for arm, wanted in declared.items() if (one := _of_arm(evidence, arm, wanted)) is not None]
    counts = sum(one.arm in declared for one in evidence.replicas)
    numbers = " and ".join(f"{wanted} of the {arm.value}" for arm, wanted in declared.items())
    yield gravest(found) or held(_NAME, f"all replicas were there at each of {counts} counts: {numbers}")


def _declared(evidence: Evidence, arm: Arm) -> int | None:
    """Return how many replicas the run's own suite declares, whatever policy judges it now; None where none."""
    stored = evidence.run.suite
    found: object = stored.get("deployments")
    for key in (stored.get(arm.value), "ready", "replicas"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int) else None


def _of_arm(evidence: Evidence, arm: Arm, wanted: int) -> GuardResult | None:
    counts = [one for one in evidence.replicas if one.arm is arm]
    wrong = [f"{one.shown} {one.when}" for one in counts if one.count != wanted]
    missing = [] if evidence.target_faults else list(_missing(evidence, arm, counts))
    if not wrong and not missing:
        return None
    told = [*wrong, *(f"no count {when}" for when in missing)]
    more = [f"and {len(told) - _MOST_SHOWN} more"] if len(told) > _MOST_SHOWN else []
    name = evidence.run.arms[arm].name if arm in evidence.run.arms else ""
    shown = "; ".join([*told[:_MOST_SHOWN], *more])
    what = f"the {arm.value} {name} did not have its {wanted} replicas throughout: {shown}"
    return tripped(_NAME, what, _REMEDY, spoils_of(arm, "load"))


def _missing(evidence: Evidence, arm: Arm, counts: list[ReplicaCount]) -> Iterator[str]:
    """Yield the moments of which there must be a count by what was measured, and is none."""
    moments = {one.when for one in counts}
    if AT_THE_START not in moments:
        yield AT_THE_START
    counted = {one.block for one in counts}
    measured = {one.block for one in evidence.load if one.arm is arm and level_of_stage(one.stage) is None}
    yield from (f"before block {block + 1}" for block in sorted(measured - counted))
    if evidence.run.status is RunStatus.COMPLETE and AT_THE_END not in moments:
        yield AT_THE_END


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
