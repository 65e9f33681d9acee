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


class _Page:
    """A page in Prometheus' text format, family by family; all series carry the same labels."""

    def __init__(self, prefix: str, **labels: str) -> None:
        self._prefix = prefix
        self._labels = labels
        self._lines: list[str] = []

    def bare(self, name: str, kind: str, value: str) -> None:
        """Add a series without prefix and labels."""
        self._lines += [f"# TYPE {name} {kind}", f"{name} {value}"]

    def gauge(self, name: str, value: float) -> None:
        """Add one gauge."""
        self._family(name, "gauge", {(): value})

    def counter(self, name: str, value: float) -> None:
        """Add one counter."""
        self._family(name, "counter", {(): value})

    def counters(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """Add one counter for each value of a label."""
        self._family(name, "counter", {((label, key),): value for key, value in values.items()})

    def histogram(self, name: str, histogram: Histogram) -> None:
        """Add one histogram."""
        full = self._prefix + name
        self._lines.append(f"# TYPE {full} histogram")
        for bound, count in histogram.buckets():
            self._line(f"{full}_bucket", (("le", bound),), count)
        self._line(f"{full}_count", (), histogram.buckets()[-1][1])
        self._line(f"{full}_sum", (), histogram.total_ns / NS)

    def text(self) -> str:
        """Return the page."""
        return "\n".join([*self._lines, ""])

    def _family(self, name: str, kind: str, values: Mapping[tuple[tuple[str, str], ...], float]) -> None:
        self._lines.append(f"# TYPE {self._prefix}{name} {kind}")
        for labels, value in values.items():
            self._line(self._prefix + name, labels, value)

    def _line(self, name: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
        pairs = [*labels, *self._labels.items()]
        escaped = ((label, text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for label, text in pairs)
        pairs_text = ",".join(f'{label}="{text}"' for label, text in escaped)
        self._lines.append(f"{name}{{{pairs_text}}} {float(value)}")


def metric_page(name: str, model: Model, counters: Counters, generation_tokens: int) -> str:
    """Return the page of /metrics, in vLLM's names; `name` is that of the served model."""
    page, tally = _Page("vllm:", engine="0", model_name=name), model.tally
    page.bare("process_start_time_seconds", "gauge", f"{counters.began_s:.6f}")
    page.gauge("num_requests_running", model.running)
    page.gauge("num_requests_waiting", model.waiting)
    page.gauge("kv_cache_usage_perc", model.kv_ratio)
    page.counter("prefix_cache_queries_total", tally.prefix_queried_tokens)
    page.counter("prefix_cache_hits_total", tally.prefix_hit_tokens)
    page.counter("num_preemptions_total", tally.preemptions)
    page.counter("prompt_tokens_total", counters.prompt_tokens)
    page.counter("generation_tokens_total", generation_tokens)
    page.counters("request_success_total", "finished_reason", counters.finished)
    page.histogram("time_to_first_token_seconds", counters.ttft)
    page.histogram("request_queue_time_seconds", counters.queued)
    page.histogram("request_prefill_time_seconds", counters.prefill)
    page.histogram("request_decode_time_seconds", counters.decode)
    page.histogram("e2e_request_latency_seconds", counters.whole)
    return page.text()


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
