"""Evals that lm-eval ran elsewhere, imported as a run and judged. Reads files and contacts no server."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchgate.errors import SuiteError, UsageError
from benchgate.model.deployment import Arm, Deployment, canonical_json, sha256_of
from benchgate.model.metric import METRICS
from benchgate.model.records import EvalItem
from benchgate.model.run import QualityObservation, RunStatus
from benchgate.pipeline.deployments import declared_deployment
from benchgate.pipeline.environment import utc_now
from benchgate.pipeline.judge import Decision, decide_stored
from benchgate.pipeline.run import RunOptions, describe_run, recorded_run
from benchgate.pipeline.suite_file import SuiteFile
from benchgate.plan.items import Scale
from benchgate.quality.import_results import Imported, read_arm
from benchgate.quality.tasks.gated_metric import scale_of
from benchgate.store.repository import Store
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import Fault

_NEEDS_RUN = "needs a live run, and an import has evals only; remove it"
_TASK_FILE = (
    "an import reads no task file, so nothing ties samples to {path}; write lm-eval's name of the task alone: {name}"
)
_LIVE_SECTIONS = ("start", "error_budget", "load", "divergence", "shadow")


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """Observations and deployments of both arms. `plan` lists the items, in the place of a run's plan."""

    observations: tuple[QualityObservation, ...]
    plan: bytes
    arms: Mapping[Arm, Deployment]


def import_suite(file: SuiteFile, sides: Mapping[Arm, Path], options: RunOptions) -> Decision:
    """Import both arms' eval results as a run, and judge it.

    Raises SuiteError for keys of the suite that an import does not support, and for every mistake in the results.
    """
    suite = file.suite
    if faults := live_only(suite):
        raise SuiteError([file.document.problem(fault) for fault in faults])
    found = read_import(suite, sides)
    evals = {"seed": suite.seed, "quality": suite.to_stored()["quality"]}
    plan_sha256 = hashlib.sha256(found.plan).hexdigest()
    measurement = sha256_of({"imported": evals, "plan": plan_sha256})
    with Store.open(options.store) as store:
        run = describe_run(suite, options, found.arms, plan_sha256=plan_sha256, measurement=measurement)
        with recorded_run(store, run, found.plan) as writer:
            for observation in found.observations:
                writer.add(observation)
            writer.finish(RunStatus.COMPLETE, utc_now())
        return decide_stored(store, run.id, waivers=options.waivers)


def live_only(suite: Suite) -> list[Fault]:
    """Return a fault for every key of a suite that imported evals do not support."""
    faults = [] if suite.quality is not None else [Fault((), "an import is of evals; add `quality` with its `tasks`")]
    live = [name for name in _LIVE_SECTIONS if getattr(suite, name, None) is not None]
    faults += [Fault((name,), _NEEDS_RUN, at_key=True) for name in live]
    for number, check in enumerate(suite.gate.checks):
        if METRICS[check.metric].family != "quality":
            faults.append(Fault(("gate", "checks", number, "metric"), f"{check.metric} {_NEEDS_RUN}"))
    for number, entry in enumerate(suite.quality.tasks if suite.quality is not None else ()):
        if entry.is_file:
            faults.append(Fault(("quality", "tasks", number), _TASK_FILE.format(path=entry.task, name=entry.name)))
    for key in ("repeat_baseline", "stop_early"):
        if getattr(suite.quality, key, False):
            faults.append(Fault(("quality", key), _NEEDS_RUN, at_key=True))
    return faults


def read_import(suite: Suite, sides: Mapping[Arm, Path]) -> ImportedRun:
    """Read both arms' files.

    Raises SuiteError for mistakes in the files, UsageError if they cannot be the two arms of this suite.
    """
    assert suite.quality is not None, "`live_only` was checked before"
    arms = {arm: read_arm(arm, sides[arm], suite.quality) for arm in Arm}
    _require_both_arms(suite, arms)
    observations = tuple(one for arm in Arm for one in _with_scales(suite, arms[arm], arms[arm.other]))
    items = {
        one.task: [[item.item_id, item.doc_hash, item.prompt_hash, item.target_hash] for item in one.items]
        for one in arms[Arm.BASELINE].observations
    }
    names = {Arm.BASELINE: suite.baseline, Arm.CANDIDATE: suite.candidate}
    return ImportedRun(
        observations=observations,
        plan=canonical_json({"seed": suite.seed, "imported": items}),
        arms={arm: replace(declared_deployment(suite, names[arm]), facts=arms[arm].facts) for arm in Arm},
    )


def _require_both_arms(suite: Suite, arms: Mapping[Arm, Imported]) -> None:
    """Raise UsageError for folders that were swapped, or for one given twice.

    Two good models may give equal answers; a run of lm-eval is identified by when it began.
    """
    if suite.baseline != suite.candidate and arms[Arm.BASELINE].runs & arms[Arm.CANDIDATE].runs:
        raise UsageError("--baseline and --candidate hold samples of the very same run of lm-eval; give two runs")
    for arm, name in ((Arm.BASELINE, suite.baseline), (Arm.CANDIDATE, suite.candidate)):
        declared_model, found = suite.deployments[name].model, arms[arm].model
        if declared_model is not None and found is not None and found != declared_model:
            raise UsageError(
                f"--{arm.value} holds answers of the model {found!r}, and the suite's {arm.value} {name!r} is "
                f"{declared_model!r}; give the folder of that model, or correct `model` in the suite"
            )


def _with_scales(suite: Suite, arm: Imported, other: Imported) -> list[QualityObservation]:
    """Return the observations of an arm with their scale: binary only if the scores of both arms are."""
    theirs = {one.task: one.items for one in other.observations}
    scaled = []
    for one in arm.observations:
        entry = suite.quality.entry(one.task) if suite.quality is not None else None
        written = entry.scale if entry is not None else None
        scale = written or _scale(str(one.harness["metric"]), (*one.items, *theirs.get(one.task, ())))
        scaled.append(replace(one, harness={**one.harness, "scale": scale}))
    return scaled


def _scale(metric: str, items: tuple[EvalItem, ...]) -> Scale:
    """Return the metric's known scale; else, and for means of repetitions, that of the scores of both arms."""
    if scale_of(metric, 1, None) == "continuous" or any(item.score not in (0.0, 1.0) for item in items):
        return "continuous"
    return "binary"
