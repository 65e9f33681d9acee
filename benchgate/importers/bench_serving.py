"""What `vllm bench serve` and SGLang's `bench_serving` have in common: one descends from the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchgate.importers.fields import Field, about_the_same
from benchgate.importers.reading import (
    ARITHMETIC,
    FROM_SEND_TO_END,
    INTERPOLATED,
    NO_METRIC,
    OTHER_GOODPUT,
    Outcomes,
    latency_rows,
    stage_name,
)
from benchgate.model.run import MetricRow

REASONS = {
    "e2el": FROM_SEND_TO_END,
    "e2e_latency": FROM_SEND_TO_END,
    "latencies": FROM_SEND_TO_END,
    "$.mean_": ARITHMETIC,
    "$.std_": NO_METRIC,
    "_ttft_ms": INTERPOLATED,
    "_tpot_ms": INTERPOLATED,
    "_itl_ms": INTERPOLATED,
    "request_goodput": OTHER_GOODPUT,
}
RATES = ("$.duration", "$.completed", "$.request_throughput", "$.max_concurrency", "$.request_rate", "$.backend")
TIMES = ("$.ttfts", "$.itls")
COUNTS = ("$.output_lens", "$.errors")


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a detailed file: those that were answered, with their times in seconds, and how many were not."""

    ttft_s: list[float]
    tpot_s: list[float]
    gaps_s: list[float]
    output_tokens: float
    failed: int

    @property
    def succeeded(self) -> int:
        """How many were answered with at least one token."""
        return len(self.ttft_s)

    def rows(self, stage: str) -> Iterator[MetricRow]:
        """Percentiles of what both arms of a comparison would be held to."""
        yield from latency_rows("ttft_sent_s", self.ttft_s, self.failed, stage)
        yield from latency_rows("tpot_s", self.tpot_s, self.failed, stage)


def window_s(document: Field) -> float:
    """How long the benchmark took. UsageError where the file's own rates of requests or tokens say something else."""
    duration_s = document.need("duration").above_zero()
    for what, count, rate in (
        ("completed requests", document.need("completed").count(), document.need("request_throughput")),
        ("output tokens", document.need("total_output_tokens").number(), document.get("output_throughput")),
    ):
        if rate is not None and not about_the_same(count / duration_s, rate.number()):
            rate.refuse(f"{count:g} {what} over a duration of {duration_s:g} s; is that in seconds?")
    return duration_s


def detailed(document: Field, sent: int | None = None) -> Requests | None:
    """The requests one by one; None of a file that has them not. A request without an output token has failed.

    UsageError where they contradict the totals of the file; `sent` is how many requests those say there were.
    """
    lists = [document.get(name) for name in ("ttfts", "itls", "output_lens", "errors")]
    if any(one is None for one in lists):
        return None
    columns = [one.items() for one in lists if one is not None]
    if len({len(column) for column in columns}) != 1:
        document.refuse("as many `ttfts` as `itls`, `output_lens` and `errors`")
    _require_totals(document, sent)
    longest = window_s(document) * 1.01
    found = Requests(
        [], [], [], 0.0, sum(not _is_answered(tokens, error) for _, _, tokens, error in zip(*columns, strict=True))
    )
    tokens_of_all = 0
    for ttft, itl, length, error in zip(*columns, strict=True):
        if not _is_answered(length, error):
            continue
        gaps = [gap.number(most=longest) for gap in itl.items()]
        tokens = length.count()
        found.ttft_s.append(ttft.number(most=longest))
        found.gaps_s.extend(gaps)
        tokens_of_all += tokens
        if tokens > 1:
            found.tpot_s.append(sum(gaps) / (tokens - 1))
    completed = document.need("completed")
    if found.succeeded > completed.count():
        completed.refuse(f"at least the {found.succeeded} requests that have an answer")
    return Requests(found.ttft_s, found.tpot_s, found.gaps_s, float(tokens_of_all), found.failed)


def _require_totals(document: Field, sent: int | None) -> None:
    lengths, total = document.need("output_lens"), document.need("total_output_tokens")
    if sent is not None and len(lengths.items()) != sent:
        found = f"the {len(lengths.items())} requests that the file has one by one"
        document.need("completed").refuse(f"a number that comes, with those that failed, to {found}")
    tokens = sum(one.count() for one in lengths.items())
    if total.number() != tokens:
        total.refuse(f"the {tokens} tokens that `output_lens` come to")


def _is_answered(tokens: Field, error: Field) -> bool:
    return tokens.count() > 0 and error.value == ""


def outcomes(document: Field, requests: Requests | None, failed: int, tokens: float | None) -> Outcomes:
    """Counts and window: of the requests one by one where the file has them."""
    if requests is not None:
        return Outcomes(requests.succeeded, requests.failed, window_s(document), tokens)
    return Outcomes(document.need("completed").count(), failed, window_s(document), tokens)


def stage_of(document: Field) -> str:
    """The load as the file tells it; a rate of "inf" is none."""
    concurrency, rate = document.get("max_concurrency"), document.get("request_rate")
    if rate is not None and rate.value == "trace":
        return "trace"  # SGLang's, at the instants of a trace
    unlimited = rate is None or rate.value in ("inf", float("inf"))
    return stage_name(
        None if concurrency is None else concurrency.above_zero(),
        None if rate is None or unlimited else rate.above_zero(),
    )
