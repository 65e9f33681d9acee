"""The plan of a run from a suite and its files, and a forecast of what its checks can show."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchgate.errors import Problem, StoreError, SuiteError, UsageError
from benchgate.gate.policy import judged_by, specs_over
from benchgate.load.material import read_inputs
from benchgate.model.deployment import Arm
from benchgate.model.metric import TASK_METRICS
from benchgate.model.noise import NoiseProfile, noise_key
from benchgate.model.run import LOAD_ENDED, LOOK, RESUMED, Run, RunStatus
from benchgate.pipeline.environment import environment_facts, known_client_at, utc_now
from benchgate.pipeline.preflight import written_problems
from benchgate.plan.check_power import NO_KNOWN_NOISE, EarlierRun, JudgedCheck, KnownNoise
from benchgate.plan.model import NO_MATERIAL
from benchgate.plan.power import forecast_power, shortfalls
from benchgate.plan.preview import Preview, preview
from benchgate.plan.schedule import Plan, make_plan, measurement_sha256
from benchgate.quality.divergence import load_texts
from benchgate.quality.tasks.loading import impossible_checks, load_tasks, unknown_leaves
from benchgate.shadow.assessors import load_judge_prompt
from benchgate.shadow.prompts import load_prompts, unmeasurable_checks
from benchgate.store.missing import is_absent
from benchgate.suite.schema import Suite
from benchgate.system import usable_cpus

if TYPE_CHECKING:
    from benchgate.store.repository import Store

_T = TypeVar("_T")
_MAX_RUNS_SEARCHED = 50


def read_plan(
    suite: Suite, suite_dir: Path, *, use_tokenizer_server: bool = True, fetch: bool = False, allow_code: bool = False
) -> Plan:
    """Read the data files a suite names and make its plan, before any request is sent.

    `use_tokenizer_server` lets a server count tokens where a workload names one. `fetch` downloads data of lm-eval's
    own tasks. Tasks that run code need `allow_code` as well as the suite's own consent.
    """
    quality, shadow, divergence = suite.quality, suite.shadow, suite.divergence
    problems: list[Problem] = []
    read_tasks = partial(load_tasks, suite_dir, fetch=fetch, allow_code=allow_code)
    tasks = _read(problems, lambda: read_tasks(quality) if quality else ())
    problems += [*unknown_leaves(suite, tasks), *impossible_checks(suite, tasks)] if tasks is not None else []
    prompts = _read(problems, lambda: load_prompts(suite_dir / shadow.prompts) if shadow else ())
    problems += unmeasurable_checks(suite, prompts) if prompts is not None else []
    judge = shadow.judge if shadow is not None else None
    judge_file = None if judge is None or judge.prompt is None else suite_dir / judge.prompt
    judge_prompt = _read(problems, lambda: None if judge_file is None else load_judge_prompt(judge_file))
    texts = _read(problems, lambda: load_texts(suite_dir / divergence.texts, divergence) if divergence else ())
    read_load = partial(read_inputs, suite, suite_dir, os.environ, contacting=use_tokenizer_server)
    inputs = _read(problems, read_load)
    if problems:
        raise SuiteError(problems)
    traces, material = inputs or ({}, NO_MATERIAL)
    return make_plan(suite, tasks or (), prompts or (), traces, material, texts or (), judge_prompt)


def _read(problems: list[Problem], read: Callable[[], _T]) -> _T | None:
    """Return what `read` returns; None if it fails. Problems are collected, so that all files are reported at once."""
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
    check_files: bool = False,
    use_tokenizer_server: bool = True,
    allow_code: bool = False,
) -> Preview:
    """Return the requests and check power of a run on this machine. Creates no store and sends none of the requests.

    With `check_files`, data files and certificates are checked too. Raises SuiteError for all problems.
    """
    problems = written_problems(suite, suite_dir) if check_files else []
    try:
        plan = read_plan(suite, suite_dir, use_tokenizer_server=use_tokenizer_server, allow_code=allow_code)
    except SuiteError as error:
        raise SuiteError([*problems, *error.problems]) from error
    if problems:
        raise SuiteError(problems)
    client, noise = known_client_at(store_address), known_noise_at(store_address, suite, plan)
    return preview(suite, plan, client, usable_cpus(), judged_checks(suite, plan), noise)


def require_power(store: Store, suite: Suite, plan: Plan, warn: Callable[[str], None]) -> None:
    """Warn of checks that may be underpowered. Raises UsageError for required ones that certainly are."""
    forecast = forecast_power(suite, plan, judged_checks(suite, plan), known_noise(store, suite, plan, read_runs=False))
    short = shortfalls(forecast.checks)
    if short.certain:
        raise UsageError("\n".join(short.refused))
    for line in (*short.likely, *short.warnings):
        warn(line)


def judged_checks(suite: Suite, plan: Plan) -> tuple[JudgedCheck, ...]:
    """Return the policy's checks over what the plan will measure, with the ids that the gate will give them."""
    is_continuous = {task.name: task.scale == "continuous" for task in plan.tasks} | dict.fromkeys(plan.verified, False)
    by_unit = {suite.unit_name(task): continuous for task, continuous in is_continuous.items()}
    judged = []
    for spec in specs_over(suite, is_continuous):
        check, tasks = spec.check, tuple[str, ...]()
        if check.metric in TASK_METRICS:
            own = spec.task is not None and spec.task != "each"
            tasks = (str(spec.task),) if own else tuple(judged_by(check, suite.gate.checks, by_unit))
        judged.append(JudgedCheck(spec.id, check, spec.statistic, spec.stage, tasks, spec.target_ratio, spec.over))
    return tuple(judged)


def known_noise_at(store_address: str, suite: Suite, plan: Plan) -> KnownNoise:
    """Return the known noise without writing; a store that is missing, old or unreadable counts as empty."""
    if is_absent(store_address):
        return NO_KNOWN_NOISE
    from benchgate.store.repository import Store  # slow to import

    try:
        store = Store.open_as_is(store_address)
        if store is None:
            return NO_KNOWN_NOISE
        with store:
            return known_noise(store, suite, plan, read_runs=True)
    except StoreError:
        return NO_KNOWN_NOISE


def known_noise(store: Store, suite: Suite, plan: Plan, *, read_runs: bool) -> KnownNoise:
    """Return the newest noise profile of the suite's baseline, and the duration of the last such run.

    Without a profile, and with `read_runs`, the newest complete run of the same measurement that still has its raw
    records takes its place.
    """
    from benchgate.pipeline.deployments import declared_deployment  # slow to import

    measurement = measurement_sha256(suite, plan)
    runs = [
        run
        for run in store.runs(suite.suite, limit=_MAX_RUNS_SEARCHED)
        if Arm.BASELINE in run.arms and run.arms[Arm.BASELINE].name == suite.baseline
    ]
    same = [run for run in runs if run.status is RunStatus.COMPLETE and run.measurement_sha256 == measurement]
    earlier = next((found for run in same if (found := _earlier_run(store, run)) is not None), None)
    # A profile of this measurement on any hardware that the baseline was seen on.
    keys = {noise_key(declared_deployment(suite, suite.baseline), environment_facts(), measurement)}
    keys |= {noise_key(run.arms[Arm.BASELINE], run.environment, measurement) for run in runs}
    profiles = [profile for key in keys if (profile := store.noise_profile(key)) is not None]
    if profiles:
        profile = max(profiles, key=lambda one: (one.measured_at, one.run_id))
        stale = profile.age_at(utc_now()).total_seconds() > suite.gate.noise_max_age_s
        return KnownNoise(profile, "stale calibration" if stale else "calibration", earlier)
    readable = next((run for run in same if store.removal(run.id) is None), None) if read_runs else None
    if readable is not None:
        return KnownNoise(_profile_of_run(store, readable, suite), "run", earlier)
    return KnownNoise(earlier=earlier)


def _profile_of_run(store: Store, run: Run, suite: Suite) -> NoiseProfile:
    """Return a profile made of a run of two deployments: its pairs vary as those of the next run will."""
    from benchgate.gate.calibration import disagreements, spreads  # slow to import

    evidence = store.evidence(run.id)
    return NoiseProfile(
        key=noise_key(run.arms[Arm.BASELINE], run.environment, run.measurement_sha256),
        measured_at=run.finished_at or run.started_at,
        run_id=run.id,
        blocks=len({execution.block for execution in evidence.load}),
        spreads=spreads(evidence, suite),
        # The shadow prompts are answered twice by the baseline; tasks are not.
        disagreement=tuple(one for one in disagreements(evidence) if one.kind == "shadow"),
    )


def _earlier_run(store: Store, run: Run) -> EarlierRun | None:
    """Return the duration of a run, and the number of blocks that its load ended with.

    None for one that was interrupted and resumed: the pause is between its start and its end.
    """
    events = store.events(run.id)
    if run.finished_at is None or any(kind == RESUMED for kind, _ in events):
        return None
    duration_s = (datetime.fromisoformat(run.finished_at) - datetime.fromisoformat(run.started_at)).total_seconds()
    ends = [data.get("blocks") for kind, data in events if kind == LOAD_ENDED]
    load = Suite.from_stored(run.suite).load
    blocks = ends[-1] if ends and isinstance(ends[-1], int) else (load.blocks if load is not None else 0)
    load_s = next((data.get("after_s") for kind, data in reversed(events) if kind == LOOK), None)
    return EarlierRun(run.id, run.finished_at, blocks, duration_s, load_s if isinstance(load_s, float) else None)
