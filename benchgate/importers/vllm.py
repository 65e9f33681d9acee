"""`vllm bench serve --save-result`, and with `--save-detailed` its requests (vllm/benchmarks/serve.py)."""

from __future__ import annotations

from benchgate.importers.bench_serving import COUNTS, RATES, REASONS, TIMES, detailed, outcomes, stage_of
from benchgate.importers.fields import Field, optional_text, with_keys
from benchgate.importers.instants import by_local_time
from benchgate.importers.reading import Reading, latency_rows, left_out, rate_rows

NAME = "vllm"
MARKS = ("num_prompts", "completed", "duration", "request_throughput", "total_token_throughput", "tokenizer_id")
MARKED_BY = with_keys(*MARKS)
_TAKEN = (
    "$.total_output_tokens", "$.output_throughput", "$.num_prompts", "$.failed", "$.date", "$.model_id",
    "$.endpoint_type",
)  # fmt: skip
_DATE = "%Y%m%d-%H%M%S"  # of the client's clock when it ended, without a time zone
_BY_COMPLETIONS = ("vllm", "openai")
_OTHER_START = "of this backend the tool's first chunk may be the one that only names the role, which carries no output"


def is_it(document: Field) -> bool:
    """By the fields that this tool alone writes together."""
    return isinstance(document.value, dict) and document.value.keys() >= set(MARKS)


def read(document: Field) -> Reading:
    """Rates, errors, and of a detailed file times by its requests. UsageError where a number cannot be."""
    backend = optional_text(document.get("backend")) or optional_text(document.get("endpoint_type"))
    lost, sent = _lost_and_sent(document)
    requests, stage = detailed(document, sent), stage_of(document)
    tokens = document.need("total_output_tokens").number()
    if requests is not None:
        tokens = requests.output_tokens
    rows = list(rate_rows(outcomes(document, requests, lost, tokens), stage))
    reasons, taken = dict(REASONS), [*RATES, *_TAKEN]
    mapped = {
        "requests_per_s": "completed / duration",
        "output_tokens_per_s": "total_output_tokens / duration",
        "error_ratio": "failed / (completed + failed)",
    }
    taken += COUNTS if requests is not None else ()
    if requests is not None and backend in _BY_COMPLETIONS:
        rows += requests.rows(stage)
        taken += TIMES
        mapped |= {"ttft_sent_s": "ttfts", "tpot_s": "sum of itls / (output_lens - 1)"}
        if requests.failed == 0:
            rows += latency_rows("itl_s", requests.gaps_s, 0, stage)
            mapped["itl_s"] = "itls"
    elif requests is not None:
        reasons = {"$.ttfts": _OTHER_START, "$.itls": _OTHER_START} | reasons
    model, date = optional_text(document.get("model_id")), document.get("date")
    measured = None if date is None else by_local_time(date, _DATE)
    return Reading(NAME, None, model, tuple(rows), mapped, left_out(document, taken, reasons), measured)


def _lost_and_sent(document: Field) -> tuple[int, int | None]:
    """How many requests failed, and how many were sent where the file counts both kinds.

    Older files do not count failures: there it is what was asked for that did not complete.
    """
    failed, asked = document.get("failed"), document.need("num_prompts")
    completed = document.need("completed").count()
    sent = completed + (failed.count() if failed is not None else 0)
    if asked.count() < sent:
        asked.refuse(f"at least the {completed} requests that completed and the {sent - completed} that failed")
    return (asked.count() - completed, None) if failed is None else (failed.count(), sent)
