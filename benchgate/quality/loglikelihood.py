"""lm-eval's multiple choice and log-likelihood requests, item by item: all options of an item are scored together.

Options of one item share a context, which the server then reads once, and only beside each other do their scores show
whether the server reads them at all. An item that fails is recorded with the reason, like one that is generated.


Can this server score a given text? Asked before anything is measured: a server that cannot often does not say so.

llama.cpp takes `echo` and returns the log-probabilities of what it generated alone. Read as those of the options of a
question they are all equal, and the model scores exact chance without any error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.model.request import Endpoint
from benchgate.model.run import CANNOT_SCORE
from benchgate.plan.evals import PlannedTask
from benchgate.quality.asking import Asker, asker_of
from benchgate.quality.logprobs import Score, Way, score_continuations, text_positions, tied, way_of
from benchgate.quality.protocol import Answered, Job, SpoolWriter
from benchgate.suite.deployment import MaxTokensField
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Target

_GIVE_UP_AFTER = 5  # items that failed for good

_NO_SCORE = (0.0, False)
"""What lm-eval gets for an option of a failed item; the item's record carries the error, and its score is dropped."""


class Request(Protocol):
    """What is used of lm-eval's `Instance`."""

    task_name: str | None
    doc_id: int | None
    doc: dict[str, Any]

    @property
    def args(self) -> tuple[Any, ...]:
        """Context and continuation."""


@dataclass(slots=True)
class _State:
    failures: int = 0


async def score_requests(
    job: Job,
    credentials: Mapping[str, str],
    requests: Sequence[Request],
    spool: SpoolWriter,
    item_id: Callable[[Request], str],
) -> list[tuple[float, bool]]:
    """Log-probability and greediness of every request's continuation after its context, in order.

    One item is asked for with one request after the other, so that the server finds the context where it left it;
    `job.concurrency` items are under way at once. Each gets a line in the spool as soon as it is done.
    """
    items: dict[tuple[str, int | None], list[int]] = {}
    for place, request in enumerate(requests):
        items.setdefault((str(request.task_name), request.doc_id), []).append(place)
    results: list[tuple[float, bool]] = [_NO_SCORE] * len(requests)
    queue, state = iter(items.values()), _State()

    async def work(asker: Asker) -> None:
        for places in queue:
            asked = [requests[place] for place in places]
            answered, scores = await _item(asker.another(), asked, item_id(asked[0]), state)
            spool.write(answered)
            for place, score in zip(places, scores, strict=False):
                results[place] = (score.logprob, score.is_greedy)

    limits = Limits().model_copy(update={"connect_s": job.connect_s, "total_s": job.total_s})
    async with asker_of(_target(job, credentials), limits, job.concurrency) as asker:
        await asyncio.gather(*(work(asker) for _ in range(min(job.concurrency, len(items)))))
    return results


def _target(job: Job, credentials: Mapping[str, str]) -> Target:
    """Whom the eval process asks, as everything else that asks knows it; which arm it is does not matter here."""
    dialect = replace(
        DIALECTS[job.engine],
        extra=job.extra,
        leave_out=tuple(job.leave_out),
        max_tokens_field=cast("MaxTokensField", job.max_tokens_field),
    )
    return Target(Arm.CANDIDATE, job.base_url, job.model, dialect, None, job.headers, credentials, job.route)


async def _item(asker: Asker, requests: Sequence[Request], item_id: str, state: _State) -> tuple[Answered, list[Score]]:
    """One item's line for the spool, and the scores of its requests; none with an error."""
    task, began_ns = str(requests[0].task_name), time.perf_counter_ns()
    try:
        if state.failures >= _GIVE_UP_AFTER:
            raise TargetError(f"not asked: {_GIVE_UP_AFTER} items of the task had failed before")
        scores = await _scores(asker, requests)
    except TargetError as refusal:
        state.failures += 1
        return _line(task, item_id, error=str(refusal), retries=asker.retries), []
    best = max(range(len(scores)), key=lambda place: scores[place].logprob)
    line = _line(
        task,
        item_id,
        answer=str(requests[best].args[1]).strip(),
        latency_ns=time.perf_counter_ns() - began_ns,
        retries=asker.retries,
        tied=len({request.args for request in requests}) > 1 and tied(scores),
    )
    return line, scores


async def _scores(asker: Asker, requests: Sequence[Request]) -> list[Score]:
    """The scores of one item's requests in order; each context with all its continuations at once."""
    by_context: dict[str, list[str]] = {}
    for request in requests:
        context, continuation = request.args[:2]
        by_context.setdefault(str(context), []).append(str(continuation))
    found: dict[tuple[str, str], Score] = {}
    for context, continuations in by_context.items():
        scores = await score_continuations(asker, way_of(asker.target), context, continuations)
        found |= {(context, text): score for text, score in zip(continuations, scores, strict=True)}
    return [found[str(request.args[0]), str(request.args[1])] for request in requests]


def _line(task: str, item_id: str, **told: Any) -> Answered:
    nothing: Mapping[str, Any] = {
        "answer": None,
        "finish_reason": None,  # nothing is generated
        "output_tokens": None,
        "latency_ns": None,
        "error": None,
        "was_null": False,
        "retries": 0,
    }
    return Answered(task=task, item_id=item_id, **{**nothing, **told})


_TEXT = "One, two, three, four, five. The sky is blue."
_CONTEXT, _CONTINUATIONS = "One, two, three,", (" four", " qzx", " sky is")
_PLACES = 6  # of the text: enough to see that they differ

_LLAMA_CPP = "of a llama.cpp server say `engine: llamacpp`, and it is asked in its own way"
_OTHERWISE = "otherwise use tasks that generate text (`output_type: generate_until`)"


def endpoint_fault(tasks: Iterable[PlannedTask], endpoint: Endpoint) -> str | None:
    """Why the tasks cannot be scored at this endpoint of any server; None when they can."""
    named = scored_tasks(tasks)
    if not named or endpoint == "completions":
        return None
    one = f"the task {named[0]} scores given texts" if len(named) == 1 else f"{', '.join(named)} score given texts"
    return (
        f"{one}, and a chat endpoint only scores what it generates: say `endpoint: completions` (few-shot examples "
        "then take the place of a chat template), or use tasks that generate text"
    )


def scored_tasks(tasks: Iterable[PlannedTask]) -> list[str]:
    """The names of the tasks that need the log-probabilities of given texts."""
    return [task.name for task in tasks if task.output_type != "generate_until"]


def probe_scoring(targets: Mapping[Arm, Target], tasks: Iterable[PlannedTask], limits: Limits) -> dict[Arm, str]:
    """Why an arm cannot score the tasks that need it, for each arm that cannot; nothing is asked if no task does."""
    named = scored_tasks(tasks)
    if not named:
        return {}

    async def probe(target: Target) -> str | None:
        async with asker_of(target, limits, 1) as asker:
            return await scoring_fault(asker, way_of(target))

    async def probe_all() -> list[str | None]:
        return await asyncio.gather(*(probe(target) for target in targets.values()))

    faults = zip(targets, asyncio.run(probe_all()), strict=True)
    return {arm: f"{CANNOT_SCORE} of {', '.join(named)}: {fault}" for arm, fault in faults if fault}


async def scoring_fault(asker: Asker, way: Way) -> str | None:
    """Why this server cannot score a given text in this way; None when it was seen to."""
    try:
        positions = await text_positions(asker, way, _TEXT, top=1, choose=_some)
        scores = await score_continuations(asker, way, _CONTEXT, _CONTINUATIONS)
    except TargetError as refusal:
        return f"{refusal}; {_advice(way)}"
    if len({position.logprob for position in positions}) < 2:
        return f"it gives every token of a text the same log-probability, {positions[0].logprob:g}; {_advice(way)}"
    if tied(scores):
        count, value = len(scores), scores[0].logprob
        return f"it gives {count} different texts the same log-probability, {value:g}; {_advice(way)}"
    return None


def _advice(way: Way) -> str:
    return f"{_LLAMA_CPP}; {_OTHERWISE}" if way == "echo" else _OTHERWISE


def _some(count: int) -> list[int]:
    """Places in the text, spread out."""
    return [1 + place * (count - 1) // _PLACES for place in range(_PLACES)]
