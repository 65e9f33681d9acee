"""What can be asked of each metric: what measures it, how it is bounded, and what it may be held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Side = Literal["max", "min"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One metric's place in the language of checks.

    `at`: a load stage (or a class of one), the whole sweep, a task, or the run. `bound` is what `max` and `min` are
    written in, `sides` which of them there are; `margin` what an allowed harm is written in. `over`: whether a stage
    may be held against another one. `rises`: whether more of it is better. `advisory`: a check of it is not required
    unless it says so, because what it shows is no loss by itself.
    """

    needs: Literal["start", "load", "quality", "divergence", "shadow"]
    at: Literal["stage", "sweep", "task", "run"]
    bound: Literal["duration", "rate", "percentage", "whole number", "level", "nats", "money"] | None
    sides: tuple[Side, ...] = ()
    margin: Literal["percent", "points"] | None = None
    over: bool = False
    rises: bool = False
    advisory: bool = False


_LATENCY = Kind("load", "stage", "duration", ("max",), "percent", over=True)
_RATE = Kind("load", "stage", "rate", ("min",), "percent", over=True, rises=True)
_COST = Kind("load", "stage", "money", ("max",), "percent")
_FAILURES = Kind("load", "stage", "percentage", ("max",), "points", over=True)
_SUCCESSES = Kind("load", "stage", "percentage", ("min",), "points", over=True, rises=True)
_BOTH: tuple[Side, ...] = ("max", "min")

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "ttft": _LATENCY,
        "ttfot": _LATENCY,
        "tpot": _LATENCY,
        "itl": _LATENCY,
        "e2e": _LATENCY,
        "output_throughput": _RATE,
        "request_throughput": _RATE,
        "output_length": Kind("load", "stage", None, (), "percent"),
        "usd_per_million_output_tokens": _COST,
        "usd_per_million_good_tokens": _COST,
        "goodput": _SUCCESSES,
        "error_rate": _FAILURES,
        "rejected": Kind("load", "stage", "percentage", _BOTH, "points", over=True),
        "validity": _SUCCESSES,
        "capacity": Kind("load", "run", "level", ("min",), "percent", rises=True),
        "knee": Kind("load", "sweep", "whole number", _BOTH),
        "kv_usage_after": Kind("load", "stage", "percentage", ("max",)),
        "prefix_hit_rate": Kind("load", "stage", "percentage", _BOTH, rises=True),
        "preemptions": Kind("load", "stage", "whole number", ("max",)),
        "queue_depth": Kind("load", "stage", "whole number", ("max",)),
        "cold_start": Kind("start", "run", "duration", ("max",)),
        "accuracy": Kind("quality", "task", "percentage", ("min",), "points", rises=True),
        "score": Kind("quality", "task", None, (), "points", rises=True),
        "flips": Kind("quality", "task", None, (), "points", advisory=True),
        "kld": Kind("divergence", "run", "nats", ("max",), advisory=True),
        "same_top1": Kind("divergence", "run", "percentage", ("min",), rises=True, advisory=True),
        "perplexity": Kind("divergence", "run", None, (), "percent"),
        "shadow_excess": Kind("shadow", "run", None, (), "points"),
        "shadow_validity": Kind("shadow", "run", "percentage", ("min",), "points", rises=True),
        "judge_loss": Kind("shadow", "run", None, (), "points"),
    }
)

Metric = Literal[
    "ttft", "ttfot", "tpot", "itl", "e2e", "output_throughput", "request_throughput", "output_length",
    "usd_per_million_output_tokens", "usd_per_million_good_tokens", "goodput", "error_rate", "rejected", "validity",
    "capacity", "knee", "kv_usage_after", "prefix_hit_rate", "preemptions", "queue_depth", "cold_start", "accuracy",
    "score", "flips", "kld", "same_top1", "perplexity", "shadow_excess", "shadow_validity", "judge_loss",
]  # fmt: skip
METRICS = tuple(KINDS)
LATENCY_METRICS = tuple(name for name, kind in KINDS.items() if kind is _LATENCY)
THROUGHPUT_METRICS = tuple(name for name, kind in KINDS.items() if kind is _RATE)
COST_METRICS = tuple(name for name, kind in KINDS.items() if kind is _COST)
PER_ACCELERATOR_METRICS = (*THROUGHPUT_METRICS, "capacity")
"""Which add up over the accelerators of a deployment; a latency is what it is on however many."""
FAILURE_METRICS = ("goodput", "error_rate")
TELEMETRY_METRICS = ("kv_usage_after", "prefix_hit_rate", "preemptions", "queue_depth")
STAGE_METRICS = tuple(name for name, kind in KINDS.items() if kind.at == "stage")
LOAD_METRICS = tuple(name for name, kind in KINDS.items() if kind.needs == "load")
RATIO_METRICS = tuple(name for name, kind in KINDS.items() if kind.margin == "percent")
SHARE_METRICS = tuple(name for name, kind in KINDS.items() if kind.margin == "points")
TASK_METRICS = tuple(name for name, kind in KINDS.items() if kind.at == "task")
ADVISORY_METRICS = tuple(name for name, kind in KINDS.items() if kind.advisory)
OVER_METRICS = tuple(name for name, kind in KINDS.items() if kind.over)
TWO_WAY_METRICS = (*LATENCY_METRICS, *THROUGHPUT_METRICS, "output_length")
"""Of which a change in either direction may be what must not be."""
LEAST_CHANGE_METRICS = (*LATENCY_METRICS, *THROUGHPUT_METRICS)
"""Whose margin is relative, and of which a change may be too small to matter whatever its ratio."""
STATISTICS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""The quantiles by name."""
MEAN = "mean"
"""The geometric mean, judged request by request against the baseline's."""
Statistic = Literal["p50", "p90", "p95", "p99", "mean"]


def spread_of(metric: str) -> str:
    """The metric whose noise from block to block is this one's: a cost varies as the pace that it is divided by."""
    return "output_throughput" if metric == "usd_per_million_output_tokens" else metric
