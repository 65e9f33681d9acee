"""What `benchgate capacity` is asked, as its options say it: the demand, what a replica carries, and its cache."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.cost.demand import Demand
    from benchgate.cost.sizing import Cache
    from benchgate.gate.best_row import BestRow


_OPTIONS = {
    "safety_factor": "--safety-factor", "spares": "--spares", "p95_per_s": "--p95", "peak_per_s": "--peak",
    "mean_per_s": "the mean", "usd_per_hour": "--price-per-hour", "per_s": "rate",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """A demand in `unit` per second; `hours` are those that it was read from, None where it was said."""

    unit: str
    demand: Demand
    hours: tuple[float, ...] | None


def demand_asked(
    tokens_per_s: float | None,
    requests_per_s: float | None,
    beside: tuple[float | None, float | None],
    traffic: Path | None,
) -> Asked:
    """What it counts, and how much of it: of exactly one of the three that say it."""
    from benchgate.cost.demand import Demand, demand_of_hours
    from benchgate.cost.sizing import OUTPUT_TOKENS, REQUESTS
    from benchgate.cost.traffic import TOKENS, read_traffic

    said = {"--target-tokens-per-s": tokens_per_s, "--target-requests-per-s": requests_per_s, "--traffic": traffic}
    given = [name for name, value in said.items() if value is not None]
    if len(given) != 1:
        found = f"{' and '.join(given)} both say it" if given else "nothing says it"
        raise UsageError(f"what is the demand? {found}; give one of {', '.join(said)}")
    if traffic is not None:
        if beside != (None, None):
            raise UsageError("--p95 and --peak follow from the hours of --traffic; leave them out")
        try:
            hours = read_traffic(traffic.read_text(encoding="utf-8"), str(traffic))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{traffic}: cannot be read: {error}") from None
        unit = OUTPUT_TOKENS if hours.column == TOKENS else REQUESTS
        return Asked(unit, demand_of_hours(hours.per_s), hours.per_s)
    unit, mean = (OUTPUT_TOKENS, tokens_per_s) if tokens_per_s is not None else (REQUESTS, requests_per_s)
    assert mean is not None
    try:
        return Asked(unit, Demand(mean, *beside), None)
    except ValueError as error:
        raise UsageError(f"this demand cannot be: {by_option(error)}") from None


def carried(unit: str, given: tuple[float | None, float | None], row: BestRow | None) -> tuple[float, float | None]:
    """What a replica carries in the demand's unit, and its lower limit: as said, else as measured."""
    from benchgate.cost.sizing import OUTPUT_TOKENS

    names = "--replica-tokens-per-s", "--replica-requests-per-s"
    own, other = (0, 1) if unit == OUTPUT_TOKENS else (1, 0)
    if given[other] is not None:
        raise UsageError(f"the demand is in {unit}, and {names[other]} is not; give {names[own]}")
    said = given[own]
    if said is not None and row is not None:
        raise UsageError(f"both the run and {names[own]} say what a replica carries; leave one of them out")
    if said is not None:
        return said, None
    if row is None:
        raise UsageError(f"what does a replica carry? Give {names[own]}, or a stored run that measured it")
    if own == 0:
        return row.tokens_per_s, row.tokens_lower
    return row.requests_per_s, row.requests_lower


def by_option(error: ValueError) -> str:
    """What was wrong with a number, by the option that said it."""
    said = str(error)
    for name, option in _OPTIONS.items():
        said = re.sub(rf"\b{name}\b", option, said)
    return said


def read_option(option: str, text: str, parse: Callable[[object], float]) -> float:
    """A quantity of the command line. Raises UsageError that names the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def read_if_said(option: str, text: str | None, parse: Callable[[object], float]) -> float | None:
    """The same of an option that may be left out."""
    return None if text is None else read_option(option, text, parse)


def cache_asked(config: Path | None, memory: str | None, request_tokens: int | None, dtype: str) -> Cache | None:
    """The cache, where all that says what it holds is given. Raises UsageError where only some of it is."""
    from benchgate.cost.kv_cache import ConfigError, cache_layout
    from benchgate.cost.sizing import Cache
    from benchgate.units import parse_size_bytes

    needed = {"--model-config": config, "--cache-memory": memory, "--request-tokens": request_tokens}
    if config is None or memory is None or request_tokens is None:
        if dtype or any(value is not None for value in needed.values()):
            missing = " and ".join(name for name, value in needed.items() if value is None)
            raise UsageError(f"what the cache holds also needs {missing}")
        return None
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ConfigError("expected an object")
        room_bytes = read_option("--cache-memory", memory, parse_size_bytes)
        cache = Cache(cache_layout(found), room_bytes, request_tokens, dtype)
        _ = cache.bytes_per_request  # a type or a length that cannot be is told of here
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{config}: cannot be read: {error}") from None
    except ConfigError as error:
        raise UsageError(f"{config}: {error}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{config}:{error.lineno}:{error.colno}: this is no JSON: {error.msg}") from None
    except ValueError as error:
        raise UsageError(f"--request-tokens: {error}") from None
    return cache
