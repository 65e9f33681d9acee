"""Counters of the server for Prometheus, and their page. Counters run as long as the process: no reset touches them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from benchgate.sim.engine import Model
from benchgate.sim.ground_truth import Outcome
from benchgate.sim.requests import ApiRequest
from benchgate.sim.settings import NS

_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Durations in the buckets of vLLM's time to first token."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS_S) + 1)
        self.total_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one."""
        self._counts[bisect_left(_BUCKETS_S, duration_ns / NS)] += 1
        self.total_ns += duration_ns

    def buckets(self) -> list[tuple[str, int]]:
        """Return each upper bound in seconds with its cumulative count."""
        bounds = [str(bound) for bound in _BUCKETS_S] + ["+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


@dataclass(slots=True)
class Counters:
    """Everything that only grows."""

    began_s: float = field(default_factory=time.time)
    prompt_tokens: int = 0
    generation_tokens: int = 0  # of answers that are over
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    ttft: Histogram = field(default_factory=Histogram)
    queued: Histogram = field(default_factory=Histogram)
    prefill: Histogram = field(default_factory=Histogram)
    decode: Histogram = field(default_factory=Histogram)
    whole: Histogram = field(default_factory=Histogram)

    def over(self, request: ApiRequest, sent_tokens: int, outcome: Outcome, *, read: bool) -> None:
        """Count an answer that ended; `read` when its prompt had been read by then."""
        self.generation_tokens += sent_tokens
        if read:
            self.prompt_tokens += request.input_tokens
        if outcome == "finished":
            self.finished["length" if request.finish_reason == "length" else "stop"] += 1


def metric_page(name: str, model: Model, counters: Counters, generation_tokens: int) -> str:
    """Return the page of /metrics, in vLLM's names; `name` is that of the served model."""
    escaped = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'engine="0",model_name="{escaped}"'
    lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {counters.began_s:.6f}"]

    def family(title: str, kind: str, *samples: tuple[str, str, float]) -> None:
        lines.append(f"# TYPE vllm:{title} {kind}")
        lines.extend(f"vllm:{title}{suffix}{{{more}{labels}}} {float(value)}" for suffix, more, value in samples)

    gauges = {
        "num_requests_running": model.running,
        "num_requests_waiting": model.waiting,
        "kv_cache_usage_perc": model.kv_ratio,
    }
    totals = {
        "prefix_cache_queries_total": model.tally.prefix_queried_tokens,
        "prefix_cache_hits_total": model.tally.prefix_hit_tokens,
        "num_preemptions_total": model.tally.preemptions,
        "prompt_tokens_total": counters.prompt_tokens,
        "generation_tokens_total": generation_tokens,
    }
    histograms = {
        "time_to_first_token_seconds": counters.ttft,
        "request_queue_time_seconds": counters.queued,
        "request_prefill_time_seconds": counters.prefill,
        "request_decode_time_seconds": counters.decode,
        "e2e_request_latency_seconds": counters.whole,
    }
    for title, gauge in gauges.items():
        family(title, "gauge", ("", "", gauge))
    for title, total in totals.items():
        family(title, "counter", ("", "", total))
    finished = (("", f'finished_reason="{reason}",', count) for reason, count in counters.finished.items())
    family("request_success_total", "counter", *finished)
    for title, histogram in histograms.items():
        buckets = [("_bucket", f'le="{bound}",', count) for bound, count in histogram.buckets()]
        sums = ("_count", "", buckets[-1][2]), ("_sum", "", histogram.total_ns / NS)
        family(title, "histogram", *buckets, *sums)
    return "\n".join([*lines, ""])


def merged(pages: Mapping[int, str]) -> str:
    """Merge the pages of several replicas: every family once, every series with the number of its replica."""
    families: dict[str, list[str]] = {}
    for replica, page in pages.items():
        head = ""
        for line in page.splitlines():
            if line.startswith("#"):
                head = line
            elif not line.startswith("process_"):  # which each of them has of its own
                name, _, rest = line.partition("{")  # every series has labels
                families.setdefault(head, []).append(f'{name}{{replica="{replica}",{rest}')
    return "\n".join([line for head, lines in families.items() for line in (head, *lines)] + [""])
