"""Facts that a server reports of itself: flags, chat template, file of weights. Documents in, facts out.

Nothing here is required of a server, and a value of an unexpected form is left out. Only the names listed here are
read: servers show their keys and paths beside their flags. A fact is the same after a restart of the same deployment,
so nothing that is counted or sized at start-up is among them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from benchgate.targets.error_messages import one_line

CACHE_INFO = "vllm:cache_config_info"
"""A sample on vLLM's metrics page whose labels are flags of its cache."""

_VLLM = (
    "block_size", "cache_dtype", "calculate_kv_scales", "cpu_offload_gb", "enable_prefix_caching",
    "gpu_memory_utilization", "num_gpu_blocks_override", "prefix_caching_hash_algo", "swap_space",
)  # fmt: skip
_SGLANG = (
    "attention_backend", "chunked_prefill_size", "context_length", "cuda_graph_max_bs", "disable_cuda_graph",
    "disable_overlap_schedule", "disable_radix_cache", "disaggregation_mode", "dp_size", "enable_dp_attention",
    "enable_torch_compile", "ep_size", "kv_cache_dtype", "max_prefill_tokens", "max_running_requests",
    "mem_fraction_static", "page_size", "pp_size", "sampling_backend", "schedule_conservativeness", "schedule_policy",
    "speculative_algorithm", "speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_num_steps",
    "stream_interval", "tp_size",
)  # fmt: skip
_TGI = (
    "max_batch_prefill_tokens", "max_batch_size", "max_batch_total_tokens", "max_client_batch_size",
    "max_concurrent_requests", "max_input_length", "max_input_tokens", "max_total_tokens", "max_waiting_tokens",
    "waiting_served_ratio",
)  # fmt: skip
FLAGS: Mapping[str, tuple[str, ...]] = MappingProxyType({"vllm": _VLLM, "sglang": _SGLANG, "tgi": _TGI})
"""The flags of each engine that change its speed or its answers, whatever weights it serves."""

OF_WEIGHTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"sglang": ("dtype", "quantization", "load_format", "weight_version"), "tgi": ("model_sha", "model_dtype")}
)
"""Names that identify a set of weights, which may differ between the arms."""

_OF_A_PROCESS = ("model_path", "model_id")
_FILES = (*_OF_A_PROCESS, "root")


def flags_of(engine: str, document: Mapping[str, object]) -> dict[str, object]:
    """Return the flags that are set in a server's document about itself."""
    return {name: _plain(value) for name in FLAGS.get(engine, ()) if (value := document.get(name)) is not None}


def facts_of(engine: str, document: Mapping[str, object]) -> dict[str, object]:
    """Return the other facts in such a document: weights, adapter, chat template, slots and their context."""
    facts = {name: _plain(value) for name in OF_WEIGHTS.get(engine, ()) if (value := document.get(name)) is not None}
    paths = (document.get(name) for name in _FILES)
    path = next((path for path in paths if isinstance(path, str) and path), None)
    if path is not None:
        facts["weights_at"] = weights_name(path)
    parent = document.get("parent")
    if isinstance(parent, str) and parent:
        facts["adapter_of"] = one_line(parent)
    template = document.get("chat_template")
    if isinstance(template, str) and template:
        facts["chat_template_sha256"] = hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()
    if engine == "llamacpp":
        slots, usual = document.get("total_slots"), document.get("default_generation_settings")
        context = usual.get("n_ctx") if isinstance(usual, dict) else None
        counts = {"total_slots": slots, "n_ctx": context}
        facts |= {name: n for name, n in counts.items() if isinstance(n, int) and not isinstance(n, bool)}
    return facts


def without_weights(document: Mapping[str, object]) -> dict[str, object]:
    """Drop the weights of one process from its document: behind a gateway others serve the other models."""
    return {name: value for name, value in document.items() if name not in _OF_A_PROCESS}


def cache_flags(page: str) -> dict[str, object]:
    """Return the flags that vLLM shows as labels of one sample; where its engines differ, all of their values."""
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if line.startswith(f"{CACHE_INFO}{{"):
            for name, value in _LABEL.findall(line):
                if name in _VLLM and value != "None":
                    found.setdefault(name, set()).add(one_line(value))
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


def weights_name(path: str) -> str:
    """Return `org/model` as it is, and of a path on a machine only the last part: folders are private."""
    if not path.startswith(("/", ".", "~")) and "\\" not in path:
        return one_line(path)
    return one_line(path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1])


def _plain(value: object) -> object:
    """Return a boolean or a finite number as it is, anything else as one line of text."""
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return one_line(str(value))


_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
