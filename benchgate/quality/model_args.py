"""What lm-eval was told of the model beside its name: the part of it that says how a task was asked."""

from __future__ import annotations

import re
from collections.abc import Mapping

_THE_MODEL = frozenset({
    "base_url", "model", "pretrained", "revision", "subfolder", "peft", "delta", "lora_local_path", "enable_lora",
    "max_lora_rank", "gguf_file", "dtype", "kv_cache_dtype", "quantization", "load_in_8bit", "load_in_4bit", "autogptq",
    "gptqmodel", "attn_implementation", "speculative_config", "trust_remote_code",
})  # fmt: skip
"""Which model it is, and in what form: what the two arms are there to differ in."""
_THE_MACHINE = frozenset({
    "device", "device_map", "parallelize", "tp_plan", "max_memory_per_gpu", "max_cpu_memory", "offload_folder",
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "gpu_memory_utilization", "enforce_eager",
    "batch_size", "max_batch_size", "num_concurrent", "max_retries", "timeout", "verify_certificate", "ca_cert_path",
})  # fmt: skip
"""Where it runs, how it is reached and how fast it is asked."""
_SECRET = re.compile(r"key|auth|header|secret|passw|credential|^(hf_)?token$", re.IGNORECASE)


def asking_args(model_args: object) -> dict[str, str]:
    """Every argument but those of the model and its machine, as text: lm-eval writes a mapping, or `a=1,b=2`.

    What is known of neither may change answers, so it stays. What may hold a secret is left out.
    """
    if isinstance(model_args, str):
        parts = (part.partition("=") for part in model_args.split(","))
        model_args = {name.strip(): value.strip() for name, _, value in parts}
    if not isinstance(model_args, Mapping):
        return {}
    named = {str(name): str(value) for name, value in sorted(model_args.items(), key=lambda pair: str(pair[0]))}
    return {name: value for name, value in named.items() if _is_of_asking(name)}


def _is_of_asking(name: str) -> bool:
    of_the_arm = name in _THE_MODEL or name in _THE_MACHINE or name.startswith("bnb_")
    return name.isidentifier() and not of_the_arm and _SECRET.search(name) is None
