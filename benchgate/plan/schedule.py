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
from benchgate.plan.arrivals import arrival_offsets_ns, mean_rps, peak_rps, profile_offsets_ns
from benchgate.plan.replay import TracedRequest, replayed_offsets_ns, replayed_rows
from benchgate.plan.workloads import prompt_text
from benchgate.suite.schema import Load, Stage, Suite

Traces = Mapping[str, Sequence[TracedRequest]]
"""The rows of each stage that replays a trace."""


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
    """One stage: its requests in order. A closed loop has `concurrency` in flight, an open one offers `rate_rps`.

    `rate_rps` is the rate asked for, or where the rate changes or is a trace's, the mean over the stage.
    """

    name: str
    concurrency: int | None
    rate_rps: float | None
    requests: tuple[PlannedRequest, ...]

    @property
    def peak_rps(self) -> float | None:
        """The most requests that are due within one second, wherever it begins; None for a closed loop."""
        if self.concurrency is not None:
            return None
        return peak_rps([request.offset_ns or 0 for request in self.requests])


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


def make_plan(
    suite: Suite,
    tasks: Sequence[PlannedTask] = (),
    shadow: Sequence[ShadowPrompt] = (),
    traces: Traces = MappingProxyType({}),
) -> Plan:
    """The plan of a suite over the given data, cut to the suite's limits. Pure: no clock, no file, no global state.

    `traces` has the rows of every stage that replays a trace, by the name of the stage.
    """
    return Plan(
        seed=suite.seed,
        warmup=_warmup(suite.load, suite.seed, traces) if suite.load else (),
        blocks=_blocks(suite.load, suite.seed, traces) if suite.load else (),
        tasks=tuple(_cut(task, suite.quality.limit) for task in tasks) if suite.quality else (),
        shadow=tuple(shadow[: suite.shadow.limit]) if suite.shadow else (),
    )


def measurement_sha256(suite: Suite, plan: Plan) -> str:
    """Identity of what was asked, without who was asked and what is allowed: equal ones measured the same thing."""
    asked = suite.model_dump(
        mode="json",
        include={"seed", "load", "quality", "shadow", "limits"},
        exclude={"load": {"workers", "audit"}},  # how the client does it
    )
    return hashlib.sha256(canonical_json({"asked": asked, "plan": plan.sha256})).hexdigest()


def _blocks(load: Load, seed: int, traces: Traces) -> tuple[PlannedBlock, ...]:
    return tuple(
        PlannedBlock(
            number=number,
            # A B, B A, A B, …: an even number of blocks cancels a linear drift of the machine exactly.
            order=(Arm.BASELINE, Arm.CANDIDATE) if number % 2 == 0 else (Arm.CANDIDATE, Arm.BASELINE),
            stages=tuple(
                _stage(load, stage, traces, number, np.random.default_rng([seed, 1, number, position]))
                for position, stage in enumerate(load.sweep)
            ),
        )
        for number in range(load.blocks)
    )


def _warmup(load: Load, seed: int, traces: Traces) -> tuple[PlannedStage, ...]:
    """The same kind of request as the measurement, at the same mean level, discarded: by rule, not by looking."""
    if load.warmup_requests == 0:
        return ()
    planned = []
    for position, stage in enumerate(load.sweep):
        generator = np.random.default_rng([seed, 0, position])
        if stage.trace is not None:
            planned.append(_replay(load, stage, traces[stage.name][: load.warmup_requests], generator))
        else:
            planned.append(_planned(load, stage, _at_mean_rate(stage, load.warmup_requests, generator), generator))
    return tuple(planned)


def _stage(load: Load, stage: Stage, traces: Traces, block: int, generator: np.random.Generator) -> PlannedStage:
    if stage.trace is not None:
        rows = replayed_rows(traces[stage.name], stage.requests, block, load.blocks)
        return _replay(load, stage, rows, generator)
    profile = stage.profile
    if profile is not None:
        return _planned(load, stage, profile_offsets_ns(stage.process, profile, generator), generator)
    return _planned(load, stage, _at_mean_rate(stage, stage.requests, generator), generator)


def _replay(load: Load, stage: Stage, rows: Sequence[TracedRequest], generator: np.random.Generator) -> PlannedStage:
    return _planned(load, stage, replayed_offsets_ns(rows, stage.speed or 1.0), generator, rows)


def _at_mean_rate(stage: Stage, count: int, generator: np.random.Generator) -> Sequence[int | None]:
    """That many sends at one level rate; without instants in a closed loop."""
    if stage.mean_rps is None:
        return [None] * count
    return arrival_offsets_ns(stage.process.process, stage.mean_rps, count, generator, cv=stage.process.cv)


def _planned(
    load: Load,
    stage: Stage,
    offsets: Sequence[int | None],
    generator: np.random.Generator,
    rows: Sequence[TracedRequest] | None = None,
) -> PlannedStage:
    """Requests at these instants, of the workload's lengths or, where a trace row says so, of its own."""
    workload = load.workload
    lengths = rows if rows is not None else [TracedRequest(0, None, None)] * len(offsets)
    return PlannedStage(
        name=stage.name,
        concurrency=stage.concurrency,
        rate_rps=mean_rps([offset or 0 for offset in offsets]) if stage.trace is not None else stage.mean_rps,
        requests=tuple(
            PlannedRequest(
                index=index,
                offset_ns=offset,
                prompt=prompt_text(workload.text, row.input_tokens or workload.input_tokens, generator),
                output_tokens=row.output_tokens or workload.output_tokens,
                seed=int(generator.integers(2**31)),
            )
            for index, (offset, row) in enumerate(zip(offsets, lengths, strict=True))
        ),
    )


def _text_sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cut(task: PlannedTask, limit: int | None) -> PlannedTask:
    return PlannedTask(task.name, task.config, task.rows[:limit])
