"""A run from suite to verdict: plan, preflight, measurements, store, verdict.

Everything measured is on disk before anything is computed from it. A run ends complete, or is marked as interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchgate import __version__
from benchgate.errors import Command, NothingKept, Remedy, RunInterrupted, StoreError, UsageError
from benchgate.model.deployment import Arm, Deployment, sha256_of
from benchgate.model.run import LOAD_SALT, ONLY_PART, QUICK_LOOK, Run, RunStatus
from benchgate.model.verdict import Waivers
from benchgate.pipeline.checkpoint import session_event
from benchgate.pipeline.deployments import declared_deployment, exclusive_servers
from benchgate.pipeline.environment import environment_facts, fresh_run_id, known_client, utc_now
from benchgate.pipeline.error_budget import read_spent
from benchgate.pipeline.forecast import read_plan, require_power
from benchgate.pipeline.judge import Decision, MeasuredRun, decide_measured
from benchgate.pipeline.measure import measure
from benchgate.pipeline.preflight import require_ready
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.suite_file import require_priced
from benchgate.pipeline.work import Work
from benchgate.plan.client_demand import chosen_workers
from benchgate.plan.preview import client_problems
from benchgate.plan.salt import run_salt
from benchgate.plan.schedule import Plan, measurement_sha256
from benchgate.store.repository import RunWriter, Store
from benchgate.store.spool import FILE_NAME
from benchgate.suite.schema import Suite
from benchgate.system import usable_cpus


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run beside its suite. `cluster` is the address of a dask scheduler; None: this machine sends."""

    store: str
    work_dir: Path  # engine logs, harness logs, weights, spools
    label: str | None = None
    cluster: str | None = None
    allow_actions: bool = False  # stages may run the commands that the suite names
    allow_code: bool = False  # evals may run functions, and programs that models write, if the suite lets them
    waivers: Waivers | None = None
    calibration: bool = False  # both arms are one deployment, and no candidate is judged
    only: str | None = None  # measured part of the suite, or QUICK_LOOK; such a run cannot be resumed or promoted
    wait: bool = False  # until other runs of the same servers have ended; otherwise they are refused
    before_measuring: Callable[[], None] = lambda: None  # called once nothing is left that could be refused

    def waivers_from(self, day: date) -> Waivers | None:
        """Return the waivers as of `day`, or of their own day if that is later: a run may begin after its command."""
        return None if self.waivers is None else self.waivers.not_before(day)


def run_suite(suite: Suite, suite_dir: Path, options: RunOptions, progress: Progress) -> Decision:
    """Measure the suite's two arms and judge the candidate. Paths in the suite are relative to `suite_dir`."""
    plan = prepare(suite, suite_dir, options)
    with Store.open(options.store) as store:
        if options.only != QUICK_LOOK:
            require_power(store, suite, plan, progress.note)
        measured = measure_run(store, suite, suite_dir, plan, options, progress)
        return decide_measured(store, measured, waivers=options.waivers)


def prepare(suite: Suite, suite_dir: Path, options: RunOptions) -> Plan:
    """Return the plan of a run. Raises UsageError or SuiteError for everything that can be known to fail."""
    require_runnable(suite, suite_dir, options)
    return read_plan(suite, suite_dir, fetch=True, allow_code=options.allow_code)


def require_runnable(suite: Suite, suite_dir: Path, options: RunOptions) -> None:
    """Raise UsageError if this machine lacks something that the run needs, or the options do not allow it."""
    allowed = {"allow_actions": options.allow_actions, "allow_code": options.allow_code}
    require_ready(suite, suite_dir, cluster=options.cluster, **allowed)


def measure_run(
    store: Store,
    suite: Suite,
    suite_dir: Path,
    plan: Plan,
    options: RunOptions,
    progress: Progress,
) -> MeasuredRun:
    """Measure the plan as a new run of the store, complete or interrupted.

    Raises UsageError if this machine cannot send the load, or another run measures one of the servers, and what
    `read_spent` raises.
    """
    workers = 1
    if options.cluster is None and not suite.regions:
        client, cpus = known_client(store), usable_cpus()
        if problems := client_problems(suite, plan, client, cpus):
            raise UsageError("\n".join(problems))
        workers = chosen_workers(suite, plan, client, cpus)
    with exclusive_servers(suite, suite_dir, progress, wait=options.wait) as name_holder:
        spent = read_spent(suite, suite_dir, os.environ, utc_now())  # not before the run has waited for its servers
        arms = {arm: declared_deployment(suite, name) for arm, name in suite.arm_names.items()}
        run = describe_run(suite, options, arms, plan_sha256=plan.sha256, measurement=measurement_sha256(suite, plan))
        name_holder(f"run {run.id}")
        spool = spool_path(options.work_dir, run.id)
        session = session_event(suite, os.environ, run.id, spool)
        options.before_measuring()
        store.mark_abandoned_runs()
        work = Work(
            suite=suite,
            suite_dir=suite_dir,
            plan=plan,
            log_dir=options.work_dir / run.id,
            weights_dir=options.work_dir / "weights",
            progress=progress,
            waivers=options.waivers_from(run.day),
            workers=workers,
            cluster=options.cluster,
            salt=run.load_salt,
        )
        resumable = not (options.calibration or options.only)
        with recorded_run(store, run, plan.canonical, resumable=resumable, spool=spool, note=progress.note) as writer:
            writer.begin_session(session)
            if spent is not None:
                writer.add(spent)
            try:
                complete = measure(work, writer)
            except NothingKept as error:
                end_unstorable(writer, error, resumable=resumable)
            else:
                writer.finish(RunStatus.COMPLETE if complete else RunStatus.PARTIAL, utc_now())
        return stored_run(writer)


def describe_run(
    suite: Suite, options: RunOptions, arms: Mapping[Arm, Deployment], *, plan_sha256: str, measurement: str
) -> Run:
    """Return a run that begins now. Raises UsageError if its prices were not read, or are those of another day."""
    began = utc_now()
    # A calibration takes a night, so its prices may be those of the day before.
    require_priced(suite, None if options.calibration else date.fromisoformat(began[:10]))
    stored = suite.to_stored() | ({"calibration": True} if options.calibration else {})
    run_id, facts = fresh_run_id(), environment_facts()
    if suite.load is not None and suite.load.salt:
        facts[LOAD_SALT] = run_salt(run_id)
    if options.only is not None:
        facts[ONLY_PART] = options.only
    return Run(
        id=run_id,
        suite_name=suite.suite,
        suite=stored,
        suite_sha256=sha256_of(stored),
        measurement_sha256=measurement,
        plan_sha256=plan_sha256,
        seed=suite.seed,
        tool_version=__version__,
        label=options.label,
        status=RunStatus.RUNNING,
        started_at=began,
        finished_at=None,
        environment=facts,
        arms=arms,
    )


@contextmanager
def recorded_run(
    store: Store,
    run: Run,
    plan: bytes,
    *,
    resumable: bool = False,
    spool: Path | None = None,
    note: Callable[[str], None] | None = None,
) -> Iterator[RunWriter]:
    """Begin a run in the store. An exception marks it as interrupted: it never looks complete, or still running.

    Raises RunInterrupted in place of KeyboardInterrupt if the run can be resumed.
    """
    writer = store.begin_run(run, plan, spool=spool, note=note)
    try:
        yield writer
    except BaseException as error:
        mark_partial(writer, error, resumable=resumable)
        if resumable and isinstance(error, KeyboardInterrupt):
            raise RunInterrupted(run.id) from error
        raise


def mark_partial(writer: RunWriter, error: BaseException, *, resumable: bool) -> None:
    """Mark a run as interrupted by an error, which counts for more than a store that does not take the mark."""
    with suppress(StoreError):
        writer.event("cut_short", {"by": type(error).__name__})
    with suppress(StoreError):
        _end_partial(writer, resumable=resumable)
    writer.close()


def end_unstorable(writer: RunWriter, error: NothingKept, *, resumable: bool) -> None:
    """End a run because nothing can be stored any more: what was kept by then is judged."""
    resume = (Remedy("resume it", Command.RESUME, writer.run_id),) if resumable else ()
    writer.record_loss(NothingKept(error.message, remedies=resume))
    _end_partial(writer, resumable=resumable)


def _end_partial(writer: RunWriter, *, resumable: bool) -> None:
    if resumable:
        writer.suspend()
    else:
        writer.finish(RunStatus.PARTIAL, utc_now())


def stored_run(writer: RunWriter) -> MeasuredRun:
    """Close the writer and return what was kept of the run."""
    try:
        evidence = writer.evidence()
        return MeasuredRun(evidence, writer.is_stored, writer.fault)
    finally:
        writer.close()


def spool_path(work_dir: Path, run_id: str) -> Path:
    """Return the file that a run's measurements are written to before the store has them."""
    return work_dir / run_id / FILE_NAME
