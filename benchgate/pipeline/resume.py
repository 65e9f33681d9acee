"""A run that was cut short goes on: at the next block that is not whole, when nothing that matters has changed.

What matters is what was asked (suite and plan), who asks (benchgate, machine) and who is asked (where, and what the
deployments say of themselves). Until all of that is found to be as it was, nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType

from benchgate.errors import StoreError, SuiteError, TargetError, UsageError
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import RESUMED, BudgetReading, DeploymentFault, Resumption, Run, RunStatus
from benchgate.pipeline.checkpoint import Done, done_so_far
from benchgate.pipeline.environment import known_client, usable_cpus, utc_now
from benchgate.pipeline.error_budget import read_spent
from benchgate.pipeline.judge import Decision, Kept, decide_kept
from benchgate.pipeline.measure import Sitting, Work
from benchgate.pipeline.measure_load import Progress
from benchgate.pipeline.recording import as_kept, cut_short, measure_to_the_end
from benchgate.pipeline.resume_checks import (
    processes_before,
    require_able,
    require_same_facts,
    require_unchanged,
    same_processes,
)
from benchgate.pipeline.run import RunOptions, read_plan, require_runnable
from benchgate.pipeline.session import sitting_of, spool_of
from benchgate.pipeline.spools import SpoolFound, bring_in, unstored
from benchgate.pipeline.suite_file import with_prices
from benchgate.plan.client_demand import chosen_workers
from benchgate.plan.schedule import Plan
from benchgate.store.repository import RunWriter, Store
from benchgate.suite.schema import Suite

NO_PROCESSES: Mapping[Arm, Sequence[str]] = MappingProxyType({})


def resume_suite(
    suite: Suite,
    suite_dir: Path,
    options: RunOptions,
    progress: Progress,
    ref: str | None = None,
    *,
    without_spool: bool = False,
) -> Decision:
    """Go on with a run of this suite that was cut short, and judge its candidate; without `ref` with the newest one.

    What the suite leaves to its price file is taken as of the day on which the run began. `without_spool` lets one go
    on of which more was kept than is there; its verdict tells of it. Raises UsageError where there is no such run, or
    something that matters has changed, and TargetError where a deployment is not there: then the run stays as it is.
    """
    require_runnable(suite, suite_dir, options)
    plan = read_plan(suite, suite_dir, fetch=True, allow_code=options.allow_code)
    with _opened(options, ref) as store:
        store.mark_abandoned_runs()
        run = _chosen(store, suite, suite_dir, options, ref)
        suite = with_prices(suite, suite_dir, run.day)
        with store.hold_run(run.id):
            _require_open(store, run)
            spool = spool_of(options.work_dir, run.id)
            found = bring_in(store, run, spool, without_spool=without_spool)
            _require_open(store, run)  # a spool may have told how it ended
            began = sitting_of(suite, os.environ, run.id, spool)
            require_unchanged(run, suite, plan, store.events(run.id), began)
            journal = store.journal(run.id)
            done = done_so_far(suite, plan, journal)
            require_able(run, done, by_cluster=options.cluster is not None)
            spent = read_spent(suite, suite_dir, os.environ, utc_now())
            reopen = partial(store.reopen_run, run.id, spool=spool, note=progress.note)
            sitting = ResumedSitting(run, done, reopen, spent, began, processes_before(journal), found)
            work = Work(
                suite=suite,
                suite_dir=suite_dir,
                plan=plan,
                sitting=sitting,
                log_dir=options.work_dir / run.id,
                weights_dir=options.work_dir / "weights",
                progress=progress,
                so_far=lambda: sitting.writer.evidence(),
                waivers=options.waivers,
                workers=_workers(suite, plan, store, done),
                cluster=options.cluster,
                salt=run.load_salt,
            )
            progress.note(f"run {run.id} goes on: {_told(suite, done)}")
            options.before_measuring()
            kept = sitting.measure(work)
        return decide_kept(store, kept, waivers=options.waivers)


class ResumedSitting(Sitting):
    """The sitting of a run that goes on: it is opened again when its deployments are found to be as they were.

    `spent` is what production has spent by now, which takes the place of what it had when the run began. `began` is
    what the journal keeps of this sitting, `before` which processes answered in those before it, and `found` what
    became of the spool.
    """

    def __init__(
        self,
        run: Run,
        done: Done,
        reopen: Callable[[], RunWriter],
        spent: BudgetReading | None,
        began: Mapping[str, object],
        before: Mapping[Arm, Sequence[str]] = NO_PROCESSES,
        found: SpoolFound = SpoolFound.NOT_NEEDED,
    ) -> None:
        self.done = done
        self.number = done.resumptions + 1
        self._run = run
        self._reopen = reopen
        self._spent = spent
        self._began = began
        self._before = before
        self._spool = found
        self._same: tuple[Arm, ...] = ()
        self._found: dict[Arm, Deployment] = {}
        self._begun = False
        self._once_begun = ExitStack()

    def keep(self, arm: Arm, deployment: Deployment) -> None:
        """Raises UsageError where the deployment says something else of itself than it did before."""
        before = self._run.arms[arm]
        if before.facts:
            require_same_facts(arm, before, deployment)
        elif self._begun:
            self.writer.set_arm(arm, deployment)
        else:
            self._found[arm] = deployment

    def answered(self, processes: Mapping[Arm, str | None]) -> None:
        """Raises UsageError where another process answers than before."""
        self._same = same_processes(self._run, self._before, processes)
        self.begin()
        super().answered(processes)

    def begin(self) -> None:
        """From here on the run goes on: what it had only begun is set aside, and so is what it knew of its budget."""
        if self._begun:
            return
        begun, over = self.done.begun, self.done.budget if self._spent is not None else ()
        kinds = {"shadow": self.done.shadow, "divergence": self.done.divergence}
        went_on = Resumption(
            at=utc_now(),
            process=os.getpid(),
            again=tuple(one.what for one in begun),
            set_aside=tuple(sorted([*over, *(seq for one in begun for seq in one.seqs)])),
            without_spool=self._spool is SpoolFound.GONE,
            by_spool=self._spool is SpoolFound.ALONE,
            same_process=tuple(arm.value for arm in self._same),
        )
        self.writer = self._reopen()
        try:
            self.writer.resume(went_on, [kind for kind, there in kinds.items() if there])
            self.writer.begin_session(self._began)
        except StoreError:
            self.writer.discard()
            raise
        self._begun = True
        self._once_begun.enter_context(cut_short(self.writer, may_go_on=False))
        if self._spent is not None:
            self.writer.add_budget(self._spent)
        for arm, deployment in self._found.items():
            self.writer.set_arm(arm, deployment)

    def end_without(self, faults: tuple[DeploymentFault, ...]) -> None:
        """Raises TargetError where nothing was measured yet: the run can still go on, once they are there."""
        if not self._begun:
            told = "; ".join(f"the {fault.arm} {self._run.arms[fault.arm].name}: {fault.reason}" for fault in faults)
            raise TargetError(f"run {self._run.id} cannot go on now, and stays as it is: {told}")
        super().end_without(faults)

    def measure(self, work: Work) -> Kept:
        """Measure what is left, to the end of the run."""
        try:
            with self._once_begun:
                measure_to_the_end(work, may_go_on=False)
        except KeyboardInterrupt:
            over = "it went on once, and does so no more: run the suite from its beginning"
            work.progress.note(
                f"run {self._run.id} was cut short again; {over}"
                if self._begun
                else f"run {self._run.id} stays as it was: nothing more was measured"
            )
            raise
        return as_kept(self.writer)


def _opened(options: RunOptions, ref: str | None) -> Store:
    try:
        return Store.open(options.store, create=False)
    except UsageError as error:
        raise UsageError(f"{error}{unstored(options.work_dir, ref, options.store)}") from error


def _chosen(store: Store, suite: Suite, suite_dir: Path, options: RunOptions, ref: str | None) -> Run:
    """The run that is to go on: the one called `ref`, or the newest of these two deployments, of this very suite first.

    Another of that name was made of a part of the suite, or the suite was changed since, which is told then.
    """
    if ref is not None:
        try:
            return store.run(store.resolve(ref))
        except UsageError as error:
            raise UsageError(f"{error}{unstored(options.work_dir, ref, options.store, store)}") from error
    ours = [run for run in store.resumable_runs(suite.suite) if not run.calibrates and _is_of(run, suite)]
    if ours:
        return next((run for run in ours if _is_asked(run, suite, suite_dir)), ours[0])
    raise UsageError(
        f"no run of {suite.suite} with {suite.candidate} beside {suite.baseline} was cut short and may go on"
        f"{_went_on_once(store, suite)}; run it from its beginning, without --resume"
        f"{unstored(options.work_dir, ref, options.store, store)}"
    )


def _is_asked(run: Run, suite: Suite, suite_dir: Path) -> bool:
    try:
        return run.suite == with_prices(suite, suite_dir, run.day).to_stored()
    except SuiteError:
        return False  # it had no such prices on that day, and then it was not this suite


def _is_of(run: Run, suite: Suite) -> bool:
    names = {arm: run.arms[arm].name for arm in Arm if arm in run.arms}
    return names == {Arm.BASELINE: suite.baseline, Arm.CANDIDATE: suite.candidate}


def _went_on_once(store: Store, suite: Suite) -> str:
    newest = next((run for run in store.runs(suite.suite) if _is_of(run, suite)), None)
    if newest is None or newest.status is not RunStatus.PARTIAL or not _resumed(store, newest):
        return ""
    return f" (run {newest.id} went on once already, and was cut short again)"


def _resumed(store: Store, run: Run) -> bool:
    return any(kind == RESUMED for kind, _ in store.events(run.id))


def _require_open(store: Store, run: Run) -> None:
    if any(one.id == run.id for one in store.resumable_runs()):
        return
    now = store.run(run.id)
    if now.status is RunStatus.COMPLETE:
        raise UsageError(
            f"run {run.id} is complete, so nothing of it is left to measure: judge it with `benchgate gate`"
        )
    once = "it went on once already, and was cut short again"
    why = once if _resumed(store, now) else "a deployment was not there, or it is of a kind that does not go on"
    raise UsageError(f"run {run.id} is over, though not complete ({why}), so it cannot go on: run the suite again")


def _workers(suite: Suite, plan: Plan, store: Store, done: Done) -> int:
    """As many as sent the load before, whatever the curve of this machine says now."""
    if len(done.load.workers) == 1 and not done.load.spread:
        return next(iter(done.load.workers))
    return chosen_workers(suite, plan, known_client(store), usable_cpus())


def _told(suite: Suite, done: Done) -> str:
    """`3 of 6 blocks are there; block 4 is measured again from its beginning`."""
    there = [f"{done.load.blocks} of {suite.load.blocks} blocks are there"] if suite.load is not None else []
    there += [f"{len(done.tasks)} tasks are there"] if suite.quality is not None else []
    again = [f"{', '.join(one.what for one in done.begun)} again from the beginning"] if done.begun else []
    return "; ".join([*there, *again])
