"""A suite made concrete: every request's intended instant, prompt and seed, every task, every shadow prompt.

The plan follows from the suite, its seed and the data files alone: same inputs, same plan, same hash. Both arms of a
block get the very same requests (common random numbers); different blocks get different ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from benchgate.model.deployment import Arm, canonical_json
from benchgate.plan.arrivals import arrival_offsets_ns
from benchgate.plan.workloads import prompt_text
from benchgate.suite.schema import Load, Stage, Suite


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to be sent. `offset_ns` is its intended send since the start of the stage; None in a closed loop."""

    index: int
    offset_ns: int | None
    prompt: str
    output_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One load level held: the requests in order, and for a closed loop how many are in flight."""

    name: str
    concurrency: int | None
    rate_rps: float | None
    requests: tuple[PlannedRequest, ...]


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """One pass over both arms: every stage is run on `order[0]`, then at once on `order[1]`."""

    number: int
    order: tuple[Arm, Arm]
    stages: tuple[PlannedStage, ...]


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

    @cached_property
    def canonical(self) -> bytes:
        """The plan in its one spelling; what the store keeps.

        Shadow prompts may be what real users wrote, so they stand here by id and digest, never by their text.
        """
        shadow = [{"id": row.id, "prompt_sha256": _text_sha256(row.prompt)} for row in self.shadow]
        return canonical_json({**asdict(self), "shadow": shadow})

    @property
    def sha256(self) -> str:
        """Identity of the plan."""
        return hashlib.sha256(self.canonical).hexdigest()


def make_plan(suite: Suite, tasks: Sequence[PlannedTask] = (), shadow: Sequence[ShadowPrompt] = ()) -> Plan:
    """The plan of a suite over the given data, cut to the suite's limits. Pure: no clock, no file, no global state."""
    return Plan(
        seed=suite.seed,
        warmup=_warmup(suite.load, suite.seed) if suite.load else (),
        blocks=_blocks(suite.load, suite.seed) if suite.load else (),
        tasks=tuple(_cut(task, suite.quality.limit) for task in tasks) if suite.quality else (),
        shadow=tuple(shadow[: suite.shadow.limit]) if suite.shadow else (),
    )


def measurement_sha256(suite: Suite, plan: Plan) -> str:
    """Identity of what was asked, without who was asked and what is allowed: equal ones measured the same thing."""
    asked = suite.model_dump(mode="json", include={"seed", "load", "quality", "shadow", "limits"})
    return hashlib.sha256(canonical_json({"asked": asked, "plan": plan.sha256})).hexdigest()


def _blocks(load: Load, seed: int) -> tuple[PlannedBlock, ...]:
    return tuple(
        PlannedBlock(
            number=number,
            # A B, B A, A B, …: an even number of blocks cancels a linear drift of the machine exactly.
            order=(Arm.BASELINE, Arm.CANDIDATE) if number % 2 == 0 else (Arm.CANDIDATE, Arm.BASELINE),
            stages=tuple(
                _stage(load, stage, stage.requests, np.random.default_rng([seed, 1, number, position]))
                for position, stage in enumerate(load.sweep)
            ),
        )
        for number in range(load.blocks)
    )


def _warmup(load: Load, seed: int) -> tuple[PlannedStage, ...]:
    """The same kind of request as the measurement, at the same level, discarded: by rule, not by looking."""
    if load.warmup_requests == 0:
        return ()
    return tuple(
        _stage(load, stage, load.warmup_requests, np.random.default_rng([seed, 0, position]))
        for position, stage in enumerate(load.sweep)
    )


def _stage(load: Load, stage: Stage, count: int, generator: np.random.Generator) -> PlannedStage:
    offsets: Sequence[int | None] = [None] * count
    if stage.rate_rps is not None:
        offsets = arrival_offsets_ns(stage.arrival, stage.rate_rps, count, generator)
    return PlannedStage(
        name=stage.name,
        concurrency=stage.concurrency,
        rate_rps=stage.rate_rps,
        requests=tuple(
            PlannedRequest(
                index=index,
                offset_ns=offset,
                prompt=prompt_text(load.workload.text, load.workload.input_tokens, generator),
                output_tokens=load.workload.output_tokens,
                seed=int(generator.integers(2**31)),
            )
            for index, offset in enumerate(offsets)
        ),
    )


def _text_sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cut(task: PlannedTask, limit: int | None) -> PlannedTask:
    return PlannedTask(task.name, task.config, task.rows[:limit])
