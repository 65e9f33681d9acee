"""The longest request of a plan, for holding it against what a server says its context is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchgate.plan.asks import text_tokens
from benchgate.plan.planned import PlannedRequest
from benchgate.plan.salt import MARK_PIECES
from benchgate.plan.schedule import Plan
from benchgate.suite.schema import Load


@dataclass(frozen=True, slots=True)
class Longest:
    """One request: at least `input_tokens` and at most `output_tokens`; of a conversation, with its earlier answers."""

    level: str
    index: int
    input_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """What its context must hold, the few tokens of a chat template aside."""
        return self.input_tokens + self.output_tokens


def longest_request(load: Load, plan: Plan) -> Longest | None:
    """The longest of all blocks, by the words of its texts; None without a request that generates or embeds text."""
    return max(_all(load, plan), key=lambda one: one.tokens, default=None)


def _all(load: Load, plan: Plan) -> Iterator[Longest]:
    letters = {level.name: level.workload.text == "letters" for level in load.levels()}
    for block in plan.blocks:
        for stage in block.stages:
            for group in stage.classes:
                level, answered = stage.observed_as(group), 0
                for request in group.requests:
                    answered = _answered(request, answered)
                    asked = text_tokens(request.ask.content, letters=letters.get(level, False))
                    asked += _marks(request) if load.salt else 0
                    yield Longest(level, request.index, asked + answered, request.ask.output_tokens or 0)
                    answered += request.ask.output_tokens or 0


def _marks(request: PlannedRequest) -> int:
    """The tokens that salting puts in front of recorded texts: once, or in a conversation before each of its turns."""
    turns = 1 if request.turn is None else request.turn.turn + 1
    return turns * MARK_PIECES if request.ask.recorded else 0


def _answered(request: PlannedRequest, so_far: int) -> int:
    """The tokens of the earlier answers that a turn carries on."""
    return so_far if request.turn is not None and request.turn.carries else 0
