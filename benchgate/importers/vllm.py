"""`vllm bench serve --save-result` (vllm/benchmarks/serve.py), and its descendant `python -m sglang.bench_serving`.

With `--save-detailed` or `--output-details` a file has its requests, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchgate.importers.reading import (
    ARITHMETIC,
    FROM_SEND_TO_END,
    INTERPOLATED,
    NO_METRIC,
    OTHER_GOODPUT,
    Field,
    Format,
    Outcomes,
    Reading,
    about_the_same,
    by_local_time,
    latency_rows,
    left_out,
    optional_text,
    rate_rows,
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


@dataclass(slots=True)
class Requests:
    """Requests of a detailed file: times in seconds of those answered, and the number of failures."""

    ttft_s: list[float]
    tpot_s: list[float]
    gaps_s: list[float]
    output_tokens: float
    failed: int

    @property
    def succeeded(self) -> int:
        """Number of requests answered with at least one token."""
        return len(self.ttft_s)

    def rows(self, stage: str) -> Iterator[MetricRow]:
        """Yield percentiles of latencies."""
        yield from latency_rows("ttft_sent", self.ttft_s, self.failed, stage)
        yield from latency_rows("tpot", self.tpot_s, self.failed, stage)


def _window_s(document: Field) -> float:
    """Return the duration of the benchmark. Raises UsageError if the file's own rates contradict it."""
    duration_s = document.need("duration").above_zero()
    for what, count, rate in (
        ("completed requests", document.need("completed").count(), document.need("request_throughput")),
        ("output tokens", document.need("total_output_tokens").number(), document.get("output_throughput")),
    ):
        if rate is not None and not about_the_same(count / duration_s, rate.number()):
            rate.refuse(f"{count:g} {what} over a duration of {duration_s:g} s; is that in seconds?")
    return duration_s


def _detailed(document: Field, sent: int | None = None) -> Requests | None:
    """Return the requests; None for a file without them. A request without an output token has failed.

    Raises UsageError if they contradict the totals of the file; `sent` is the total of requests by those.
    """
    lists = [document.get(name) for name in ("ttfts", "itls", "output_lens", "errors")]
    if any(one is None for one in lists):
        return None
    columns = [one.items() for one in lists if one is not None]
    if len({len(column) for column in columns}) != 1:
        document.refuse("as many `ttfts` as `itls`, `output_lens` and `errors`")
    lengths, completed, total = columns[2], document.need("completed"), document.need("total_output_tokens")
    if sent is not None and len(lengths) != sent:
        found = f"the {len(lengths)} requests that the file has one by one"
        completed.refuse(f"a number that comes, with those that failed, to {found}")
    if total.number() != (tokens_of_all := sum(one.count() for one in lengths)):
        total.refuse(f"the {tokens_of_all} tokens that `output_lens` come to")
    longest = _window_s(document) * 1.01
    requests = Requests([], [], [], 0.0, 0)
    for ttft, itl, length, error in zip(*columns, strict=True):
        tokens = length.count()
        if tokens == 0 or error.value != "":
            requests.failed += 1
            continue
        gaps = [gap.number(most=longest) for gap in itl.items()]
        requests.ttft_s.append(ttft.number(most=longest))
        requests.gaps_s.extend(gaps)
        requests.output_tokens += tokens
        if tokens > 1:
            requests.tpot_s.append(sum(gaps) / (tokens - 1))
    if requests.succeeded > completed.count():
        completed.refuse(f"at least the {requests.succeeded} requests that have an answer")
    return requests


def _outcomes(document: Field, requests: Requests | None, failed: int, *, counts_tokens: bool = True) -> Outcomes:
    """Return counts and window, of the requests if the file has them."""
    succeeded, tokens = document.need("completed").count(), document.need("total_output_tokens").number()
    if requests is not None:
        succeeded, failed, tokens = requests.succeeded, requests.failed, requests.output_tokens
    return Outcomes(succeeded, failed, _window_s(document), tokens if counts_tokens else None)


def _stage_of(document: Field) -> str:
    """Return the stage by the file's load; a rate of "inf" is none."""
    concurrency, rate = document.get("max_concurrency"), document.get("request_rate")
    if rate is not None and rate.value == "trace":
        return "trace"  # SGLang's, at the instants of a trace
    unlimited = rate is None or rate.value in ("inf", float("inf"))
    return stage_name(
        None if concurrency is None else concurrency.above_zero(),
        None if rate is None or unlimited else rate.above_zero(),
    )


_VLLM_KEYS = ("num_prompts", "completed", "duration", "request_throughput", "total_token_throughput", "tokenizer_id")
_VLLM_TAKEN = (
    "$.total_output_tokens", "$.output_throughput", "$.num_prompts", "$.failed", "$.date", "$.model_id",
    "$.endpoint_type",
)  # fmt: skip
_DATE = "%Y%m%d-%H%M%S"  # of the client's clock when it ended, without a time zone
_BY_COMPLETIONS = ("vllm", "openai")
_OTHER_START = "of this backend the tool's first chunk may be the one that only names the role, which carries no output"


def read_vllm(document: Field) -> Reading:
    """Read rates, errors, and times of a detailed file's requests. Raises UsageError for impossible numbers."""
    backend = optional_text(document.get("backend")) or optional_text(document.get("endpoint_type"))
    lost, sent = _lost_and_sent(document)
    requests, stage = _detailed(document, sent), _stage_of(document)
    rows = list(rate_rows(_outcomes(document, requests, lost), stage))
    reasons, taken = dict(REASONS), [*RATES, *_VLLM_TAKEN]
    mapped = {
        "request_throughput": "completed / duration",
        "output_throughput": "total_output_tokens / duration",
        "error_rate": "failed / (completed + failed)",
    }
    taken += COUNTS if requests is not None else ()
    if requests is not None and backend in _BY_COMPLETIONS:
        rows += requests.rows(stage)
        taken += TIMES
        mapped |= {"ttft_sent": "ttfts", "tpot": "sum of itls / (output_lens - 1)"}
        if requests.failed == 0:
            rows += latency_rows("itl", requests.gaps_s, 0, stage)
            mapped["itl"] = "itls"
    elif requests is not None:
        reasons = {"$.ttfts": _OTHER_START, "$.itls": _OTHER_START} | reasons
    model, date = optional_text(document.get("model_id")), document.get("date")
    measured = None if date is None else by_local_time(date, _DATE)
    return Reading("vllm", None, model, tuple(rows), mapped, left_out(document, taken, reasons), measured)


def _lost_and_sent(document: Field) -> tuple[int, int | None]:
    """Return the number of failed requests, and of sent ones if the file counts both kinds.

    Older files do not count failures: there all requested prompts that did not complete have failed.
    """
    failed, prompts = document.get("failed"), document.need("num_prompts")
    completed = document.need("completed").count()
    sent = completed + (failed.count() if failed is not None else 0)
    if prompts.count() < sent:
        prompts.refuse(f"at least the {completed} requests that completed and the {sent - completed} that failed")
    return (prompts.count() - completed, None) if failed is None else (failed.count(), sent)


VLLM = Format("vllm", _VLLM_KEYS, read_vllm)

_SGLANG_KEYS = ("backend", "completed", "duration", "request_throughput", "total_output_tokens_retokenized")
_COUNTS_ITSELF = ("sglang", "sglang-native")
_REQUESTED = "if the server does not count its tokens, the tool uses the number requested"
_NOT_COUNTED = "the file has no number of failed requests; write it with --output-details"


def read_sglang(document: Field) -> Reading:
    """Read rates, and errors and times of a detailed file.

    The tool spreads gaps over tokens, so there is no `itl`.
    """
    requests, stage = _detailed(document), _stage_of(document)
    counts = optional_text(document.get("backend")) in _COUNTS_ITSELF
    rows = list(rate_rows(_outcomes(document, requests, 0, counts_tokens=counts), stage))
    reasons = {
        "$.itls": "gaps are shared out over the tokens of a chunk",
        "output_throughput": _REQUESTED,
    } | REASONS
    mapped, taken = (
        {"request_throughput": "completed / duration"},
        [*RATES, "$.model_id", "$.model", "$.sglang_version"],
    )
    if counts:
        mapped["output_throughput"] = "total_output_tokens / duration"
        taken += ["$.total_output_tokens", "$.output_throughput"]
    if requests is None:
        rows = [one for one in rows if one.name != "error_rate"]
    else:
        taken += COUNTS
        mapped["error_rate"] = "errors, and requests without output tokens"
        times = [one for one in requests.rows(stage) if counts or one.name != "tpot"]
        rows += times
        mapped["ttft_sent"] = "ttfts"
        taken += TIMES
        if counts:
            mapped["tpot"] = "sum of itls / (output_lens - 1)"
    version = optional_text(document.get("sglang_version"))
    model = optional_text(document.get("model_id")) or optional_text(document.get("model"))
    unmapped = left_out(document, taken, reasons)
    if requests is None:
        unmapped["$.errors"] = _NOT_COUNTED
    return Reading("sglang", version, model, tuple(rows), mapped, unmapped)


SGLANG = Format("sglang", _SGLANG_KEYS, read_sglang)
