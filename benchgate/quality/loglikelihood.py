"""Multiple choice by log-likelihood, item by item, and the probe that a server can score given texts.

All options of an item are scored together: they share a context, which the server then reads once, and only equal
scores of all options show a server that does not read them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.model.request import Endpoint
from benchgate.model.run import CANNOT_SCORE
from benchgate.plan.items import PlannedTask
from benchgate.quality.logprobs import Score, Way, score_continuations, target_of, text_positions, tied, way_of
from benchgate.quality.protocol import GIVE_UP_AFTER, ItemAnswered, SpoolWriter
from benchgate.suite.schema import Limits
from benchgate.targets.client import RETRY, AsyncJsonClient
from benchgate.targets.dialect import Target

_NO_SCORE = (0.0, False)  # placeholder that lm-eval gets for an option of a failed item, whose score is dropped
_PROBE_TEXT = "One, two, three, four, five. The sky is blue."
_PROBE_CONTEXT, _PROBE_CONTINUATIONS = "One, two, three,", (" four", " qzx", " sky is")
_PROBE_POSITIONS = 6  # enough to see that they differ

_LLAMA_CPP_ADVICE = "of a llama.cpp server say `engine: llamacpp`, and its own interface is used"
_OTHER_ADVICE = "otherwise use tasks that generate text (`output_type: generate_until`)"


class Request(Protocol):
    """The part of lm-eval's `Instance` that scoring needs."""

    task_name: str | None
    doc_id: int | None
    doc: dict[str, Any]

    @property
    def args(self) -> tuple[Any, ...]:
        """Context and continuation."""


async def score_requests(
    client: AsyncJsonClient,
    concurrency: int,
    requests: Sequence[Request],
    spool: SpoolWriter,
    item_id: Callable[[Request], str],
) -> list[tuple[float, bool]]:
    """Return log-probability and greediness of each request's continuation after its context, in order.

    `concurrency` items are under way at once; requests of one item follow each other, so that the server still has its
    context cached. Each item is written to the spool as soon as it is done.
    """
    items: dict[tuple[str, int | None], list[int]] = {}
    for place, request in enumerate(requests):
        items.setdefault((str(request.task_name), request.doc_id), []).append(place)
    results: list[tuple[float, bool]] = [_NO_SCORE] * len(requests)
    queue = iter(items.values())
    failures = 0

    async def work() -> None:
        nonlocal failures
        for places in queue:
            options = [requests[place] for place in places]
            own = client.with_own_retry_count()
            began_ns = time.perf_counter_ns()
            task, name = str(options[0].task_name), item_id(options[0])
            try:
                if failures >= GIVE_UP_AFTER:
                    raise TargetError(f"not sent: {GIVE_UP_AFTER} items of the task had failed before")
                scores = await _scores(own, options)
            except TargetError as error:
                failures += 1
                spool.write(ItemAnswered(task, name, error=str(error), retries=own.retries))
                continue
            best = max(range(len(scores)), key=lambda number: scores[number].logprob)
            answered = ItemAnswered(
                task=task,
                item_id=name,
                answer=str(options[best].args[1]).strip(),
                latency_ns=time.perf_counter_ns() - began_ns,
                retries=own.retries,
                tied=len({option.args for option in options}) > 1 and tied(scores),
            )
            spool.write(answered)
            for place, score in zip(places, scores, strict=True):
                results[place] = (score.logprob, score.is_greedy)

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(items)))))
    return results


async def _scores(client: AsyncJsonClient, requests: Sequence[Request]) -> list[Score]:
    """Return the scores of one item's requests in order, each context with all its continuations at once."""
    by_context: dict[str, list[str]] = {}
    for request in requests:
        context, continuation = request.args[:2]
        by_context.setdefault(str(context), []).append(str(continuation))
    found: dict[tuple[str, str], Score] = {}
    for context, continuations in by_context.items():
        scores = await score_continuations(client, way_of(target_of(client)), context, continuations)
        found |= {(context, text): score for text, score in zip(continuations, scores, strict=True)}
    return [found[str(request.args[0]), str(request.args[1])] for request in requests]


def endpoint_fault(tasks: Iterable[PlannedTask], endpoint: Endpoint) -> str | None:
    """Return why no server can score the tasks at this endpoint, or None."""
    named = scored_tasks(tasks)
    if not named or endpoint == "completions":
        return None
    one = f"the task {named[0]} scores given texts" if len(named) == 1 else f"{', '.join(named)} score given texts"
    return (
        f"{one}, and a chat endpoint only scores what it generates: say `endpoint: completions` (few-shot examples "
        "then take the place of a chat template), or use tasks that generate text"
    )


def scored_tasks(tasks: Iterable[PlannedTask]) -> list[str]:
    """Return the names of tasks that need prompt log-probabilities."""
    return [task.name for task in tasks if task.output_type != "generate_until"]


def probe_scoring(targets: Mapping[Arm, Target], tasks: Iterable[PlannedTask], limits: Limits) -> dict[Arm, str]:
    """Return each arm that cannot score given texts, with the reason. Sends nothing if no task needs it."""
    named = scored_tasks(tasks)
    if not named:
        return {}

    async def probe(target: Target) -> str | None:
        async with AsyncJsonClient(
            target, connect_s=limits.connect_s, total_s=limits.total_s, connections=1, retry=RETRY
        ) as client:
            return await scoring_fault(client, way_of(target))

    async def probe_all() -> list[str | None]:
        return await asyncio.gather(*(probe(target) for target in targets.values()))

    faults = zip(targets, asyncio.run(probe_all()), strict=True)
    return {arm: f"{CANNOT_SCORE} of {', '.join(named)}: {fault}" for arm, fault in faults if fault}


async def scoring_fault(client: AsyncJsonClient, way: Way) -> str | None:
    """Return why this server cannot score a given text in this way, or None.

    llama.cpp takes `echo` and returns the log-probabilities of what it generated. Taken for those of the options, they
    are all equal, and the model scores exact chance without any error.
    """

    def probe_places(tokens: int) -> list[int]:
        return [1 + number * (tokens - 1) // _PROBE_POSITIONS for number in range(_PROBE_POSITIONS)]

    advice = f"{_LLAMA_CPP_ADVICE}; {_OTHER_ADVICE}" if way == "echo" else _OTHER_ADVICE
    try:
        positions = await text_positions(client, way, _PROBE_TEXT, top=1, choose=probe_places)
        scores = await score_continuations(client, way, _PROBE_CONTEXT, _PROBE_CONTINUATIONS)
    except TargetError as error:
        return f"{error}; {advice}"
    if len({position.logprob for position in positions}) < 2:
        return f"it gives every token of a text the same log-probability, {positions[0].logprob:g}; {advice}"
    if tied(scores):
        count, value = len(scores), scores[0].logprob
        return f"it gives {count} different texts the same log-probability, {value:g}; {advice}"
    return None
