"""A run that was cut short goes on: at the next block that is not whole, when nothing that matters has changed.

What matters is what was asked (suite and plan), who asks (benchgate, machine) and who is asked (what the deployments
say of themselves). Until all of that is found to be as it was, nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchgate import __version__
from benchgate.circumstances import environment_facts, known_client, usable_cpus, utc_now
from benchgate.deciding import Decision, Kept, decide_kept
from benchgate.done import Done, done_so_far
from benchgate.errors import TargetError, UsageError
from benchgate.gate.sittings import MOST_RESUMPTIONS
from benchgate.measuring import Sitting, Work
from benchgate.measuring_load import Progress
from benchgate.model.deployment import Arm, Deployment, flattened
from benchgate.model.error_budget import BudgetSpent
from benchgate.model.run import Resumption, Run, RunStatus, TargetFault
from benchgate.pipeline import RunOptions, read_plan, require_runnable, spool_of
from benchgate.plan.demand import chosen_workers
from benchgate.plan.schedule import Plan
from benchgate.recording import as_kept, cut_short, measure_to_the_end
from benchgate.spending import read_spent
from benchgate.store.repository import RunWriter, Store
from benchgate.suite.schema import Suite

_CHANGES = frozenset({"load_average_1min"})
"""Facts of a machine that are not the same from one moment to the next."""

_SHOWN = 60


def resume_suite(
    suite: Suite, suite_dir: Path, options: RunOptions, progress: Progress, ref: str | None = None
) -> Decision:
    """Go on with a run of this suite that was cut short, and judge its candidate; without `ref` with the newest one.

    Raises UsageError where there is none, or something that matters has changed, and TargetError where a deployment is
    not there: then the run stays as it is.
    """
    require_runnable(suite, suite_dir, options)
    plan = read_plan(suite, suite_dir, fetch=True, allow_code=options.allow_code)
    with Store.open(options.store, create=False) as store:
        store.settle()
        run = _chosen(store, suite, ref)
        with store.holding(run.id):
            spool = spool_of(options, run.id)
            if spool.exists():
                store.recover(spool)
            _require_open(store, run)
            _require_unchanged(run, suite, plan)
            done = done_so_far(suite, plan, store.journal(run.id))
            _require_able(run, done, options)
            spent = None if done.budget else read_spent(suite, suite_dir, os.environ, utc_now())
            sitting = ResumedSitting(
                run, done, partial(store.reopen_run, run.id, spool=spool, note=progress.note), spent
            )
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
            )
            progress.note(f"run {run.id} goes on: {_told(suite, done)}")
            kept = sitting.measure(work)
        return decide_kept(store, kept, waivers=options.waivers)


class ResumedSitting(Sitting):
    """The sitting of a run that goes on: it is opened again when its deployments are found to be as they were."""

    def __init__(self, run: Run, done: Done, reopen: Callable[[], RunWriter], spent: BudgetSpent | None) -> None:
        self.done = done
        self.number = done.resumptions + 1
        self._run = run
        self._reopen = reopen
        self._spent = spent
        self._found: dict[Arm, Deployment] = {}
        self._begun = False
        self._once_begun = ExitStack()

    def keep(self, arm: Arm, deployment: Deployment) -> None:
        """Raises UsageError where the deployment says something else of itself than it did before."""
        before = self._run.arms[arm]
        if before.facts:
            _require_same_facts(arm, before, deployment)
        elif self._begun:
            self.writer.set_arm(arm, deployment)
        else:
            self._found[arm] = deployment

    def begin(self) -> None:
        """From here on the run goes on: what it had only begun is set aside."""
        if self._begun:
            return
        self.writer = self._reopen()
        self._begun = True
        self._once_begun.enter_context(cut_short(self.writer, may_go_on=False))
        begun = self.done.begun
        kinds = {"shadow": self.done.shadow, "divergence": self.done.divergence, "error_budget": self.done.budget}
        went_on = Resumption(
            at=utc_now(),
            process=os.getpid(),
            again=tuple(one.what for one in begun),
            set_aside=tuple(sorted(seq for one in begun for seq in one.seqs)),
        )
        self.writer.go_on(went_on, [kind for kind, there in kinds.items() if there])
        if self._spent is not None:
            self.writer.add_budget(self._spent)
        for arm, deployment in self._found.items():
            self.writer.set_arm(arm, deployment)

    def end_without(self, faults: tuple[TargetFault, ...]) -> None:
        """Raises TargetError where nothing was measured yet: the run can still go on, once they are there."""
        if not self._begun:
            told = "; ".join(f"the {fault.arm} {self._run.arms[fault.arm].name}: {fault.reason}" for fault in faults)
            raise TargetError(f"run {self._run.id} cannot go on now, and stays as it is: {told}")
        super().end_without(faults)

    def measure(self, work: Work) -> Kept:
        """Measure what is left, to the end of the run."""
        with self._once_begun:
            measure_to_the_end(work, may_go_on=False)
        return as_kept(self.writer)


def _chosen(store: Store, suite: Suite, ref: str | None) -> Run:
    """The run that is to go on: the one called `ref`, or the newest of these two deployments."""
    if ref is not None:
        return store.run(store.resolve(ref))
    for run in store.may_go_on(suite.suite):
        names = {arm: run.arms[arm].name for arm in Arm if arm in run.arms}
        if not run.calibrates and names == {Arm.BASELINE: suite.baseline, Arm.CANDIDATE: suite.candidate}:
            return run
    raise UsageError(
        f"no run of {suite.suite} with {suite.candidate} beside {suite.baseline} was cut short and may go on; "
        "run it from its beginning, without --resume"
    )


def _require_open(store: Store, run: Run) -> None:
    if any(one.id == run.id for one in store.may_go_on()):
        return
    now = store.run(run.id)
    if now.status is RunStatus.COMPLETE:
        raise UsageError(
            f"run {run.id} is complete, so nothing of it is left to measure: judge it with `benchgate gate`"
        )
    why = "a deployment was not there, or it went on before and was cut short again"
    raise UsageError(f"run {run.id} is over, though not complete ({why}), so it cannot go on: run the suite again")


def _require_unchanged(run: Run, suite: Suite, plan: Plan) -> None:
    """Raises UsageError with what is not as it was when the run began: what is asked, and who asks."""
    if run.calibrates or run.imported:
        what = "a calibration" if run.calibrates else "of evals that were made elsewhere"
        raise UsageError(f"run {run.id} is {what}, and only runs of `benchgate run` can go on")
    changed = list(_differences(run.suite, suite.to_stored(), "the suite's "))
    if not changed and plan.sha256 != run.plan_sha256:
        changed.append(
            f"the plan was {run.plan_sha256[:12]} and is {plan.sha256[:12]}: a file that the suite names (of tasks, "
            "prompts, texts or traces), or the tokenizer of a server, is not what it was"
        )
    if run.tool_version != __version__:
        changed.append(f"benchgate was {run.tool_version} and is {__version__}")
    changed += _differences(_lasting(run.environment), _lasting(environment_facts()), "this machine's ")
    if changed:
        raise UsageError(_cannot(run, changed))


def _lasting(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if name not in _CHANGES}


def _require_same_facts(arm: Arm, before: Deployment, found: Deployment) -> None:
    """What a deployment no longer says is not known to have changed, as at the end of a run."""
    was, now = dict(flattened(before.facts)), dict(flattened(found.facts))
    changed = [f"{name} was {was[name]} and is {now[name]}" for name in was if now.get(name, was[name]) != was[name]]
    if changed:
        raise UsageError(
            f"the {arm} {before.name} is not what it was when the run was cut short: {'; '.join(changed)}; "
            "run the suite from its beginning, without --resume"
        )


def _require_able(run: Run, done: Done, options: RunOptions) -> None:
    """Raises UsageError for a run that had ended, went on too often, or whose load somebody else is to send now."""
    if done.down is not None:
        name = run.arms[done.down.arm].name
        why = f"the {done.down.arm} {name} was not there {done.down.when}, by which the run ended"
        raise UsageError(f"run {run.id} cannot go on: {why}; run the suite again")
    if done.resumptions >= MOST_RESUMPTIONS:
        why = "it was cut short and went on before, and of a run that does so again nothing is said (few-interruptions)"
        raise UsageError(f"run {run.id} cannot go on: {why}; run it from its beginning, without --resume")
    if done.load.workers and done.load.spread is not (options.cluster is not None):
        senders = ("this machine", "a cluster")
        was, now = senders[done.load.spread], senders[not done.load.spread]
        raise UsageError(_cannot(run, [f"its load was sent by {was} and would be by {now} (--cluster)"]))


def _cannot(run: Run, changed: list[str]) -> str:
    """Every change on a line of its own."""
    lines = "".join(f"\n  {one}" for one in changed)
    why = "cannot go on, for it would no longer be one measurement"
    return f"run {run.id} {why}:{lines}\nrun it from its beginning, without --resume"


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


def _differences(before: object, now: object, at: str) -> Iterator[str]:
    """Where two JSON values differ, each with what it was and what it is."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            dot = "" if at.endswith(" ") else "."
            yield from _differences(before.get(key), now.get(key), f"{at}{dot}{key}")
    elif json.dumps(before, sort_keys=True) != json.dumps(now, sort_keys=True):
        yield f"{at} was {_short(before)} and is {_short(now)}"


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
