"""lm-eval's multiple choice and log-likelihood requests, item by item: all options of an item are scored together.

Options of one item share a context, which the server then reads once, and only beside each other do their scores show
whether the server reads them at all. An item that fails is recorded with the reason, like one that is generated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.quality.asking import Asker, asker_of
from benchgate.quality.logprobs import Score, score_continuations, tied, way_of
from benchgate.quality.spool import Answered, Job, SpoolWriter
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
