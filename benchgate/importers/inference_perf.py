"""A stage or the summary of inference-perf (`stage_N_lifecycle_metrics.json`; inference_perf/reportgen/base.py)."""

from __future__ import annotations

from benchgate.importers.fields import Field, about_the_same, with_keys
from benchgate.importers.reading import (
    FROM_SEND_TO_END,
    OTHER_GOODPUT,
    SUMMARISED,
    Outcomes,
    Reading,
    left_out,
    rate_rows,
    stage_name,
)

NAME = "inference-perf"
MARKS = ("load_summary", "successes", "failures")
MARKED_BY = with_keys(*MARKS)
_TAKEN = (
    "$.load_summary.count", "$.load_summary.requested_rate", "$.load_summary.concurrency", "$.successes.count",
    "$.failures.count", "requests_per_sec", "benchmark_time",
)  # fmt: skip
_REASONS = {
    ".request_latency": FROM_SEND_TO_END,
    ".latency.": SUMMARISED,
    ".output_tokens_per_sec": "it counts tokens of the text as the tool splits it, not the server's own number",
    ".goodput_metrics": OTHER_GOODPUT,
}


def is_it(document: Field) -> bool:
    """By its three parts."""
    return isinstance(document.value, dict) and document.value.keys() >= set(MARKS)


def read(document: Field) -> Reading:
    """Rates and errors; tokens where the file has the server's own count (`successes.output_tokens`)."""
    load, successes = document.need("load_summary"), document.need("successes")
    succeeded, failed = successes.need("count").count(), document.need("failures", "count").count()
    asked = load.need("count")
    if asked.count() != succeeded + failed:
        asked.refuse(f"the {succeeded} requests that succeeded and the {failed} that failed")
    if succeeded == 0:
        successes.refuse("a request that succeeded: there is nothing to import")
    said = successes.need("throughput", "requests_per_sec")
    told = document.get("benchmark_time_seconds")
    window_s = told.above_zero() if told is not None else succeeded / said.above_zero()
    if not about_the_same(succeeded / window_s, said.number()):
        said.refuse(f"{succeeded} requests over {window_s:g} s; is that in seconds?")
    tokens = successes.get("output_tokens")
    total = None if tokens is None else tokens.need("total").number()
    stage = _stage(load)
    mapped = {
        "requests_per_s": "successes.count / benchmark_time_seconds",
        "error_ratio": "failures.count / load_summary.count",
    }
    taken = [*_TAKEN]
    if total is not None:
        mapped["output_tokens_per_s"] = "successes.output_tokens.total / benchmark_time_seconds"
        taken.append("$.successes.output_tokens.total")
    rows = tuple(rate_rows(Outcomes(succeeded, failed, window_s, total), stage))
    return Reading(NAME, None, None, rows, mapped, left_out(document, taken, _REASONS))


def _stage(load: Field) -> str:
    concurrency, rate = load.get("concurrency"), load.get("requested_rate")
    if concurrency is None and rate is None:
        return "all"  # the summary of every stage
    if concurrency is not None:
        return stage_name(concurrency.above_zero(), None)
    return stage_name(None, rate.above_zero() if rate is not None else None)
