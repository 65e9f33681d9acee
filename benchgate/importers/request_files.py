"""Tools whose files have every request: AIPerf and GuideLLM.

AIPerf: one line per request (`profile_export.jsonl`; aiperf/metrics/types). GuideLLM: `benchmarks.json`, report version
2; guidellm/benchmark/schemas.
"""

from __future__ import annotations

from benchgate.importers.reading import (
    FROM_SEND_TO_END,
    Field,
    Format,
    Outcomes,
    Reading,
    by_unix_time,
    latency_rows,
    left_out,
    optional_text,
    rate_rows,
)
from benchgate.model.run import MetricRow

_AIPERF_STAGE = "profiling"
_ITS_TOKENS = "it is over tokens of the text as the tool splits it, not over the server's own number"
_AIPERF_REASONS = {
    ".request_latency": FROM_SEND_TO_END,
    ".inter_token_latency": _ITS_TOKENS,
    ".output_": _ITS_TOKENS,
}
_AIPERF_TAKEN = (
    "request_start_ns", "request_end_ns", "benchmark_phase", "was_cancelled", "time_to_first_token",
    "inter_chunk_latency", "$.error",
)  # fmt: skip
_SECONDS_IN = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "ns": 1e-9}


def read_aiperf(document: Field) -> Reading:
    """Read rates, errors, first output and gaps of the measured phase. Raises UsageError for impossible numbers."""
    records = [one for one in document.lines() if one.need("metadata", "benchmark_phase").text() == _AIPERF_STAGE]
    requests = [one for one in records if one.need("metadata").value.get("was_cancelled") is not True]
    if len(requests) < len(records):
        document.refuse("records of a run in which the tool cancelled no request: its times are not those of all")
    answered = [one for one in requests if one.get("error") is None]
    if not answered:
        document.refuse("a request of the profiling phase that succeeded")
    failed = len(requests) - len(answered)
    window_s = _aiperf_window_s(requests)
    ttfts = [one.need("metrics", "time_to_first_token") for one in answered]
    first = [one.need("value").number(most=window_s * 1.01 / _scale(one)) * _scale(one) for one in ttfts]
    rows: list[MetricRow] = [
        *rate_rows(Outcomes(len(answered), failed, window_s), _AIPERF_STAGE),
        *latency_rows("ttft_sent", first, failed, _AIPERF_STAGE),
    ]
    mapped = {
        "request_throughput": "records without error / (last request_end_ns - first request_start_ns)",
        "error_rate": "records with error / records",
        "ttft_sent": "time_to_first_token of records",
    }
    gaps: list[float] = []
    for one in answered:
        if (found := one.need("metrics").get("inter_chunk_latency")) is not None:  # else it had one chunk
            scale = _scale(found)
            gaps += [gap.number(most=window_s * 1.01 / scale) * scale for gap in found.need("value").items()]
    if gaps and failed == 0:
        rows += latency_rows("itl", gaps, 0, _AIPERF_STAGE)
        mapped["itl"] = "inter_chunk_latency of records"
    sample = Field(answered[0].value, document.source)
    first_sent = min((one.need("metadata", "request_start_ns") for one in requests), key=_nanoseconds)
    measured = by_unix_time(first_sent, ns=True)
    return Reading(
        "aiperf", None, None, tuple(rows), mapped, left_out(sample, _AIPERF_TAKEN, _AIPERF_REASONS), measured
    )


def _aiperf_window_s(requests: list[Field]) -> float:
    begun = [one.need("metadata", "request_start_ns") for one in requests]
    ended = [one.need("metadata", "request_end_ns") for one in requests]
    for start, end in zip(begun, ended, strict=True):
        if _nanoseconds(end) < _nanoseconds(start):
            end.refuse("an end after the start of the request")
    window_s = (max(map(_nanoseconds, ended)) - min(map(_nanoseconds, begun))) / 1e9
    if window_s <= 0:
        requests[0].need("metadata", "request_end_ns").refuse("an end after the first start")
    return window_s


def _nanoseconds(field: Field) -> float:
    return field.number(most=1e20)


def _scale(metric: Field) -> float:
    unit = metric.need("unit")
    if unit.text() not in _SECONDS_IN:
        unit.refuse(f"a unit of time: {', '.join(_SECONDS_IN)}")
    return _SECONDS_IN[unit.text()]


AIPERF = Format("aiperf", ("metrics", "metadata.request_start_ns"), read_aiperf, of_lines=True)

_GUIDELLM_REASONS = {
    ".request_latency": FROM_SEND_TO_END,
    ".metrics": "summaries weigh requests by their tokens, or by time; the requests themselves are read",
}
_GUIDELLM_TAKEN = (
    ".requests.successful", ".requests.errored", ".request_totals", ".strategy.type_", "$.metadata.version",
    "$.metadata.guidellm_version",
)  # fmt: skip
_CUT_SHORT = "requests were cut short at its end, and who was slowest is not known; limit it by --max-requests"
_ITERATIONS = "of a request without a usage it counts chunks of the stream, not the server's own number of tokens"
_A_SAMPLE = "the report keeps a sample of its requests alone; write it with all of them"


def read_guidellm(document: Field) -> Reading:
    """Read every benchmark of the report as a stage.

    Raises UsageError if none has all of its requests, to their ends.
    """
    version = document.need("metadata", "version")
    if version.count() != 2:
        version.refuse("version 2 of the report")
    rows: list[MetricRow] = []
    benchmarks = document.need("benchmarks").items()
    around = {key: value for key, value in document.value.items() if key != "benchmarks"}
    unmapped = left_out(Field(around, document.source), _GUIDELLM_TAKEN, _GUIDELLM_REASONS)
    if benchmarks:  # the others have the same fields
        unmapped |= left_out(benchmarks[0], _GUIDELLM_TAKEN, _GUIDELLM_REASONS)
    taken = []
    for number, benchmark in enumerate(benchmarks, 1):
        stage = f"{number}-{benchmark.need('config', 'strategy', 'type_').text()}"
        why = _unusable(benchmark)
        if why is None:
            taken.append(benchmark)
            rows += _stage_rows(benchmark, stage)
            if not _tokens_by_server(benchmark):
                unmapped[f"{benchmark.path}.requests.successful.output_tokens"] = _ITERATIONS
        else:
            unmapped[benchmark.path] = why
    if not rows:
        document.need("benchmarks").refuse(f"a benchmark that can be taken ({'; '.join(set(unmapped.values()))[:300]})")
    sources = {
        "request_throughput": "requests.successful / (last end - first start)",
        "output_throughput": "output_tokens of requests.successful / (last end - first start)",
        "error_rate": "requests.errored / (requests.successful + requests.errored)",
        "ttft_sent": "time_to_first_token_ms of requests",
        "tpot": "inter_token_latency_ms of requests",
    }
    found = {row.name for row in rows}
    mapped = {name: source for name, source in sources.items() if name in found}
    tool = optional_text(document.need("metadata").get("guidellm_version"))
    first_sent = min((one for benchmark in taken for one in _sent(benchmark)), key=Field.number)
    return Reading("guidellm", tool, None, tuple(rows), mapped, unmapped, by_unix_time(first_sent))


def _sent(benchmark: Field) -> list[Field]:
    """Return the send times of all requests that ended."""
    ended = (benchmark.need("requests", status).items() for status in ("successful", "errored"))
    return [one.need("request_start_time") for some in ended for one in some]


def _unusable(benchmark: Field) -> str | None:
    totals, requests = benchmark.need("metrics", "request_totals"), benchmark.need("requests")
    counts = [totals.need(status).count() for status in ("successful", "incomplete", "errored")]
    if (total := totals.get("total")) is not None and total.count() != sum(counts):
        total.refuse(f"the {sum(counts)} requests that succeeded, were cut short or failed")
    if totals.need("incomplete").count():
        return _CUT_SHORT
    for status in ("successful", "errored"):
        if len(requests.need(status).items()) != totals.need(status).count():
            return _A_SAMPLE
    return None if totals.need("successful").count() else "no request succeeded"


def _tokens_by_server(benchmark: Field) -> bool:
    """Return True if the server counted the tokens of every successful request.

    GuideLLM takes one token for each iteration where the server's total is missing (`output_tokens` in
    guidellm/schemas/request_stats.py), and a chunk of a stream may have several.
    """
    usages = [one.get("output_metrics") for one in benchmark.need("requests", "successful").items()]
    return all(usage is not None and usage.get("total_tokens") is not None for usage in usages)


def _stage_rows(benchmark: Field, stage: str) -> list[MetricRow]:
    successful, errored = (
        benchmark.need("requests", "successful").items(),
        benchmark.need("requests", "errored").items(),
    )
    ended = [one.need("request_end_time") for one in (*successful, *errored)]
    begun = [one.number() for one in _sent(benchmark)]
    last = max(ended, key=Field.number)
    window_s = last.number() - min(begun)
    if window_s <= 0:
        last.refuse("an end after the first start")
    longest_ms = window_s * 1000 * 1.01
    first = [one.need("time_to_first_token_ms").number(most=longest_ms) / 1000 for one in successful]
    failed = len(errored)
    ttft = latency_rows("ttft_sent", first, failed, stage)
    if not _tokens_by_server(benchmark):
        return [*rate_rows(Outcomes(len(successful), failed, window_s), stage), *ttft]
    tokens = [one.need("output_tokens").count() for one in successful]
    each = [one.get("inter_token_latency_ms") for one in successful]
    known = [one.number(most=longest_ms) / 1000 for one in each if one is not None]  # null: one token
    return [
        *rate_rows(Outcomes(len(successful), failed, window_s, float(sum(tokens))), stage),
        *ttft,
        *latency_rows("tpot", known, failed, stage),
    ]


GUIDELLM = Format("guidellm", ("benchmarks", "metadata.guidellm_version"), read_guidellm)
