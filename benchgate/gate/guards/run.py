"""Guards over a run as a whole, and over two stored runs: was everything measured, once, and the same thing?

What was only begun when a run was interrupted is measured again, so whoever ends runs can choose what is thrown away:
blocks in which nothing goes well so far. What that is worth at most to somebody who sees all stands in
docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from benchgate.gate.comparison import Comparison, arms_of, blocks_measured, load_of, measured_twice, places, quality_of
from benchgate.gate.guards.base import (
    EVERYTHING,
    LOAD,
    Need,
    NotApplicable,
    Passed,
    Violation,
    compared,
    guard,
    most_serious,
)
from benchgate.gate.guards.client import FINISH_RUN
from benchgate.gate.guards.server import restarts_between
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
    REFUSES_REQUESTS,
    Evidence,
    ReplicaCount,
    Resumption,
    RunStatus,
)
from benchgate.suite.capacity import level_of_stage
from benchgate.suite.schema import Suite
from benchgate.units import show_found

# --- Everything that was planned --------------------------------------------------------------------------------------

_DOWN = "see whether its address is right and the server runs (check its log); then run again"
_REMEDIES = {
    REFUSES_REQUESTS: (
        "the server is up: correct in the suite what it refuses (the model's name, the key, fields) and run again"
    ),
    ONE_SERVER: "correct the suite and run again",
    CANNOT_SCORE: "correct the suite and run again",
    NOT_ALL_READY: "bring all of its replicas up, or correct `ready.replicas` in the suite, and run again",
    NOT_COUNTABLE: "correct `ready` in the suite and run again",
    CHANGED: "let nobody deploy to it or change it while it is measured, and run again",
}
"""Remedies for a deployment that is up, by what its fault says."""


@guard("targets-up", "both deployments answered throughout")
def targets_up(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a deployment that did not answer at the start or after a stage, or refuses what the suite asks of it."""
    if not run.target_faults:
        imported = "the evals were imported: whether a deployment was ever down is not known"
        return NotApplicable(imported) if run.run.imported else None
    reasons, remedies = [], []
    for fault in run.target_faults:
        mark = next((one for one in _REMEDIES if one in fault.reason), None)
        state = f"did not answer {fault.when}" if mark is None else "cannot be measured"
        reasons.append(f"the {fault.arm.value} {run.run.arms[fault.arm].name} {state}: {fault.reason}")
        remedies.append(_DOWN if mark is None else _REMEDIES[mark])
    return Violation("; and ".join(reasons), "; ".join(dict.fromkeys(remedies)))


@guard("run-complete", "everything that was planned was measured")
def run_complete(run: Evidence, suite: Suite) -> Violation | None:
    """Flag a run that was interrupted."""
    if run.run.status is RunStatus.COMPLETE:
        return None
    reason = f"the run is {run.run.status.value}: not everything that was planned was measured"
    return Violation(reason, _how_to_complete(run))


@guard("all-measured", "everything planned has its record")
def all_measured(run: Evidence, suite: Suite) -> Violation | None:
    """Flag evidence that was dropped or doubled.

    A planned start, request, eval task or shadow comparison has no record, something that is measured once has two, or
    an eval was stopped early and no required check of the policy looks at it.
    """
    found = (
        measured_twice(run)
        or _missing_starts(run, suite)
        or next(_missing_tasks(run, suite), None)
        or _stopped_unjudged(run, suite)
        or ("the fixed texts were not read" if suite.divergence is not None and run.divergence is None else None)
        or ("the shadow comparison was not made" if suite.shadow is not None and run.shadow is None else None)
        or next(_missing_requests(run, suite), None)
    )
    return None if found is None else Violation(found, _how_to_complete(run))


def _missing_starts(run: Evidence, suite: Suite) -> str | None:
    """A few quick starts are not what all of them took."""
    for arm in arms_of(run):
        found = sorted(start.number for start in run.starts if start.arm is arm)
        if suite.start is not None and found != list(range(suite.start.times)):
            return f"{len(found)} starts of the {arm.value} have a time, of {suite.start.times} planned"
    return None


def _missing_tasks(run: Evidence, suite: Suite) -> Iterator[str]:
    quality = suite.quality
    first = [o for o in run.quality if o.repeat == 0]
    for name, arm in product(quality.names if quality is not None else (), Arm):
        found = (o for o in first if o.arm is arm)
        if quality is not None and not any(
            o.task == name or ((entry := quality.entry(o.task)) is not None and entry.name == name) for o in found
        ):
            yield f"task {name} was not run on the {arm.value}"
    for task, arm in product(dict.fromkeys(o.task for o in run.quality), Arm):
        observation = quality_of(run, arm, task)
        if observation is None:
            yield f"task {task} was not run on the {arm.value}"
            continue
        group, leaves = task.partition("/")[0], observation.harness.get("leaves")
        count = sum(o.arm is arm and o.task.startswith(f"{group}/") for o in first)
        if leaves is not None and count != leaves:
            yield f"{count} of the {leaves} tasks of {group} were run on the {arm.value}"


def _stopped_unjudged(run: Evidence, suite: Suite) -> str | None:
    """A task may stop early where a required check looks at it: that can only block, or find that it cannot say.

    Another policy than the one that stopped it may not look at it.
    """
    stopped = [o.task for o in run.quality if o.repeat == 0 and o.harness.get("stopped_early")]
    if not stopped:
        return None
    comparison = Comparison(run)
    specs = [s for s in concrete_checks(suite, run) if s.check.required and s.check.metric in TASK_METRICS]
    judged = {task for s in specs for tasks in judged_units(s, suite, comparison).values() for task in tasks}
    task = next((task for task in stopped if task not in judged), None)
    if task is None:
        return None
    return f"the evals were stopped early because harm was certain, and no required check looks at task {task}"


def _missing_requests(run: Evidence, suite: Suite) -> Iterator[str]:
    blocks = range(_blocks_due(run, suite))
    for place, arm in product(places(suite), arms_of(run)):
        observed = load_of(run, place.name, arm)
        for block in blocks:
            rows = observed[block].recorded_planned if block in observed else 0
            if block not in observed or place.requests not in (None, rows):  # in the background no number is planned
                where = f"stage {place.name}, block {block + 1}, {arm.value}"
                yield f"{where}: {rows} of {place.requests or 'the'} planned requests have a record"


def _blocks_due(run: Evidence, suite: Suite) -> int:
    """Return the planned blocks, or those before the interim look at which the run says that its load ended.

    Without that word a run that lacks blocks was interrupted, however few would have done.
    """
    if suite.load is None:
        return 0
    ended = run.ended
    at_a_look = ended is not None and ended.of == suite.load.blocks and ended.blocks in suite.load.looks
    if ended is not None and at_a_look and blocks_measured(suite, run) == ended.blocks:
        return ended.blocks
    return suite.load.blocks


def _how_to_complete(run: Evidence) -> str:
    """After a fault of a deployment nothing else helps than to mend that."""
    if run.target_faults:
        return "mend what `targets-up` reports; what is missing here follows from it"
    return completion_remedy(run)


# --- Resumed runs -----------------------------------------------------------------------------------------------------

MAX_RESUMPTIONS = 1


RESUMED = Need("a resumed run", lambda run, _: bool(run.resumptions))


@guard(
    "few-interruptions",
    "the run was interrupted and resumed once, which is allowed",
    invalidates=EVERYTHING,
    needs=RESUMED,
)
def few_interruptions(run: Evidence, suite: Suite) -> Violation | None:
    """Flag a run that was interrupted and resumed more than once, each time without what it had only begun."""
    times = len(run.resumptions)
    if times <= MAX_RESUMPTIONS:
        return None
    reason = f"the run was interrupted and resumed {times} times, each time without what it had only begun"
    return Violation(reason, "run the suite from its beginning, and let nothing end it more than once")


def session_notes(evidence: Evidence) -> tuple[str, ...]:
    """Describe the sessions of a resumed run, and servers that were restarted meanwhile; none for any other run."""
    found = evidence.resumptions
    if not found:
        return ()
    sessions = "; ".join(_show_resumption(one) for one in found)
    return (f"measured in {len(found) + 1} sessions: {sessions}", *_restart_notes(evidence))


def _show_resumption(one: Resumption) -> str:
    """Nobody can say what was in a spool that was not there, or is an older copy: whole blocks that went badly."""
    shown = f"interrupted, resumed at {one.at}"
    if one.without_spool:
        shown += " without the spool in which records were kept (--without-spool), so what was measured may be missing"
    elif one.by_spool:
        shown += " with what store and spool had of it, and nobody can vouch that the spool is all of what was kept"
    return shown + (f", and measured again from the beginning: {', '.join(one.again)}" if one.again else "")


def _restart_notes(run: Evidence) -> Iterator[str]:
    """Describe restarts of servers that benchgate did not start itself, as far as their metrics tell.

    As each session begins they are asked: what they said while load was sent may be of the first session alone.
    """
    known = run.run.arms
    theirs = [arm for arm in arms_of(run) if arm in known and known[arm].url is not None]
    yield from restarts_between(run, theirs)
    silent = [f"the {arm}" for arm in theirs if any(arm.value not in one.same_process for one in run.resumptions)]
    if silent:
        yield f"whether the server of {' and '.join(silent)} was restarted between the sessions is not known"


def completion_remedy(evidence: Evidence) -> str:
    """Return what to do about a run that did not measure everything."""
    run = evidence.run
    if run.status is RunStatus.COMPLETE or run.finished_at is not None or run.calibrates or run.imported:
        return FINISH_RUN
    if len(evidence.resumptions) >= MAX_RESUMPTIONS:
        return "it was resumed once already and cannot be again: run the suite from its beginning"
    running = "wait for it to end; where what measured it was killed, " if run.status is RunStatus.RUNNING else ""
    return f"{running}resume it: `benchgate run SUITE --resume --run {run.id}`"


# --- Replicas ---------------------------------------------------------------------------------------------------------

_MOST_SHOWN = 3


REPLICAS = Need("declared replicas", lambda run, _: any(_declared(run, arm) is not None for arm in arms_of(run)))


@guard("replicas-changed", "all replicas were there at each count", invalidates=LOAD, by_arm=True, needs=REPLICAS)
def replicas_changed(run: Evidence, suite: Suite) -> Violation | Passed:
    """Flag a deployment that had fewer or more replicas than it declares (`ready`) at one of the counts.

    They are counted at the start, before each block, after a stage with actions, and at the end. A count that could not
    be taken or is missing is flagged too.
    """
    declared = {arm: wanted for arm in arms_of(run) if (wanted := _declared(run, arm)) is not None}
    found = [one for arm, wanted in declared.items() if (one := _other_replicas(run, arm, wanted)) is not None]
    violation = most_serious(found)
    if violation is not None:
        return violation
    counts = sum(one.arm in declared for one in run.replicas)
    numbers = " and ".join(f"{wanted} of the {arm.value}" for arm, wanted in declared.items())
    return Passed(f"all replicas were there at each of {counts} counts: {numbers}")


def _declared(run: Evidence, arm: Arm) -> int | None:
    """Return how many replicas the run's own suite declares, whatever policy judges it now; None where none."""
    stored = run.run.suite
    found: object = stored.get("deployments")
    for key in (stored.get(arm.value), "ready", "replicas"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int) else None


def _other_replicas(run: Evidence, arm: Arm, wanted: int) -> Violation | None:
    counts = [one for one in run.replicas if one.arm is arm]
    wrong = [f"{one.shown} {one.when}" for one in counts if one.count != wanted]
    wrong += [] if run.target_faults else [f"no count {when}" for when in _missing_counts(run, arm, counts)]
    if not wrong:
        return None
    more = [f"and {len(wrong) - _MOST_SHOWN} more"] if len(wrong) > _MOST_SHOWN else []
    name = run.run.arms[arm].name if arm in run.run.arms else ""
    shown = "; ".join([*wrong[:_MOST_SHOWN], *more])
    remedy = (
        "see why replicas came or went (the scheduler's and the servers' logs), keep their number as it is declared, "
        "and run the suite again"
    )
    return Violation(f"the {arm.value} {name} did not have its {wanted} replicas throughout: {shown}", remedy, arm)


def _missing_counts(run: Evidence, arm: Arm, counts: list[ReplicaCount]) -> Iterator[str]:
    """Yield the moments of which there must be a count by what was measured, and is none."""
    moments = {one.when for one in counts}
    if AT_THE_START not in moments:
        yield AT_THE_START
    counted = {one.block for one in counts}
    measured = {one.block for one in run.load if one.arm is arm and level_of_stage(one.stage) is None}
    yield from (f"before block {block + 1}" for block in sorted(measured - counted))
    if run.run.status is RunStatus.COMPLETE and AT_THE_END not in moments:
        yield AT_THE_END


# --- Two stored runs --------------------------------------------------------------------------------------------------


CALIBRATION = Need("a calibration", lambda run, _: run.run.calibrates)


@guard("no-calibration", "the run is not a calibration", invalidates=EVERYTHING, needs=CALIBRATION)
def no_calibration(run: Evidence, suite: Suite) -> Violation | None:
    """Flag a calibration: it measured one deployment twice, so nobody in it is a candidate."""
    if not run.run.calibrates:
        return None
    name = run.run.arms[Arm.BASELINE].name if Arm.BASELINE in run.run.arms else "its baseline"
    reason = f"run {run.run.id} is a calibration: it measured {name} against itself, so it judges nobody"
    return Violation(reason, "measure a candidate with `benchgate run`")


@guard("same-measurement", "both runs measured the same thing", invalidates=EVERYTHING)
def same_measurement(comparison: Comparison, suite: Suite) -> Violation | None:
    """Flag two stored runs that did not measure the same thing."""
    reference, judged = _both_runs(comparison)
    if reference.run.measurement_sha256 == judged.run.measurement_sha256:
        return None
    reason = f"the two runs did not measure the same thing: {suite_differences(reference.run.suite, judged.run.suite)}"
    return Violation(reason, "measure both with the same suite and seed")


@guard("same-client", "both runs had the same load generator", invalidates=compared(LOAD))
def same_client(comparison: Comparison, suite: Suite) -> Violation | Passed:
    """Flag two stored runs with other load generators, where no live baseline ties them together.

    They were sent by another number of load generator processes, or one by a single machine and the other by a cluster.
    Where each run has its own live baseline, that changes the baseline too, and the guard only says so.
    """
    one, other = (_show_senders(run) for run in _both_runs(comparison))
    if one == other:
        return Passed(f"both runs were sent by the same: {one}")
    reason = f"the two runs were not sent by the same: one by {one}, the other by {other}"
    if comparison.apart:
        return Violation(reason, "measure the two deployments in one run")
    return Passed(f"{reason}; what that changes, it changes of each run's own baseline too")


@guard("same-baseline", "both runs had the same baseline beside them", invalidates=EVERYTHING)
def same_baseline(comparison: Comparison, suite: Suite) -> Violation | NotApplicable | None:
    """Flag two stored runs that did not measure the same baseline beside their candidate."""
    if comparison.apart:
        return NotApplicable("a run measured its candidate alone: margins are held to a noise profile instead")
    theirs, ours = (run.run.arms[Arm.BASELINE].fingerprint for run in _both_runs(comparison))
    if theirs == ours:
        return None
    reason = "the two runs had different baselines beside them, so nothing ties their machines and moments together"
    return Violation(reason, "measure the two deployments in one run")


def _both_runs(comparison: Comparison) -> tuple[Evidence, Evidence]:
    assert comparison.reference is not None, "two runs are compared"
    return comparison.reference, comparison.judged


def _show_senders(run: Evidence) -> str:
    """`4 load generator processes of a cluster`; where stages differ in their number, all of the numbers."""
    numbers = sorted({execution.client.workers for execution in run.load})
    spread = any(execution.client.start_uncertainty_s is not None for execution in run.load)
    shown = " or ".join(map(str, numbers)) or "no"
    return f"{shown} load generator process{'' if numbers == [1] else 'es'}{' of a cluster' if spread else ''}"


_MEASURED_BY = ("seed", "start", "load", "quality", "divergence", "shadow", "limits")
_OF_THE_CLIENT = ("load.workers", "load.audit", "load.looks", "load.limit")  # how it is asked, and not what
_NAMED = 3  # differences; more are counted


def suite_differences(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """Describe how two stored suites differ in what they measure: `load.blocks is 4 in the first and 8 in the second`.

    Nothing of the suites differs where a file that they name was another one.
    """
    asked = [dict(leaf_values({key: suite.get(key) for key in _MEASURED_BY})) for suite in (one, other)]
    names = [name for name in dict.fromkeys([*asked[0], *asked[1]]) if asked[0].get(name) != asked[1].get(name)]
    names = [name for name in names if not name.startswith(_OF_THE_CLIENT)]
    if not names:
        return "their suites ask the same, so a file that these name (prompts, tasks, a trace) was another one"
    shown = []
    for name in names[:_NAMED]:
        first, second = ("missing" if (value := side.get(name)) is None else show_found(value) for side in asked)
        shown.append(f"{name} is {first} in the first and {second} in the second")
    more = len(names) - _NAMED
    return "; ".join(shown) + (f"; and {more} more {'differs' if more == 1 else 'differ'}" if more > 0 else "")


def leaf_values(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every single value below, by where it stands: `load.sweep[0].concurrency`."""
    inside: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        inside = [(f"{path}.{key}" if path else str(key), one) for key, one in value.items()]
    elif isinstance(value, list | tuple):
        inside = [(f"{path}[{place}]", one) for place, one in enumerate(value)]
    if not inside:
        yield path, value
    for at, one in inside:
        yield from leaf_values(one, at)
