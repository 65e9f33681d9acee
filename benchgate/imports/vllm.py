"""`vllm bench serve --save-result`, and with `--save-detailed` its requests (vllm/benchmarks/serve.py)."""

from __future__ import annotations

from benchgate.imports.bench_serving import RATES, REASONS, TIMES, detailed, outcomes, stage_of
from benchgate.imports.fields import Field, optional_text
from benchgate.imports.reading import Reading, latency_rows, left_out, rate_rows

NAME = "vllm"
_MARKS = {"num_prompts", "completed", "duration", "request_throughput", "total_token_throughput", "tokenizer_id"}
_BY_COMPLETIONS = ("vllm", "openai")
_OTHER_START = "of this backend the tool's first chunk may be the one that only names the role, which carries no output"


def is_it(document: Field) -> bool:
    """By the fields that this tool alone writes together."""
    return isinstance(document.value, dict) and document.value.keys() >= _MARKS


def read(document: Field) -> Reading:
    """Rates, errors, and of a detailed file times by its requests. UsageError where a number cannot be."""
    requests, stage = detailed(document), stage_of(document)
    backend = optional_text(document.get("backend")) or optional_text(document.get("endpoint_type"))
    failed = document.get("failed")
    completed, asked = document.need("completed").count(), document.need("num_prompts")
    if asked.count() < completed:
        asked.refuse(f"at least the {completed} requests that completed")
    lost = failed.count() if failed is not None else asked.count() - completed
    tokens = document.need("total_output_tokens").number()
    if requests is not None:
        tokens = requests.output_tokens
    rows = list(rate_rows(outcomes(document, requests, lost, tokens), stage))
    reasons, taken = (
        dict(REASONS),
        [*RATES, "$.total_output_tokens", "$.output_throughput", "$.num_prompts", "$.failed"],
    )
    mapped = {
        "requests_per_s": "completed / duration",
        "output_tokens_per_s": "total_output_tokens / duration",
        "error_ratio": "failed / (completed + failed)",
    }
    if requests is not None and backend in _BY_COMPLETIONS:
        rows += requests.rows(stage)
        taken += TIMES
        mapped |= {"ttft_sent_s": "ttfts", "tpot_s": "sum of itls / (output_lens - 1)"}
        if requests.failed == 0:
            rows += latency_rows("itl_s", requests.gaps_s, 0, stage)
            mapped["itl_s"] = "itls"
    elif requests is not None:
        reasons = {"$.ttfts": _OTHER_START, "$.itls": _OTHER_START} | reasons
    model = optional_text(document.get("model_id"))
    return Reading(NAME, None, model, tuple(rows), mapped, left_out(document, taken, reasons))
