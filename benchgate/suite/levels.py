"""What is observed apart in a load: a stage, or each class of a stage that has several; with all that holds for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchgate.suite.slo import SloSpec
from benchgate.suite.stage import Stage, stage_of_class
from benchgate.suite.workload import Workload


@dataclass(frozen=True, slots=True)
class Level:
    """One of them. `name` is what its observations are stored as: `stage`, or `stage/class`."""

    name: str
    stage: str
    group: str  # the name of the class; "" where the stage has none
    course: Stage  # when requests come, as of a stage of its own
    workload: Workload  # what they ask for: what the stage and the class say of it is in it
    slo: SloSpec | None  # of the class alone; None where the suite's holds
    background: bool
    has_actions: bool = False  # something is done to the deployment while its stage runs


def workload_name(stage: Stage, group: str) -> str | None:
    """Which of the named workloads a stage, or a class of it, asks by; None for the default one."""
    return stage.classes[group].workload if stage.classes is not None else stage.workload


def level_of(stage: Stage, group: str, default: Workload, others: Mapping[str, Workload]) -> Level:
    """The level of a class, or of a stage without classes. KeyError for a workload that the load has not."""
    named = workload_name(stage, group)
    workload = default if named is None else others[named]
    if stage.classes is None:
        said = {"input_tokens": stage.input_tokens, "output_tokens": stage.output_tokens, "prefix": stage.prefix}
        changes = {key: value for key, value in said.items() if value is not None}
        workload = workload.model_copy(update=changes) if changes else workload
        return Level(
            stage.name, stage.name, "", stage, workload, None, background=False, has_actions=bool(stage.actions)
        )
    spec = stage.classes[group]
    if spec.priority is not None:
        workload = workload.model_copy(update={"priority": spec.priority})
    name = f"{stage.name}/{group}"
    course, acts = stage_of_class(spec, name), bool(stage.actions)
    return Level(name, stage.name, group, course, workload, spec.slo, spec.background, acts)
