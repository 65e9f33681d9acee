"""GuideLLM's report (`benchmarks.json`, report version 2; guidellm/benchmark/schemas), read by its requests."""

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
    with_keys,
)
from benchgate.model.run import MetricRow

_REASONS = {
    ".request_latency": FROM_SEND_TO_END,
    ".metrics": "summaries weigh requests by their tokens, or by time; the requests themselves are read",
}
_TAKEN = (
    ".requests.successful", ".requests.errored", ".request_totals", ".strategy.type_", "$.metadata.version",
    "$.metadata.guidellm_version",
)  # fmt: skip
_CUT_SHORT = "requests were cut short at its end, and who was slowest is not known; limit it by --max-requests"
_A_SAMPLE = "the report keeps a sample of its requests alone; write it with all of them"


def _is_guidellm(document: Field) -> bool:
    found = document.value.get("metadata") if isinstance(document.value, dict) else None
    return isinstance(found, dict) and "guidellm_version" in found and "benchmarks" in document.value


def read(document: Field) -> Reading:
    """Read every benchmark of the report as a stage.

    Raises UsageError if none has all of its requests, to their ends.
    """
    version = document.need("metadata", "version")
    if version.count() != 2:
        version.refuse("version 2 of the report")
    rows: list[MetricRow] = []
    benchmarks = document.need("benchmarks").items()
    unmapped = _left_out(document, benchmarks)
    taken = []
    for number, benchmark in enumerate(benchmarks, 1):
        stage = f"{number}-{benchmark.need('config', 'strategy', 'type_').text()}"
        why = _unusable(benchmark)
        if why is None:
            taken.append(benchmark)
            rows += _stage_rows(benchmark, stage)
        else:
            unmapped[benchmark.path] = why
    if not rows:
        document.need("benchmarks").refuse(f"a benchmark that can be taken ({'; '.join(set(unmapped.values()))[:300]})")
    mapped = {
        "requests_per_s": "requests.successful / (last end - first start)",
        "output_tokens_per_s": "output_tokens of requests.successful / (last end - first start)",
        "error_ratio": "requests.errored / (requests.successful + requests.errored)",
        "ttft_sent_s": "time_to_first_token_ms of requests",
        "tpot_s": "inter_token_latency_ms of requests",
    }
    tool = optional_text(document.need("metadata").get("guidellm_version"))
    first_sent = min((one for benchmark in taken for one in _sent(benchmark)), key=Field.number)
    return Reading("guidellm", tool, None, tuple(rows), mapped, unmapped, by_unix_time(first_sent))


def _left_out(document: Field, benchmarks: list[Field]) -> dict[str, str]:
    """Return the fields that were left out, of the report and its first benchmark: the others have the same."""
    around = {key: value for key, value in document.value.items() if key != "benchmarks"}
    found = left_out(Field(around, document.source), _TAKEN, _REASONS)
    return found | (left_out(benchmarks[0], _TAKEN, _REASONS) if benchmarks else {})


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
    tokens = [one.need("output_tokens").count() for one in successful]
    longest_ms = window_s * 1000 * 1.01
    first = [one.need("time_to_first_token_ms").number(most=longest_ms) / 1000 for one in successful]
    each = [one.get("inter_token_latency_ms") for one in successful]
    known = [one.number(most=longest_ms) / 1000 for one in each if one is not None]  # null: one token
    failed = len(errored)
    return [
        *rate_rows(Outcomes(len(successful), failed, window_s, float(sum(tokens))), stage),
        *latency_rows("ttft_sent_s", first, failed, stage),
        *latency_rows("tpot_s", known, failed, stage),
    ]


GUIDELLM = Format("guidellm", with_keys("benchmarks", "metadata.guidellm_version"), _is_guidellm, read)
