"""What a server says it is, beyond its model's name: the flags it was started with, its template, its file of weights.

Documents in, facts out; nothing here is required of a server, and whatever has another form than expected is not told.
Only what is named here is taken: servers show their keys and paths beside their flags. Facts are those that the same
deployment gives again after a restart, so nothing that is counted or sized at start-up is among them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from benchgate.targets.error_messages import one_line

CACHE_INFO = "vllm:cache_config_info"
"""A sample of vLLM's page of metrics whose labels are flags of its cache."""

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
"""Of each engine the flags that change how fast it is, or what it answers, whatever weights it serves."""

OF_WEIGHTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"sglang": ("dtype", "quantization", "load_format", "weight_version"), "tgi": ("model_sha", "model_dtype")}
)
"""What tells one set of weights from another: that is what may differ."""

_OF_A_PROCESS = ("model_path", "model_id")
_FILES = (*_OF_A_PROCESS, "root")


def flags_of(engine: str, document: Mapping[str, object]) -> dict[str, object]:
    """The flags in a server's document about itself, those that are set to something."""
    return {name: _plain(value) for name in FLAGS.get(engine, ()) if (value := document.get(name)) is not None}


def facts_of(engine: str, document: Mapping[str, object]) -> dict[str, object]:
    """What else such a document says: of the weights, of whose adapter it is, of template, slots and their context."""
    facts = {name: _plain(value) for name in OF_WEIGHTS.get(engine, ()) if (value := document.get(name)) is not None}
    paths = (document.get(name) for name in _FILES)
    path = next((path for path in paths if isinstance(path, str) and path), None)
    if path is not None:
        facts["weights_at"] = place(path)
    parent = document.get("parent")
    if isinstance(parent, str) and parent:
        facts["adapter_of"] = one_line(parent)
    template = document.get("chat_template")
    if isinstance(template, str) and template:
        facts["chat_template_sha256"] = hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()
    if engine == "llamacpp":
        slots, usual = document.get("total_slots"), document.get("default_generation_settings")
        context = usual.get("n_ctx") if isinstance(usual, dict) else None
        facts |= {name: value for name, value in (("total_slots", slots), ("n_ctx", context)) if _is_count(value)}
    return facts


def beside_weights(document: Mapping[str, object]) -> dict[str, object]:
    """Such a document of one process, less where its weights are: behind a gateway others serve the other models."""
    return {name: value for name, value in document.items() if name not in _OF_A_PROCESS}


def cache_flags(page: str) -> dict[str, object]:
    """The flags that vLLM shows as labels of one sample; where several of its engines differ, all of their values."""
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if line.startswith(f"{CACHE_INFO}{{"):
            for name, value in _LABEL.findall(line):
                if name in _VLLM and value != "None":
                    found.setdefault(name, set()).add(one_line(value))
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


def place(path: str) -> str:
    """`org/model` as it is; of a path on a machine its last part, for the way there is nobody's business."""
    if not path.startswith(("/", ".", "~")) and "\\" not in path:
        return one_line(path)
    return one_line(path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1])


def _plain(value: object) -> object:
    """A truth or a finite number as it is, anything else as a text of one line."""
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return one_line(str(value))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
