"""The road: suite → plan → measurements → store → verdict. What is measured is on disk before anything is computed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchgate import __version__
from benchgate.circumstances import environment_facts, fresh_run_id, known_client, known_client_at, usable_cpus, utc_now
from benchgate.deciding import Decision, decide_stored
from benchgate.deploying import declared
from benchgate.errors import Problem, SuiteError, UsageError
from benchgate.load.cluster_crew import require_distributed
from benchgate.load.inputs import read_inputs
from benchgate.load.ways import run_problems, written_problems
from benchgate.measuring import Progress, measure
from benchgate.model.client import ClientProfile
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.run import Run, RunStatus
from benchgate.plan.demand import chosen_workers
from benchgate.plan.preview import Preview, client_problems, preview
from benchgate.plan.schedule import Plan, make_plan, measurement_sha256
from benchgate.quality.harness import require_lm_eval
from benchgate.quality.tasks import load_tasks
from benchgate.shadow.sample import load_prompts
from benchgate.store.repository import RunWriter, Store
from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Where a run keeps things, what it is called, and which cluster sends its load (None: this machine)."""

    store: str
    work_dir: Path  # engine logs, harness logs, made weights
    label: str | None = None
    cluster: str | None = None
    allow_actions: bool = False  # whether stages may run the commands that the suite names


def run_suite(suite: Suite, suite_dir: Path, options: RunOptions, progress: Progress) -> Decision:
    """Measure the suite's two arms and judge the candidate. Paths in the suite are relative to `suite_dir`."""
    if suite.quality is not None:
        require_lm_eval()
    if options.cluster is not None:
        _require_cluster(suite)
    if not options.allow_actions:
        _refuse_commands(suite)
    if problems := run_problems(suite, suite_dir, os.environ):
        raise UsageError("\n".join(problems))
    plan = read_plan(suite, suite_dir)
    with Store.open(options.store) as store:
        workers = _workers(suite, plan, known_client(store)) if options.cluster is None else 1
        run = _describe(suite, plan, options)
        with _recorded(store, run, plan) as writer:
            logs, weights = options.work_dir / run.id, options.work_dir / "weights"
            complete = measure(suite, suite_dir, plan, writer, logs, weights, progress, workers, options.cluster)
            writer.finish(RunStatus.COMPLETE if complete else RunStatus.PARTIAL, utc_now())
        return decide_stored(store, run.id)


def _require_cluster(suite: Suite) -> None:
    """What `--cluster` needs is there: found out before there is a run."""
    if suite.load is None:
        raise UsageError(f"--cluster sends the load of a suite, and {suite.suite} has none; leave it out")
    require_distributed()


def _refuse_commands(suite: Suite) -> None:
    """A suite that runs commands on this machine does so only when whoever starts it says so."""
    for stage in suite.load.sweep if suite.load else ():
        for action in stage.actions or ():
            if action.run is not None:
                raise UsageError(
                    f"stage {stage.name} of {suite.suite} runs the command {' '.join(action.run)!r} on this machine; "
                    "read it, and add --allow-actions to let it"
                )


def _workers(suite: Suite, plan: Plan, client: ClientProfile | None) -> int:
    """How many load generator processes this machine starts.

    Raises UsageError for more than it delivers by its curve: known before a request is sent.
    """
    problems = client_problems(suite, plan, client, usable_cpus())
    if problems:
        raise UsageError("\n".join(problems))
    return chosen_workers(suite, plan, client, usable_cpus())


def read_plan(suite: Suite, suite_dir: Path, *, asking: bool = True) -> Plan:
    """Read the data files a suite names and make its plan, before any request is sent.

    With `asking`, a server that a workload has its prompts measured by is asked for its tokenizer.
    """
    tasks = load_tasks(suite_dir, suite.quality.tasks) if suite.quality else ()
    prompts = load_prompts(suite_dir / suite.shadow.prompts) if suite.shadow else ()
    traces, material = read_inputs(suite, suite_dir, os.environ, asking=asking)
    return make_plan(suite, tasks, prompts, traces, material)


def check_suite(suite: Suite, suite_dir: Path, source: str) -> Preview:
    """What a run of the suite would ask, once its files are found to be there and fit. Looks at no store.

    Raises SuiteError for data files and certificates, and for an audit of an address that rules one out.
    """
    if problems := written_problems(suite, suite_dir):
        raise SuiteError([Problem(source, None, None, "", problem) for problem in problems])
    return preview(suite, read_plan(suite, suite_dir, asking=False), None, usable_cpus())


def preview_suite(suite: Suite, suite_dir: Path, store_address: str) -> Preview:
    """What a run of the suite would ask, and whether this machine can. Makes no store, and sends no request of it."""
    return preview(suite, read_plan(suite, suite_dir), known_client_at(store_address), usable_cpus())


@contextmanager
def _recorded(store: Store, run: Run, plan: Plan) -> Iterator[RunWriter]:
    """A run in the store that is never left looking complete, or still running, when it was cut short."""
    writer = store.begin_run(run, plan.canonical)
    try:
        yield writer
    except BaseException as cut:
        writer.event("cut_short", {"by": type(cut).__name__})
        writer.finish(RunStatus.PARTIAL, utc_now())
        raise


def _describe(suite: Suite, plan: Plan, options: RunOptions) -> Run:
    stored = suite.to_stored()
    return Run(
        id=fresh_run_id(),
        suite_name=suite.suite,
        suite=stored,
        suite_sha256=sha256_of(stored),
        measurement_sha256=measurement_sha256(suite, plan),
        plan_sha256=plan.sha256,
        seed=suite.seed,
        tool_version=__version__,
        label=options.label,
        status=RunStatus.RUNNING,
        started_at=utc_now(),
        finished_at=None,
        environment=environment_facts(),
        arms={Arm.BASELINE: declared(suite, suite.baseline), Arm.CANDIDATE: declared(suite, suite.candidate)},
    )
