"""The metrics that a check can judge: one row each, with all that suite, gate, plan and report need to know of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from benchgate.model.verdict import Unit

Bound = Literal["max", "min"]
Family = Literal["start", "load", "quality", "divergence", "shadow"]
Kind = Literal["latency", "throughput", "cost", "share", "telemetry", "other"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name, unit, direction, and how it is checked."""

    name: str
    title: str
    family: Family  # measurement it rests on, and section of the suite that declares it
    scope: Literal["stage", "sweep", "task", "run"]  # where it is judged; a stage may be a class of traffic
    kind: Kind = "other"
    unit: Unit = Unit.RATIO
    bound_type: Literal["duration", "rate", "percentage", "whole number", "level", "nats", "money", "energy"] | None = (
        None
    )
    bounds: tuple[Bound, ...] = ()  # which of `max` and `min` there are; `bound_type` is how they are written
    margin: Literal["percent", "points"] | None = None  # how an allowed regression is written
    higher_is_better: bool = False
    streamed: bool = False  # it is of the chunks of a stream: an answer that comes whole has none
    paced: bool = False  # it is of the pace between tokens: an answer in one or two pieces has none
    over_stage: bool = False  # a stage may be held against another one
    advisory: bool = False  # a check of it is not required unless it says so: what it shows is no loss by itself
    timed: bool = False  # it depends on how fast the client was: a load generator that falls behind invalidates it
    from_first: bool = False  # it depends on when the first output chunk came
    counts_tokens: bool = False  # it divides by, or adds up, a server's own count of output tokens
    per_token: bool = False  # values of two deployments compare only where a token is the same unit in both
    restated: bool = False  # its token counts are taken from the text where that contradicts the server's usage
    cumulative: bool = False  # regressions, as log ratios or differences of shares, add up along promotions
    worse: str = ""  # a regression against the baseline, in words
    requires: str = ""  # sections that the suite must declare besides that of the family, in words


def _latency(
    name: str, title: str, *, streamed: bool = False, paced: bool = False, from_first: bool = False,
    counts_tokens: bool = False, requires: str = "",
) -> Metric:  # fmt: skip
    return Metric(
        name, title, "load", "stage", "latency", Unit.SECONDS, "duration", ("max",), "percent",
        streamed=streamed or paced, paced=paced, over_stage=True, timed=True, from_first=from_first,
        counts_tokens=counts_tokens, per_token=paced, restated=counts_tokens, cumulative=True, worse="slower",
        requires=requires,
    )  # fmt: skip


def _throughput(name: str, title: str, unit: Unit, *, counts_tokens: bool = False) -> Metric:
    return Metric(
        name, title, "load", "stage", "throughput", unit, "rate", ("min",), "percent",
        higher_is_better=True, over_stage=True, timed=True, counts_tokens=counts_tokens,
        per_token=unit is Unit.TOKENS_PER_S, restated=counts_tokens, cumulative=True, worse="less",
    )  # fmt: skip


def _cost(name: str, title: str, requires: str = "", *, from_first: bool = False) -> Metric:
    return Metric(
        name, title, "load", "stage", "cost", Unit.USD, "money", ("max",), "percent",
        timed=True, from_first=from_first, counts_tokens=True, per_token=True, restated=True, cumulative=True,
        worse="dearer tokens",
        requires=f"`price` or `token_prices` of both deployments{requires}; for `max` of the candidate",
    )  # fmt: skip


def _share(
    name: str, title: str, bounds: tuple[Bound, ...], worse: str, requires: str = "", *, higher_is_better: bool = False
) -> Metric:
    of_time = name == "goodput"
    return Metric(
        name, title, "load", "stage", "share", Unit.RATIO, "percentage", bounds, "points",
        higher_is_better=higher_is_better, over_stage=True, timed=of_time, from_first=of_time,
        counts_tokens=of_time, cumulative=True,
        worse=worse, requires=requires,
    )  # fmt: skip


def _telemetry(
    name: str, title: str, bound_type: Literal["percentage", "whole number", "duration"], bounds: tuple[Bound, ...],
    *, higher_is_better: bool = False, advisory: bool = False,
) -> Metric:  # fmt: skip
    unit = {"percentage": Unit.RATIO, "whole number": Unit.COUNT, "duration": Unit.SECONDS}[bound_type]
    return Metric(
        name, title, "load", "stage", "telemetry", unit, bound_type, bounds, higher_is_better=higher_is_better,
        advisory=advisory, requires="telemetry",
    )  # fmt: skip


_BOTH: tuple[Bound, ...] = ("max", "min")
_ROWS = (
    _latency("ttft", "Time to first token", from_first=True),
    _latency("ttfot", "Time to first answer token", streamed=True, from_first=True),
    _latency("tpot", "Time per output token", paced=True, from_first=True, counts_tokens=True),
    _latency("itl", "Inter-token latency", paced=True),
    _latency("e2e", "End-to-end latency"),
    _latency("session_e2e", "Duration of a session", requires="a workload with `sessions` or `session`"),
    _throughput("output_throughput", "Output tokens per second", Unit.TOKENS_PER_S, counts_tokens=True),
    _throughput("input_throughput", "Input tokens per second", Unit.TOKENS_PER_S),
    _throughput("total_throughput", "Input and output tokens per second", Unit.TOKENS_PER_S, counts_tokens=True),
    _throughput("request_throughput", "Requests per second", Unit.REQUESTS_PER_S),
    Metric(
        "output_length", "Tokens per answer", "load", "stage", unit=Unit.TOKENS, margin="percent",
        counts_tokens=True, per_token=True, worse="longer or shorter answers to the same prompts",
    ),
    _cost("usd_per_million_output_tokens", "$ per million output tokens"),
    _cost("usd_per_million_good_tokens", "$ per million good tokens", ", and `slo`", from_first=True),
    _share("goodput", "Goodput", ("min",), "fewer good requests", "`slo`", higher_is_better=True),
    _share("error_rate", "Error rate", ("max",), "more failures"),
    _share("rejected", "Requests rejected", _BOTH, "more requests turned away"),
    _share(
        "validity", "Valid answers", ("min",), "fewer valid answers", "a workload with `schema` or `tools`",
        higher_is_better=True,
    ),
    _share(
        "session_success", "Sessions without a failed request", ("min",), "fewer sessions that succeed",
        "a workload with `sessions` or `session`", higher_is_better=True,
    ),
    Metric(
        "capacity", "Capacity", "load", "run", unit=Unit.REQUESTS_PER_S, bound_type="level", bounds=("min",),
        margin="percent", higher_is_better=True, timed=True, from_first=True, counts_tokens=True,
        worse="a lower capacity",
        requires="`load.capacity` and `slo`",
    ),
    Metric(
        "knee", "Requests in flight at the knee", "load", "sweep", unit=Unit.COUNT, bound_type="whole number",
        bounds=_BOTH, timed=True, from_first=True, counts_tokens=True, requires="five closed-loop stages",
    ),
    _telemetry("kv_usage_after", "KV cache held afterwards", "percentage", ("max",)),
    _telemetry("prefix_hit_rate", "Prefix cache hit rate", "percentage", _BOTH, higher_is_better=True),
    _telemetry("preemptions", "Preemptions", "whole number", ("max",)),
    _telemetry("queue_depth", "Requests waiting at most", "whole number", ("max",)),
    _telemetry("queue_wait", "Mean time in the server's queue", "duration", ("max",), advisory=True),
    _telemetry("kv_usage", "KV cache in use at most", "percentage", ("max",), advisory=True),
    _telemetry(
        "speculation_acceptance", "Drafted tokens accepted", "percentage", ("min",), higher_is_better=True,
        advisory=True,
    ),
    Metric(
        "joules_per_token", "Energy per good output token", "load", "stage", "telemetry", Unit.JOULES, "energy",
        ("max",), advisory=True, timed=True, from_first=True, counts_tokens=True, restated=True,
        requires="telemetry of accelerators",
    ),
    Metric(
        "cold_start", "From start-up to the first good completion", "start", "run", unit=Unit.SECONDS,
        bound_type="duration", bounds=("max",),
    ),
    Metric(
        "accuracy", "Accuracy", "quality", "task", bound_type="percentage", bounds=("min",), margin="points",
        higher_is_better=True, cumulative=True, worse="fewer right answers", requires="tasks that are right or wrong",
    ),
    Metric(
        "score", "Score", "quality", "task", margin="points", higher_is_better=True, worse="a lower score",
        requires="tasks that are scored by degrees",
    ),
    Metric(
        "flips", "Answers flipped beyond the baseline's own", "quality", "task", margin="points", advisory=True,
        worse="more answers that turn right or wrong than when the baseline answers twice",
        requires="`repeat_baseline`",
    ),
    Metric(
        "kld", "Divergence from the baseline (mean KLD)", "divergence", "run", unit=Unit.NATS, bound_type="nats",
        bounds=("max",), advisory=True,
    ),
    Metric(
        "same_top1", "Same most probable token", "divergence", "run", bound_type="percentage", bounds=("min",),
        higher_is_better=True, advisory=True,
    ),
    Metric(
        "perplexity", "Perplexity", "divergence", "run", unit=Unit.PERPLEXITY, margin="percent", cumulative=True,
        worse="a higher perplexity",
    ),
    Metric(
        "shadow_excess", "Shadow disagreement beyond the baseline's own", "shadow", "run", margin="points",
        worse="more answers that differ than when the baseline answers twice",
    ),
    Metric(
        "shadow_validity", "Shadow answers in the requested form", "shadow", "run", bound_type="percentage",
        bounds=("min",), margin="points", higher_is_better=True, worse="fewer answers in the requested form",
        requires="prompts with `response_format` or `tools`",
    ),
    Metric(
        "judge_loss", "Shadow answers that a judge finds worse", "shadow", "run", margin="points",
        worse="more answers that the judge finds worse than better", requires="`shadow.judge`",
    ),
)  # fmt: skip

METRICS: Mapping[str, Metric] = MappingProxyType({row.name: row for row in _ROWS})
METRIC_NAMES = tuple(METRICS)

if TYPE_CHECKING:
    MetricName = str
else:
    MetricName = Literal[METRIC_NAMES]  # what a suite may write as a check's `metric`


def names_of(condition: Callable[[Metric], object]) -> tuple[str, ...]:
    """Return the names of the metrics that meet a condition, in the table's order."""
    return tuple(name for name, metric in METRICS.items() if condition(metric))


LATENCY_METRICS = names_of(lambda metric: metric.kind == "latency")
THROUGHPUT_METRICS = names_of(lambda metric: metric.kind == "throughput")
COST_METRICS = names_of(lambda metric: metric.kind == "cost")
TELEMETRY_METRICS = names_of(lambda metric: metric.kind == "telemetry")
STAGE_METRICS = names_of(lambda metric: metric.scope == "stage")
TASK_METRICS = names_of(lambda metric: metric.scope == "task")
PERCENT_METRICS = names_of(lambda metric: metric.margin == "percent")
POINTS_METRICS = names_of(lambda metric: metric.margin == "points")
ADVISORY_METRICS = names_of(lambda metric: metric.advisory)
OVER_STAGE_METRICS = names_of(lambda metric: metric.over_stage)
FAILURE_METRICS = ("goodput", "error_rate")  # metrics that bound how many requests fail
REGIONAL_METRICS = (*LATENCY_METRICS, *FAILURE_METRICS)  # metrics that each region of a load has of its own
PER_ACCELERATOR_METRICS = (*THROUGHPUT_METRICS, "capacity")  # metrics that add up over the accelerators of a deployment
MIN_ABS_METRICS = (*LATENCY_METRICS, *THROUGHPUT_METRICS)
"""Metrics of which a change may be too small to matter, whatever its ratio."""
EITHER_DIRECTION_METRICS = (*MIN_ABS_METRICS, "output_length")
"""Metrics of which a fall may be a regression as much as a rise."""

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
MEAN = "mean"  # the geometric mean, judged request by request against the baseline's
Statistic = Literal["p50", "p90", "p95", "p99", "mean"]

PER_ACCELERATOR_UNITS: Mapping[Unit, Unit] = MappingProxyType(
    {
        Unit.TOKENS_PER_S: Unit.TOKENS_PER_S_EACH,
        Unit.REQUESTS_PER_S: Unit.REQUESTS_PER_S_EACH,
        Unit.COUNT: Unit.COUNT_EACH,
    }
)
"""Units of values that are divided by a deployment's accelerators."""
PER_ACCELERATOR = "_per_accelerator"  # suffix of a metric's name where its values are divided by the accelerators
IN_USE = "_in_use"  # suffix of costs in actual use, with overhead and idle time


def _trend_units() -> Iterator[tuple[str, Unit | None]]:
    """Yield the metrics of which the store keeps rows, by the names of the table above, with their units."""
    of_checks = (*THROUGHPUT_METRICS, "goodput", "error_rate", *LATENCY_METRICS)
    yield from ((name, METRICS[name].unit) for name in of_checks)
    costs = (*COST_METRICS, *(f"{name}{IN_USE}" for name in COST_METRICS))
    yield from ((name, Unit.USD) for name in (*costs, "usd_per_million_input_tokens", "usd_per_million_total_tokens"))
    yield from (("accuracy", Unit.RATIO), ("score", None), ("recovery", Unit.RATIO), ("flips", Unit.RATIO))
    yield from ((name, METRICS[name].unit) for name in ("kld", "same_top1", "perplexity"))
    yield from ((f"shadow_{name}", Unit.RATIO) for name in ("disagreement", "validity", "excess"))
    capacity = (("capacity", Unit.REQUESTS_PER_S), ("capacity_in_flight", Unit.COUNT))
    yield from capacity
    divided = (*((name, METRICS[name].unit) for name in THROUGHPUT_METRICS), *capacity)
    yield from ((f"{name}{PER_ACCELERATOR}", PER_ACCELERATOR_UNITS[unit]) for name, unit in divided)


IMPORTED_METRICS = ("ttft_sent",)  # latencies that other tools and `load` measure from the actual send
TREND_UNITS: Mapping[str, Unit | None] = MappingProxyType(
    dict(_trend_units()) | dict.fromkeys(IMPORTED_METRICS, Unit.SECONDS)
)
"""Units of the metrics that the store keeps; None is a number without one."""
LATENCY_TRENDS = frozenset(LATENCY_METRICS) | frozenset(IMPORTED_METRICS)
MEAN_METRICS = frozenset(LATENCY_METRICS) - {"itl", "session_e2e"}  # those with one value a request, which has a pair
SESSION_METRICS = ("session_e2e", "session_success")


def noise_metric(metric: str) -> str:
    """Return the metric whose noise from block to block is this one's: a cost varies as the pace it is divided by."""
    return "output_throughput" if metric == "usd_per_million_output_tokens" else metric


def depends_on_slo(metric: str) -> bool:
    """Return True for a metric that counts the requests that meet the SLO."""
    return metric.startswith(("goodput", "capacity", "usd_per_million_good_tokens"))


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds that one request must meet to be good; None is no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def restated(self, inflation: float) -> Slo:
        """Return the bounds for requests whose usage counts exp(`inflation`) times the tokens of their text."""
        return self if self.tpot_s is None else replace(self, tpot_s=self.tpot_s / math.exp(inflation))
