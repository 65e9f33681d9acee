"""llm-d's Benchmark Report (0.2 and 0.2.1, YAML or JSON): other tools' numbers in one shape, so it matters whose."""

from __future__ import annotations

from benchgate.importers.fields import Field, optional_text, with_keys
from benchgate.importers.instants import Measured, by_iso_time
from benchgate.importers.reading import (
    FROM_SEND_TO_END,
    SUMMARISED,
    Reading,
    left_out,
    row,
    stage_name,
)
from benchgate.model.run import MetricRow

NAME = "llm-d"
MARKED_BY = with_keys("version", "scenario", "results.request_performance")
_AGREE = {
    "vllm-benchmark": frozenset({"request_rate", "output_token_rate"}),
    "inference-perf": frozenset({"request_rate"}),
}
"""Of each tool that a report may be of, the rates that are benchgate's."""
_RATES = {"request_rate": ("requests_per_s", "queries/s"), "output_token_rate": ("output_tokens_per_s", "tokens/s")}
_TAKEN = (
    ".requests.total", ".requests.failures", "$.version", "$.run.time.start", "$.run.time.end",
    ".standardized.tool", ".standardized.concurrency", ".standardized.rate_qps",
)  # fmt: skip
_UNLIMITED = (".inf", "inf", float("inf"))
_REASONS = {
    ".request_latency": FROM_SEND_TO_END,
    ".latency.": SUMMARISED,
    ".throughput.": "the tool that measured it defines it otherwise, or it is no rate of benchgate's",
}


def is_it(document: Field) -> bool:
    """By its version and its results."""
    value = document.value
    return (
        isinstance(value, dict)
        and {"version", "scenario", "results"} <= value.keys()
        and (isinstance(value["results"], dict) and "request_performance" in value["results"])
    )


def read(document: Field) -> Reading:
    """Rates and errors of the tools whose own files could be imported too. UsageError of every other tool."""
    version = document.need("version")
    if version.text() not in ("0.2", "0.2.1"):
        version.refuse("version 0.2 or 0.2.1 of the report")
    load = document.need("scenario", "load", "standardized")
    tool = load.need("tool")
    name = tool.text().replace("_", "-")
    if name not in _AGREE:
        tool.refuse(f"a report of {' or '.join(_AGREE)}; import that tool's own file")
    aggregate = document.need("results", "request_performance", "aggregate")
    stage = _stage(load)
    total, failures = aggregate.need("requests", "total"), aggregate.need("requests", "failures")
    if total.count() == 0 or failures.count() > total.count():
        failures.refuse(f"at most the {total.value} requests, of which there must be some")
    rows: list[MetricRow] = [row("error_ratio", failures.count() / total.count(), 1, stage=stage)]
    mapped, taken = {"error_ratio": "requests.failures / requests.total"}, [*_TAKEN]
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
    unmapped = left_out(document, taken, _REASONS)
    return Reading(f"{NAME} ({name})", of, None, tuple(rows), mapped, unmapped, _measured(document))


def _measured(document: Field) -> Measured | None:
    """When the benchmark began; of a report that was made of a file without it, when it ended."""
    run = document.get("run")
    time = None if run is None else run.get("time")
    told = None if time is None else time.get("start") or time.get("end")
    return None if told is None else by_iso_time(told)


def _stage(load: Field) -> str:
    concurrency, rate = load.get("concurrency"), load.get("rate_qps")
    known = [one if one is not None and one.value not in _UNLIMITED else None for one in (concurrency, rate)]
    return stage_name(*(None if one is None else one.above_zero() for one in known))
