"""AIPerf's records, one line per request (`profile_export.jsonl`; aiperf/metrics/types)."""

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
    rate_rows,
    with_keys,
)
from benchgate.model.run import MetricRow

_STAGE = "profiling"
_ITS_TOKENS = "it is over tokens of the text as the tool splits it, not over the server's own number"
_REASONS = {
    ".request_latency": FROM_SEND_TO_END,
    ".inter_token_latency": _ITS_TOKENS,
    ".output_": _ITS_TOKENS,
}
_TAKEN = (
    "request_start_ns", "request_end_ns", "benchmark_phase", "was_cancelled", "time_to_first_token",
    "inter_chunk_latency", "$.error",
)  # fmt: skip
_SECONDS_IN = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "ns": 1e-9}


def _is_aiperf(document: Field) -> bool:
    lines = _lines(document)
    return bool(lines) and all(
        isinstance(one.value, dict)
        and {"metadata", "metrics"} <= one.value.keys()
        and isinstance(one.value["metadata"], dict)
        and "request_start_ns" in one.value["metadata"]
        for one in lines
    )


def read(document: Field) -> Reading:
    """Read rates, errors, first output and gaps of the measured phase. Raises UsageError for impossible numbers."""
    records = [one for one in _lines(document) if one.need("metadata", "benchmark_phase").text() == _STAGE]
    requests = [one for one in records if one.need("metadata").value.get("was_cancelled") is not True]
    if len(requests) < len(records):
        document.refuse("records of a run in which the tool cancelled no request: its times are not those of all")
    answered = [one for one in requests if one.get("error") is None]
    if not answered:
        document.refuse("a request of the profiling phase that succeeded")
    failed = len(requests) - len(answered)
    window_s = _window_s(requests)
    ttfts = [one.need("metrics", "time_to_first_token") for one in answered]
    first = [one.need("value").number(most=window_s * 1.01 / _scale(one)) * _scale(one) for one in ttfts]
    rows: list[MetricRow] = [
        *rate_rows(Outcomes(len(answered), failed, window_s), _STAGE),
        *latency_rows("ttft_sent_s", first, failed, _STAGE),
    ]
    mapped = {
        "requests_per_s": "records without error / (last request_end_ns - first request_start_ns)",
        "error_ratio": "records with error / records",
        "ttft_sent_s": "time_to_first_token of records",
    }
    gaps = [gap for one in answered for gap in _gaps(one, window_s)]
    if gaps and failed == 0:
        rows += latency_rows("itl_s", gaps, 0, _STAGE)
        mapped["itl_s"] = "inter_chunk_latency of records"
    sample = Field(answered[0].value, document.source)
    first_sent = min((one.need("metadata", "request_start_ns") for one in requests), key=_nanoseconds)
    measured = by_unix_time(first_sent, ns=True)
    return Reading("aiperf", None, None, tuple(rows), mapped, left_out(sample, _TAKEN, _REASONS), measured)


def _lines(document: Field) -> list[Field]:
    return document.items() if isinstance(document.value, list) else [document]


def _window_s(requests: list[Field]) -> float:
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


def _gaps(record: Field, most_s: float) -> list[float]:
    found = record.need("metrics").get("inter_chunk_latency")
    if found is None:
        return []  # one chunk
    scale = _scale(found)
    return [gap.number(most=most_s * 1.01 / scale) * scale for gap in found.need("value").items()]


AIPERF = Format("aiperf", f"lines, each {with_keys('metrics', 'metadata.request_start_ns')}", _is_aiperf, read)
