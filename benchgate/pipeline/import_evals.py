"""Evals that lm-eval made elsewhere, as what a run is made of. Reads files; asks nothing of any server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.gate.policy import family_of
from benchgate.model.deployment import Arm, Deployment, canonical_json
from benchgate.model.records import EvalItem
from benchgate.model.run import QualityObservation
from benchgate.pipeline.deployments import declared
from benchgate.plan.items import Scale
from benchgate.quality.import_results import Imported, read_arm
from benchgate.quality.tasks.gated_metric import scale_of
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import Fault

_ELSEWHERE = "needs a live run (`benchgate run`), and an import has evals only; remove it"
_A_FILE = (
    "an import reads no task file, so nothing ties samples to {path}; write lm-eval's name of the task alone: {name}"
)
_LIVE_SECTIONS = ("start", "error_budget", "load", "divergence", "shadow")


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """Both arms' observations, what stands in the place of a plan (which items they are of), and who answered."""

    observations: tuple[QualityObservation, ...]
    plan: bytes
    arms: Mapping[Arm, Deployment]


def live_only(suite: Suite) -> list[Fault]:
    """Everything in a suite that evals made elsewhere cannot answer, with its place."""
    faults = [] if suite.quality is not None else [Fault((), "an import is of evals; add `quality` with its `tasks`")]
    there = [name for name in _LIVE_SECTIONS if getattr(suite, name, None) is not None]
    faults += [Fault((name,), _ELSEWHERE, at_key=True) for name in there]
    for number, check in enumerate(suite.gate.checks):
        if family_of(check.metric) != "quality":
            faults.append(Fault(("gate", "checks", number, "metric"), f"{check.metric} {_ELSEWHERE}"))
    for number, entry in enumerate(suite.quality.tasks if suite.quality is not None else ()):
        if entry.is_file:
            faults.append(Fault(("quality", "tasks", number), _A_FILE.format(path=entry.task, name=entry.name)))
    for key in ("repeat_baseline", "stop_early"):
        if getattr(suite.quality, key, False):
            faults.append(Fault(("quality", key), _ELSEWHERE, at_key=True))
    return faults


def read_import(suite: Suite, sides: Mapping[Arm, Path]) -> ImportedRun:
    """Read both arms' files.

    Raises SuiteError for what is wrong in the files, UsageError where they cannot be the two arms of this suite.
    """
    assert suite.quality is not None, "`live_only` is asked before"
    arms = {arm: read_arm(arm, sides[arm], suite.quality) for arm in Arm}
    _require_the_two(suite, arms)
    observations = tuple(one for arm in Arm for one in _told_alike(suite, arms[arm], arms[arm.other]))
    items = {one.task: [_identity(item) for item in one.items] for one in arms[Arm.BASELINE].observations}
    names = {Arm.BASELINE: suite.baseline, Arm.CANDIDATE: suite.candidate}
    return ImportedRun(
        observations=observations,
        plan=canonical_json({"seed": suite.seed, "imported": items}),
        arms={arm: replace(declared(suite, names[arm]), facts=arms[arm].facts) for arm in Arm},
    )


def _require_the_two(suite: Suite, arms: Mapping[Arm, Imported]) -> None:
    """Two folders given the wrong way round, or one given twice, would judge the wrong thing without a word.

    Equal answers are no proof of a copy: two good models give them. A run of lm-eval is known by when it began.
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


def _told_alike(suite: Suite, arm: Imported, other: Imported) -> list[QualityObservation]:
    """The observations of an arm, with what only both arms together tell: whether scores are right or wrong alone."""
    theirs = {one.task: one.items for one in other.observations}
    told = []
    for one in arm.observations:
        entry = suite.quality.entry(one.task) if suite.quality is not None else None
        said = entry.scale if entry is not None else None
        scale = said or _scale(str(one.harness["metric"]), (*one.items, *theirs.get(one.task, ())))
        told.append(replace(one, harness={**one.harness, "scale": scale}))
    return told


def _scale(metric: str, items: tuple[EvalItem, ...]) -> Scale:
    """As the metric is known to be; else, and for means of several askings, as the scores of both arms are."""
    if scale_of(metric, 1, None) == "continuous" or any(item.score not in (0.0, 1.0) for item in items):
        return "continuous"
    return "binary"


def _identity(item: EvalItem) -> list[str]:
    return [item.item_id, item.doc_hash, item.prompt_hash, item.target_hash]
