"""What a fleet for a demand comes to: the question as one value, the answer as another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchgate.cost.demand import Demand
from benchgate.cost.fleet import Replica, Sized, in_flight, replicas_while_one_starts, size
from benchgate.cost.kv_cache import CacheLayout
from benchgate.cost.prices import usd_per_million_tokens

OUTPUT_TOKENS, REQUESTS = "output tokens", "requests"
_MOST_BYTES = 1e18
_MOST = 1e9  # seconds or tokens of one request


@dataclass(frozen=True, slots=True)
class Question:
    """A demand, and the replica that is to carry it, both in `unit` per second.

    The replica's price has the overhead in it, `overhead_ratio` of the price without; None where nobody said any.
    `residence_s` is how long a request stays on the mean and `tokens_per_request` what it is answered with, where they
    are known; `cold_start_s` how long a replica takes from being asked for to its first answer.
    """

    unit: str
    demand: Demand
    replica: Replica
    overhead_ratio: float | None = None
    safety_factor: float = 1.2
    spares: int = 1
    residence_s: float | None = None
    tokens_per_request: float | None = None
    cold_start_s: float | None = None
    cache: Cache | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for numbers of a request that cannot be."""
        for name in ("residence_s", "tokens_per_request"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= _MOST:
                raise ValueError(f"{name} is {value!r}; expected a number above 0, at most {_MOST:g}")


@dataclass(frozen=True, slots=True)
class Cache:
    """A replica's memory for keys and values, and a request of so many tokens, prompt and answer together.

    Memory and bytes are of all its accelerators together, so many of which share every layer.
    """

    layout: CacheLayout
    memory_bytes: float
    request_tokens: int
    dtype: str = ""  # of its numbers, where that is not the model's own
    accelerators: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be, a ConfigError where that is by the model's configuration."""
        if not 0 <= self.memory_bytes <= _MOST_BYTES:
            raise ValueError(f"memory_bytes is {self.memory_bytes!r}; expected 0 to {_MOST_BYTES:g}")
        _ = self.bytes_per_request

    @property
    def kept(self) -> CacheLayout:
        """What its accelerators keep together, each head as often as it is there."""
        return self.layout.shared_by(self.accelerators)

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one more token of a request takes."""
        return self.kept.bytes_per_token(self.dtype)

    @property
    def bytes_per_request(self) -> float:
        """Bytes of one whole request."""
        return self.bytes_of(self.request_tokens)

    def bytes_of(self, tokens: int) -> float:
        """Bytes of a request of so many tokens."""
        return self.kept.bytes_per_request(tokens, self.dtype)

    @property
    def requests_that_fit(self) -> int:
        """So many of them, at once."""
        return self.kept.requests_that_fit(self.memory_bytes, self.request_tokens, self.dtype)

    @property
    def times_kept(self) -> float:
        """How often each number is there, on all accelerators together."""
        return self.bytes_per_token / self.layout.bytes_per_token(self.dtype)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the demand, and the fleet for it.

    Dollars per million output tokens are what that fleet costs over the tokens that come on the mean: it is paid in
    quiet hours too. None where the mean is 0 or the tokens of a request are not known.
    """

    name: str
    sized: Sized
    in_flight: float | None
    usd_per_million_tokens: float | None


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer. `full_usd_per_million_tokens` is of a replica that is always full, `_upper` if it carries only the
    lower limit of what was measured; `ahead` are the replicas that must be there beyond a growing demand while one
    starts.
    """

    question: Question
    levels: tuple[Level, ...]
    full_usd_per_million_tokens: float | None
    full_usd_per_million_tokens_upper: float | None
    ahead: int | None


def sizing(question: Question) -> Sizing:
    """The fleet for every level of a demand. Raises ValueError for numbers that cannot be."""
    growth = question.demand.growth_per_s2
    ahead = None
    if growth is not None and question.cold_start_s is not None:
        ahead = replicas_while_one_starts(growth, question.cold_start_s, question.replica)
    levels = tuple(_level(question, name, per_s) for name, per_s in question.demand.levels)
    replica = question.replica
    full = _unit_price(question, replica.usd_per_hour, replica.per_s)
    lower_per_s = replica.lower_per_s
    upper = None if lower_per_s is None else _unit_price(question, replica.usd_per_hour, lower_per_s)
    return Sizing(question, levels, full, upper, ahead)


def _level(question: Question, name: str, per_s: float) -> Level:
    sized = size(per_s, question.replica, safety_factor=question.safety_factor, spares=question.spares)
    requests_per_s = _requests_per_s(question, per_s)
    inside = None
    if requests_per_s is not None and question.residence_s is not None:
        inside = in_flight(requests_per_s, question.residence_s)
    return Level(name, sized, inside, _unit_price(question, sized.usd_per_hour, question.demand.mean_per_s))


def _requests_per_s(question: Question, per_s: float) -> float | None:
    if question.unit == REQUESTS:
        return per_s
    return None if question.tokens_per_request is None else per_s / question.tokens_per_request


def _unit_price(question: Question, usd_per_hour: float | None, per_s: float) -> float | None:
    tokens = 1.0 if question.unit == OUTPUT_TOKENS else question.tokens_per_request
    if usd_per_hour is None or tokens is None:
        return None
    found = usd_per_million_tokens(usd_per_hour, 1, per_s * tokens)
    return found if found is not None and math.isfinite(found) else None
