"""A suite made concrete: every request's intended instant, prompt and seed, every task, every shadow prompt.

The plan follows from the suite, its seed and the data files alone: same inputs, same plan, same hash. Both arms of a
block get the very same requests (common random numbers); different blocks get different ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from benchgate.model.deployment import Arm, canonical_json
from benchgate.plan.groups import Group, planned_class
from benchgate.plan.material import NOTHING, Material
from benchgate.plan.planned import Leave, PlannedBlock, PlannedClass, PlannedRequest, PlannedStage, Turn
from benchgate.plan.recorded import WARMUP, recorded_rows
from benchgate.plan.replay import TracedRequest, replayed_rows
from benchgate.plan.spelling import spelled_block, spelled_stage
from benchgate.suite.arms import measured_arms
from benchgate.suite.levels import Level, level_of
from benchgate.suite.schema import Load, Stage, Suite

__all__ = [
    "Leave", "Plan", "PlannedBlock", "PlannedClass", "PlannedRequest", "PlannedStage", "PlannedTask", "ShadowPrompt",
    "Traces", "Turn", "make_plan", "measurement_sha256", "planned_stage",
]  # fmt: skip

Traces = Mapping[str, Sequence[TracedRequest]]
"""The rows of each stage that replays a trace."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One lm-eval task: its configuration without the data path, and the rows it will read, each with a unique `id`."""

    name: str
    config: dict[str, object]
    rows: tuple[dict[str, object], ...]


@dataclass(frozen=True, slots=True)
class ShadowPrompt:
    """One recorded prompt."""

    id: str
    prompt: str


@dataclass(frozen=True)
class Plan:
    """Everything that will be asked of both arms, in order."""

    seed: int
    warmup: tuple[PlannedStage, ...]
    blocks: tuple[PlannedBlock, ...]
    tasks: tuple[PlannedTask, ...]
    shadow: tuple[ShadowPrompt, ...]
    material: Material = NOTHING  # what it was made of; no part of its identity, for its requests hold it

    @cached_property
    def canonical(self) -> bytes:
        """The plan in its one spelling; what the store keeps.

        Shadow prompts may be what real users wrote, so they stand here by id and digest, never by their text.
        """
        shadow = [{"id": row.id, "prompt_sha256": _text_sha256(row.prompt)} for row in self.shadow]
        return canonical_json(
            {
                "seed": self.seed,
                "warmup": [spelled_stage(stage) for stage in self.warmup],
                "blocks": [spelled_block(block) for block in self.blocks],
                "tasks": [asdict(task) for task in self.tasks],
                "shadow": shadow,
            }
        )

    @property
    def sha256(self) -> str:
        """Identity of the plan."""
        return hashlib.sha256(self.canonical).hexdigest()


def make_plan(
    suite: Suite,
    tasks: Sequence[PlannedTask] = (),
    shadow: Sequence[ShadowPrompt] = (),
    traces: Traces = MappingProxyType({}),
    material: Material = NOTHING,
) -> Plan:
    """The plan of a suite over the given data, cut to the suite's limits. Pure: no clock, no file, no global state.

    `traces` has the rows of every stage (`stage`) or class (`stage/class`) that replays a trace, by its name;
    `material` what the other files of the load hold.
    """
    return Plan(
        seed=suite.seed,
        warmup=_warmup(suite.load, suite.seed, traces, material) if suite.load else (),
        blocks=_blocks(suite.load, suite.seed, traces, material, measured_arms(suite)) if suite.load else (),
        tasks=tuple(_cut(task, suite.quality.limit) for task in tasks) if suite.quality else (),
        shadow=tuple(shadow[: suite.shadow.limit]) if suite.shadow else (),
        material=material,
    )


def planned_stage(
    load: Load, stage: Stage, generator: np.random.Generator, material: Material = NOTHING, *, seed: int = 0
) -> PlannedStage:
    """A stage of one class that is in no sweep, planned as if it were: what a capacity search sends. Not of a trace.

    `seed` is the suite's: the beginnings that prompts share follow from it.
    """
    level = level_of(stage, "", load.workload, load.workloads)
    rows = None
    if level.workload.prompts is not None:
        recorded = material.prompts[level.workload.prompts]
        rows = [recorded[place] for place in generator.integers(len(recorded), size=stage.requests)]
    group = Group(level, material, seed, 0, generator, recorded=rows)
    return PlannedStage(stage.name, (planned_class(group),))


def measurement_sha256(suite: Suite, plan: Plan) -> str:
    """Identity of what was asked, without who was asked and what is allowed: equal ones measured the same thing."""
    asked = suite.model_dump(
        mode="json",
        include={"seed", "start", "load", "quality", "shadow", "limits"},
        exclude={"load": {"workers", "audit"}},  # how the client does it
    )
    return hashlib.sha256(canonical_json({"asked": asked, "plan": plan.sha256})).hexdigest()


def _blocks(
    load: Load, seed: int, traces: Traces, material: Material, arms: tuple[Arm, ...]
) -> tuple[PlannedBlock, ...]:
    return tuple(
        PlannedBlock(
            number=number,
            # A B, B A, A B, …: an even number of blocks cancels a linear drift of the machine exactly.
            order=arms if number % 2 == 0 else arms[::-1],
            stages=_stages(load, seed, traces, material, number),
        )
        for number in range(load.blocks)
    )


def _warmup(load: Load, seed: int, traces: Traces, material: Material) -> tuple[PlannedStage, ...]:
    """The same kind of request as the measurement, at the same mean level, discarded: by rule, not by looking."""
    return () if load.warmup_requests == 0 else _stages(load, seed, traces, material, WARMUP)


def _stages(load: Load, seed: int, traces: Traces, material: Material, block: int) -> tuple[PlannedStage, ...]:
    """Every stage of the sweep in one block, or in the warm-up."""
    stages: dict[str, list[PlannedClass]] = {stage.name: [] for stage in load.sweep}
    places = {stage.name: place for place, stage in enumerate(load.sweep)}
    for level in load.levels():
        begun = [seed, 0, places[level.stage]] if block == WARMUP else [seed, 1, block, places[level.stage]]
        number = len(stages[level.stage])
        generator = np.random.default_rng([*begun, number] if level.group else begun)
        group = Group(
            level, material, seed, block, generator,
            rows=_replayed(load, level, traces, block),
            recorded=recorded_rows(load, level, material, seed, block),
        )  # fmt: skip
        count = load.warmup_requests if block == WARMUP else None
        stages[level.stage].append(planned_class(group, count))
    return tuple(PlannedStage(name, tuple(classes)) for name, classes in stages.items())


def _replayed(load: Load, level: Level, traces: Traces, block: int) -> Sequence[TracedRequest] | None:
    if level.course.trace is None:
        return None
    trace = traces[level.name]
    if block == WARMUP:
        return trace[: load.warmup_requests]
    return replayed_rows(trace, level.course.requests, block, load.blocks)


def _text_sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cut(task: PlannedTask, limit: int | None) -> PlannedTask:
    return PlannedTask(task.name, task.config, task.rows[:limit])
