"""Metric names of each engine, and the values on Prometheus pages by these names. Pure.

A wrong or a new name is one line here, and nowhere else. Alternatives stand in order of preference: names changed
between versions, and an older server still has the old ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from benchgate.model.telemetry import Counter, Gauge, Role, TelemetryMetric, combine_replicas


@dataclass(frozen=True, slots=True)
class MetricSource:
    """The samples of a metric: all `names` with `labels`, times `scale`; `combine` joins those of several engines.

    `ranks` are labels of processes that serve the same requests together: the largest of their values counts. If the
    metric is absent but `zero_beside` is on the page, it is 0: the server exports it from its first increment on. While
    `observations` is 0, the metric is unknown: nothing was reported to the server.
    """

    names: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    divisor: MetricSource | None = None
    combine: Literal["sum", "max", "mean"] = "sum"
    ranks: tuple[str, ...] = ()
    zero_beside: str | None = None
    observations: str | None = None

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names of everything that is read for it."""
        beside = (name for name in (self.zero_beside, self.observations) if name is not None)
        return (*self.names, *beside, *(self.divisor.series if self.divisor is not None else ()))


MetricNames = Mapping[TelemetryMetric, tuple[MetricSource, ...]]


def _any_of(*names: str) -> tuple[MetricSource, ...]:
    return tuple(MetricSource((name,)) for name in names)


def _highest(*names: str) -> tuple[MetricSource, ...]:
    """Take the first name that is there, of several engines the highest value."""
    return tuple(MetricSource((name,), combine="max") for name in names)


_VLLM: MetricNames = {
    Gauge.RUNNING: _any_of("vllm:num_requests_running"),
    Gauge.WAITING: _any_of("vllm:num_requests_waiting"),
    Gauge.KV_USAGE: _highest("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # 0 to 1, whatever the name says
    Counter.PROMPT_TOKENS: _any_of("vllm:prompt_tokens_total"),
    Counter.GENERATION_TOKENS: _any_of("vllm:generation_tokens_total"),
    Counter.REQUESTS: _any_of("vllm:request_success_total"),
    Counter.PREFIX_QUERIES: _any_of("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    Counter.PREFIX_HITS: _any_of("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    Counter.DRAFTED: _any_of("vllm:spec_decode_num_draft_tokens_total"),
    Counter.ACCEPTED: _any_of("vllm:spec_decode_num_accepted_tokens_total"),
    Counter.PREEMPTIONS: _any_of("vllm:num_preemptions_total"),
    Counter.QUEUE_S: _any_of("vllm:request_queue_time_seconds_sum"),
    Counter.QUEUED: _any_of("vllm:request_queue_time_seconds_count"),
    Counter.PREFILL_S: _any_of("vllm:request_prefill_time_seconds_sum"),
    Counter.PREFILLED: _any_of("vllm:request_prefill_time_seconds_count"),
    Counter.DECODE_S: _any_of("vllm:request_decode_time_seconds_sum"),
    Counter.DECODED: _any_of("vllm:request_decode_time_seconds_count"),
}

_OF_SGLANG: MetricNames = {
    # With priorities, the total is the series of an empty one.
    Gauge.RUNNING: (
        MetricSource(("sglang:num_running_reqs",), {"priority": ""}),
        MetricSource(("sglang:num_running_reqs",)),
    ),
    Gauge.WAITING: (
        MetricSource(("sglang:num_queue_reqs",), {"priority": ""}),
        MetricSource(("sglang:num_queue_reqs",)),
    ),
    Gauge.KV_USAGE: _highest("sglang:token_usage"),
    Gauge.ACCEPTANCE: (MetricSource(("sglang:spec_accept_rate",), combine="mean"),),
    Counter.PROMPT_TOKENS: _any_of("sglang:prompt_tokens_total"),
    Counter.GENERATION_TOKENS: _any_of("sglang:generation_tokens_total"),
    Counter.REQUESTS: _any_of("sglang:num_requests_total"),
    Counter.PREFIX_QUERIES: _any_of("sglang:prompt_tokens_total"),
    # Shown from the first hit or retraction on, as prometheus_client does with labels; the other counter is newer.
    Counter.PREFIX_HITS: (MetricSource(("sglang:cached_tokens_total",), zero_beside="sglang:realtime_tokens_total"),),
    Counter.PREEMPTIONS: (
        MetricSource(("sglang:num_retracted_requests_total",), zero_beside="sglang:realtime_tokens_total"),
    ),
    Counter.QUEUE_S: _any_of("sglang:queue_time_seconds_sum"),
    Counter.QUEUED: _any_of("sglang:queue_time_seconds_count"),
}
# With pipeline parallelism or `--enable-metrics-for-all-schedulers`, every rank reports the requests it shares with the
# others. Those of `dp_rank` have requests of their own.
_SGLANG: MetricNames = {
    metric: tuple(replace(source, ranks=("tp_rank", "pp_rank", "moe_ep_rank")) for source in alternatives)
    for metric, alternatives in _OF_SGLANG.items()
}

_TGI: MetricNames = {
    Gauge.RUNNING: _any_of("tgi_batch_current_size"),
    Gauge.WAITING: _any_of("tgi_queue_size"),
    Counter.PROMPT_TOKENS: _any_of("tgi_request_input_length_sum"),
    Counter.GENERATION_TOKENS: _any_of("tgi_request_generated_tokens_sum"),
    Counter.REQUESTS: _any_of("tgi_request_success", "tgi_request_success_total"),
    Counter.QUEUE_S: _any_of("tgi_request_queue_duration_sum"),
    Counter.QUEUED: _any_of("tgi_request_queue_duration_count"),
}

_TRTLLM: MetricNames = {
    # No gauge has requests that wait for room: `trtllm_num_requests_waiting` has those that its loop has not fetched.
    Gauge.RUNNING: _any_of("trtllm_num_requests_running"),
    Gauge.KV_USAGE: _highest("trtllm_kv_cache_utilization"),
    Counter.REQUESTS: _any_of("trtllm_request_success_total"),
    Counter.QUEUE_S: _any_of("trtllm_request_queue_time_seconds_sum"),
    Counter.QUEUED: _any_of("trtllm_request_queue_time_seconds_count"),
    Counter.PROMPT_TOKENS: _any_of("trtllm_prompt_tokens_total"),
    Counter.GENERATION_TOKENS: _any_of("trtllm_generation_tokens_total"),
    Counter.PREFIX_QUERIES: _any_of("trtllm_prompt_tokens_total"),
    Counter.PREFIX_HITS: _any_of("trtllm_prompt_cached_tokens_total"),
    Counter.DRAFTED: _any_of("trtllm_spec_decode_num_draft_tokens_total"),
    Counter.ACCEPTED: _any_of("trtllm_spec_decode_num_accepted_tokens_total"),
    Counter.PREFILL_S: _any_of("trtllm_request_prefill_time_seconds_sum"),
    Counter.PREFILLED: _any_of("trtllm_request_prefill_time_seconds_count"),
    Counter.DECODE_S: _any_of("trtllm_request_decode_time_seconds_sum"),
    Counter.DECODED: _any_of("trtllm_request_decode_time_seconds_count"),
}

_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_OF_TRITON: MetricNames = {
    Gauge.RUNNING: (MetricSource(("nv_trt_llm_request_metrics",), {"request_type": "active"}),),
    Gauge.WAITING: (
        MetricSource(("nv_trt_llm_request_metrics",), {"request_type": "waiting"}),
        MetricSource(("nv_inference_pending_request_count",)),
    ),
    Gauge.KV_USAGE: (
        MetricSource(
            (_BLOCKS,),
            {"kv_cache_block_type": "used"},
            divisor=MetricSource((_BLOCKS,), {"kv_cache_block_type": "max"}),
        ),
    ),
    Counter.REQUESTS: _any_of("nv_inference_request_success"),
    Counter.QUEUE_S: (MetricSource(("nv_inference_queue_duration_us",), scale=1e-6),),
    Counter.QUEUED: _any_of("nv_inference_request_success"),
    Gauge.GPU_BUSY: (MetricSource(("nv_gpu_utilization",), combine="mean"),),
    Gauge.GPU_POWER: _any_of("nv_gpu_power_usage"),
    Gauge.GPU_MEMORY_USED: (
        MetricSource(("nv_gpu_memory_used_bytes",), divisor=MetricSource(("nv_gpu_memory_total_bytes",))),
    ),
    Counter.GPU_ENERGY_J: _any_of("nv_energy_consumption"),
}
# Triton's vLLM backend shows vLLM's names on Triton's page.
_TRITON: MetricNames = {
    metric: (*_VLLM.get(metric, ()), *_OF_TRITON.get(metric, ())) for metric in {**_VLLM, **_OF_TRITON}
}

_LLAMACPP: MetricNames = {
    Gauge.RUNNING: _any_of("llamacpp:requests_processing"),
    Gauge.WAITING: _any_of("llamacpp:requests_deferred"),
    Gauge.KV_USAGE: _highest("llamacpp:kv_cache_usage_ratio"),  # older versions only
    Counter.PROMPT_TOKENS: (
        MetricSource(("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")),
        MetricSource(("llamacpp:prompt_tokens_total",)),  # older versions: without the cached ones
    ),
    Counter.GENERATION_TOKENS: _any_of("llamacpp:tokens_predicted_total"),
    Counter.PREFIX_QUERIES: (MetricSource(("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")),),
    Counter.PREFIX_HITS: _any_of("llamacpp:prompt_tokens_cached_total"),
    Counter.DRAFTED: _any_of("llamacpp:spec_decode_num_draft_tokens_total"),
    Counter.ACCEPTED: _any_of("llamacpp:spec_decode_num_accepted_tokens_total"),
    Counter.PREFILL_S: _any_of("llamacpp:prompt_seconds_total"),
    Counter.DECODE_S: _any_of("llamacpp:tokens_predicted_seconds_total"),
}

_LORAX: MetricNames = {
    Gauge.RUNNING: _any_of("lorax_batch_current_size"),
    Gauge.WAITING: _any_of("lorax_queue_length"),
    Counter.PROMPT_TOKENS: _any_of("lorax_request_input_length_sum"),
    Counter.GENERATION_TOKENS: _any_of("lorax_request_generated_tokens_sum"),
    Counter.REQUESTS: _any_of("lorax_request_success", "lorax_request_success_total"),
    Counter.QUEUE_S: _any_of("lorax_request_queue_duration_sum"),
    Counter.QUEUED: _any_of("lorax_request_queue_duration_count"),
}

# `dynamo_frontend_queued_requests` counts until the first token, so prefill as well; the router's queue is the waiting.
_DYNAMO: MetricNames = {
    Gauge.RUNNING: _any_of("dynamo_frontend_inflight_requests"),
    Gauge.WAITING: _any_of("dynamo_frontend_router_queue_pending_requests"),
    Counter.PROMPT_TOKENS: _any_of("dynamo_frontend_input_sequence_tokens_sum"),
    Counter.GENERATION_TOKENS: _any_of(
        "dynamo_frontend_output_tokens_total", "dynamo_frontend_output_sequence_tokens_sum"
    ),
    Counter.REQUESTS: (MetricSource(("dynamo_frontend_requests_total",), {"status": "success"}),),
    Counter.PREFIX_QUERIES: _any_of("dynamo_frontend_input_sequence_tokens_sum"),
    Counter.PREFIX_HITS: (
        MetricSource(("dynamo_frontend_cached_tokens_sum",), observations="dynamo_frontend_cached_tokens_count"),
    ),
}

_MLC: MetricNames = {
    Counter.PROMPT_TOKENS: _any_of("prompt_tokens_sum"),
    Counter.GENERATION_TOKENS: _any_of("completion_tokens_sum"),
    Counter.PREFILL_S: _any_of("engine_prefill_time_sum"),
    Counter.DECODE_S: _any_of("engine_decode_time_sum"),
}

_LITELLM: MetricNames = {
    Counter.PROMPT_TOKENS: _any_of("litellm_input_tokens_metric_total"),
    Counter.GENERATION_TOKENS: _any_of("litellm_output_tokens_metric_total"),
    Counter.REQUESTS: _any_of("litellm_deployment_success_responses_total"),
}

_TORCHSERVE: MetricNames = {
    Counter.REQUESTS: _any_of("ts_inference_requests_total"),
    Counter.QUEUE_S: (MetricSource(("ts_queue_latency_microseconds",), scale=1e-6),),
    Counter.QUEUED: _any_of("ts_inference_requests_total"),
}


# Ray's metrics agent exports vLLM's names with a prefix; older versions kept the colon.
_RAYSERVE: MetricNames = {
    metric: tuple(
        replace(source, names=tuple(name.replace("vllm:", prefix) for name in source.names))
        for prefix in ("ray_vllm_", "ray_vllm:")
        for source in alternatives
    )
    for metric, alternatives in _VLLM.items()
}


@dataclass(frozen=True, slots=True)
class EnginePage:
    """An engine's metrics page. A name of it begins with `prefix`.

    `ports` are a port of the API and that of the page beside it; with the API elsewhere, the page is there too.
    `start_times` are samples that differ from process to process. `idle_delay_s` is how long its gauges may show work
    that has ended: the engine writes them while it works, and seldom when it is idle. Without `shows_idle` it never
    writes them then.
    """

    prefix: str
    path: str
    names: MetricNames = field(default_factory=dict)
    ports: tuple[int, int] | None = None
    start_times: tuple[str, ...] = ("process_start_time_seconds",)
    idle_delay_s: float = 0.0
    shows_idle: bool = True


# In the order in which a page is tried: Triton's may hold vLLM's names too.
PAGES: Mapping[str, EnginePage] = MappingProxyType(
    {
        "triton": EnginePage("nv_inference_", "/metrics", _TRITON, ports=(8000, 8002)),
        "vllm": EnginePage(
            "vllm:",
            "/metrics",
            _VLLM,
            start_times=("process_start_time_seconds", "vllm:generation_tokens_created"),
        ),
        "sglang": EnginePage("sglang:", "/metrics", _SGLANG, idle_delay_s=30.0),
        "tgi": EnginePage("tgi_", "/metrics", _TGI),
        "trtllm": EnginePage("trtllm_", "/prometheus/metrics", _TRTLLM, shows_idle=False),
        "llamacpp": EnginePage("llamacpp:", "/metrics", _LLAMACPP),
        "lorax": EnginePage("lorax_", "/metrics", _LORAX),
        "dynamo": EnginePage("dynamo_frontend_", "/metrics", _DYNAMO),
        "rayserve": EnginePage("ray_vllm", "/metrics", _RAYSERVE),
        "litellm": EnginePage("litellm_", "/metrics/", _LITELLM),  # it redirects what comes without the last slash
        "torchserve": EnginePage("ts_inference_", "/metrics", _TORCHSERVE, ports=(8080, 8082)),
        "mlc": EnginePage("engine_prefill_time_sum", "/metrics", _MLC),
        "kserve": EnginePage(
            "request_predict_seconds", "/metrics", {Counter.REQUESTS: _any_of("request_predict_seconds_count")}
        ),
    }
)
# Servers without a page. Ray's metrics agent has one on a port of its own, which `metrics` names.
NO_PAGE = ("ollama", "mlx", "rayserve")

SERIES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        engine: frozenset(page.start_times).union(*(s.series for sources in page.names.values() for s in sources))
        for engine, page in PAGES.items()
    }
)
"""The names that are read of each engine: a page has many more, and histograms most of all."""

START_TIME_HEADER = "process-start-time-unix"  # a header of llama.cpp's page with its start time
MODEL_LABELS = ("model_name", "model", "requested_model")  # the last is LiteLLM's, beside the model behind it


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


class BadPageError(ValueError):
    """A response that is no metrics page."""


class UnreadError(Exception):
    """A source could not be read. `hopeless`: it does not exist, and another attempt will not change that."""

    def __init__(self, reason: str, *, hopeless: bool = False) -> None:
        super().__init__(reason)
        self.hopeless = hopeless


@dataclass(frozen=True, slots=True)
class ReplicaPage:
    """The values of one replica. `marker` changes when its server restarts; None where nothing reports that."""

    values: Mapping[TelemetryMetric, float]
    marker: str | None = None
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """The values on one metrics page, and those of each replica whose label is on it."""

    engine: str
    values: Mapping[TelemetryMetric, float]
    marker: str | None
    replicas: Mapping[str, ReplicaPage] = field(default_factory=dict)


_COUNTER_TYPE = re.compile(r"^[ \t]*#[ \t]+TYPE[ \t].*[ \t]counter[ \t\r]*$", re.MULTILINE)


def parse_samples(page: str, *, finite: bool = True) -> list[Sample]:
    """Parse the Prometheus text format, with `finite` finite values alone. Raises BadPageError, without the text."""
    from prometheus_client.parser import text_string_to_metric_families  # takes its time to load

    try:
        # Of what it knows as a counter, the parser appends `_total` to names without it. They stay as on the page.
        families = text_string_to_metric_families(_COUNTER_TYPE.sub("", page))
        found = [
            Sample(name, labels, float(value)) for family in families for name, labels, value, *_ in family.samples
        ]
    except (ValueError, IndexError, KeyError, OverflowError) as exc:  # as its parser meets what it did not expect
        raise BadPageError("it is no page of metrics in the text format of Prometheus") from exc
    return [sample for sample in found if math.isfinite(sample.value)] if finite else found


def read_page(text: str, model: str, start_time: str | None = None) -> Page:
    """Read the values for a model; `start_time` is from a header. Raises BadPageError for an unknown engine."""
    return read_samples(parse_samples(text), model, start_time)


REPLICA_LABELS = ("replica", "pod", "instance")  # of a page that a router or a federation writes
ROLE_LABEL = "role"
_MOST_REPLICAS = 1000


def read_samples(samples: Sequence[Sample], model: str, start_time: str | None = None) -> Page:
    """Read the values for a model. Raises BadPageError for an unknown engine."""
    engine = engine_of(samples)
    if engine is None:
        raise BadPageError("it has no name that a known engine uses")
    known = PAGES[engine].names
    samples = [sample for sample in samples if sample.name in SERIES[engine]]  # others have labels of their own
    label = next((one for one in REPLICA_LABELS if any(one in sample.labels for sample in samples)), None)
    replicas = {
        name: ReplicaPage(read_values(own, known, model), marker_of(own, engine), role)
        for name, role, own in (split_replicas(samples, label, ROLE_LABEL) if label is not None else ())
    }
    marker = [part for part in (marker_of(samples, engine), start_time) if part is not None]
    values = read_values(samples, known, model)
    if any(replica.role is not None for replica in replicas.values()):
        values = combine_replicas([(replica.role, replica.values) for replica in replicas.values()])
    return Page(engine, values, ",".join(marker) or None, replicas)


def engine_of(samples: Sequence[Sample]) -> str | None:
    """Return the engine by the names of the samples; None for none that is known."""
    names = {sample.name for sample in samples}
    return next((e for e, page in PAGES.items() if any(name.startswith(page.prefix) for name in names)), None)


def marker_of(samples: Sequence[Sample], engine: str) -> str | None:
    """Return the start times among the samples, which change when the server restarts."""
    own = [str(sample.value) for sample in samples if sample.name in PAGES[engine].start_times]
    return ",".join(sorted(own)) or None


def split_replicas(
    samples: Sequence[Sample], label: str, role_label: str | None
) -> list[tuple[str, Role | None, list[Sample]]]:
    """Return each replica's name, role and samples by their labels; samples without the label belong to none.

    Raises BadPageError for so many that the label must be of something else.
    """
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.labels.get(label):
            found.setdefault(sample.labels[label], []).append(sample)
    if len(found) > _MOST_REPLICAS:
        raise BadPageError(
            f"its label `{label}` has {len(found):,} values, and {_MOST_REPLICAS:,} replicas are the most"
        )
    roles = {
        name: next((s.labels[role_label] for s in own if role_label is not None and role_label in s.labels), None)
        for name, own in found.items()
    }
    return [(name, Role(r) if (r := roles[name]) in tuple(Role) else None, own) for name, own in sorted(found.items())]


def read_values(samples: Sequence[Sample], names: MetricNames, model: str | None) -> dict[TelemetryMetric, float]:
    """Return the value of each metric whose names are among the samples; with a model, of its samples alone."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    values = {}
    for metric, alternatives in names.items():
        found = (_value(by_name, source, model) for source in alternatives)
        value = next((value for value in found if value is not None), None)
        if value is not None:
            values[metric] = value
    return values


def _value(by_name: Mapping[str, list[Sample]], source: MetricSource, model: str | None) -> float | None:
    """Return None if a name is missing, nothing was observed, or the divisor is 0."""
    observations = source.observations
    if observations is not None and not any(one.value for one in _series(by_name, observations, source.labels, model)):
        return None
    parts = []
    for name in source.names:
        series = _series(by_name, name, source.labels, model)
        if not series:
            beside = source.zero_beside
            is_zero = beside is not None and name not in by_name and _series(by_name, beside, source.labels, model)
            return 0.0 if is_zero else None
        of_engines: dict[tuple[tuple[str, str], ...], float] = {}
        for sample in series:
            engine = tuple(sorted((key, text) for key, text in sample.labels.items() if key not in source.ranks))
            of_engines[engine] = max(sample.value, of_engines.get(engine, sample.value))
        values = sorted(of_engines.values())  # they come in any order, and a sum that falls looks like a restart
        parts.append({"sum": sum(values), "max": max(values), "mean": sum(values) / len(values)}[source.combine])
    value = sum(parts) * source.scale
    if source.divisor is None:
        return value
    divisor = _value(by_name, source.divisor, model)
    return value / divisor if divisor else None


def _series(
    by_name: Mapping[str, list[Sample]], name: str, labels: Mapping[str, str], model: str | None
) -> list[Sample]:
    """Return the samples of a model. If none has its name, those of the only model there is; of several, none.

    Dynamo wrote names of models in lower case. Prometheus drops labels that are empty.
    """
    asked = labels.items()
    series = [one for one in by_name.get(name, ()) if all(one.labels.get(key, "") == text for key, text in asked)]
    if model is None:
        return series
    models = [frozenset(s.labels[key].lower() for key in MODEL_LABELS if key in s.labels) for s in series]
    own = [sample for sample, names in zip(series, models, strict=True) if model.lower() in names]
    return own or (series if len(set(models)) <= 1 else [])
