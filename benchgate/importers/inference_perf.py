"""Stages and summaries of inference-perf, and llm-d's Benchmark Report, which wraps numbers of other tools.

inference-perf: `stage_N_lifecycle_metrics.json`; inference_perf/reportgen/base.py. llm-d: 0.2 and 0.2.1, YAML or JSON.
"""

from __future__ import annotations

from benchgate.importers.reading import (
    FROM_SEND_TO_END,
    OTHER_GOODPUT,
    SUMMARISED,
    Field,
    Format,
    Measured,
    Outcomes,
    Reading,
    about_the_same,
    by_iso_time,
    has_keys,
    left_out,
    optional_text,
    rate_rows,
    row,
    stage_name,
    with_keys,
)
from benchgate.model.run import MetricRow

_INFERENCE_PERF_KEYS = ("load_summary", "successes", "failures")
_INFERENCE_PERF_TAKEN = (
    "$.load_summary.count", "$.load_summary.requested_rate", "$.load_summary.concurrency", "$.successes.count",
    "$.failures.count", "requests_per_sec", "benchmark_time",
)  # fmt: skip
_INFERENCE_PERF_REASONS = {
    ".request_latency": FROM_SEND_TO_END,
    ".latency.": SUMMARISED,
    ".output_tokens_per_sec": "it counts tokens of the text as the tool splits it, not the server's own number",
    ".goodput_metrics": OTHER_GOODPUT,
}


def read_inference_perf(document: Field) -> Reading:
    """Read rates and errors, and tokens if the file has the server's own count (`successes.output_tokens`)."""
    load, successes = document.need("load_summary"), document.need("successes")
    succeeded, failed = successes.need("count").count(), document.need("failures", "count").count()
    count = load.need("count")
    if count.count() != succeeded + failed:
        count.refuse(f"the {succeeded} requests that succeeded and the {failed} that failed")
    if succeeded == 0:
        successes.refuse("a request that succeeded: there is nothing to import")
    rate = successes.need("throughput", "requests_per_sec")
    benchmark_time = document.get("benchmark_time_seconds")
    window_s = benchmark_time.above_zero() if benchmark_time is not None else succeeded / rate.above_zero()
    if not about_the_same(succeeded / window_s, rate.number()):
        rate.refuse(f"{succeeded} requests over {window_s:g} s; is that in seconds?")
    tokens = successes.get("output_tokens")
    total = None if tokens is None else tokens.need("total").number()
    stage = _inference_perf_stage(load)
    mapped = {
        "requests_per_s": "successes.count / benchmark_time_seconds",
        "error_ratio": "failures.count / load_summary.count",
    }
    taken = [*_INFERENCE_PERF_TAKEN]
    if total is not None:
        mapped["output_tokens_per_s"] = "successes.output_tokens.total / benchmark_time_seconds"
        taken.append("$.successes.output_tokens.total")
    rows = tuple(rate_rows(Outcomes(succeeded, failed, window_s, total), stage))
    return Reading("inference-perf", None, None, rows, mapped, left_out(document, taken, _INFERENCE_PERF_REASONS))


def _inference_perf_stage(load: Field) -> str:
    concurrency, rate = load.get("concurrency"), load.get("requested_rate")
    if concurrency is None and rate is None:
        return "all"  # the summary of every stage
    if concurrency is not None:
        return stage_name(concurrency.above_zero(), None)
    return stage_name(None, rate.above_zero() if rate is not None else None)


INFERENCE_PERF = Format(
    "inference-perf", with_keys(*_INFERENCE_PERF_KEYS), has_keys(*_INFERENCE_PERF_KEYS), read_inference_perf
)


_AGREE = {
    "vllm-benchmark": frozenset({"request_rate", "output_token_rate"}),
    "inference-perf": frozenset({"request_rate"}),
}
"""Rates with benchgate's own definition, by the tool that the report is from."""
_RATES = {"request_rate": ("requests_per_s", "queries/s"), "output_token_rate": ("output_tokens_per_s", "tokens/s")}
_LLM_D_TAKEN = (
    ".requests.total", ".requests.failures", "$.version", "$.run.time.start", "$.run.time.end",
    ".standardized.tool", ".standardized.concurrency", ".standardized.rate_qps",
)  # fmt: skip
_UNLIMITED = (".inf", "inf", float("inf"))
_LLM_D_REASONS = {
    ".request_latency": FROM_SEND_TO_END,
    ".latency.": SUMMARISED,
    ".throughput.": "the tool that measured it defines it otherwise, or it is no rate of benchgate's",
}


def _is_llm_d(document: Field) -> bool:
    value = document.value
    return (
        isinstance(value, dict)
        and {"version", "scenario", "results"} <= value.keys()
        and (isinstance(value["results"], dict) and "request_performance" in value["results"])
    )


def read_llm_d(document: Field) -> Reading:
    """Read rates and errors of tools whose own files can be imported. Raises UsageError for any other tool."""
    version = document.need("version")
    if version.text() not in ("0.2", "0.2.1"):
        version.refuse("version 0.2 or 0.2.1 of the report")
    load = document.need("scenario", "load", "standardized")
    tool = load.need("tool")
    name = tool.text().replace("_", "-")
    if name not in _AGREE:
        tool.refuse(f"a report of {' or '.join(_AGREE)}; import that tool's own file")
    aggregate = document.need("results", "request_performance", "aggregate")
    stage = _llm_d_stage(load)
    total, failures = aggregate.need("requests", "total"), aggregate.need("requests", "failures")
    if total.count() == 0 or failures.count() > total.count():
        failures.refuse(f"at most the {total.value} requests, of which there must be some")
    rows: list[MetricRow] = [row("error_ratio", failures.count() / total.count(), 1, stage=stage)]
    mapped, taken = {"error_ratio": "requests.failures / requests.total"}, [*_LLM_D_TAKEN]
    for key in sorted(_AGREE[name]):
        rate = aggregate.need("throughput").get(key)
        if rate is None:
            continue
        metric, unit = _RATES[key]
        if rate.need("units").text() != unit:
            rate.need("units").refuse(f"{unit!r}")
        rows.append(row(metric, rate.need("mean").number(), 1, stage=stage))
        mapped[metric] = f"throughput.{key}.mean"
        taken += [f".throughput.{key}.mean", f".throughput.{key}.units"]
    of = optional_text(load.get("tool_version"))
    unmapped = left_out(document, taken, _LLM_D_REASONS)
    return Reading(f"llm-d ({name})", of, None, tuple(rows), mapped, unmapped, _llm_d_time(document))


def _llm_d_time(document: Field) -> Measured | None:
    """Return the start of the benchmark; its end for a report without a start."""
    run = document.get("run")
    time = None if run is None else run.get("time")
    instant = None if time is None else time.get("start") or time.get("end")
    return None if instant is None else by_iso_time(instant)


def _llm_d_stage(load: Field) -> str:
    concurrency, rate = load.get("concurrency"), load.get("rate_qps")
    known = [one if one is not None and one.value not in _UNLIMITED else None for one in (concurrency, rate)]
    return stage_name(*(None if one is None else one.above_zero() for one in known))


LLM_D = Format("llm-d", with_keys("version", "scenario", "results.request_performance"), _is_llm_d, read_llm_d)
