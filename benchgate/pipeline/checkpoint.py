"""What a run that was cut short had measured whole by then, and what it had only begun. Read from its journal.

What was only begun is measured again from its beginning, because the two sides of a pair must be neighbours in time.
What is there of it stays in the store, set aside: it is in no evidence, and the run's hash says that it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchgate.model.deployment import Arm
from benchgate.model.records import DivergenceObservation, EvalItem
from benchgate.model.run import (
    INTERRUPTED,
    LOAD_ENDED,
    LOOK,
    MEASURED,
    RESUMED,
    BudgetReading,
    DeploymentFault,
    LoadObservation,
    QualityObservation,
    ServerStart,
    ShadowObservation,
)
from benchgate.model.telemetry import TelemetryWindow
from benchgate.plan.schedule import Plan
from benchgate.store.evidence import JournalEntry, JournalEvent
from benchgate.suite.load import level_of_stage
from benchgate.suite.schema import Suite, measured_arms


@dataclass(frozen=True, slots=True)
class LoadDone:
    """Of the load: whole `blocks` from the first one on, the looks taken at them, and those of the capacity search.

    `gone_on`: after so many blocks a look said to go on; `ended`: one said that the load is over. `spent_s` is how long
    stages took, with what was only begun. `workers` and `spread` say who sent it (a cluster, where spread).
    """

    blocks: int = 0
    gone_on: frozenset[int] = frozenset()
    ended: bool = False
    searched: tuple[LoadObservation, ...] = ()
    spent_s: float = 0.0
    workers: frozenset[int] = frozenset()
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """Something that was begun and not ended: what it is, in words, and where its rows stand in the journal."""

    what: str
    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """How far a run had come. `position` is the number of the next execution of a stage, whatever became of the others.

    `starts` are whole rounds of starts. `tasks` are the evals whose every asking is there. `down`: a deployment was
    not there, by which the run ended. `budget` is where the error budget's reading stands. `resumptions`: how often it
    went on already.
    """

    load: LoadDone = field(default_factory=LoadDone)
    position: int = 0
    starts: int = 0
    tasks: Mapping[str, tuple[QualityObservation, ...]] = field(default_factory=dict)
    divergence: bool = False
    shadow: bool = False
    budget: tuple[int, ...] = ()
    begun: tuple[Begun, ...] = ()
    down: DeploymentFault | None = None
    resumptions: int = 0

    def items(self) -> dict[str, tuple[Sequence[EvalItem], Sequence[EvalItem]]]:
        """The items of both arms of every whole task: what an early stop of the others is judged with."""
        judged = {task: {one.arm: one.items for one in seen if one.repeat == 0} for task, seen in self.tasks.items()}
        return {
            task: (arms[Arm.BASELINE], arms[Arm.CANDIDATE]) for task, arms in judged.items() if len(arms) == len(Arm)
        }


NOTHING = Done()


def done_so_far(suite: Suite, plan: Plan, journal: Sequence[JournalEntry]) -> Done:
    """What the journal of a run of this suite and plan shows. Pure: nothing is asked but what was written down."""
    there = [entry for entry in journal if not entry.aside]
    load, begun = _load(suite, plan, journal, there)
    starts, unstarted = _starts(suite, there)
    tasks, unasked = _tasks(suite, there)
    once = {kind: _once(there, kind) for kind in (DivergenceObservation, ShadowObservation)}
    return Done(
        load=load,
        position=1 + max((_position(entry.what) for entry in journal), default=-1),
        starts=starts,
        tasks=tasks,
        divergence=once[DivergenceObservation] is True,
        shadow=once[ShadowObservation] is True,
        budget=tuple(entry.seq for entry in there if isinstance(entry.what, BudgetReading)),
        begun=(*begun, *unstarted, *unasked, *(one for one in once.values() if isinstance(one, Begun))),
        resumptions=sum(isinstance(entry.what, JournalEvent) and entry.what.kind == RESUMED for entry in there),
        down=next((entry.what for entry in there if isinstance(entry.what, DeploymentFault)), None),
    )


def _load(
    suite: Suite, plan: Plan, journal: Sequence[JournalEntry], there: Sequence[JournalEntry]
) -> tuple[LoadDone, tuple[Begun, ...]]:
    marked = {_position(entry.what): _place(entry.what) for entry in there if _is_mark(entry.what)}
    blocks = _whole_blocks(plan, set(marked.values()))
    whole = {
        position
        for position, (stage, _, block) in marked.items()
        if block < blocks or level_of_stage(stage) is not None
    }
    executions = [entry.what for entry in journal if isinstance(entry.what, LoadObservation)]
    took_s = {one.position: one.client.wall_s for one in executions}  # classes of a stage share its client
    ends = [entry.what.data for entry in there if isinstance(entry.what, JournalEvent) and entry.what.kind == LOOK]
    looks = [
        entry.what
        for entry in there
        if isinstance(entry.what, LoadObservation)
        and entry.what.position in whole
        and level_of_stage(entry.what.stage) is not None
    ]
    done = LoadDone(
        blocks=blocks,
        gone_on=frozenset(_number(look["blocks"]) for look in ends if look.get("then") != "ended"),
        ended=any(isinstance(entry.what, JournalEvent) and entry.what.kind == LOAD_ENDED for entry in there),
        searched=tuple(sorted(looks, key=lambda one: one.position)),
        spent_s=sum(took_s.values()),
        workers=frozenset(one.client.workers for one in executions),
        spread=any(one.client.start_uncertainty_s is not None for one in executions),
    )
    return done, tuple(_begun_executions(there, whole))


def _whole_blocks(plan: Plan, measured: set[tuple[str, str, int]]) -> int:
    """How many blocks from the first one on have every stage on every arm."""
    for block in plan.blocks:
        due = {(stage.name, arm.value, block.number) for stage in block.stages for arm in block.order}
        if not due <= measured:
            return block.number
    return len(plan.blocks)


def _begun_executions(there: Sequence[JournalEntry], whole: set[int]) -> Iterator[Begun]:
    """Block by block, and look by look, the rows of executions that are no part of anything whole."""
    seqs: dict[str, list[int]] = defaultdict(list)
    for entry in there:
        position = _position(entry.what)
        if position >= 0 and position not in whole:
            stage, _, block = _place(entry.what)
            look = level_of_stage(stage) is not None
            seqs[f"look {block + 1} at {stage}" if look else f"block {block + 1}"].append(entry.seq)
    for what, of_it in seqs.items():
        yield Begun(what, tuple(of_it))


def _starts(suite: Suite, there: Sequence[JournalEntry]) -> tuple[int, list[Begun]]:
    """Whole rounds of starts from the first one on; a round that lacks an arm was begun."""
    rounds: dict[int, dict[Arm, int]] = defaultdict(dict)
    for entry in there:
        if isinstance(entry.what, ServerStart):
            rounds[entry.what.number][entry.what.arm] = entry.seq
    arms, whole = set(measured_arms(suite)), 0
    while set(rounds.get(whole, ())) == arms:
        whole += 1
    left = {number: tuple(seqs.values()) for number, seqs in rounds.items() if number >= whole}
    return whole, [Begun(f"start {number + 1}", seqs) for number, seqs in sorted(left.items())]


def _tasks(
    suite: Suite, there: Sequence[JournalEntry]
) -> tuple[dict[str, tuple[QualityObservation, ...]], list[Begun]]:
    """The tasks whose every asking came to its end, be it with a fault; what an interrupt ended did not."""
    if suite.quality is None:
        return {}, []
    due = {(arm, 0) for arm in measured_arms(suite)}
    if suite.quality.repeat_baseline:
        due.add((Arm.BASELINE, 1))
    found: dict[str, list[tuple[int, QualityObservation]]] = defaultdict(list)
    for entry in there:
        if isinstance(entry.what, QualityObservation):
            found[entry.what.task].append((entry.seq, entry.what))
    whole: dict[str, tuple[QualityObservation, ...]] = {}
    begun: list[Begun] = []
    for task, rows in found.items():
        ended = {(seen.arm, seen.repeat) for _, seen in rows if seen.fault != INTERRUPTED}
        if ended == due:
            whole[task] = tuple(seen for _, seen in rows)
        else:
            begun.append(Begun(f"task {task}", tuple(seq for seq, _ in rows)))
    return whole, begun


def _once(there: Sequence[JournalEntry], kind: type[DivergenceObservation] | type[ShadowObservation]) -> bool | Begun:
    """Whether what a run makes once is there; what an interrupt ended was begun."""
    for entry in there:
        if isinstance(entry.what, kind):
            if entry.what.fault != INTERRUPTED:
                return True
            what = "the fixed texts" if isinstance(entry.what, DivergenceObservation) else "the recorded prompts"
            return Begun(what, (entry.seq,))
    return False


def _is_mark(what: object) -> bool:
    return isinstance(what, JournalEvent) and what.kind == MEASURED


def _position(what: object) -> int:
    """The number of the execution that an entry is of; -1 where it is of none."""
    if isinstance(what, LoadObservation | TelemetryWindow):
        return what.position
    return _number(what.data["position"]) if isinstance(what, JournalEvent) and what.kind == MEASURED else -1


def _place(what: object) -> tuple[str, str, int]:
    """The stage, arm and block that an entry of an execution is of."""
    if isinstance(what, LoadObservation | TelemetryWindow):
        return what.stage, what.arm.value, what.block
    assert isinstance(what, JournalEvent), "it is of an execution"
    return str(what.data["stage"]), str(what.data["arm"]), _number(what.data["block"])


def _number(value: Any) -> int:
    return int(value)
