"""The sound parts of a suite that may be broken elsewhere, so that rules can be checked on all that stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from benchgate.model.metric import METRICS
from benchgate.suite.capacity import Capacity
from benchgate.suite.error_budget import ErrorBudget
from benchgate.suite.schema import (
    Check,
    DeploymentSpec,
    Gate,
    Load,
    LoadLimit,
    Quality,
    Shadow,
    Stage,
    Suite,
    Workload,
    with_blocks,
)
from benchgate.suite.stages import Level, expanded, level_of, workload_name

_Model = TypeVar("_Model", bound=BaseModel)

SECTIONS = ("slo", "start", "load", "quality", "divergence", "shadow")
MEASUREMENTS = frozenset({"start", "load", "quality", "divergence", "shadow"})


@dataclass(frozen=True, slots=True)
class Parts:
    """What rules read. None stands for a part that is itself wrong; entries keep their places in their lists."""

    declared: frozenset[str]  # which of SECTIONS are there, sound or not
    deployments: dict[str, DeploymentSpec | None]
    baseline: str | None
    candidate: str | None
    candidates: tuple[str, ...]  # all that are judged, each by itself, when the suite names several
    blocks: int | None
    several_looks: bool
    workload: Workload | None
    workloads: dict[str, Workload | None]
    stages: tuple[Stage | None, ...]  # one for every value where a stage varies one
    stage_names: tuple[str | None, ...]
    stage_at: tuple[int, ...]  # the position of each in the sweep as it is written
    levels: tuple[Level, ...]  # what is observed apart, as far as its parts are sound
    tasks: tuple[str, ...]  # their names, of groups of lm-eval's too
    repeat_baseline: bool | None  # whether the evals ask the baseline twice
    stop_early: bool | None  # whether they end as soon as harm is certain
    alpha: float | None
    checks: tuple[Check | None, ...]
    searches: bool  # whether there is a `load.capacity`, sound or not
    capacity: Capacity | None
    shadow: Shadow | None
    limit: LoadLimit | None = None  # of the load
    operating: str | None = None  # the stage of the usual checks
    budget: ErrorBudget | None = None  # of one that is itself wrong, what else it says
    awaits_prices: bool = False  # whether a file, which is not read yet, has the prices that deployments do not say
    readable: Mapping[int, Check] = field(default_factory=dict)  # of checks that are wrong, what their names say


def parts_of(suite: Suite) -> Parts:
    """All parts of a suite that is sound."""
    load = suite.load
    return Parts(
        declared=frozenset(name for name in SECTIONS if getattr(suite, name) is not None),
        deployments=dict(suite.deployments),
        baseline=suite.baseline,
        candidate=suite.candidate,
        candidates=suite.candidates,
        blocks=load.blocks if load else None,
        several_looks=bool(load and load.looks),
        workload=load.workload if load else None,
        workloads=dict(load.workloads) if load else {},
        stages=load.sweep if load else (),
        stage_names=tuple(stage.name for stage in load.sweep) if load else (),
        stage_at=tuple(range(len(load.sweep))) if load else (),
        levels=load.levels() if load else (),
        tasks=suite.quality.names if suite.quality else (),
        repeat_baseline=suite.quality.repeat_baseline if suite.quality else False,
        stop_early=suite.quality.stop_early if suite.quality else False,
        alpha=suite.gate.alpha,
        checks=suite.gate.checks,
        searches=load is not None and load.capacity is not None,
        capacity=load.capacity if load else None,
        shadow=suite.shadow,
        limit=load.limit if load else None,
        operating=suite.gate.operating,
        budget=suite.error_budget,
    )


def sound_parts(data: dict[str, Any]) -> Parts:
    """The sound parts of a suite's plain data, whatever else is in it."""
    load, quality, gate = (_mapping(data.get(name)) for name in ("load", "quality", "gate"))
    tasks = _list(quality.get("tasks"))
    stages = [
        (position, name, stage) for position, one in enumerate(_list(load.get("sweep"))) for name, stage in _stages(one)
    ]
    workload = _sound(Workload, load.get("workload"))
    workloads = {name: _sound(Workload, one) for name, one in _mapping(load.get("workloads")).items()}
    return Parts(
        declared=frozenset(name for name in SECTIONS if data.get(name) is not None),
        deployments={name: _sound(DeploymentSpec, spec) for name, spec in _mapping(data.get("deployments")).items()},
        baseline=_sound_field(Suite, "baseline", data),
        candidate=_candidate(data),
        candidates=_sound_field(Suite, "candidates", data) or (),
        blocks=_sound_field(Load, "blocks", with_blocks(load)),
        several_looks=len(_list(with_blocks(load).get("looks"))) > 1,
        workload=workload,
        workloads=workloads,
        stages=tuple(stage for _, _, stage in stages),
        stage_names=tuple(name for _, name, _ in stages),
        stage_at=tuple(position for position, _, _ in stages),
        levels=_levels(stages, workload, workloads),
        tasks=tuple(entry.name for entry in _sound_field(Quality, "tasks", {"tasks": tasks}) or ()),
        repeat_baseline=_sound_field(Quality, "repeat_baseline", quality),
        stop_early=_sound_field(Quality, "stop_early", quality),
        alpha=_sound_field(Gate, "alpha", gate),
        checks=tuple(_sound(Check, check) for check in _list(gate.get("checks"))),
        searches=load.get("capacity") is not None,
        capacity=_sound(Capacity, load.get("capacity")),
        shadow=_sound(Shadow, data.get("shadow")),
        limit=_sound(LoadLimit, load.get("limit")),
        operating=_sound_field(Gate, "operating", gate),
        budget=_budget(data.get("error_budget")),
        awaits_prices=data.get("prices") is not None,
        readable=_readable(_list(gate.get("checks"))),
    )


def _budget(data: object) -> ErrorBudget | None:
    """The budget; of one that is wrong somewhere what is sound, so that a mistake hides no other one."""
    sound = _sound(ErrorBudget, data)
    if sound is not None or not isinstance(data, dict):
        return sound
    keys = {"objective_ratio": "objective", "metric": "metric", "stage": "stage"}  # which the rules go by
    said = {name: _sound_field(ErrorBudget, name, {name: data[key]}) for name, key in keys.items() if key in data}
    if said.get("stage", "") is None:
        return None  # nobody knows which stage is meant
    return ErrorBudget.model_construct(**{name: value for name, value in said.items() if value is not None})


def _readable(checks: list[Any]) -> dict[int, Check]:
    """Of every check that is wrong somewhere else, its metric and what it names: whether those exist can be told."""
    found: dict[int, Check] = {}
    for number, data in enumerate(checks):
        if _sound(Check, data) is not None or not isinstance(data, dict) or "metric" not in data:
            continue
        metric = _sound_field(Check, "metric", data)
        if metric is not None:
            said = {
                key: _sound_field(Check, key, data) if METRICS[metric].scope == key else None
                for key in ("stage", "task")
            }
            unsaid = dict.fromkeys(("statistic", "of", "class_name", "over", "margin", "min_abs", "max", "min"))
            usual: dict[str, Any] = {"direction": "worse", "required": True, "block_when": "harm"}
            found[number] = Check.model_construct(metric=metric, **said, **unsaid, **usual)
    return found


def _candidate(data: dict[str, Any]) -> str | None:
    """The one candidate, or the first of several; None where what names it is wrong."""
    name = "candidate" if "candidate" in data or "candidates" not in data else "candidates"
    if name not in data:
        return "candidate"
    found = _sound_field(Suite, name, data)
    chosen: str | None = found[0] if found and name == "candidates" else found
    return chosen


def _levels(
    stages: list[tuple[int, str | None, Stage | None]], workload: Workload | None, others: dict[str, Workload | None]
) -> tuple[Level, ...]:
    """Those whose stage and workload are sound."""
    if workload is None:
        return ()
    sound = {name: one for name, one in others.items() if one is not None}
    return tuple(
        level_of(stage, group, workload, sound)
        for _, _, stage in stages
        if stage is not None
        for group in stage.parts
        if workload_name(stage, group) in (None, *sound)
    )


def _stages(data: object) -> list[tuple[str | None, Stage | None]]:
    """What one entry of the sweep comes to, by name: itself, or one stage for every value that it varies."""
    stage = _sound(Stage, data)
    if stage is None:
        return [(_text(_mapping(data).get("stage")), None)]
    return [(one.name, one) for one in expanded((stage,))]


def _sound(model: type[_Model], data: object) -> _Model | None:
    try:
        return model.model_validate(data)
    except ValidationError:
        return None


def _sound_field(model: type[BaseModel], name: str, data: dict[str, Any]) -> Any:
    """One field's value, its default where the key is absent, None where it is wrong."""
    field = model.model_fields[name]
    if name not in data:
        return field.default
    try:
        return TypeAdapter(field.rebuild_annotation()).validate_python(data[name])
    except ValidationError:
        return None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def task_stem(path: str) -> str:
    """What a check calls a task: `tasks/add.yaml` → `add`; a name of lm-eval's, or of a task, as it is."""
    return PurePosixPath(path).stem if path.endswith((".yaml", ".yml")) else path
