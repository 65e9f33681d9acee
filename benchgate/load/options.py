"""What a bare load test is asked to do, read from the texts of a command line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import ceil
from typing import Literal, Self, TypeVar, cast

from benchgate import units
from benchgate.errors import TargetError, UsageError
from benchgate.load.wire import Address
from benchgate.model.metrics import Slo
from benchgate.targets.dialect import DIALECTS, PATHS, Endpoint

Process = Literal["poisson", "constant", "gamma"]
_T = TypeVar("_T")

_STREAMS_PER_WORKER = 256
_TOKENS_PER_S_PER_WORKER = 25_000.0  # about half of what one process takes before its own delays show


@dataclass(frozen=True, slots=True)
class Arrival:
    """How the sends of an open loop are spread; `cv` is the coefficient of variation of gamma gaps."""

    process: Process = "poisson"
    cv: float = 1.0


@dataclass(frozen=True, slots=True)
class BareOptions:
    """A bare load test: exactly one of `concurrency` and `rate_rps`, exactly one of `requests` and `duration_s`."""

    url: str
    model: str
    engine: str = "auto"
    concurrency: int | None = None
    rate_rps: float | None = None
    arrival: Arrival = Arrival()
    requests: int | None = None
    duration_s: float | None = None
    input_tokens: int = 100
    output_tokens: int = 128
    endpoint: Endpoint = "chat"
    workers: int = 1
    slo: Slo | None = None
    seed: int = 0
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _exactly_one(self.concurrency, self.rate_rps, "--concurrency (closed loop)", "--rate (open loop)")
        _exactly_one(self.requests, self.duration_s, "--requests", "--duration")
        for name in ("concurrency", "requests", "input_tokens", "output_tokens", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
        if self.seed < 0:
            raise UsageError(f"--seed is {self.seed}; it must not be negative")

    @classmethod
    def parse(
        cls,
        *,
        url: str,
        model: str,
        engine: str = "auto",
        concurrency: int | None = None,
        rate: str | None = None,
        arrival: str = "poisson",
        requests: int | None = None,
        duration: str | None = None,
        input_tokens: int = 100,
        output_tokens: int = 128,
        endpoint: str = "chat",
        workers: str = "auto",
        slo: str | None = None,
        seed: int = 0,
        api_key: str | None = None,
    ) -> Self:
        """From texts as typed. Raises UsageError, which says what was found and what to write."""
        rate_rps = None if rate is None else _read("--rate", _rate_rps, rate)
        try:
            Address.of(url)
        except TargetError as exc:
            raise UsageError(str(exc)) from exc
        return cls(
            url=url.rstrip("/"),
            model=model,
            engine=_one_of("--engine", engine, ("auto", *DIALECTS)),
            concurrency=concurrency,
            rate_rps=rate_rps,
            arrival=_read("--arrival", _arrival, arrival),
            requests=requests,
            duration_s=None if duration is None else _read("--duration", units.parse_duration_s, duration),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            endpoint=cast(Endpoint, _one_of("--endpoint", endpoint, PATHS)),
            workers=_workers(workers, concurrency, rate_rps, output_tokens),
            slo=None if slo is None else _read("--slo", _slo, slo),
            seed=seed,
            api_key=api_key,
        )


def _exactly_one(one: object, other: object, one_name: str, other_name: str) -> None:
    if (one is None) == (other is None):
        raise UsageError(f"a load test needs exactly one of {one_name} and {other_name}")


def _read(option: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as exc:
        raise UsageError(f"{option}: {exc}") from exc


def _one_of(option: str, name: str, known: Collection[str]) -> str:
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    raise UsageError(f"{option}: {name!r} is unknown; {hint}")


def _rate_rps(text: str) -> float:
    """`8/s`, or a bare number of requests per second."""
    return units.parse_rate_rps(text if "/" in text else f"{text}/s")


def _arrival(text: str) -> Arrival:
    process, _, cv = text.partition(":")
    if process in ("poisson", "constant") and not cv:
        return Arrival(cast(Process, process))
    try:
        value = float(cv) if process == "gamma" else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < 100:
        raise ValueError(f'{text!r} is not an arrival process; write "poisson", "constant" or "gamma:2"')
    return Arrival("gamma", value)


def _slo(text: str) -> Slo:
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        _one_of("--slo", name, ("ttft", "tpot", "e2e"))
        if not equals or f"{name}_s" in bounds:
            raise ValueError(f'{text!r} is not a list of bounds; write each once, like "ttft=500ms,tpot=80ms"')
        bounds[f"{name}_s"] = units.parse_duration_s(value)
    return Slo(**bounds)


def _workers(text: str, concurrency: int | None, rate_rps: float | None, output_tokens: int) -> int:
    """`auto`: as many as the load needs, on at most half the cores: the server may live on the others."""
    if text != "auto":
        if not text.isdecimal():
            raise UsageError(f'--workers: {text!r} is not a number of processes; write "auto" or "2"')
        return min(int(text), concurrency or int(text))
    if concurrency is not None:
        needed = ceil(concurrency / _STREAMS_PER_WORKER)
    else:
        needed = ceil((rate_rps or 0) * output_tokens / _TOKENS_PER_S_PER_WORKER)
    return max(1, min(needed, (os.cpu_count() or 1) // 2))
