"""What each engine calls things on its page of metrics. A wrong or a new name is one line here, and nowhere else.

Alternatives stand in order of preference: names changed between versions, and an older server is read by its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric


@dataclass(frozen=True, slots=True)
class Told:
    """The samples that make one word: all `names` added up, of the series whose labels say `where`, times `scale`.

    `over` divides. Where several engines of one server tell it apart, `across` puts them together.
    """

    names: tuple[str, ...]
    where: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    over: Told | None = None
    across: Literal["sum", "max", "mean"] = "sum"


Words = Mapping[TelemetryMetric, tuple[Told, ...]]


def _told(*names: str) -> tuple[Told, ...]:
    """Each of these names alone is the word."""
    return tuple(Told((name,)) for name in names)


def _highest(*names: str) -> tuple[Told, ...]:
    """The same of a ratio: of several engines the fullest counts."""
    return tuple(Told((name,), across="max") for name in names)


_VLLM: Words = {
    Gauge.RUNNING: _told("vllm:num_requests_running"),
    Gauge.WAITING: _told("vllm:num_requests_waiting"),
    Gauge.KV_USAGE: _highest("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # 0 to 1, whatever the name says
    Counter.PROMPT_TOKENS: _told("vllm:prompt_tokens_total"),
    Counter.GENERATION_TOKENS: _told("vllm:generation_tokens_total"),
    Counter.REQUESTS: _told("vllm:request_success_total"),
    Counter.PREFIX_QUERIES: _told("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    Counter.PREFIX_HITS: _told("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    Counter.DRAFTED: _told("vllm:spec_decode_num_draft_tokens_total"),
    Counter.ACCEPTED: _told("vllm:spec_decode_num_accepted_tokens_total"),
    Counter.PREEMPTIONS: _told("vllm:num_preemptions_total"),
    Counter.QUEUE_S: _told("vllm:request_queue_time_seconds_sum"),
    Counter.QUEUED: _told("vllm:request_queue_time_seconds_count"),
    Counter.PREFILL_S: _told("vllm:request_prefill_time_seconds_sum"),
    Counter.PREFILLED: _told("vllm:request_prefill_time_seconds_count"),
    Counter.DECODE_S: _told("vllm:request_decode_time_seconds_sum"),
    Counter.DECODED: _told("vllm:request_decode_time_seconds_count"),
}

_SGLANG: Words = {
    Gauge.RUNNING: _told("sglang:num_running_reqs"),
    Gauge.WAITING: _told("sglang:num_queue_reqs"),
    Gauge.KV_USAGE: _highest("sglang:token_usage"),
    Gauge.ACCEPTANCE: (Told(("sglang:spec_accept_rate",), across="mean"),),
    Counter.PROMPT_TOKENS: _told("sglang:prompt_tokens_total"),
    Counter.GENERATION_TOKENS: _told("sglang:generation_tokens_total"),
    Counter.REQUESTS: _told("sglang:num_requests_total"),
    Counter.PREFIX_QUERIES: _told("sglang:prompt_tokens_total"),
    Counter.PREFIX_HITS: _told("sglang:cached_tokens_total"),
    Counter.PREEMPTIONS: _told("sglang:num_retracted_requests_total"),
    Counter.QUEUE_S: _told("sglang:queue_time_seconds_sum"),
    Counter.QUEUED: _told("sglang:queue_time_seconds_count"),
}

_TGI: Words = {
    Gauge.RUNNING: _told("tgi_batch_current_size"),
    Gauge.WAITING: _told("tgi_queue_size"),
    Counter.PROMPT_TOKENS: _told("tgi_request_input_length_sum"),
    Counter.GENERATION_TOKENS: _told("tgi_request_generated_tokens_sum"),
    Counter.REQUESTS: _told("tgi_request_success", "tgi_request_success_total"),
    Counter.QUEUE_S: _told("tgi_request_queue_duration_sum"),
    Counter.QUEUED: _told("tgi_request_queue_duration_count"),
}

_TRTLLM: Words = {
    Gauge.KV_USAGE: _highest("trtllm_kv_cache_utilization"),
    Counter.REQUESTS: _told("trtllm_request_success_total"),
    Counter.QUEUE_S: _told("trtllm_request_queue_time_seconds_sum"),
    Counter.QUEUED: _told("trtllm_request_queue_time_seconds_count"),
}

_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_OF_TRITON: Words = {
    Gauge.RUNNING: (Told(("nv_trt_llm_request_metrics",), {"request_type": "active"}),),
    Gauge.WAITING: (
        Told(("nv_trt_llm_request_metrics",), {"request_type": "waiting"}),
        Told(("nv_inference_pending_request_count",)),
    ),
    Gauge.KV_USAGE: (
        Told((_BLOCKS,), {"kv_cache_block_type": "used"}, over=Told((_BLOCKS,), {"kv_cache_block_type": "max"})),
    ),
    Counter.REQUESTS: _told("nv_inference_request_success"),
    Counter.QUEUE_S: (Told(("nv_inference_queue_duration_us",), scale=1e-6),),
    Counter.QUEUED: _told("nv_inference_request_success"),
    Gauge.GPU_BUSY: (Told(("nv_gpu_utilization",), across="mean"),),
    Gauge.GPU_POWER: _told("nv_gpu_power_usage"),
    Gauge.GPU_MEMORY_USED: (Told(("nv_gpu_memory_used_bytes",), over=Told(("nv_gpu_memory_total_bytes",))),),
    Counter.GPU_ENERGY_J: _told("nv_energy_consumption"),
}
# Triton's vLLM backend shows vLLM's names on Triton's page.
_TRITON: Words = {word: (*_VLLM.get(word, ()), *_OF_TRITON.get(word, ())) for word in {**_VLLM, **_OF_TRITON}}

_LLAMACPP: Words = {
    Gauge.RUNNING: _told("llamacpp:requests_processing"),
    Gauge.WAITING: _told("llamacpp:requests_deferred"),
    Gauge.KV_USAGE: _highest("llamacpp:kv_cache_usage_ratio"),  # older versions only
    Counter.PROMPT_TOKENS: (
        Told(("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")),
        Told(("llamacpp:prompt_tokens_total",)),  # older versions: without the cached ones
    ),
    Counter.GENERATION_TOKENS: _told("llamacpp:tokens_predicted_total"),
    Counter.PREFIX_QUERIES: (Told(("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")),),
    Counter.PREFIX_HITS: _told("llamacpp:prompt_tokens_cached_total"),
    Counter.DRAFTED: _told("llamacpp:spec_decode_num_draft_tokens_total"),
    Counter.ACCEPTED: _told("llamacpp:spec_decode_num_accepted_tokens_total"),
    Counter.PREFILL_S: _told("llamacpp:prompt_seconds_total"),
    Counter.DECODE_S: _told("llamacpp:tokens_predicted_seconds_total"),
}


@dataclass(frozen=True, slots=True)
class EnginePage:
    """One engine's page: how its names begin, where it is served, its words.

    `port` is one of its own, None for that of the server; without a `path` the engine has no page. `born` are the
    samples that tell one process from another.
    """

    prefix: str
    path: str | None
    words: Words = field(default_factory=dict)
    port: int | None = None
    born: tuple[str, ...] = ("process_start_time_seconds",)


PAGES: Mapping[str, EnginePage] = MappingProxyType(
    {
        "triton": EnginePage("nv_inference_", "/metrics", _TRITON, port=8002),
        "vllm": EnginePage(
            "vllm:",
            "/metrics",
            _VLLM,
            born=("process_start_time_seconds", "vllm:generation_tokens_created"),
        ),
        "sglang": EnginePage("sglang:", "/metrics", _SGLANG),
        "tgi": EnginePage("tgi_", "/metrics", _TGI),
        "trtllm": EnginePage("trtllm_", "/prometheus/metrics", _TRTLLM),
        "llamacpp": EnginePage("llamacpp:", "/metrics", _LLAMACPP),
    }
)
"""In the order in which a page is tried: Triton's may hold vLLM's names too."""

BORN_HEADER = "process-start-time-unix"
"""llama.cpp says in a header of the page when it was started."""

MODEL_LABELS = ("model_name", "model")

_PERCENT = 0.01
_MILLI = 1e-3
_MEGA = 1e6
DCGM: Words = {
    Gauge.GPU_BUSY: (
        Told(("DCGM_FI_PROF_GR_ENGINE_ACTIVE",), across="mean"),
        Told(("DCGM_FI_DEV_GPU_UTIL",), scale=_PERCENT, across="mean"),
    ),
    Gauge.GPU_BANDWIDTH: (Told(("DCGM_FI_PROF_DRAM_ACTIVE",), across="mean"),),
    Gauge.GPU_MEMORY_BUSY: (Told(("DCGM_FI_DEV_MEM_COPY_UTIL",), scale=_PERCENT, across="mean"),),
    Gauge.GPU_POWER: _told("DCGM_FI_DEV_POWER_USAGE"),
    Gauge.GPU_CLOCK: (Told(("DCGM_FI_DEV_SM_CLOCK",), scale=_MEGA, across="mean"),),
    Counter.GPU_ENERGY_J: (Told(("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",), scale=_MILLI),),
}
"""What the exporter of NVIDIA's DCGM shows by default or, of the PROF ones, where profiling is allowed."""

GPU_LABEL = "gpu"
"""Which accelerator a series of the exporter is of."""
