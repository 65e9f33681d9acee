"""Tools whose files have summaries alone: inference-perf, llm-d's Benchmark Report, and lm-eval.

inference-perf: `stage_N_lifecycle_metrics.json`; inference_perf/reportgen/base.py. llm-d wraps numbers of other tools:
0.2 and 0.2.1, YAML or JSON. lm-eval: `results_….json`, one number per task; `benchgate run --samples` judges samples.
"""

from __future__ import annotations

from benchgate.importers.reading import (
    FROM_SEND_TO_END,
    OTHER_GOODPUT,
    SUMMARISED,
    Field,
    Format,
    Outcomes,
    Reading,
    about_the_same,
    by_iso_time,
    by_unix_time,
    left_out,
    optional_text,
    rate_rows,
    row,
    stage_name,
)
from benchgate.model.run import MetricRow

_INFERENCE_PERF_TAKEN = (
    "$.load_summary.count", "$.load_summary.requested_rate", "$.load_summary.concurrency", "$.successes.count",
    "$.failures.count", "requests_per_sec", "benchmark_time",
)  # fmt: skip
_ITS_TOKENS = "it counts tokens of the text as the tool splits it, not the server's own number"
_INFERENCE_PERF_REASONS = {
    ".request_latency": FROM_SEND_TO_END,
    ".latency.": SUMMARISED,
    ".output_tokens_per_sec": _ITS_TOKENS,
    ".output_tokens.total": f"of a request without a usage {_ITS_TOKENS}",
    ".goodput_metrics": OTHER_GOODPUT,
}


def read_inference_perf(document: Field) -> Reading:
    """Read rates and errors, and tokens if the file shows that all of them are the server's own count.

    For a request without a usage `successes.output_tokens` has the tool's count. `successes.client_fallback_requests`
    says of how many that is so, and is missing in older versions.
    """
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
    tokens, fallbacks = successes.get("output_tokens"), successes.get("client_fallback_requests")
    counted_itself = None if fallbacks is None else fallbacks.get("output")
    by_server = counted_itself is not None and counted_itself.count() == 0
    total = tokens.need("total").number() if tokens is not None and by_server else None
    concurrency, requested = load.get("concurrency"), load.get("requested_rate")
    if concurrency is not None:
        stage = stage_name(concurrency.above_zero(), None)
    else:  # the summary of every stage has neither
        stage = "all" if requested is None else stage_name(None, requested.above_zero())
    mapped = {
        "request_throughput": "successes.count / benchmark_time_seconds",
        "error_rate": "failures.count / load_summary.count",
    }
    taken = [*_INFERENCE_PERF_TAKEN]
    if total is not None:
        mapped["output_throughput"] = "successes.output_tokens.total / benchmark_time_seconds"
        taken += ["$.successes.output_tokens.total", "$.successes.client_fallback_requests.output"]
    rows = tuple(rate_rows(Outcomes(succeeded, failed, window_s, total), stage))
    return Reading("inference-perf", None, None, rows, mapped, left_out(document, taken, _INFERENCE_PERF_REASONS))


INFERENCE_PERF = Format("inference-perf", ("load_summary", "successes", "failures"), read_inference_perf)

_AGREE = {
    "vllm-benchmark": frozenset({"request_rate", "output_token_rate"}),
    "inference-perf": frozenset({"request_rate"}),
}
"""Rates with benchgate's own definition, by the tool that the report is from."""
_RATES = {"request_rate": ("request_throughput", "queries/s"), "output_token_rate": ("output_throughput", "tokens/s")}
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
    loads = (load.get("concurrency"), load.get("rate_qps"))
    stage = stage_name(*(None if one is None or one.value in _UNLIMITED else one.above_zero() for one in loads))
    total, failures = aggregate.need("requests", "total"), aggregate.need("requests", "failures")
    if total.count() == 0 or failures.count() > total.count():
        failures.refuse(f"at most the {total.value} requests, of which there must be some")
    rows: list[MetricRow] = [row("error_rate", failures.count() / total.count(), 1, stage=stage)]
    mapped, taken = {"error_rate": "requests.failures / requests.total"}, [*_LLM_D_TAKEN]
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
    run = document.get("run")
    time = None if run is None else run.get("time")
    instant = None if time is None else time.get("start") or time.get("end")
    measured = None if instant is None else by_iso_time(instant)
    return Reading(f"llm-d ({name})", of, None, tuple(rows), mapped, unmapped, measured)


LLM_D = Format("llm-d", ("version", "scenario", "results.request_performance"), read_llm_d)

_LM_EVAL_REASONS = {
    "_stderr": "a standard error over items; benchgate makes intervals of the items themselves",
    "$.groups": "a mean over tasks, and benchgate's numbers are of tasks",
    ".alias": "a name",
    "$.config": "the configuration of the tasks, which `benchgate run --samples` compares with a suite",
    "acc_norm": "benchgate takes one metric of a task; give it by name in a suite and import the samples",
    "$.results": "neither `acc` nor the only `exact_match` of its task, whose items are right or wrong",
}


def read_lm_eval(document: Field) -> Reading:
    """Read the share of right items of every task with `acc`, or with one `exact_match`.

    Raises UsageError without one.
    """
    rows: list[MetricRow] = []
    mapped, taken = {}, ["$.date", "$.model_name", "$.lm_eval_version"]
    counts = document.need("n-samples")
    for task, found in document.need("results").entries():
        items = counts.get(task)
        name = _accuracy_field(found)
        if items is None or name is None:  # groups of tasks have no items of their own
            continue
        effective = items.need("effective")
        if effective.count() == 0:
            effective.refuse("at least one item")
        if (original := items.get("original")) is not None and original.count() < effective.count():
            original.refuse(f"at least the {effective.value} items that were evaluated")
        rows.append(row("accuracy", found.need(name).number(most=1), effective.count(), task=task))
        mapped[f"accuracy of {task}"] = f"results.{task}.{name}"
        taken += [f"$.results.{task}.{name}", f"$.n-samples.{task}.effective"]
    if not rows:
        document.need("results").refuse("a task with `acc`, or with one `exact_match`; import its samples instead")
    version = optional_text(document.get("lm_eval_version"))
    model = optional_text(document.get("model_name"))
    measured = None if (date := document.get("date")) is None else by_unix_time(date)
    return Reading(
        "lm-eval", version, model, tuple(rows), mapped, left_out(document, taken, _LM_EVAL_REASONS), measured
    )


def _accuracy_field(task: Field) -> str | None:
    """Return a task's field with a share of right items: `acc`, else the only `exact_match`."""
    names = [name for name, _ in task.entries()]
    if "acc,none" in names:
        return "acc,none"
    exact = [name for name in names if name.startswith("exact_match,")]
    return exact[0] if len(exact) == 1 else None


LM_EVAL = Format("lm-eval", ("results", "n-samples", "configs"), read_lm_eval)
