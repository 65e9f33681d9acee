"""Guards over a whole run, and over two stored runs: completeness, interruptions, replicas and comparability.

A resumed run repeats its unfinished block, so an operator who interrupts runs could discard bad blocks.
docs/adr/14-one-resumption.md quantifies how much that could gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from benchgate.gate.comparison import (
    LiveBaseline,
    TiedRuns,
    UntiedRuns,
    arms_of,
    blocks_measured,
    load_of,
    measured_twice,
    paired_load,
    quality_of,
)
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
    NO_LLM_SERVER,
    NOT_ALL_READY,
    NOT_COUNTABLE,
    ONE_SERVER,
    REFUSES_REQUESTS,
    Evidence,
    LoadObservation,
    RunStatus,
)
from benchgate.suite.load import CAPACITY_STAGE, level_of_stage
from benchgate.suite.quality import is_verifiable, stage_of_task, verified_name
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.units import show_found

# --- Everything that was planned --------------------------------------------------------------------------------------

_DOWN = (
    "check its address and that the server runs (see its log), then run again; for a server that is still starting, "
    "write `limits: {ready: 5min}` in the suite"
)
_REMEDIES = {
    REFUSES_REQUESTS: (
        "the server is up but rejects requests: fix the model name, key or request fields in the suite and run again"
    ),
    NO_LLM_SERVER: "correct the host, port or path of its `url` in the suite and run again",
    ONE_SERVER: "correct the suite and run again",
    CANNOT_SCORE: "correct the suite and run again",
    NOT_ALL_READY: "start all of its replicas, or correct `ready.replicas` in the suite, and run again",
    NOT_COUNTABLE: "correct `ready` in the suite and run again",
    CHANGED: "do not deploy to it or change it during a run, and run again",
}
"""Remedies for a deployment that is up, by a text in its fault."""


@guard("targets-up", "both deployments answered throughout")
def targets_up(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a deployment that did not answer at the start or after a stage, or rejects the suite's requests."""
    if not run.target_faults:
        imported = "the evals were imported: no deployment was watched"
        return NotApplicable(imported) if run.run.imported else None
    reasons, remedies = list[str](), list[str]()
    for fault in run.target_faults:
        mark = next((one for one in _REMEDIES if one in fault.reason), None)
        state = f"did not answer {fault.when}" if mark is None else "cannot be measured"
        name = f"the {fault.arm.value} {run.run.arms[fault.arm].name}"
        repeats = mark is None and any(f" {state}: " in reason for reason in reasons)
        reasons.append(f"neither did {name}: {fault.reason}" if repeats else f"{name} {state}: {fault.reason}")
        remedies.append(_DOWN if mark is None else _REMEDIES[mark])
    return Violation("; and ".join(reasons), "; ".join(dict.fromkeys(remedies)))


@guard("run-complete", "everything planned was measured")
def run_complete(run: Evidence, suite: Suite) -> Violation | None:
    """Flag a run that was interrupted."""
    if run.run.status is RunStatus.COMPLETE:
        return None
    reason = f"the run is {run.run.status.value}: not everything planned was measured"
    return Violation(reason, completion_remedy(run))


@guard("all-measured", "everything planned has exactly one record")
def all_measured(run: Evidence, suite: Suite) -> Violation | None:
    """Flag missing or duplicated evidence.

    A planned start, request, eval task or shadow comparison has no record or two, a request of a load by regions names
    none of them, or no check judges an eval that was stopped early or a task that was sent among a load.
    """
    found = measured_twice(run) or next(_missing(run, suite), None)
    return None if found is None else Violation(found, completion_remedy(run))


def _missing(run: Evidence, suite: Suite) -> Iterator[str]:
    for arm in arms_of(run):
        found = sorted(start.number for start in run.starts if start.arm is arm)
        if suite.start is not None and found != list(range(suite.start.times)):
            yield f"{len(found)} starts of the {arm.value} have a time, of {suite.start.times} planned"
    evals = _missing_task(run, suite) or _stopped_unjudged(run, suite)
    if evals is not None:
        yield evals
    if suite.divergence is not None and run.divergence is None:
        yield "the divergence on fixed texts was not measured"
    if suite.shadow is not None and run.shadow is None:
        yield "the shadow comparison was not measured"
    blocks = range(_blocks_due(run, suite))
    for place, arm in product(traffic_classes(suite), arms_of(run)):
        observed = load_of(run, place.name, arm)
        for block in blocks:
            where = f"stage {place.name}, block {block + 1}, {arm.value}"
            rows = observed[block].recorded_planned if block in observed else 0
            if block not in observed or place.requests not in (None, rows):  # background traffic has no planned number
                yield f"{where}: {rows} of {place.requests or 'the'} planned requests have a record"
            elif suite.regions and (count := _of_no_region(observed[block], suite)):
                yield f"{where}: {count} requests name no region of the suite"
    if all(load_of(run, CAPACITY_STAGE, arm) for arm in Arm) and not paired_load(run, CAPACITY_STAGE):
        yield "no look of the capacity search was the same on both deployments, before or after the run was resumed"


def _of_no_region(execution: LoadObservation, suite: Suite) -> int:
    counts = [rows.region.counts() for rows in execution.parts]
    return sum(count for found in counts for name, count in found.items() if name not in suite.regions)


def _missing_task(run: Evidence, suite: Suite) -> str | None:
    quality = suite.quality
    first = [o for o in run.quality if o.repeat == 0]
    for name, arm in product(quality.names if quality is not None else (), Arm):
        if not any(o.arm is arm and suite.unit_name(o.task) == name for o in first):
            return f"task {name} was not run on the {arm.value}"
    sweep = suite.load.sweep if suite.load is not None and not run.redrawn else ()  # blocks redrawn have no answers
    stages = [stage.name for stage in sweep if stage.verify_ratio]
    of_evals = [o for o in first if stage_of_task(o.task) is None]
    facts = {o.task: (o.harness.get("output_type"), o.harness.get("scale"), o.harness.get("repeats")) for o in of_evals}
    for (task, known), stage in product(facts.items(), stages):
        if is_verifiable(*known) and not any(o.task == verified_name(task, stage) for o in first):
            return f"no item of task {task} was sent among the requests of stage {stage}"
    for name in stages:
        sent = [o.task for o in first if stage_of_task(o.task) == name]
        if not sent:
            return f"no eval items were sent among the requests of stage {name}"
        named = {check.task for check in suite.gate.checks if check.metric == "accuracy" and check.stage == name}
        judged = {verified_name(task, name) for task in named if task is not None}
        left = next((task for task in sent if not {task, suite.unit_name(task)} & judged), None)
        if left is not None and named and not {None, "each"} & named:
            return f"no check judges the answers to {left} among the requests of stage {name}"
    for task, arm in product(dict.fromkeys(o.task for o in run.quality), Arm):
        observation = quality_of(run, arm, task)
        if observation is None:
            return f"task {task} was not run on the {arm.value}"
        group, leaves = task.partition("/")[0], observation.harness.get("leaves")
        count = sum(o.arm is arm and o.task.startswith(f"{group}/") for o in of_evals)
        if leaves is not None and count != leaves:
            return f"{count} of the {leaves} tasks of {group} were run on the {arm.value}"
    return None


def _stopped_unjudged(run: Evidence, suite: Suite) -> str | None:
    """Describe a task that stopped early although no required check covers it; None if there is none.

    Stopping early is safe for a required check: it can only end in BLOCK or INCONCLUSIVE.
    """
    stopped = [o.task for o in run.quality if o.repeat == 0 and o.harness.get("stopped_early")]
    if not stopped:
        return None
    comparison = LiveBaseline(run)
    specs = [s for s in concrete_checks(suite, run) if s.check.required and s.check.metric in TASK_METRICS]
    judged = {task for s in specs for tasks in judged_units(s, suite, comparison).values() for task in tasks}
    task = next((task for task in stopped if task not in judged), None)
    if task is None:
        return None
    return f"the evals were stopped early because a regression was certain, but no required check covers task {task}"


def _blocks_due(run: Evidence, suite: Suite) -> int:
    """Return the planned number of blocks, or that at the interim analysis where the run recorded the end of its load.

    Without such a record, a run that lacks blocks was interrupted.
    """
    if suite.load is None:
        return 0
    ended = run.ended
    at_a_look = ended is not None and ended.of == suite.load.blocks and ended.blocks in suite.load.looks
    if ended is not None and at_a_look and blocks_measured(suite, run) == ended.blocks:
        return ended.blocks
    return suite.load.blocks


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
    """Flag a run that was interrupted and resumed more than once, each time discarding unfinished work."""
    times = len(run.resumptions)
    if times <= MAX_RESUMPTIONS:
        return None
    reason = f"the run was interrupted and resumed {times} times, each time discarding unfinished work"
    return Violation(reason, "run the suite from its beginning, with at most one interruption")


def session_notes(evidence: Evidence) -> tuple[str, ...]:
    """Describe the sessions of a resumed run and servers restarted between them; return () for any other run."""
    found = evidence.resumptions
    if not found:
        return ()
    sessions = []
    for one in found:
        text = f"interrupted, resumed at {one.at}"
        if one.without_spool:
            text += " without the spool of records (--ignore-missing-spool), so measured blocks may be missing"
        elif one.by_spool:
            text += " from store and spool; nothing proves that the spool is complete"
        again = f", and measured again from the beginning: {', '.join(one.again)}" if one.again else ""
        sessions.append(text + again)
    # servers that benchgate did not start itself, by the metrics read as each session began
    arms = evidence.run.arms
    with_url = [arm for arm in arms_of(evidence) if arm in arms and arms[arm].url is not None]
    external = [arm for arm in with_url if _of_deployment(evidence, arm, "start") is None]
    notes = [f"measured in {len(found) + 1} sessions: {'; '.join(sessions)}", *restarts_between(evidence, external)]
    silent = [f"the {arm}" for arm in external if any(arm.value not in one.same_process for one in found)]
    if silent:
        notes.append(f"it is not known whether the server of {' and '.join(silent)} was restarted between the sessions")
    return tuple(notes)


def completion_remedy(evidence: Evidence) -> str:
    """Return the remedy for a run that did not measure everything."""
    run = evidence.run
    if evidence.target_faults:
        return "fix what `targets-up` reports: it caused the gap"
    if run.status is RunStatus.COMPLETE or run.finished_at is not None or run.calibrates or run.imported:
        return FINISH_RUN
    if len(evidence.resumptions) >= MAX_RESUMPTIONS:
        return "it was resumed once and cannot be resumed again: run the suite from its beginning"
    running = "wait for it to end; if its process was killed, " if run.status is RunStatus.RUNNING else ""
    return f"{running}resume it: `benchgate run SUITE --resume --run {run.id}`"


# --- Replicas ---------------------------------------------------------------------------------------------------------

_MOST_SHOWN = 3


REPLICAS = Need("declared replicas", lambda run, _: any(_declared(run, arm) is not None for arm in arms_of(run)))


@guard("replicas-changed", "all replicas were present at each count", invalidates=LOAD, by_arm=True, needs=REPLICAS)
def replicas_changed(run: Evidence, suite: Suite) -> Violation | Passed:
    """Flag a deployment whose number of replicas differed from the declared one (`ready`) at any count.

    Replicas are counted at the start, before each block, after a stage with actions, and at the end. A failed or
    missing count is flagged too.
    """
    declared = {arm: number for arm in arms_of(run) if (number := _declared(run, arm)) is not None}
    found = [one for arm, number in declared.items() if (one := _other_replicas(run, arm, number)) is not None]
    violation = most_serious(found)
    if violation is not None:
        return violation
    counts = sum(one.arm in declared for one in run.replicas)
    numbers = " and ".join(f"{number} of the {arm.value}" for arm, number in declared.items())
    return Passed(f"all replicas were present at each of {counts} counts: {numbers}")


def _declared(run: Evidence, arm: Arm) -> int | None:
    """Return the number of replicas that is declared; None if none is."""
    found = _of_deployment(run, arm, "ready", "replicas")
    return found if isinstance(found, int) else None


def _of_deployment(run: Evidence, arm: Arm, *keys: str) -> object:
    """Return a value of the arm's deployment in the run's own suite, not in the policy that judges it; None if none."""
    found: object = run.run.suite.get("deployments")
    for key in (run.run.suite.get(arm.value), *keys):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _other_replicas(run: Evidence, arm: Arm, declared: int) -> Violation | None:
    counts = [one for one in run.replicas if one.arm is arm]
    wrong = [f"{one.shown} {one.when}" for one in counts if one.count != declared]
    if not run.target_faults:
        moments, numbers = {one.when for one in counts}, {one.block for one in counts}
        measured = {one.block for one in run.load if one.arm is arm and level_of_stage(one.stage) is None}
        wrong += [f"no count {AT_THE_START}"] if AT_THE_START not in moments else []
        wrong += [f"no count before block {block + 1}" for block in sorted(measured - numbers)]
        if run.run.status is RunStatus.COMPLETE and AT_THE_END not in moments:
            wrong.append(f"no count {AT_THE_END}")
    if not wrong:
        return None
    more = [f"and {len(wrong) - _MOST_SHOWN} more"] if len(wrong) > _MOST_SHOWN else []
    name = run.run.arms[arm].name if arm in run.run.arms else ""
    counted = "; ".join([*wrong[:_MOST_SHOWN], *more])
    remedy = (
        "find out why replicas came or went (scheduler and server logs), keep their number, and run the suite again"
    )
    return Violation(f"the {arm.value} {name} did not have its {declared} replicas throughout: {counted}", remedy, arm)


# --- Two stored runs --------------------------------------------------------------------------------------------------


CALIBRATION = Need("a calibration", lambda run, _: run.run.calibrates)


@guard("no-calibration", "the run is not a calibration", invalidates=EVERYTHING, needs=CALIBRATION)
def no_calibration(run: Evidence, suite: Suite) -> Violation:
    """Flag a calibration: it measured one deployment twice, so it has no candidate."""
    name = run.run.arms[Arm.BASELINE].name if Arm.BASELINE in run.run.arms else "its baseline"
    reason = f"run {run.run.id} is a calibration: it measured {name} against itself and has no candidate"
    return Violation(reason, "measure a candidate with `benchgate run`")


@guard("same-measurement", "both runs measured the same thing", invalidates=EVERYTHING)
def same_measurement(comparison: TiedRuns, suite: Suite) -> Violation | None:
    """Flag two stored runs that did not measure the same thing."""
    reference, judged = (comparison.reference, comparison.judged)
    if reference.run.measurement_sha256 == judged.run.measurement_sha256:
        return None
    reason = f"the two runs did not measure the same thing: {suite_differences(reference.run.suite, judged.run.suite)}"
    return Violation(reason, "measure both with the same suite and seed")


@guard("same-client", "both runs had the same load generator", invalidates=compared(LOAD))
def same_client(comparison: TiedRuns, suite: Suite) -> Violation | Passed:
    """Flag two stored runs with different load generators and no live baseline in common.

    The number of load generator processes differs, or one run used a single machine and the other a cluster. If each
    run has its own live baseline, the difference affects that too, and the guard only reports it.
    """
    senders = []
    for run in (comparison.reference, comparison.judged):
        numbers = sorted({execution.client.workers for execution in run.load})
        cluster = any(execution.client.by_cluster for execution in run.load)
        processes = f"load generator {'process' if numbers == [1] else 'processes'}{' of a cluster' if cluster else ''}"
        senders.append(f"{' or '.join(map(str, numbers)) or 'no'} {processes}")  # every number if stages differ
    one, other = senders
    if one == other:
        return Passed(f"both runs were sent by {one}")
    reason = f"the load generators of the two runs differ: one was sent by {one}, the other by {other}"
    if isinstance(comparison, UntiedRuns):
        return Violation(reason, "measure the two deployments in one run")
    return Passed(f"{reason}; this affects each run's own baseline too")


@guard("same-baseline", "both runs measured the same baseline", invalidates=EVERYTHING)
def same_baseline(comparison: TiedRuns, suite: Suite) -> Violation | NotApplicable | None:
    """Flag two stored runs that measured different baselines with their candidates."""
    if isinstance(comparison, UntiedRuns):
        return NotApplicable("a run measured its candidate alone: a noise profile is used instead of a common baseline")
    baseline, candidate = (run.run.arms[Arm.BASELINE].fingerprint for run in (comparison.reference, comparison.judged))
    if baseline == candidate:
        return None
    reason = "the two runs measured different baselines, so differences of machine and time do not cancel"
    return Violation(reason, "measure the two deployments in one run")


_MEASURED_BY = ("seed", "start", "load", "quality", "divergence", "shadow", "limits")
_OF_THE_CLIENT = ("load.workers", "load.audit", "load.looks", "load.limit")  # how requests are sent, not which
_NAMED = 3  # differences; further ones are counted


def suite_differences(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """Describe how two stored suites differ, such as `load.blocks is 4 in the first and 8 in the second`."""
    flat = [dict(leaf_values({key: suite.get(key) for key in _MEASURED_BY})) for suite in (one, other)]
    names = [name for name in dict.fromkeys([*flat[0], *flat[1]]) if flat[0].get(name) != flat[1].get(name)]
    names = [name for name in names if not name.startswith(_OF_THE_CLIENT)]
    if not names:
        return "their suites are equal, so the content of a file that they name (prompts, tasks, a trace) differs"
    differences = []
    for name in names[:_NAMED]:
        first, second = ("missing" if (value := side.get(name)) is None else show_found(value) for side in flat)
        differences.append(f"{name} is {first} in the first and {second} in the second")
    more = len(names) - _NAMED
    return "; ".join(differences) + (f"; and {more} more {'differs' if more == 1 else 'differ'}" if more > 0 else "")


def leaf_values(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every leaf value with its path, such as `load.sweep[0].concurrency`."""
    inside: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        inside = [(f"{path}.{key}" if path else str(key), one) for key, one in value.items()]
    elif isinstance(value, list | tuple):
        inside = [(f"{path}[{place}]", one) for place, one in enumerate(value)]
    if not inside:
        yield path, value
    for at, one in inside:
        yield from leaf_values(one, at)
