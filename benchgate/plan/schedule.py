"""Plan of a suite: every request's intended time, prompt and seed, every eval task, every shadow prompt.

The plan follows from the suite, its seed and the data files alone: same inputs, same plan, same hash. Both sides of a
block get the same requests (common random numbers); different blocks get different ones. A capacity search chooses its
looks by their results, so they are not in the plan; the requests of a look follow from the suite, its seed, the level
and the number of earlier looks there. Serialisation omits unused features of later versions, so that plans without them
keep their bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from benchgate.model.arrivals import TracedRequest, replayed_rows
from benchgate.model.deployment import canonical_json, sha256_of
from benchgate.model.request import ModelRequest
from benchgate.plan.agent_sessions import first_round_with, sessions_of_block
from benchgate.plan.items import (
    FixedText,
    Piece,
    PlannedTask,
    ShadowPrompt,
    planned_pieces,
    prompt_to_json,
    sample_repeated_prompts,
    task_to_json,
    text_sha256,
)
from benchgate.plan.model import NO_MATERIAL, GeneratedRequests, Material, PlannedBlock, PlannedClass, PlannedStage
from benchgate.plan.prompts import WARMUP, look_rows, recorded_rows, spare_rows
from benchgate.plan.requests import Ramp, RequestGroup, planned_class
from benchgate.plan.verification import verified_counts, with_verified_items
from benchgate.stats.capacity_search import PlannedLook
from benchgate.suite.load import CAPACITY_STAGE, Capacity, Load
from benchgate.suite.schema import Suite, measured_arms
from benchgate.suite.stages import Stage

Traces = Mapping[str, Sequence[TracedRequest]]  # rows of each stage that replays a trace
_LATER_ROUNDS = 0x3A23  # random stream of later warm-up rounds
_SEARCH = 0xCA9AC17  # random stream of a capacity search
_LEVEL_STEPS = 10**6


@dataclass(frozen=True)
class Plan:
    """Plan of a run: everything sent to both sides, in order."""

    seed: int
    warmup: tuple[PlannedStage, ...]
    blocks: tuple[PlannedBlock, ...]
    tasks: tuple[PlannedTask, ...]
    shadow: tuple[ShadowPrompt, ...]
    pieces: tuple[Piece, ...] = ()  # of fixed texts
    material: Material = NO_MATERIAL  # source of the requests, no part of the identity
    traces: Traces = field(default_factory=dict, compare=False, repr=False)  # likewise
    judge_prompt: str | None = None  # the suite's own prompt for a judge of shadow answers

    @cached_property
    def canonical(self) -> bytes:
        """Return the plan's canonical JSON, as stored: prompts and texts that may be private by id and digest."""
        spelled: dict[str, object] = {
            "seed": self.seed,
            "warmup": [stage_to_json(stage) for stage in self.warmup],
            "blocks": [
                {"number": block.number, "order": list(block.order), "stages": [*map(stage_to_json, block.stages)]}
                for block in self.blocks
            ],
            "tasks": [task_to_json(task) for task in self.tasks],
            "shadow": [prompt_to_json(row) for row in self.shadow],
        }
        if self.pieces:
            spelled["divergence"] = [
                {
                    "text_id": piece.text_id,
                    "number": piece.number,
                    "text_sha256": text_sha256(piece.text),
                    "positions": piece.positions,
                }
                for piece in self.pieces
            ]
        if self.judge_prompt is not None:
            spelled["judge_prompt_sha256"] = text_sha256(self.judge_prompt)
        return canonical_json(spelled)

    @cached_property
    def verified(self) -> dict[str, int]:
        """Return the number of eval items of each task at each stage, by name (`add@c16`)."""
        return verified_counts(self.blocks)

    @property
    def sha256(self) -> str:
        """Return the identity of the plan."""
        return hashlib.sha256(self.canonical).hexdigest()


def make_plan(
    suite: Suite,
    tasks: Sequence[PlannedTask] = (),
    shadow: Sequence[ShadowPrompt] = (),
    traces: Traces = MappingProxyType({}),
    material: Material = NO_MATERIAL,
    texts: Sequence[FixedText] = (),
    judge_prompt: str | None = None,
) -> Plan:
    """Plan a suite over the given data, cut to the suite's limits. Pure: no clock, no file, no global state.

    `traces` has the rows of every stage (`stage`) or class (`stage/class`) that replays a trace, by its name;
    `material` has the contents of the load's other files.
    """
    seed, load, quality, divergence = suite.seed, suite.load, suite.quality, suite.divergence
    arms = measured_arms(suite)
    warmup: tuple[PlannedStage, ...] = ()
    if load is not None and load.warmup != 0:
        warmup = _stages(load, seed, traces, material, WARMUP)
    blocks = []
    for number in range(load.blocks) if load is not None else ():
        assert load is not None
        # A B, B A, A B, …: an even number of blocks cancels a linear drift of the machine exactly.
        order = arms if number % 2 == 0 else arms[::-1]
        blocks.append(PlannedBlock(number, order, _stages(load, seed, traces, material, number)))
    planned_tasks = []
    for number, task in enumerate(tasks) if quality is not None else ():
        assert quality is not None
        entry = quality.entry(task.name)
        planned = task.cut(quality.limit if entry is None or entry.limit is None else entry.limit)
        if quality.stop_early:  # the rows answered by an early end must be a random sample
            planned = planned.shuffled(np.random.default_rng([seed, 3, number]))
        planned_tasks.append(planned)
    shares = {stage.name: stage.verify_ratio for stage in load.sweep if stage.verify_ratio} if load is not None else {}
    if shares and quality is not None:
        blocks = list(with_verified_items(blocks, shares, quality, planned_tasks, seed))
    prompts: Sequence[ShadowPrompt] = ()
    if suite.shadow is not None:
        prompts = sample_repeated_prompts(shadow[: suite.shadow.limit], suite.shadow.secondary_ratio, seed)
    return Plan(
        seed=seed,
        warmup=warmup,
        blocks=tuple(blocks),
        tasks=tuple(planned_tasks),
        shadow=tuple(prompts),
        pieces=planned_pieces(texts, divergence.window, divergence.positions, seed) if divergence is not None else (),
        material=material,
        traces=traces,
        judge_prompt=judge_prompt,
    )


def warmup_round(load: Load, plan: Plan, stage: str, number: int, requests: Mapping[str, int]) -> PlannedStage:
    """Plan round `number` (from 1) of a stage's warm-up after the first, with prompts that no other request has.

    `requests` has the number of requests of each class, by name. Pure: the same numbers give the same round.
    """
    (planned,) = _stages(load, plan.seed, plan.traces, plan.material, WARMUP - number, stage, requests)
    return planned


def _stages(
    load: Load,
    seed: int,
    traces: Traces,
    material: Material,
    block: int,
    only: str | None = None,
    requests: Mapping[str, int] = MappingProxyType({}),
) -> tuple[PlannedStage, ...]:
    """Plan every stage of the sweep, or `only` one, in one block or in a warm-up round of `requests`."""
    stages: dict[str, list[PlannedClass]] = {stage.name: [] for stage in load.sweep if only in (None, stage.name)}
    places = {stage.name: place for place, stage in enumerate(load.sweep)}
    for traffic in load.classes():
        if traffic.stage not in stages:
            continue
        count = None
        if block <= WARMUP:
            count = requests.get(traffic.class_name or "", first_round_with(load, traffic, material))
        if block < WARMUP:
            begun = [_LATER_ROUNDS, seed, WARMUP - block, places[traffic.stage]]
        else:
            begun = [seed, 0, places[traffic.stage]] if block == WARMUP else [seed, 1, block, places[traffic.stage]]
        if traffic.class_name:
            begun = [*begun, len(stages[traffic.stage])]
        generator, trace_rows = np.random.default_rng(begun), None
        if traffic.schedule.trace is not None:
            trace = traces[traffic.name]
            requests_each = traffic.schedule.requests
            trace_rows = trace[:count] if block <= WARMUP else replayed_rows(trace, requests_each, block, load.blocks)
        recorded = recorded_rows(load, traffic, material, seed, block, count)
        group = RequestGroup(
            traffic, material, seed, block, generator, rows=trace_rows, recorded=recorded, drawn_by=tuple(begun)
        )
        sessions = sessions_of_block(load, traffic, material, seed, block, count)
        planned = planned_class(group if sessions is None else replace(group, sessions=sessions[0]), count)
        if sessions is not None:
            group = replace(group, sessions=sessions[1])
        if block > WARMUP:
            planned = replace(planned, ramp=Ramp.of(group, begun, spare_rows(load, traffic, material, seed, block)))
        stages[traffic.stage].append(planned)
    return tuple(PlannedStage(name, tuple(classes)) for name, classes in stages.items())


def planned_stage(
    load: Load, stage: Stage, drawn_by: Sequence[int], material: Material = NO_MATERIAL, *, seed: int = 0, used: int = 0
) -> PlannedStage:
    """Plan a stage of one class outside of the sweep, for a capacity search; not of a trace.

    `drawn_by` are the numbers that its random stream begins with. `seed` is the suite's, for shared prefixes and the
    order of recorded prompts, of which the search has sent `used`.
    """
    generator = np.random.default_rng(drawn_by)
    traffic = load.class_of(stage)
    rows, spare = look_rows(load, traffic, material, seed, used) or (None, None)
    group = RequestGroup(traffic, material, seed, 0, generator, recorded=rows, drawn_by=tuple(drawn_by))
    return PlannedStage(stage.name, (replace(planned_class(group), ramp=Ramp.of(group, drawn_by, spare)),))


def look_stage(
    load: Load,
    capacity: Capacity,
    look: PlannedLook,
    seed: Sequence[int],
    material: Material = NO_MATERIAL,
    *,
    used: int = 0,
) -> PlannedStage:
    """Plan the requests of one look, under the name of its observation.

    `seed` are the suite's seed and the number of earlier looks at this level: no look repeats requests that an earlier
    one has warmed up. `material` has the contents of the load's files, `used` is how many recorded prompts the arm's
    earlier looks have sent.
    """
    stage = capacity.stage_at(look.level, look.requests)
    drawn_by = [_SEARCH, round(look.level * _LEVEL_STEPS), *seed]
    planned = planned_stage(load, stage, drawn_by, material, seed=seed[0], used=used)
    return replace(planned, name=f"{CAPACITY_STAGE}/{look.name}")


def measurement_sha256(suite: Suite, plan: Plan) -> str:
    """Return the identity of what is measured, without deployments and policy."""
    measured = suite.model_dump(
        mode="json",
        include={"seed", "start", "load", "quality", "divergence", "shadow", "limits"},
        exclude={  # settings of the client, of interim looks and of the evaluation
            "load": {"workers", "audit", "looks", "limit"},
            "quality": {"memory_bytes": True, "tasks": {"__all__": {"expect"}}},
        },
    )
    if suite.regions:
        measured["load"]["regions"] = sorted(suite.regions)  # wherever their schedulers are
    return sha256_of({"asked": measured, "plan": plan.sha256})


def stage_to_json(stage: PlannedStage) -> dict[str, object]:
    """Serialise a stage as plain JSON values; a single class without a name appears as the stage itself."""
    classes: list[dict[str, object]] = []
    for group in stage.classes:
        requests = []
        for request in group.sample:
            spelled: dict[str, object] = {"index": request.index, "offset_ns": request.offset_ns, "seed": request.seed}
            for name in ("turn", "leave", "item"):
                if (part := getattr(request, name)) is not None:
                    spelled[name] = asdict(part)
            requests.append({**spelled, **_ask(request.ask)})
        named: dict[str, object] = {"name": group.name, "concurrency": group.concurrency, "rate_rps": group.rate_rps}
        named["requests"] = requests
        if isinstance(group.requests, GeneratedRequests):  # the others follow from the same seed
            named |= {"generated": len(group.requests), "last_send_ns": group.last_send_ns}
        classes.append({**named, "background": True} if group.background else named)
    if len(stage.classes) == 1 and not stage.classes[0].name:
        return {**classes[0], "name": stage.name}
    return {"name": stage.name, "classes": classes}


def _ask(ask: ModelRequest) -> dict[str, object]:
    """Serialise a request's content, recorded ones by digest: a stored plan may be read by many."""
    spelled: dict[str, object] = {"output_tokens": ask.output_tokens}
    more = {"fields": dict(ask.fields), "model": ask.model, "schema": ask.schema}
    spelled.update({name: value for name, value in more.items() if value})
    if not ask.stream:
        spelled["stream"] = False
    if ask.recorded:
        fields = spelled.pop("fields", None)
        return {**spelled, "asked_sha256": sha256_of({"content": ask.content, "fields": fields})}
    if ask.endpoint in ("chat", "completions") and ask.prompt is not None:
        return {**spelled, "prompt": ask.prompt}
    return {**spelled, "endpoint": ask.endpoint, "content": ask.content}
