"""The sound parts of a suite that may be broken elsewhere, so that rules can be checked on all that stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from benchgate.suite.schema import Check, DeploymentSpec, Gate, Load, Quality, Stage, Suite, Workload

_Model = TypeVar("_Model", bound=BaseModel)

SECTIONS = ("slo", "load", "quality", "shadow")


@dataclass(frozen=True, slots=True)
class Parts:
    """What rules read. None stands for a part that is itself wrong; entries keep their places in their lists."""

    declared: frozenset[str]  # which of SECTIONS are there, sound or not
    deployments: dict[str, DeploymentSpec | None]
    baseline: str | None
    candidate: str | None
    blocks: int | None
    workload: Workload | None
    stages: tuple[Stage | None, ...]
    stage_names: tuple[str | None, ...]
    tasks: tuple[str, ...]
    alpha: float | None
    checks: tuple[Check | None, ...]


def parts_of(suite: Suite) -> Parts:
    """All parts of a suite that is sound."""
    load = suite.load
    return Parts(
        declared=frozenset(name for name in SECTIONS if getattr(suite, name) is not None),
        deployments=dict(suite.deployments),
        baseline=suite.baseline,
        candidate=suite.candidate,
        blocks=load.blocks if load else None,
        workload=load.workload if load else None,
        stages=load.sweep if load else (),
        stage_names=tuple(stage.name for stage in load.sweep) if load else (),
        tasks=suite.quality.tasks if suite.quality else (),
        alpha=suite.gate.alpha,
        checks=suite.gate.checks,
    )


def sound_parts(data: dict[str, Any]) -> Parts:
    """The sound parts of a suite's plain data, whatever else is in it."""
    load, quality, gate = (_mapping(data.get(name)) for name in ("load", "quality", "gate"))
    stages, tasks = _list(load.get("sweep")), _list(quality.get("tasks"))
    return Parts(
        declared=frozenset(name for name in SECTIONS if data.get(name) is not None),
        deployments={name: _sound(DeploymentSpec, spec) for name, spec in _mapping(data.get("deployments")).items()},
        baseline=_sound_field(Suite, "baseline", data),
        candidate=_sound_field(Suite, "candidate", data),
        blocks=_sound_field(Load, "blocks", load),
        workload=_sound(Workload, load.get("workload")),
        stages=tuple(_sound(Stage, stage) for stage in stages),
        stage_names=tuple(_text(_mapping(stage).get("stage")) for stage in stages),
        tasks=_sound_field(Quality, "tasks", {"tasks": tasks}) or (),
        alpha=_sound_field(Gate, "alpha", gate),
        checks=tuple(_sound(Check, check) for check in _list(gate.get("checks"))),
    )


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
