"""Evals made elsewhere, imported as a run and judged. Reads files and contacts no server."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchgate.errors import SuiteError, UsageError
from benchgate.importers.eval_items import EvalFormat
from benchgate.importers.inspect_logs import INSPECT_AI
from benchgate.importers.nemo_bundles import NEMO_EVALUATOR
from benchgate.model.deployment import Arm, canonical_json, sha256_of
from benchgate.model.metric import METRICS
from benchgate.model.run import ImportedEvals, QualityObservation, RunStatus
from benchgate.pipeline.deployments import declared_deployment
from benchgate.pipeline.environment import utc_now
from benchgate.pipeline.judge import Decision, decide_stored
from benchgate.pipeline.run import RunOptions, describe_run, recorded_run
from benchgate.pipeline.suite_file import SuiteFile
from benchgate.quality.import_results import has_samples, read_arm
from benchgate.quality.tasks.gated_metric import metric_fault, scale_of
from benchgate.store.repository import Store
from benchgate.suite.quality import Quality
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import Fault

_NEEDS_RUN = "needs a live run, and an import has evals only; remove it"
_TASK_FILE = (
    "an import reads no task file, so nothing ties samples to {path}; write lm-eval's name of the task alone: {name}"
)
LM_EVAL = EvalFormat("lm-eval", has_samples, read_arm)
EVAL_FORMATS = (LM_EVAL, INSPECT_AI, NEMO_EVALUATOR)
_LIVE_SECTIONS = ("start", "error_budget", "load", "divergence", "shadow")


def import_suite(file: SuiteFile, sides: Mapping[Arm, Path], options: RunOptions) -> Decision:
    """Import both arms' eval results as a run, and judge it.

    Raises SuiteError for keys of the suite that an import does not support, and for every mistake in the results.
    """
    suite = file.suite
    if faults := live_only(suite):
        raise SuiteError([file.document.problem(fault) for fault in faults])
    assert suite.quality is not None, "`live_only` has a fault without evals"
    imported = {arm: _read_arm(arm, sides[arm], suite.quality) for arm in Arm}
    _require_both_arms(suite, imported)
    arms = {arm: replace(declared_deployment(suite, suite.arm_names[arm]), facts=imported[arm].facts) for arm in Arm}
    # The list of items takes the place of a run's plan.
    items = {
        one.task: [[item.item_id, item.doc_hash, item.prompt_hash, item.target_hash] for item in one.items]
        for one in imported[Arm.BASELINE].observations
    }
    plan = canonical_json({"seed": suite.seed, "imported": items})
    evals = {"seed": suite.seed, "quality": suite.to_stored()["quality"]}
    plan_sha256 = hashlib.sha256(plan).hexdigest()
    measurement = sha256_of({"imported": evals, "plan": plan_sha256})
    with Store.open(options.store) as store:
        run = describe_run(suite, options, arms, plan_sha256=plan_sha256, measurement=measurement)
        with recorded_run(store, run, plan) as writer:
            for arm in Arm:
                for observation in _with_scales(suite.quality, imported[arm], imported[arm.other]):
                    writer.add(observation)
            writer.finish(RunStatus.COMPLETE, utc_now())
        return decide_stored(store, run.id, waivers=options.waivers_from(run.day))


def _read_arm(arm: Arm, path: Path, quality: Quality) -> ImportedEvals:
    """Read an arm's files by their format. Raises UsageError if they may be of several, or cannot be judged."""
    fitting = [one for one in EVAL_FORMATS if one.is_at(path)]
    if len(fitting) > 1:
        names = " and ".join(one.name for one in fitting)
        raise UsageError(f"{path} holds results of {names}; give the folder or file of one of them")
    if not fitting and path.exists():
        known = (
            "has no samples_*.jsonl of `lm_eval --log_samples`, no log of inspect_ai and no bundle of NeMo Evaluator"
        )
        raise UsageError(f"{path} {known}; nothing was imported")
    found = (fitting[0] if fitting else LM_EVAL).read(arm, path, quality)
    for one in found.observations:
        if (fault := metric_fault({}, str(one.harness["metric"]))) is not None:
            raise UsageError(f"{path}: task {one.task}: {fault}")
    return found


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


def _require_both_arms(suite: Suite, arms: Mapping[Arm, ImportedEvals]) -> None:
    """Raise UsageError for folders that were swapped, or for one given twice.

    Two good models may give equal answers, so a run is identified by its id or by when it began.
    """
    if suite.baseline != suite.candidate and arms[Arm.BASELINE].runs & arms[Arm.CANDIDATE].runs:
        raise UsageError("--baseline and --candidate hold samples of the very same run; give two runs")
    for arm, name in suite.arm_names.items():
        declared_model, found = suite.deployments[name].model, arms[arm].model
        if declared_model is not None and found is not None and found != declared_model:
            raise UsageError(
                f"--{arm.value} holds answers of the model {found!r}, and the suite's {arm.value} {name!r} is "
                f"{declared_model!r}; give the folder of that model, or correct `model` in the suite"
            )


def _with_scales(quality: Quality, arm: ImportedEvals, other: ImportedEvals) -> list[QualityObservation]:
    """Return an arm's observations with their scale.

    That is the task's stated one, else the metric's known one; else, and for means of repetitions, it is binary only if
    the scores of both arms are.
    """
    theirs = {one.task: one.items for one in other.observations}
    scaled = []
    for one in arm.observations:
        entry = quality.entry(one.task)
        scale = entry.scale if entry is not None else None
        if not scale:
            items = (*one.items, *theirs.get(one.task, ()))
            repeats = one.harness.get("repeats", 1)
            continuous = repeats != 1 or scale_of(str(one.harness["metric"]), 1, None) == "continuous"
            scale = "continuous" if continuous or any(item.score not in (0.0, 1.0) for item in items) else "binary"
        scaled.append(replace(one, harness={**one.harness, "scale": scale}))
    return scaled
