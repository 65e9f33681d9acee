"""The road: suite → plan → measurements → store → verdict. What is measured is on disk before anything is computed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchgate import __version__
from benchgate.errors import Problem, SuiteError, UsageError
from benchgate.load.cluster import require_distributed
from benchgate.load.inputs.material import read_inputs
from benchgate.model.client import ClientProfile
from benchgate.model.deployment import Arm, Deployment, sha256_of
from benchgate.model.run import LOAD_SALT, BudgetReading, Run, RunStatus
from benchgate.model.verdict import Waivers
from benchgate.pipeline.deployments import declared
from benchgate.pipeline.environment import (
    environment_facts,
    fresh_run_id,
    known_client,
    known_client_at,
    usable_cpus,
    utc_now,
)
from benchgate.pipeline.error_budget import read_spent, require_askable
from benchgate.pipeline.import_evals import live_only, read_import
from benchgate.pipeline.judge import Decision, Kept, decide_kept, decide_stored
from benchgate.pipeline.measure import Sitting, Work
from benchgate.pipeline.measure_load import Progress
from benchgate.pipeline.preflight import run_problems, written_problems
from benchgate.pipeline.prior_noise import judged_checks, known_at, known_in
from benchgate.pipeline.recording import as_kept, measure_to_the_end, recorded
from benchgate.pipeline.session import sitting_of, spool_of
from benchgate.pipeline.suite_file import require_priced
from benchgate.plan.client_demand import chosen_workers
from benchgate.plan.model import NO_MATERIAL
from benchgate.plan.power import forecast_power, shortfalls
from benchgate.plan.preview import Preview, client_problems, preview
from benchgate.plan.salt import run_salt
from benchgate.plan.schedule import Plan, make_plan, measurement_sha256
from benchgate.quality.divergence import load_texts
from benchgate.quality.runner import require_lm_eval
from benchgate.quality.tasks.loading import impossible_checks, load_tasks, unknown_leaves
from benchgate.shadow.assessors import assessors_of, load_judge_prompt
from benchgate.shadow.prompts import load_prompts, unmeasurable_checks
from benchgate.store.repository import Store
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import Document

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Where a run keeps things, what it is called, and which cluster sends its load (None: this machine)."""

    store: str
    work_dir: Path  # engine logs, harness logs, made weights
    label: str | None = None
    cluster: str | None = None
    allow_actions: bool = False  # whether stages may run the commands that the suite names
    allow_code: bool = False  # whether evals may run the functions, and the models' programs, that the suite lets run
    waivers: Waivers | None = None  # what is tolerated of the candidate
    again: str = "benchgate run SUITE"  # the command that begins such a run, for whoever is told how to go on with it
    calibration: bool = False  # whether both arms are one deployment, so that the run judges nobody
    part: bool = False  # whether a part of the suite is measured alone, with which nobody can go on
    before_measuring: Callable[[], None] = lambda: None  # called when nothing is left that could be refused


def run_suite(suite: Suite, suite_dir: Path, options: RunOptions, progress: Progress) -> Decision:
    """Measure the suite's two arms and judge the candidate. Paths in the suite are relative to `suite_dir`."""
    require_runnable(suite, suite_dir, options)
    plan = read_plan(suite, suite_dir, fetch=True, allow_code=options.allow_code)
    with Store.open(options.store) as store:
        _require_power(store, suite, plan, progress)
        spent = read_spent(suite, suite_dir, os.environ, utc_now())
        kept = measured_run(store, suite, suite_dir, plan, options, progress, spent=spent)
        return decide_kept(store, kept, waivers=options.waivers)


def measured_run(
    store: Store,
    suite: Suite,
    suite_dir: Path,
    plan: Plan,
    options: RunOptions,
    progress: Progress,
    *,
    spent: BudgetReading | None = None,
) -> Kept:
    """Measure what the plan holds as a run of the store, whole or cut short.

    `spent` is what production has spent of the suite's error budget, where it has one.
    """
    workers = _workers(suite, plan, known_client(store)) if options.cluster is None else 1
    arms = {Arm.BASELINE: declared(suite, suite.baseline), Arm.CANDIDATE: declared(suite, suite.candidate)}
    run = _describe(suite, Identity(plan.sha256, measurement_sha256(suite, plan)), options, arms)
    spool, may_go_on = spool_of(options.work_dir, run.id), not (options.calibration or options.part)
    began, again = sitting_of(suite, os.environ, run.id, spool), options.again
    options.before_measuring()
    store.mark_abandoned_runs()
    with recorded(
        store, run, plan.canonical, may_go_on=may_go_on, again=again, spool=spool, note=progress.note
    ) as writer:
        writer.begin_session(began)
        if spent is not None:
            writer.add_budget(spent)
        work = Work(
            suite=suite,
            suite_dir=suite_dir,
            plan=plan,
            sitting=Sitting(writer),
            log_dir=options.work_dir / run.id,
            weights_dir=options.work_dir / "weights",
            progress=progress,
            so_far=writer.evidence,
            waivers=options.waivers,
            workers=workers,
            cluster=options.cluster,
            salt=run.load_salt,
        )
        measure_to_the_end(work, may_go_on=may_go_on, again=again)
    return as_kept(writer)


def _require_power(store: Store, suite: Suite, plan: Plan, progress: Progress) -> None:
    """Checks that may not carry their margins are told; UsageError for required ones that can in no case."""
    foretold = forecast_power(suite, plan, judged_checks(suite, plan), known_in(store, suite, plan, reading=False))
    short = shortfalls(foretold.checks)
    if short.certain:
        raise UsageError("\n".join(short.refused))
    for line in (*short.likely, *short.told):
        progress.note(line)


def require_runnable(suite: Suite, suite_dir: Path, options: RunOptions) -> None:
    """What a run needs of this machine is there; known before a plan is made. Raises UsageError."""
    if suite.quality is not None:
        require_lm_eval()
    if options.cluster is not None:
        _require_cluster(suite)
    if not options.allow_actions:
        _refuse_commands(suite)
    if not options.allow_code:
        _refuse_code(suite)
    if problems := run_problems(suite, suite_dir, os.environ):
        raise UsageError("\n".join(problems))
    assessors_of(suite.shadow, os.environ, suite_dir, None)
    require_askable(suite, suite_dir, os.environ)


def _require_cluster(suite: Suite) -> None:
    """What `--cluster` needs is there: found out before there is a run."""
    if suite.load is None:
        raise UsageError(f"--cluster sends the load of a suite, and {suite.suite} has none; leave it out")
    require_distributed()


def _refuse_commands(suite: Suite) -> None:
    """A suite that runs commands on this machine does so only when whoever starts it says so."""
    for name in dict.fromkeys((suite.baseline, suite.candidate)):
        ready = suite.deployments[name].ready
        if ready is not None and ready.command is not None:
            raise UsageError(
                f"the replicas of {name} of {suite.suite} are counted by the command {ready.command!r} on this "
                "machine; read it, and add --allow-actions to let it"
            )
    for stage in suite.load.sweep if suite.load else ():
        for action in stage.actions or ():
            if action.run is not None:
                raise UsageError(
                    f"stage {stage.name} of {suite.suite} runs the command {' '.join(action.run)!r} on this machine; "
                    "read it, and add --allow-actions to let it"
                )


def _refuse_code(suite: Suite) -> None:
    """A suite alone is no consent: whoever may change it could otherwise run what they like on this machine."""
    if suite.quality is not None and suite.quality.allow_unsafe_code:
        raise UsageError(
            f"the evals of {suite.suite} may run code on this machine (`quality.allow_unsafe_code: true`): "
            "functions of its task files, or what the models write; read it, and add --allow-code to let it"
        )


def _workers(suite: Suite, plan: Plan, client: ClientProfile | None) -> int:
    """How many load generator processes this machine starts.

    Raises UsageError for more than it delivers by its curve: known before a request is sent.
    """
    problems = client_problems(suite, plan, client, usable_cpus())
    if problems:
        raise UsageError("\n".join(problems))
    return chosen_workers(suite, plan, client, usable_cpus())


def read_plan(
    suite: Suite, suite_dir: Path, *, asking: bool = True, fetch: bool = False, allow_code: bool = False
) -> Plan:
    """Read the data files a suite names and make its plan, before any request is sent.

    With `asking`, a server that a workload has its prompts measured by is asked for its tokenizer. With `fetch`, data
    of lm-eval's own tasks that is not kept on this machine is fetched. Tasks that run code are read with `allow_code`
    alone, and the suite's own consent.
    """
    quality, shadow, divergence = suite.quality, suite.shadow, suite.divergence
    problems: list[Problem] = []
    read_tasks = partial(load_tasks, suite_dir, fetch=fetch, allow_code=allow_code)
    tasks = _read(problems, lambda: read_tasks(quality) if quality else ())
    problems += [*unknown_leaves(suite, tasks), *impossible_checks(suite, tasks)] if tasks is not None else []
    prompts = _read(problems, lambda: load_prompts(suite_dir / shadow.prompts) if shadow else ())
    problems += unmeasurable_checks(suite, prompts) if prompts is not None else []
    judge_prompt = _read(problems, lambda: _judge_prompt(suite, suite_dir))
    texts = _read(problems, lambda: load_texts(suite_dir / divergence.texts, divergence) if divergence else ())
    traces, material = _read(problems, lambda: read_inputs(suite, suite_dir, os.environ, asking=asking)) or (
        {},
        NO_MATERIAL,
    )
    if problems:
        raise SuiteError(problems)
    return make_plan(suite, tasks or (), prompts or (), traces, material, texts or (), judge_prompt)


def _judge_prompt(suite: Suite, suite_dir: Path) -> str | None:
    """What the suite tells a judge of shadow answers; None where it has no words of its own."""
    judge = suite.shadow.judge if suite.shadow is not None else None
    return None if judge is None or judge.prompt is None else load_judge_prompt(suite_dir / judge.prompt)


def _read(problems: list[Problem], read: Callable[[], _T]) -> _T | None:
    """What is read; None where that fails, and its problems are added: all files are told of at once."""
    try:
        return read()
    except SuiteError as error:
        problems += error.problems
        return None


def preview_suite(
    suite: Suite,
    suite_dir: Path,
    store_address: str,
    *,
    source: str | None = None,
    asking: bool = True,
    allow_code: bool = False,
) -> Preview:
    """Return what a run would send, and whether this machine can. Makes no store, and sends no request of the run.

    With `source`, the suite's file, data files and certificates are checked too. Raises SuiteError for all problems.
    """
    problems = [Problem(source, None, None, "", text) for text in written_problems(suite, suite_dir)] if source else []
    try:
        plan = read_plan(suite, suite_dir, asking=asking, allow_code=allow_code)
    except SuiteError as error:
        raise SuiteError([*problems, *error.problems]) from error
    if problems:
        raise SuiteError(problems)
    client, known = known_client_at(store_address), known_at(store_address, suite, plan)
    return preview(suite, plan, client, usable_cpus(), judged_checks(suite, plan), known)


def import_suite(suite: Suite, document: Document, sides: Mapping[Arm, Path], options: RunOptions) -> Decision:
    """Judge what lm-eval asked both arms elsewhere, as a run of its own. Sends nothing.

    `document` is the suite's text, for the place of what an import cannot answer. Raises SuiteError for that and for
    everything wrong in the files.
    """
    if faults := live_only(suite):
        raise SuiteError([document.problem(fault) for fault in faults])
    found = read_import(suite, sides)
    asked = {"seed": suite.seed, "quality": suite.to_stored()["quality"]}
    plan_sha256 = hashlib.sha256(found.plan).hexdigest()
    identity = Identity(plan_sha256, sha256_of({"imported": asked, "plan": plan_sha256}))
    with Store.open(options.store) as store:
        run = _describe(suite, identity, options, found.arms)
        with recorded(store, run, found.plan) as writer:
            for observation in found.observations:
                writer.add_quality(observation)
            writer.finish(RunStatus.COMPLETE, utc_now())
        return decide_stored(store, run.id, waivers=options.waivers)


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a plan, and a measurement, from others."""

    plan_sha256: str
    measurement_sha256: str


def _describe(suite: Suite, asked: Identity, options: RunOptions, arms: Mapping[Arm, Deployment]) -> Run:
    """A run that begins now. Raises UsageError where its prices stand in a file that nobody read, or are of yesterday.

    A calibration judges nobody, and may go on for a night.
    """
    began = utc_now()
    require_priced(suite, None if options.calibration else date.fromisoformat(began[:10]))
    stored = suite.to_stored() | ({"calibration": True} if options.calibration else {})
    run_id, salted = fresh_run_id(), suite.load is not None and suite.load.salt
    return Run(
        id=run_id,
        suite_name=suite.suite,
        suite=stored,
        suite_sha256=sha256_of(stored),
        measurement_sha256=asked.measurement_sha256,
        plan_sha256=asked.plan_sha256,
        seed=suite.seed,
        tool_version=__version__,
        label=options.label,
        status=RunStatus.RUNNING,
        started_at=began,
        finished_at=None,
        environment=environment_facts() | ({LOAD_SALT: run_salt(run_id)} if salted else {}),
        arms=arms,
    )
