"""Eval items sent among the requests of a stage: batching bugs and quantised caches show in answers only under load.

The seed draws the items and their places, so both arms get the same ones in the same places. Each item is sent once in
a stage: answers to one prompt are not independent. In an open loop items are due at uniform instants, so that a Poisson
process stays one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

import numpy as np

from benchgate.model.request import ModelRequest
from benchgate.plan.items import PlannedTask
from benchgate.plan.model import PlannedBlock, PlannedRequest, PlannedStage, VerifiedItem
from benchgate.suite.quality import Quality, is_verifiable, verified_name

Prompts = Mapping[VerifiedItem, ModelRequest]

_STREAM = 0x7E41F1ED  # random stream of the items and their places


def verifiable_tasks(tasks: Sequence[PlannedTask]) -> tuple[PlannedTask, ...]:
    """Return the tasks whose items can be sent among a load."""
    return tuple(t for t in tasks if is_verifiable(t.output_type, t.scale, t.config.get("repeats") or 1) and t.rows)


def with_verified_items(
    blocks: Sequence[PlannedBlock],
    shares: Mapping[str, float],
    quality: Quality,
    tasks: Sequence[PlannedTask],
    seed: int,
) -> tuple[PlannedBlock, ...]:
    """Add eval items to the stages named in `shares`, so many per request, and as many in every block.

    Every task has as many items as any other, while it has any left. A stage has fewer than its share where the tasks
    have fewer items than all blocks would take.
    """
    found = list(blocks)
    for place, (stage, share) in enumerate(shares.items()):
        generator = np.random.default_rng([_STREAM, seed, place])
        drawn = [[VerifiedItem(task.name, task.item_ids[at]) for at in generator.permutation(len(task.rows))]
                 for task in verifiable_tasks(tasks)]  # fmt: skip
        pool = [item for item in chain.from_iterable(zip_longest(*drawn)) if item is not None]
        limits = {task.name: _answer_limit(task, quality) for task in verifiable_tasks(tasks)}
        for number, block in enumerate(found):
            requests = next(one for one in block.stages if one.name == stage).only.requests
            count = min(math.ceil(share * len(requests)), len(pool) // len(blocks))
            items = pool[number * count : (number + 1) * count]
            asks = [
                ModelRequest(quality.endpoint, {}, limits[one.task], ignore_eos=False, recorded=True) for one in items
            ]
            added = _added(requests, items, asks, np.random.default_rng([_STREAM, seed, place, number]))
            found[number] = replace(
                block, stages=tuple(_with_requests(one, added) if one.name == stage else one for one in block.stages)
            )
    return tuple(found)


def _answer_limit(task: PlannedTask, quality: Quality) -> int:
    settings = task.config.get("generation_kwargs")
    limit = settings.get("max_gen_toks") if isinstance(settings, dict) else None
    return limit if isinstance(limit, int) else quality.max_tokens


def _added(
    requests: Sequence[PlannedRequest],
    items: Sequence[VerifiedItem],
    asks: Sequence[ModelRequest],
    generator: np.random.Generator,
) -> tuple[PlannedRequest, ...]:
    """Return the requests with the items among them, in the order in which they are due."""
    first, last_ns = max(request.index for request in requests) + 1, requests[-1].offset_ns
    if last_ns is None:
        before = np.sort(generator.integers(len(requests), size=len(items))).tolist()
        offsets: list[int | None] = [None] * len(items)
    else:
        instants = np.sort(generator.integers(last_ns + 1, size=len(items)))
        before = np.searchsorted([request.offset_ns or 0 for request in requests], instants).tolist()
        offsets = instants.tolist()
    found = list(requests)
    for number in reversed(range(len(items))):
        found.insert(
            before[number], PlannedRequest(first + number, offsets[number], asks[number], 0, item=items[number])
        )
    return tuple(found)


def verified_counts(blocks: Sequence[PlannedBlock]) -> dict[str, int]:
    """Return the number of items of each task at each stage over all blocks, by `verified_name`."""
    counts: dict[str, int] = {}
    for block in blocks:
        for stage in block.stages:
            for item in stage.verified_items:
                name = verified_name(item.task, stage.name)
                counts[name] = counts.get(name, 0) + 1
    return counts


def with_prompts(stage: PlannedStage, prompts: Prompts) -> PlannedStage:
    """Return the stage with the prompts of its eval items."""
    if not stage.verified_items:
        return stage
    return _with_requests(
        stage,
        tuple(r if r.item is None else replace(r, ask=prompts[r.item]) for r in stage.only.requests),
    )


def _with_requests(stage: PlannedStage, requests: tuple[PlannedRequest, ...]) -> PlannedStage:
    before, peak_rps = stage.only, stage.only.stated_peak_rps
    # Items are due all over the stage, in addition to its own requests.
    if peak_rps is not None and before.rate_rps is not None:
        peak_rps += before.rate_rps * (len(requests) / len(before.requests) - 1)
    return replace(stage, classes=(replace(before, requests=requests, stated_peak_rps=peak_rps),))
