"""`python -m sglang.bench_serving`, and with `--output-details` its requests."""

from __future__ import annotations

from benchgate.importers.bench_serving import COUNTS, RATES, REASONS, TIMES, detailed, outcomes, stage_of
from benchgate.importers.fields import Field, optional_text, with_keys
from benchgate.importers.reading import Reading, left_out, rate_rows

NAME = "sglang"
MARKS = ("backend", "completed", "duration", "request_throughput", "total_output_tokens_retokenized")
MARKED_BY = with_keys(*MARKS)
_COUNTS_ITSELF = ("sglang", "sglang-native")
_AS_ASKED = "of a server that does not count its tokens the tool takes as many as were asked for"
_NOT_COUNTED = "the file does not say how many requests failed; write it with --output-details"


def is_it(document: Field) -> bool:
    """By the fields that this tool alone writes together."""
    return isinstance(document.value, dict) and document.value.keys() >= set(MARKS)


def read(document: Field) -> Reading:
    """Rates, and of a detailed file errors and times. Gaps are shared out over tokens by the tool: no `itl_s`."""
    requests, stage = detailed(document), stage_of(document)
    counts = optional_text(document.get("backend")) in _COUNTS_ITSELF
    tokens = document.need("total_output_tokens").number()
    if requests is not None:
        tokens = requests.output_tokens
    rows = list(rate_rows(outcomes(document, requests, 0, tokens if counts else None), stage))
    reasons = {"$.itls": "gaps are shared out over the tokens of a chunk", "output_throughput": _AS_ASKED} | REASONS
    mapped, taken = {"requests_per_s": "completed / duration"}, [*RATES, "$.model_id", "$.model", "$.sglang_version"]
    if counts:
        mapped["output_tokens_per_s"] = "total_output_tokens / duration"
        taken += ["$.total_output_tokens", "$.output_throughput"]
    if requests is None:
        rows = [one for one in rows if one.name != "error_ratio"]
    else:
        taken += COUNTS
        mapped["error_ratio"] = "errors, and requests without output tokens"
        times = [one for one in requests.rows(stage) if counts or one.name != "tpot_s"]
        rows += times
        mapped["ttft_sent_s"] = "ttfts"
        taken += TIMES
        if counts:
            mapped["tpot_s"] = "sum of itls / (output_lens - 1)"
    version = optional_text(document.get("sglang_version"))
    model = optional_text(document.get("model_id")) or optional_text(document.get("model"))
    unmapped = left_out(document, taken, reasons)
    if requests is None:
        unmapped["$.errors"] = _NOT_COUNTED
    return Reading(NAME, version, model, tuple(rows), mapped, unmapped)
