"""What `benchgate capacity` is asked, as its options say it: the demand, what a replica carries, and its cache."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.errors import UsageError
from benchgate.units import parse_memory_bytes, parse_percent_ratio, parse_price_usd_per_hour, show_found

if TYPE_CHECKING:
    from benchgate.sizing.fleet import Demand, KvCache
    from benchgate.sizing.operating_point import LoadLevel

_MOST_BYTES = 16 * 2**20  # of a century of hours, or a model's configuration
_LONGER = 1.05  # times the tokens of an answer: two means of the same requests are seldom further apart
_OPTIONS = {
    "safety_factor": "--safety-factor", "spares": "--spares", "p95_per_s": "--p95", "peak_per_s": "--peak",
    "mean_per_s": "the mean", "usd_per_hour": "--price-per-hour", "per_s": "rate", "places is": "--places is",
    "residence_s": "--request-time", "tokens_per_request": "--output-tokens", "wait_s": "--wait", "look_s": "--look",
    "cooldown_s": "--cooldown", "cold_start_s": "--cold-start", "target_ratio": "--target-load",
    "memory_bytes": "--cache-memory", "tokens in pages": "--request-tokens in pages",
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
    from benchgate.sizing.fleet import OUTPUT_TOKENS, REQUESTS, TOKENS, Demand, demand_from_hours, read_traffic

    said = {"--target-tokens-per-s": tokens_per_s, "--target-requests-per-s": requests_per_s, "--traffic": traffic}
    given = [name for name, value in said.items() if value is not None]
    if len(given) != 1:
        found = f"{' and '.join(given)} both say it" if given else "nothing says it"
        raise UsageError(f"what is the demand? {found}; give one of {', '.join(said)}")
    if traffic is not None:
        if beside != (None, None):
            raise UsageError("--p95 and --peak follow from the hours of --traffic; leave them out")
        hours = read_traffic(_text(traffic), str(traffic))
        if not any(hours.per_s):
            raise UsageError(f"{traffic}: every hour's {hours.column} is 0, and nothing to be carried needs no fleet")
        unit = OUTPUT_TOKENS if hours.column == TOKENS else REQUESTS
        return Asked(unit, demand_from_hours(hours.per_s), hours.per_s)
    unit, mean = (OUTPUT_TOKENS, tokens_per_s) if tokens_per_s is not None else (REQUESTS, requests_per_s)
    assert mean is not None
    if mean == 0:
        raise UsageError(f"{given[0]} is 0, and nothing to be carried needs no fleet; expected a rate above 0")
    try:
        return Asked(unit, Demand(mean, *beside), None)
    except ValueError as error:
        raise UsageError(f"this demand cannot be: {by_option(error)}") from None


def carried(unit: str, given: tuple[float | None, float | None], row: LoadLevel | None) -> tuple[float, float | None]:
    """What a replica carries in the demand's unit, and its lower limit: as said, else as measured."""
    from benchgate.sizing.fleet import OUTPUT_TOKENS

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


def require_no_longer_answers(unit: str, said: float | None, row: LoadLevel | None) -> None:
    """Raises UsageError for answers longer than those with which so many requests per second were carried."""
    from benchgate.sizing.fleet import OUTPUT_TOKENS

    if unit == OUTPUT_TOKENS or said is None or row is None or said <= row.tokens_per_request * _LONGER:
        return
    raise UsageError(
        f"--output-tokens is {said:g}, and the run's {row.requests_per_s:.4g} requests/s were of"
        f" {row.tokens_per_request:.4g} each: that a replica carries as many longer ones was not shown; give the demand"
        " in output tokens per second (--target-tokens-per-s, or such a column of --traffic), or measure such requests"
    )


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
        hint = f"; did you mean {text}%?" if parse is parse_percent_ratio and _reads(f"{text}%", parse) else ""
        raise UsageError(f"{option}: {error}{hint}") from None


def _reads(text: str, parse: Callable[[str], float]) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def price_asked(text: str | None) -> float | None:
    """Dollars per hour, of a whole replica: as a number, or as suites have a price."""
    if text is None:
        return None
    for parse in (float, parse_price_usd_per_hour):
        if _reads(text, parse):
            return parse(text)
    raise UsageError(
        f"--price-per-hour is {show_found(text)}; expected dollars per hour of a whole replica, like 1.2 or $1.2/h"
    )


def read_if_said(option: str, text: str | None, parse: Callable[[object], float]) -> float | None:
    """The same of an option that may be left out."""
    return None if text is None else read_option(option, text, parse)


def cache_asked(
    config: Path | None, memory: str | None, request_tokens: int | None, dtype: str, accelerators: int | None
) -> KvCache | None:
    """The cache, where all that says what it holds is given. Raises UsageError where only some of it is."""
    from benchgate.sizing.fleet import KvCache
    from benchgate.sizing.kv_cache import ConfigError, cache_layout, number_bytes

    needed = {"--model-config": config, "--cache-memory": memory, "--request-tokens": request_tokens}
    if config is None or memory is None or request_tokens is None:
        if dtype or accelerators is not None or any(value is not None for value in needed.values()):
            missing = " and ".join(name for name, value in needed.items() if value is None)
            raise UsageError(f"what the cache holds also needs {missing}")
        return None
    room_bytes = read_option("--cache-memory", memory, parse_memory_bytes)
    try:
        if dtype:
            number_bytes(dtype)
    except ConfigError as error:
        raise UsageError(f"--cache-dtype: {error}") from None
    try:
        shared = 1 if accelerators is None else accelerators
        return KvCache(cache_layout(_config(config)), room_bytes, request_tokens, dtype, shared)
    except ConfigError as error:
        raise UsageError(f"{config}: {error}") from None
    except ValueError as error:
        raise UsageError(by_option(error)) from None


def _config(path: Path) -> dict[str, object]:
    from benchgate.sizing.kv_cache import ConfigError

    try:
        found = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}:{error.colno}: this is no JSON: {error.msg}") from None
    except (RecursionError, ValueError):  # a thousand brackets, a number of a thousand digits
        raise UsageError(
            f"{path}: this is no `config.json` of a model: it is nested too deep, or a number is too long"
        ) from None
    if not isinstance(found, dict):
        raise ConfigError("expected an object")
    return found


def _text(path: Path) -> str:
    from benchgate.system import read_text_file

    try:
        return read_text_file(path, _MOST_BYTES)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
