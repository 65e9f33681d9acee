"""What a file of another tool comes to here: numbers by benchgate's own definitions, and what was left out and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchgate.importers.fields import Field
from benchgate.importers.instants import Measured
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.metric import QUANTILES
from benchgate.model.run import MetricRow

INTERPOLATED = (
    "the tool interpolates between observations and leaves failures out; benchgate's percentiles are observations, "
    "with every failure among them as infinite"
)
SUMMARISED = (
    "the tool leaves failures out and interpolates its percentiles; benchgate's are observations, with every failure "
    "among them as infinite"
)
ARITHMETIC = "the tool's mean leaves failures out; benchgate's is the geometric mean over paired requests"
FROM_SEND_TO_END = "it counts from the sending, not from when the request was due, and not to the finish event"
OTHER_GOODPUT = (
    "its limits are held against times since the sending; benchgate's against times since the request was due"
)
NO_METRIC = "a setting, a name, or a measure that benchgate does not have"

_MOST_LISTED = 300
_DEEPEST = 6


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of one file.

    `rows` are of the candidate's arm. `mapped` says for each kind of number which fields of the file it comes from,
    `unmapped` for every other field why it was not taken. `measured` is when, where the file tells it.
    """

    tool: str
    version: str | None
    model: str | None
    rows: tuple[MetricRow, ...]
    mapped: Mapping[str, str]
    unmapped: Mapping[str, str] = field(default_factory=dict)
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How many requests of a stage succeeded and failed, in how long a window; tokens are None where nobody knows."""

    succeeded: int
    failed: int
    window_s: float
    output_tokens: float | None = None


def row(name: str, value: float, n: int, *, stage: str | None = None, task: str | None = None) -> MetricRow:
    """One number of the candidate, without an interval: another tool's summary has none."""
    return MetricRow(Arm.CANDIDATE, name, None, stage, task, value, n)


def rate_rows(found: Outcomes, stage: str) -> Iterator[MetricRow]:
    """Rates of the successful requests over the window, and the share of all requests that failed."""
    scheduled = found.succeeded + found.failed
    if scheduled == 0:
        return
    yield row("requests_per_s", found.succeeded / found.window_s, 1, stage=stage)
    if found.output_tokens is not None:
        yield row("output_tokens_per_s", found.output_tokens / found.window_s, 1, stage=stage)
    yield row("error_ratio", found.failed / scheduled, 1, stage=stage)


def latency_rows(name: str, values_s: Sequence[float], failed: int, stage: str) -> Iterator[MetricRow]:
    """Percentiles of requests by benchgate's own formula, failures infinite; those that are infinite have no row."""
    everything = np.array([*values_s, *[math.inf] * failed], dtype=np.float64)
    for statistic, value in zip(
        QUANTILES, request_metrics.quantiles(everything, tuple(QUANTILES.values())), strict=True
    ):
        if value is not None and math.isfinite(value):
            yield MetricRow(Arm.CANDIDATE, name, statistic, stage, None, value, len(everything))


def stage_name(concurrency: float | None, rate_rps: float | None) -> str:
    """A stage as its load was: `c8`, `r2.5`, both, or `unlimited`."""
    parts = [f"c{concurrency:g}" if concurrency is not None else "", f"r{rate_rps:g}" if rate_rps is not None else ""]
    return "-".join(filter(None, parts)) or "unlimited"


def left_out(document: Field, taken: Sequence[str], reasons: Mapping[str, str]) -> dict[str, str]:
    """Every field that was not taken, by its path, with the first reason that fits.

    `taken` and the keys of `reasons` are parts of paths. At most 300 fields are listed; a list counts as one.
    """
    found: dict[str, str] = {}
    for path in _leaves(document.value, document.path, 0):
        if not any(part in path for part in taken):
            found[path] = next((why for part, why in reasons.items() if part in path), NO_METRIC)
        if len(found) >= _MOST_LISTED:
            found["…"] = f"and more: {_MOST_LISTED} fields are listed"
            break
    return found


def _leaves(value: object, path: str, depth: int) -> Iterator[str]:
    if isinstance(value, dict) and value and depth < _DEEPEST:
        for key, one in value.items():
            yield from _leaves(one, f"{path}.{key}"[:200], depth + 1)
    else:
        yield path
