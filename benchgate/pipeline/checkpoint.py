"""Checkpoint of an interrupted run: its complete parts, read from the journal, and the checks before it is resumed.

Incomplete blocks are repeated, because both arms of a pair must be measured close in time; their old rows are kept but
excluded from the evidence. A run may be resumed if the suite, the machine and the servers are what they were.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import pbkdf2_hmac
from itertools import groupby
from pathlib import Path
from typing import Any

from benchgate import __version__
from benchgate.errors import UsageError
from benchgate.gate.guards.run import MAX_RESUMPTIONS, leaf_values
from benchgate.model.deployment import Arm, canonical_json
from benchgate.model.records import DivergenceObservation, EvalItem, VerifiedAnswer
from benchgate.model.run import (
    ANSWERS,
    INTERRUPTED,
    LOAD_ENDED,
    LOAD_SALT,
    LOOK,
    MEASURED,
    RESUMED,
    SERVER_PROCESSES,
    SESSION_BEGUN,
    BudgetReading,
    DeploymentFault,
    LoadObservation,
    QualityObservation,
    Run,
    ServerStart,
    ShadowObservation,
)
from benchgate.model.telemetry import TelemetryWindow
from benchgate.pipeline.environment import environment_facts
from benchgate.plan.schedule import Plan
from benchgate.store.evidence import JournalEntry, JournalEvent
from benchgate.suite.address import reference_name, resolve_secret
from benchgate.suite.load import level_of_stage
from benchgate.suite.quality import stage_of_task
from benchgate.suite.schema import Suite, measured_arms
from benchgate.units import Show, as_written, show_duration, show_percent, show_rate, show_size

_VOLATILE_FACTS = frozenset({"load_average_1min", LOAD_SALT})
"""Facts that change from moment to moment, or belong to the run and not to its machine."""

_MAX_VALUE_CHARACTERS = 60
_MAX_DIFFERENCES = 8  # further ones are counted
_UNITS: Mapping[str, Show] = {
    "_s": show_duration,
    "_ratio": show_percent,
    "_rps": show_rate,
    "_bytes": show_size,
}
"""Format of a number by the end of its name: as it is written in a suite."""
_HASH_ROUNDS = 100_000


@dataclass(frozen=True, slots=True)
class VerifiedAnswers:
    """Answers to the eval items of one execution of a stage, not yet scored; kept in the journal."""

    stage: str
    arm: Arm
    answers: tuple[VerifiedAnswer, ...]


@dataclass(frozen=True, slots=True)
class CompletedLoad:
    """Complete part of a load: its first `blocks`, its interim looks, and the looks of the capacity search.

    `continued_after` are the looks, as numbers of blocks, that let the load go on; `ended` is True if one ended it.
    `verified` are answers to eval items in the blocks. `spent_s` is the time that stages took, incomplete ones
    included. `workers` are numbers of load generator processes; `by_cluster` is True if workers of a cluster sent it.
    """

    blocks: int = 0
    continued_after: frozenset[int] = frozenset()
    ended: bool = False
    searched: tuple[LoadObservation, ...] = ()
    spent_s: float = 0.0
    workers: frozenset[int] = frozenset()
    by_cluster: bool = False
    verified: tuple[VerifiedAnswers, ...] = ()


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Measurement that was begun and not completed: its name, and the places of its rows in the journal."""

    name: str
    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completed:
    """Complete parts of a run. `position` is the number of the next execution of a stage, incomplete ones counted.

    `starts` are complete rounds of starts. `tasks` are evals with every repetition on every arm. `down` is the fault of
    a deployment that ended the run. `budget` are the journal rows of the error budget's readings.
    """

    load: CompletedLoad = field(default_factory=CompletedLoad)
    position: int = 0
    starts: int = 0
    tasks: Mapping[str, tuple[QualityObservation, ...]] = field(default_factory=dict)
    divergence: bool = False
    shadow: bool = False
    budget: tuple[int, ...] = ()
    incomplete: tuple[Incomplete, ...] = ()
    down: DeploymentFault | None = None
    resumptions: int = 0

    @property
    def has_results(self) -> bool:
        """Return True if load, quality, divergence or shadow has a complete part, measured on these deployments."""
        return bool(self.load.blocks or self.load.searched or self.tasks or self.divergence or self.shadow)

    def items(self) -> dict[str, tuple[Sequence[EvalItem], Sequence[EvalItem]]]:
        """Return the items of both arms of every complete task; an early stop judges them with the others."""
        judged = {task: {one.arm: one.items for one in rows if one.repeat == 0} for task, rows in self.tasks.items()}
        return {
            task: (arms[Arm.BASELINE], arms[Arm.CANDIDATE]) for task, arms in judged.items() if len(arms) == len(Arm)
        }


NOTHING_COMPLETED: Completed = Completed()


def read_checkpoint(suite: Suite, plan: Plan, journal: Sequence[JournalEntry]) -> Completed:
    """Return the complete parts of a run of this suite and plan, from its journal alone."""
    counted = [entry for entry in journal if not entry.aside]
    load, incomplete_load = _load(plan, journal, counted)
    starts, incomplete_starts = _starts(suite, counted)
    tasks, incomplete_tasks = _tasks(suite, counted)
    single = {kind: _single(counted, kind) for kind in (DivergenceObservation, ShadowObservation)}
    incomplete_single = [found for found in single.values() if isinstance(found, Incomplete)]
    return Completed(
        load=load,
        position=1 + max((_position(entry.what) for entry in journal), default=-1),
        starts=starts,
        tasks=tasks,
        divergence=single[DivergenceObservation] is True,
        shadow=single[ShadowObservation] is True,
        budget=tuple(entry.seq for entry in counted if isinstance(entry.what, BudgetReading)),
        incomplete=(*incomplete_load, *incomplete_starts, *incomplete_tasks, *incomplete_single),
        resumptions=sum(isinstance(entry.what, JournalEvent) and entry.what.kind == RESUMED for entry in counted),
        down=next((entry.what for entry in counted if isinstance(entry.what, DeploymentFault)), None),
    )


def _load(
    plan: Plan, journal: Sequence[JournalEntry], counted: Sequence[JournalEntry]
) -> tuple[CompletedLoad, tuple[Incomplete, ...]]:
    events = [entry.what for entry in counted if isinstance(entry.what, JournalEvent)]
    marked = {_position(event): _place(event) for event in events if event.kind == MEASURED}
    measured, blocks = set(marked.values()), 0  # blocks, from the first one on, with every stage on every arm
    for block in plan.blocks:
        if not {(stage.name, arm.value, block.number) for stage in block.stages for arm in block.order} <= measured:
            break
        blocks += 1
    complete = {
        position
        for position, (stage, _, number) in marked.items()
        if number < blocks or level_of_stage(stage) is not None
    }
    executions = [entry.what for entry in journal if isinstance(entry.what, LoadObservation)]
    duration_s = {one.position: one.client.wall_s for one in executions}  # classes of a stage share its client
    looks = [event.data for event in events if event.kind == LOOK]
    searched = [
        entry.what
        for entry in counted
        if isinstance(entry.what, LoadObservation)
        and entry.what.position in complete
        and level_of_stage(entry.what.stage) is not None
    ]
    load = CompletedLoad(
        blocks=blocks,
        continued_after=frozenset(_number(look["blocks"]) for look in looks if look.get("then") != "ended"),
        ended=any(event.kind == LOAD_ENDED for event in events),
        searched=tuple(sorted(searched, key=lambda one: one.position)),
        spent_s=sum(duration_s.values()),
        workers=frozenset(one.client.workers for one in executions),
        by_cluster=any(one.client.by_cluster for one in executions),
        verified=tuple(_verified(event) for event in events if event.kind == MEASURED and _position(event) in complete),
    )
    return load, tuple(_incomplete_executions(counted, complete))


def _verified(event: JournalEvent) -> VerifiedAnswers:
    place: Mapping[str, Any] = event.data
    answers = tuple(VerifiedAnswer(**one) for one in place.get(ANSWERS, ()))
    return VerifiedAnswers(str(place["stage"]), Arm(place["arm"]), answers)


def _incomplete_executions(counted: Sequence[JournalEntry], complete: set[int]) -> Iterator[Incomplete]:
    """Yield the rows of executions in incomplete blocks, and of incomplete looks of the capacity search."""
    seqs: dict[str, list[int]] = defaultdict(list)
    for entry in counted:
        position = _position(entry.what)
        if position >= 0 and position not in complete:
            stage, _, block = _place(entry.what)
            look = level_of_stage(stage) is not None
            seqs[f"look {block + 1} at {stage}" if look else f"block {block + 1}"].append(entry.seq)
    for name, rows in seqs.items():
        yield Incomplete(name, tuple(rows))


def _starts(suite: Suite, counted: Sequence[JournalEntry]) -> tuple[int, list[Incomplete]]:
    """Count the complete rounds of starts from the first one on; a round without an arm is incomplete."""
    rounds: dict[int, dict[Arm, int]] = defaultdict(dict)
    for entry in counted:
        if isinstance(entry.what, ServerStart):
            rounds[entry.what.number][entry.what.arm] = entry.seq
    arms, complete = set(measured_arms(suite)), 0
    while set(rounds.get(complete, ())) == arms:
        complete += 1
    left = {number: tuple(seqs.values()) for number, seqs in rounds.items() if number >= complete}
    return complete, [Incomplete(f"start {number + 1}", seqs) for number, seqs in sorted(left.items())]


def _tasks(
    suite: Suite, counted: Sequence[JournalEntry]
) -> tuple[dict[str, tuple[QualityObservation, ...]], list[Incomplete]]:
    """Return the tasks with every repetition on every arm, failed ones included, and the interrupted others."""
    if suite.quality is None:
        return {}, []
    judged = {(arm, 0) for arm in measured_arms(suite)}
    repeated = judged | ({(Arm.BASELINE, 1)} if suite.quality.repeat_baseline else set())
    found: dict[str, list[tuple[int, QualityObservation]]] = defaultdict(list)
    for entry in counted:
        if isinstance(entry.what, QualityObservation):
            found[entry.what.task].append((entry.seq, entry.what))
    complete: dict[str, tuple[QualityObservation, ...]] = {}
    incomplete: list[Incomplete] = []
    for task, rows in found.items():
        due = judged if stage_of_task(task) is not None else repeated
        ended = {(one.arm, one.repeat) for _, one in rows if one.fault != INTERRUPTED}
        if ended == due:
            complete[task] = tuple(one for _, one in rows)
        else:
            incomplete.append(Incomplete(f"task {task}", tuple(seq for seq, _ in rows)))
    return complete, incomplete


def _single(
    counted: Sequence[JournalEntry], kind: type[DivergenceObservation] | type[ShadowObservation]
) -> bool | Incomplete:
    """Return True if an observation that a run makes once is there; one that was interrupted is incomplete."""
    for entry in counted:
        if isinstance(entry.what, kind):
            if entry.what.fault != INTERRUPTED:
                return True
            name = "the fixed texts" if isinstance(entry.what, DivergenceObservation) else "the recorded prompts"
            return Incomplete(name, (entry.seq,))
    return False


def _position(entry: object) -> int:
    """Return the number of the execution that an entry belongs to; -1 if it belongs to none."""
    if isinstance(entry, LoadObservation | TelemetryWindow):
        return entry.position
    return _number(entry.data["position"]) if isinstance(entry, JournalEvent) and entry.kind == MEASURED else -1


def _place(entry: object) -> tuple[str, str, int]:
    """Return the stage, arm and block of an entry that belongs to an execution."""
    if isinstance(entry, LoadObservation | TelemetryWindow):
        return entry.stage, entry.arm.value, entry.block
    assert isinstance(entry, JournalEvent), "it belongs to an execution"
    return str(entry.data["stage"]), str(entry.data["arm"]), _number(entry.data["block"])


def _number(value: Any) -> int:
    return int(value)


def session_event(suite: Suite, environment: Mapping[str, str], run_id: str, spool: Path) -> dict[str, object]:
    """Return the data of the event that begins a session of a run. Raises UsageError for a variable that is not set.

    `addresses` identifies the servers that a suite names only by reference (`${env:NAME}`): a hash of each resolved
    address, proxy, key and header, by arm and key. The hash is salted with the run's id and slow to compute, because
    the values are secrets and some are short enough to be guessed.
    """
    addresses: dict[str, dict[str, str]] = {}
    for arm, name in suite.arm_names.items():
        spec, hashes = suite.deployments[name], dict[str, str]()
        # The keys that decide which server answers.
        keys = {name: getattr(spec, name) for name in ("url", "proxy", "api_key", "gpu")}
        keys |= {**spec.metrics.addresses, "metrics.api_key": spec.metrics.api_key}
        keys |= {f"headers.{name}": text for name, text in spec.headers.items()}
        keys |= {f"ready.metrics[{n}]": text for n, text in enumerate(spec.ready.metrics if spec.ready else ())}
        for key, text in keys.items():
            if text is not None and reference_name(text) is not None:
                value = resolve_secret(text, environment)
                value = value.rstrip("/") if key == "url" else value  # both spellings reach the same server
                salted = canonical_json([arm.value, key, value])
                hashes[key] = pbkdf2_hmac("sha256", salted, run_id.encode(), _HASH_ROUNDS).hex()
        if hashes:
            addresses[arm.value] = hashes
    return {"process": os.getpid(), "spool": str(spool), "addresses": addresses}


def changed_references(
    events: Sequence[tuple[str, Mapping[str, Any]]], session: Mapping[str, Any], suite: Suite
) -> Iterator[str]:
    """Describe each reference that resolves to another value now than in an earlier session of the run."""
    earlier = [data.get("addresses", {}) for kind, data in events if kind == SESSION_BEGUN]
    for arm, name in suite.arm_names.items():
        now = session["addresses"].get(arm.value, {})
        before = [hashes.get(arm.value, {}) for hashes in earlier]
        for key in now:
            if any(hashes.get(key) != now[key] for hashes in before):
                yield (
                    f"the {arm} {name} has another `{key}` than before: set the variable that it refers to as it was"
                )


def require_unchanged(
    run: Run, suite: Suite, plan: Plan, events: Sequence[tuple[str, Mapping[str, Any]]], session: Mapping[str, Any]
) -> None:
    """Raise UsageError with every difference from the beginning of the run.

    `events` are those of its journal, and `session` is the event of this session (see `session_event`).
    """
    if run.calibrates or run.imported:
        kind = "a calibration" if run.calibrates else "an import"
        raise UsageError(f"run {run.id} is {kind}; only measured runs with a candidate can be resumed")
    changed = list(_differences(run.suite, suite.to_stored(), "the suite's "))
    if not changed and plan.sha256 != run.plan_sha256:
        changed.append(
            f"the plan was {run.plan_sha256[:12]} and is {plan.sha256[:12]}: a file that the suite names (of tasks, "
            "prompts, texts or traces), or the tokenizer of a server, is not what it was"
        )
    if run.tool_version != __version__:
        changed.append(f"benchgate was {run.tool_version} and is {__version__}")
    changed += _differences(_stable_facts(run.environment), _stable_facts(environment_facts()), "this machine's ")
    changed += changed_references(events, session, suite)
    if changed:
        raise UsageError(_refusal(run, changed))


def processes_before(journal: Sequence[JournalEntry]) -> dict[Arm, tuple[str, ...]]:
    """Return the server processes of each arm so far, without repetitions in a row; excluded rows count too."""
    found: dict[Arm, list[str]] = {arm: [] for arm in Arm}
    for entry in journal:
        if isinstance(entry.what, TelemetryWindow):
            found[entry.what.arm] += entry.what.markers
        elif isinstance(entry.what, JournalEvent) and entry.what.kind == SERVER_PROCESSES:
            for arm, marker in entry.what.data.items():
                found[Arm(arm)] += [str(marker)] if marker is not None else []
    return {arm: tuple(marker for marker, _ in groupby(markers)) for arm, markers in found.items()}


def same_processes(run: Run, before: Mapping[Arm, Sequence[str]], now: Mapping[Arm, str | None]) -> tuple[Arm, ...]:
    """Return the arms that the same process serves as before. Raises UsageError for an arm that another one serves.

    A restarted server and a replaced one report the same facts. An arm is left out if several processes serve it in
    turn, or none is reported.
    """
    same = []
    for arm, marker in now.items():
        known = before.get(arm, ())
        if marker is None or not known or len(known) > len(set(known)):
            continue
        if marker == known[-1]:
            same.append(arm)
        elif marker not in known:
            raise UsageError(
                f"run {run.id} cannot go on: the server of the {arm} {run.arms[arm].name} is not the process it was "
                "when the run was cut short: it was restarted, or another took its place, and nobody can tell which; "
                "run the suite from its beginning, without --resume"
            )
    return tuple(same)


def require_resumable(run: Run, completed: Completed, *, by_cluster: bool) -> None:
    """Raise UsageError for a run that ended, was resumed too often, or whose load came from another kind of sender."""
    if completed.down is not None:
        name = run.arms[completed.down.arm].name
        why = f"the {completed.down.arm} {name} was not there {completed.down.when}, by which the run ended"
        raise UsageError(f"run {run.id} cannot go on: {why}; run the suite again")
    if completed.resumptions >= MAX_RESUMPTIONS:
        why = "it was resumed once already, and no verdict rests on a run that was resumed again (few-interruptions)"
        raise UsageError(f"run {run.id} cannot go on: {why}; run it from its beginning, without --resume")
    if completed.load.workers and completed.load.by_cluster is not by_cluster:
        senders = ("this machine", "a cluster")
        was, now = senders[completed.load.by_cluster], senders[by_cluster]
        raise UsageError(_refusal(run, [f"its load was sent by {was} and would be by {now} (--cluster)"]))


def _stable_facts(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if name not in _VOLATILE_FACTS}


def _refusal(run: Run, changed: Sequence[str]) -> str:
    more = [f"and {len(changed) - _MAX_DIFFERENCES} more"] if len(changed) > _MAX_DIFFERENCES else []
    lines = "".join(f"\n  {one}" for one in [*changed[:_MAX_DIFFERENCES], *more])
    why = "cannot go on, for it would no longer be one measurement"
    return f"run {run.id} {why}:{lines}\nrun it from its beginning, without --resume"


def _differences(before: Mapping[str, object], now: Mapping[str, object], owner: str) -> Iterator[str]:
    """Describe every value that differs, with its key."""
    was, is_now = dict(leaf_values(before)), dict(leaf_values(now))
    for key in dict.fromkeys([*was, *is_now]):
        one, other = was.get(key), is_now.get(key)
        if json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
            unit = next((unit for unit in _UNITS if key.endswith(unit)), "")
            yield f"{owner}{key.removesuffix(unit)} was {_format_value(one, unit)} and is {_format_value(other, unit)}"


def _format_value(value: object, unit: str) -> str:
    """Format a quantity as a suite spells it; the unit of a bare number is in its name."""
    if value is None:
        return "nothing"
    if unit and isinstance(value, int | float) and not isinstance(value, bool):
        return as_written(_UNITS[unit], value)
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"
