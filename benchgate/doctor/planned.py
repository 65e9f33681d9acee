"""What a suite's plan would ask of this machine: its load generator, its open files, its packages, its data sets."""

from __future__ import annotations

import importlib.util
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchgate.doctor.machine import State, Symptom
from benchgate.errors import BenchgateError, lacking
from benchgate.model.deployment import Arm
from benchgate.plan.preview import Preview
from benchgate.quality.probing import probe_scoring
from benchgate.quality.tasks import load_tasks
from benchgate.suite.schema import Suite
from benchgate.targets.dialect import target_of

_OTHER_FILES = 256  # open beside the streams: libraries, the store, pipes of other processes


def examine_plan(suite: Suite, found: Preview) -> Iterator[Symptom]:
    """Of a plan that was made, what this machine lacks for it. Asks nobody."""
    yield from _offered(found)
    yield _files(suite)
    for what, module, extra in _packages(suite):
        there = importlib.util.find_spec(module) is not None
        remedy = None if there else lacking(f"needed for {what}", extra)
        yield Symptom(extra, State.OK if there else State.FAIL, f"{module} {'is' if there else 'is not'} there", remedy)
    if found.to_fetch:
        yield _to_fetch(found.to_fetch)
    for line in found.refused:
        yield Symptom("checks", State.FAIL, line, "`benchgate plan` tells how much each check takes")


def _offered(found: Preview) -> Iterator[Symptom]:
    """The load against what this client was measured to deliver; where it never was, that is told elsewhere."""
    remedy = "ask for less, give it more `workers`, or send from several machines (`--cluster`)"
    for line in found.problems:
        yield Symptom("offered load", State.FAIL, line, remedy)
    for line in found.unknowns:
        yield Symptom("offered load", State.WARN, line, "measure further: `benchgate doctor --client`")
    if found.stages and found.client_measured_at is not None and not found.problems and not found.unknowns:
        yield Symptom("offered load", State.OK, "within what the load generator delivers here")


def _files(suite: Suite) -> Symptom:
    """Every request in flight is an open file; of an open loop nobody knows how many there will be."""
    stages = suite.load.sweep if suite.load is not None else ()
    flights = [
        stage.concurrency or sum(one.concurrency or 0 for one in (stage.classes or {}).values()) for stage in stages
    ]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(flights, default=0) + _OTHER_FILES
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return Symptom("files for streams", State.OK, f"{needed:,} are enough for the closed loops")
    remedy = f"raise the hard limit (`ulimit -Hn`, or `nofile` in limits.conf) to {needed:,} or more"
    return Symptom("files for streams", State.FAIL, f"at most {hard:,}, and the suite needs {needed:,}", remedy)


def _packages(suite: Suite) -> Iterator[tuple[str, str, str]]:
    if suite.quality is not None:
        yield "`quality`", "lm_eval", "eval"
    if any(spec.embedded is not None for spec in suite.deployments.values()):
        yield "embedded deployments", "xllamacpp", "demo"


def _to_fetch(names: tuple[str, ...]) -> Symptom:
    listed = ", ".join(names)
    if any(
        os.environ.get(name, "").upper() in ("1", "TRUE", "YES", "ON")
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    ):
        remedy = "fetch them where the hub can be reached, or unset HF_HUB_OFFLINE and HF_DATASETS_OFFLINE"
        return Symptom("data sets", State.FAIL, f"not on this machine, which is told to stay offline: {listed}", remedy)
    remedy = "a run fetches them before it asks any server; `benchgate plan` names what is missing"
    return Symptom("data sets", State.WARN, f"not on this machine yet: {listed}", remedy)


def examine_scoring(suite: Suite, folder: Path, environment: Mapping[str, str]) -> Iterator[Symptom]:
    """Whether the deployments can score given texts, where a task of the suite needs it: as a run would try it."""
    names = {Arm.BASELINE: suite.baseline, Arm.CANDIDATE: suite.candidate}
    if suite.quality is None or any(suite.deployments[name].url is None for name in names.values()):
        return
    try:
        tasks = load_tasks(folder, suite.quality, fetch=False)
        targets = {arm: target_of(arm, suite.deployments[name], environment, folder) for arm, name in names.items()}
        faults = probe_scoring(targets, tasks, suite.limits)
    except BenchgateError as error:
        yield Symptom("log-probs", State.FAIL, str(error), "correct the suite; until then a run ends without a verdict")
        return
    for arm, fault in faults.items():
        yield Symptom(f"{names[arm]} log-probs", State.FAIL, fault, "use another endpoint, engine or kind of task")
    if not faults and any(task.output_type != "generate_until" for task in tasks):
        yield Symptom("log-probs", State.OK, "both score given texts")
