"""Can this server score a given text? Asked before anything is measured: a server that cannot often does not say so.

llama.cpp takes `echo` and returns the log-probabilities of what it generated alone. Read as those of the options of a
question they are all equal, and the model scores exact chance without any error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.model.request import Endpoint
from benchgate.model.run import CANNOT_SCORE
from benchgate.plan.items import PlannedTask
from benchgate.quality.asking import Asker, asker_of
from benchgate.quality.logprobs import Way, score_continuations, text_positions, tied, way_of
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import Target

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
