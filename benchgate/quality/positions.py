"""What log-probabilities are made of here: one position of a text, one scored continuation. Pure, and strict.

Natural logarithms throughout. A value that is missing, not finite or positive is no log-probability and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchgate.errors import TargetError

Way = Literal["echo", "n_probs"]
"""How a server tells what a given text is worth to its model: a completion that echoes its prompt, or llama.cpp's
`n_probs` after every beginning of the text."""

_ROUNDING = 1e-4  # a probability of one, as sums over a vocabulary in single precision have it
_STAND_IN = -9999.0  # what vLLM sends for minus infinity, which JSON cannot say


@dataclass(frozen=True, slots=True)
class Position:
    """One token of a text after all that stands before it.

    `place` counts the server's tokens of the text from 0. A token is called `#id` where the server tells ids, else by
    its text; the keys of `top`, the most probable tokens here, best first, are of the same kind. `logprob` is that of
    the token which stands in the text, whether it is in `top` or not.
    """

    place: int
    token: str
    logprob: float
    top: Mapping[str, float]

    @property
    def is_greedy(self) -> bool:
        """Whether the model itself would have gone on with this token."""
        return self.logprob >= max(self.top.values())


@dataclass(frozen=True, slots=True)
class Score:
    """A continuation after its context: the sum over its tokens, and whether greedy decoding would have written it."""

    logprob: float
    is_greedy: bool
    tokens: int


def score_of(positions: Sequence[Position]) -> Score:
    """The score of the continuation that these positions are; TargetError when it has none."""
    if not positions:
        raise TargetError("the continuation adds no token to its context, so it has no log-probability")
    total = math.fsum(position.logprob for position in positions)
    return Score(total, all(position.is_greedy for position in positions), len(positions))


def tied(scores: Sequence[Score]) -> bool:
    """Whether several continuations got one and the same value, in all or for each token of theirs.

    That is what a server gives that does not read them.
    """
    in_all = {score.logprob for score in scores}
    each = {round(score.logprob / score.tokens, 9) for score in scores}
    return len(scores) > 1 and 1 in (len(in_all), len(each))


def log_probability(value: object, of: str) -> float:
    """A number that can be the logarithm of a probability; TargetError, which says whose it was, of anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TargetError(f"the log-probability of {of} is {value!r}, not a number")
    if not math.isfinite(value) or value <= _STAND_IN:
        raise TargetError(f"the log-probability of {of} is {value}, which is not finite")
    if value > _ROUNDING:
        raise TargetError(f"the log-probability of {of} is {value}, which is above zero")
    return min(float(value), 0.0)


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How many of the first members two sequences share."""
    for place, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        if ours != theirs:
            return place
    return min(len(one), len(other))


def without_trailing_space(context: str) -> str:
    """The context whose tokens stay what they are when a continuation follows; as lm-eval has it.

    A space at the end belongs to the token that follows it, so it is counted with the continuation.
    """
    return context.rstrip()
