"""Warm-up requests: the values of `load.warmup`, and how many requests the first round of a warm-up has."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from benchgate import units
from benchgate.suite.fields import Expected
from benchgate.suite.lengths import Lengths
from benchgate.suite.levels import Level
from benchgate.suite.written import WHOLE, Written, word

AUTO = "auto"
LEAST_REQUESTS = 8
"""Of the first round of an `auto` warm-up."""

_PER_SLOT = 2  # requests that each slot of a closed loop sends in a round: one fills the batch, one meets it full
_MOST_REQUESTS = 10_000


def parse_warmup(found: object) -> int | Literal["auto"]:
    """Return `found` if it is "auto" or a whole number from 0 to 10,000; else raise ValueError."""
    if found == AUTO:
        return "auto"
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _MOST_REQUESTS:
        return found
    raise ValueError(
        f'{units.show_found(found)} is not a number of requests; write "auto", '
        f"or a whole number from 0 to {_MOST_REQUESTS:,}"
    )


Warmup = Annotated[
    int | Literal["auto"], BeforeValidator(parse_warmup), Expected('"auto", or a number of requests like 8'),
    Written.of(word(AUTO), {**WHOLE, "minimum": 0, "maximum": _MOST_REQUESTS}),
]  # fmt: skip


def with_renamed_warmup(stored: dict[str, Any]) -> dict[str, Any]:
    """Rename `warmup_requests`, the key of a whole number in stored loads, to `warmup`."""
    if "warmup_requests" not in stored:
        return stored
    renamed = dict(stored)
    renamed["warmup"] = renamed.pop("warmup_requests")
    return renamed


def first_round(concurrency: int | None, turns: float = 1.0) -> int:
    """Return how many requests the first round of an `auto` warm-up sends.

    `concurrency` is None for an open loop. `turns` is the mean number of requests in a conversation: every slot gets a
    conversation of its own.
    """
    return max(LEAST_REQUESTS, math.ceil((concurrency or 0) * max(_PER_SLOT, turns)))


def first_round_of(warmup: int | Literal["auto"], level: Level) -> int:
    """Return the same for a stage, or a class of it, by what its load says of warm-up."""
    if warmup != "auto":
        return warmup
    session = level.workload.session
    return first_round(level.course.concurrency, 1.0 if session is None else _mean(session.turns))


def _mean(length: int | Lengths) -> float:
    """Return about the mean of a distribution of turns."""
    if isinstance(length, int):
        return length
    if length.uniform is not None:
        return sum(length.uniform) / 2
    if length.normal is not None:
        return length.normal.mean_tokens
    assert length.lognormal is not None, "turns come from no file"
    return min(length.lognormal.median_tokens * math.exp(length.lognormal.sigma**2 / 2), length.lognormal.most_tokens)
