"""Resume an interrupted run at its first incomplete block, if nothing that matters has changed.

The suite and plan, the program and machine, and the deployments must be what they were. Until all of that is known,
nothing is written to the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from enum import Enum, auto
from functools import partial
from pathlib import Path

from benchgate.errors import Command, NothingKept, Remedy, StoreError, SuiteError, TargetError, UsageError
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import RESUMED, BudgetReading, Resumption, Run, RunStatus
from benchgate.pipeline.checkpoint import (
    Completed,
    processes_before,
    read_checkpoint,
    require_resumable,
    require_unchanged,
    same_processes,
    session_event,
)
from benchgate.pipeline.deployments import (
    TargetDown,
    changed_facts,
    deployed,
    exclusive_servers,
    facts_only_in,
    measure_starts,
)
from benchgate.pipeline.environment import known_client, utc_now
from benchgate.pipeline.error_budget import read_spent
from benchgate.pipeline.judge import Decision, decide_measured
from benchgate.pipeline.measure import measure_deployed
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.run import RunOptions, end_unstorable, mark_partial, prepare, spool_path, stored_run
from benchgate.pipeline.suite_file import with_prices
from benchgate.pipeline.work import Work
from benchgate.plan.client_demand import chosen_workers
from benchgate.plan.schedule import Plan
from benchgate.store.database import Address
from benchgate.store.evidence import JournalEntry
from benchgate.store.repository import RunWriter, Store
from benchgate.store.rows import ended_by_spool, pending_spool
from benchgate.store.spool import FILE_NAME
from benchgate.suite.schema import Suite
from benchgate.system import usable_cpus

_MAX_SPOOLS_NAMED = 3


class SpoolState(Enum):
    """Spool of an interrupted run: not needed, recovered, or lost.

    A recovered one may be an older copy of itself, and nothing else shows how the run ended: the verdict says so.
    """

    NOT_NEEDED = auto()
    RECOVERED = auto()
    LOST = auto()


def resume_suite(
    suite: Suite,
    suite_dir: Path,
    options: RunOptions,
    progress: Progress,
    ref: str | None = None,
    *,
    without_spool: bool = False,
) -> Decision:
    """Resume the interrupted run `ref` of this suite, or the newest one, and judge its candidate.

    Prices are taken as of the day on which the run began. `without_spool` allows a run whose spool is lost; its verdict
    says so. Raises UsageError if there is no such run or something changed, and TargetError if a deployment is down;
    the run then stays as it is.
    """
    plan = prepare(suite, suite_dir, options)
    try:
        opened = Store.open(options.store, create=False)
    except UsageError as error:
        raise _with_spools(error, options, ref) from error
    with opened as store:
        store.mark_abandoned_runs()
        run = _select_run(store, suite, suite_dir, options, ref)
        suite = with_prices(suite, suite_dir, run.day)
        with (
            store.hold_run(run.id),
            exclusive_servers(suite, suite_dir, progress, wait=options.wait) as name_holder,
        ):
            name_holder(f"run {run.id}")
            _require_open(store, run)
            spool = spool_path(options.work_dir, run.id)
            spool_state = recover_spools(store, run, spool, without_spool=without_spool)
            _require_open(store, run)  # a recovered spool may show that the run ended
            session = session_event(suite, os.environ, run.id, spool)
            require_unchanged(run, suite, plan, store.events(run.id), session)
            journal = store.journal(run.id)
            work = _remaining_work(store, run, suite, suite_dir, plan, options, progress, journal)
            spent = read_spent(suite, suite_dir, os.environ, utc_now())
            completed = work.completed
            blocks, tasks = completed.load.blocks, len(completed.tasks)
            state = [f"{blocks} of {suite.load.blocks} blocks are there"] if suite.load is not None else []
            state += [f"{tasks} tasks are there"] if suite.quality is not None else []
            names = ", ".join(one.name for one in completed.incomplete)
            state += [f"{names} again from the beginning"] if names else []
            progress.note(f"run {run.id} goes on: {'; '.join(state)}")
            options.before_measuring()
            reopen = partial(store.reopen_run, run.id, spool=spool, note=progress.note)
            resumed = ResumedRun(run, completed, reopen, session, spent, processes_before(journal), spool_state)
            try:
                writer = _measure_rest(resumed, work)
            except KeyboardInterrupt:
                over = "it went on once, and does so no more: run the suite from its beginning"
                unchanged = f"run {run.id} stays as it was: nothing more was measured"
                progress.note(unchanged if resumed.writer is None else f"run {run.id} was cut short again; {over}")
                raise
            measured = stored_run(writer)
        return decide_measured(store, measured, waivers=options.waivers)


def _remaining_work(
    store: Store,
    run: Run,
    suite: Suite,
    suite_dir: Path,
    plan: Plan,
    options: RunOptions,
    progress: Progress,
    journal: Sequence[JournalEntry],
) -> Work:
    """Return what is left to measure of a run. Raises UsageError for a run that cannot be resumed."""
    completed = read_checkpoint(suite, plan, journal)
    require_resumable(run, completed, by_cluster=options.cluster is not None or bool(suite.regions))
    # As many load generator processes as before, whatever this machine's client profile says.
    if len(completed.load.workers) == 1 and not completed.load.by_cluster:
        (workers,) = completed.load.workers
    else:
        workers = chosen_workers(suite, plan, known_client(store), usable_cpus())
    return Work(
        suite=suite,
        suite_dir=suite_dir,
        plan=plan,
        log_dir=options.work_dir / run.id,
        weights_dir=options.work_dir / "weights",
        progress=progress,
        waivers=options.waivers_from(date.fromisoformat(utc_now()[:10])),
        workers=workers,
        cluster=options.cluster,
        salt=run.load_salt,
        completed=completed,
        session=completed.resumptions + 1,
    )


@dataclass(slots=True, eq=False)
class ResumedRun:
    """An interrupted run that is about to be resumed. Nothing is written to it before `reopen`.

    `session` is the event that begins this session, `spent` the error budget's reading that replaces the first one, and
    `processes` are the servers of earlier sessions.
    """

    run: Run
    completed: Completed
    open_writer: Callable[[], RunWriter]
    session: Mapping[str, object]
    spent: BudgetReading | None = None
    processes: Mapping[Arm, Sequence[str]] = field(default_factory=dict)
    spool: SpoolState = SpoolState.NOT_NEEDED
    writer: RunWriter | None = None  # until the run is reopened
    _new: dict[Arm, Deployment] = field(default_factory=dict)

    def check_deployment(self, arm: Arm, deployment: Deployment) -> None:
        """Raise UsageError for a deployment that reports other facts than before.

        Facts are new to a run that has no result yet: its deployment is replaced by this one.
        """
        before = self.run.arms[arm]
        changed, remedy = changed_facts(before.facts, deployment.facts), ""
        new = facts_only_in(deployment.facts, before.facts)
        if self.completed.has_results:
            changed += [f"{name} was not reported and is {value}" for name, value in new]
        if lost := facts_only_in(before.facts, deployment.facts):
            remedy = "" if changed else "resume the run when the server reports that again, or "
            changed += [f"{name} was {value} and is not reported" for name, value in lost]
        if changed:
            raise UsageError(
                f"the {arm} {before.name} is not what it was when the run was cut short: {'; '.join(changed)}; "
                f"{remedy}run the suite from its beginning, without --resume"
            )
        if not new:
            return
        if self.writer is not None:
            self.writer.set_arm(arm, deployment)
        else:
            self._new[arm] = deployment

    def reopen_for(self, processes: Mapping[Arm, str | None]) -> RunWriter:
        """Reopen the run, unless it is open. Raises UsageError for a deployment that another process serves now."""
        same = same_processes(self.run, self.processes, processes)
        return self.writer or self.reopen(same)

    def reopen(self, same: Sequence[Arm] = ()) -> RunWriter:
        """Reopen the run: set its incomplete parts and its last budget reading aside, and begin this session.

        `same` are the arms that are known to be served by the same process as before.
        """
        incomplete = self.completed.incomplete
        replaced = self.completed.budget if self.spent is not None else ()
        complete = {"shadow": self.completed.shadow, "divergence": self.completed.divergence}
        resumption = Resumption(
            at=utc_now(),
            process=os.getpid(),
            again=tuple(one.name for one in incomplete),
            set_aside=tuple(sorted([*replaced, *(seq for one in incomplete for seq in one.seqs)])),
            without_spool=self.spool is SpoolState.LOST,
            by_spool=self.spool is SpoolState.RECOVERED,
            same_process=tuple(arm.value for arm in same),
        )
        writer = self.open_writer()
        try:
            writer.resume(resumption, [kind for kind, is_complete in complete.items() if is_complete])
            writer.begin_session(self.session)
        except StoreError:
            writer.discard()
            raise
        self.writer = writer
        if self.spent is not None:
            writer.add(self.spent)
        for arm, deployment in self._new.items():
            writer.set_arm(arm, deployment)
        return writer


def _measure_rest(resumed: ResumedRun, work: Work) -> RunWriter:
    """Measure what is left and end the run. Raises TargetError if a deployment is down before the run is reopened."""
    try:
        try:
            if work.starts_left:
                measure_starts(work, resumed.reopen())
            with deployed(work, resumed.check_deployment) as servers:
                measure_deployed(work, resumed.reopen_for(servers.processes), servers)
            status = RunStatus.COMPLETE
        except TargetDown as down:
            if resumed.writer is None:
                faults = "; ".join(
                    f"the {one.arm} {resumed.run.arms[one.arm].name}: {one.reason}" for one in down.faults
                )
                raise TargetError(f"run {resumed.run.id} cannot go on now, and stays as it is: {faults}") from down
            for fault in down.faults:
                resumed.writer.add(fault)
            status = RunStatus.PARTIAL
        assert resumed.writer is not None, "something was measured"
        resumed.writer.finish(status, utc_now())
    except BaseException as error:
        if resumed.writer is None:
            raise
        if not isinstance(error, NothingKept):
            mark_partial(resumed.writer, error, resumable=False)
            raise
        end_unstorable(resumed.writer, error, resumable=False)
    return resumed.writer


def _with_spools(error: UsageError, options: RunOptions, ref: str | None, store: Store | None = None) -> UsageError:
    """Return the error with the spools of runs that the store lacks, and the remedy of recovering them."""
    paths = sorted(options.work_dir.glob(f"*/{FILE_NAME}"), reverse=True)  # newest first: ids begin with the time
    named = [path for path in paths if ref is None or path.parent.name.startswith(ref)]
    found = [path for path in named if store is None or not _has_run(store, path.parent.name)]
    if not found:
        return error
    more = f" and {len(found) - _MAX_SPOOLS_NAMED} more" if len(found) > _MAX_SPOOLS_NAMED else ""
    spools = ", ".join(map(str, found[:_MAX_SPOOLS_NAMED])) + more
    address = Address.parse(options.store).shown_if_whole  # a password is not repeated
    recover = Remedy("bring it in before the run is resumed,", Command.IMPORT, str(found[0]), address)
    message = f"{error}. What a run had measured that this store does not have is in {spools}"
    return UsageError(message, remedies=(recover,))


def _has_run(store: Store, run_id: str) -> bool:
    try:
        store.run(run_id)
    except UsageError:
        return False
    return True


def recover_spools(store: Store, run: Run, spool: Path, *, without_spool: bool) -> SpoolState:
    """Insert what a run's spools have and the store lacks.

    Raises UsageError for a lost spool, unless `without_spool`: leaving one out selects among complete blocks.
    """
    pending = pending_spool(store.events(run.id))
    found = []
    for path in dict.fromkeys([Path(pending), spool] if pending else [spool]):
        with suppress(OSError):  # a path that cannot be looked up counts as missing
            found += [path] if path.is_file() else []
    for path in found:
        store.recover(path)
    if pending is None:  # it may have been recovered by an import, or before a resumption that was refused
        return SpoolState.RECOVERED if ended_by_spool(store.events(run.id)) else SpoolState.NOT_NEEDED
    if found:
        return SpoolState.RECOVERED
    if not without_spool:
        raise UsageError(
            f"run {run.id} was ended without a word, and what it measured is kept in {pending} too, which is not "
            f"there: go on where that file is, or put it at {spool}. Where it is lost, --ignore-missing-spool goes on "
            "with what the store has, and the verdict warns that records may be missing"
        )
    return SpoolState.LOST


def _select_run(store: Store, suite: Suite, suite_dir: Path, options: RunOptions, ref: str | None) -> Run:
    """Return the run called `ref`, or the newest interrupted one of these deployments; one of this very suite first.

    A run of a part of the suite, or of an earlier version, has the same name; it is refused later, with the reason.
    """
    if ref is not None:
        try:
            return store.run(store.resolve(ref, partial=True))
        except UsageError as error:
            raise _with_spools(error, options, ref, store) from error
    runs = [run for run in store.resumable_runs(suite.suite) if not run.calibrates and _has_arms(run, suite)]
    for run in runs:
        with suppress(SuiteError):  # a suite without prices for that day is another than the run's
            if run.suite == with_prices(suite, suite_dir, run.day).to_stored():
                return run
    if runs:
        return runs[0]
    newest = next((run for run in store.runs(suite.suite) if _has_arms(run, suite)), None)
    once = newest is not None and newest.status is RunStatus.PARTIAL and _was_resumed(store, newest)
    hint = f" (run {newest.id} was resumed once already, and interrupted again)" if once and newest is not None else ""
    none = f"no interrupted run of {suite.suite}, {suite.candidate} against {suite.baseline}, can be resumed{hint}"
    raise _with_spools(UsageError(f"{none}; begin a new run, without --resume"), options, ref, store)


def _has_arms(run: Run, suite: Suite) -> bool:
    return {arm: run.arms[arm].name for arm in Arm if arm in run.arms} == suite.arm_names


def _was_resumed(store: Store, run: Run) -> bool:
    return any(kind == RESUMED for kind, _ in store.events(run.id))


def _require_open(store: Store, run: Run) -> None:
    if any(one.id == run.id for one in store.resumable_runs()):
        return
    now = store.run(run.id)
    if now.status is RunStatus.COMPLETE:
        judge = Remedy("judge it", Command.GATE, run.id)
        raise UsageError(f"run {run.id} is complete, so nothing of it is left to measure", remedies=(judge,))
    once = "it went on once already, and was cut short again"
    why = once if _was_resumed(store, now) else "a deployment was not there, or it is of a kind that does not go on"
    raise UsageError(f"run {run.id} is over, though not complete ({why}), so it cannot go on: run the suite again")
