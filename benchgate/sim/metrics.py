"""The page of /metrics in the names of several engines, as far as there is something to tell under them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from benchgate.sim.ground_truth import Outcome
from benchgate.sim.requests import Ask
from benchgate.sim.settings import NS

_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip


class Histogram:
    """Durations in the buckets of vLLM's time to first token."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS_S) + 1)
        self._total_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one."""
        self._counts[bisect_left(_BUCKETS_S, duration_ns / NS)] += 1
        self._total_ns += duration_ns

    @property
    def count(self) -> int:
        """How many."""
        return sum(self._counts)

    @property
    def total_s(self) -> float:
        """All together."""
        return self._total_ns / NS

    def buckets(self) -> list[tuple[str, int]]:
        """Each upper bound in seconds, and how many are no longer."""
        bounds = [str(bound) for bound in _BUCKETS_S] + ["+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


@dataclass(slots=True)
class Counters:
    """Everything that only grows."""

    began_s: float = field(default_factory=time.time)
    requests: int = 0  # of which an answer is over, whatever came of it
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of those
    generation_tokens: int = 0  # of answers that are over
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    ttft: Histogram = field(default_factory=Histogram)
    queued: Histogram = field(default_factory=Histogram)
    prefill: Histogram = field(default_factory=Histogram)
    decode: Histogram = field(default_factory=Histogram)
    whole: Histogram = field(default_factory=Histogram)

    def over(self, ask: Ask, *, sent_tokens: int, cached_tokens: int, outcome: Outcome, read: bool) -> None:
        """An answer ended; `read` when its prompt had been read by then."""
        self.requests += 1
        self.generation_tokens += sent_tokens
        if read:
            self.prompt_tokens += ask.input_tokens
            self.cached_tokens += cached_tokens
        if outcome == "finished":
            self.finished["length" if ask.finish_reason == "length" else "stop"] += 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of the server: what it counted, and what it does now."""

    model: str
    counters: Counters
    running: int
    waiting: int
    kv_ratio: float
    generation_tokens: int
    preemptions: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int


class _Page:
    """A page in Prometheus' text format, family by family; all series carry the same labels."""

    def __init__(self, prefix: str, **labels: str) -> None:
        self._prefix = prefix
        self._labels = labels
        self._lines: list[str] = []

    def bare(self, name: str, kind: str, value: str) -> None:
        """A series without prefix and labels."""
        self._lines += [f"# TYPE {name} {kind}", f"{name} {value}"]

    def gauge(self, name: str, value: float) -> None:
        """One gauge."""
        self._family(name, "gauge", {(): value})

    def counter(self, name: str, value: float) -> None:
        """One counter."""
        self._family(name, "counter", {(): value})

    def counters(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """One counter for each value of a label."""
        self._family(name, "counter", {((label, key),): value for key, value in values.items()})

    def histogram(self, name: str, histogram: Histogram) -> None:
        """One histogram."""
        full = self._prefix + name
        self._lines.append(f"# TYPE {full} histogram")
        for bound, count in histogram.buckets():
            self._line(f"{full}_bucket", (("le", bound),), count)
        self._line(f"{full}_count", (), histogram.count)
        self._line(f"{full}_sum", (), histogram.total_s)

    def summed(self, name: str, total: float, count: int) -> None:
        """A histogram of which only the sum and the number are known."""
        full = self._prefix + name
        self._lines.append(f"# TYPE {full} histogram")
        self._line(f"{full}_bucket", (("le", "+Inf"),), count)
        self._line(f"{full}_count", (), count)
        self._line(f"{full}_sum", (), total)

    def text(self) -> str:
        """All of it."""
        return "\n".join([*self._lines, ""])

    def _family(self, name: str, kind: str, values: Mapping[tuple[tuple[str, str], ...], float]) -> None:
        self._lines.append(f"# TYPE {self._prefix}{name} {kind}")
        for labels, value in values.items():
            self._line(self._prefix + name, labels, value)

    def _line(self, name: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
        pairs = [*labels, *self._labels.items()]
        told = ",".join(f'{label}="{_escaped(text)}"' for label, text in pairs)
        self._lines.append(f"{name}{{{told}}} {float(value)}" if told else f"{name} {float(value)}")


def _vllm(now: Snapshot) -> str:
    page, counters = _Page("vllm:", engine="0", model_name=now.model), now.counters
    page.bare("process_start_time_seconds", "gauge", f"{counters.began_s:.6f}")
    page.gauge("num_requests_running", now.running)
    page.gauge("num_requests_waiting", now.waiting)
    page.gauge("kv_cache_usage_perc", now.kv_ratio)
    page.counter("prefix_cache_queries_total", now.prefix_queried_tokens)
    page.counter("prefix_cache_hits_total", now.prefix_hit_tokens)
    page.counter("num_preemptions_total", now.preemptions)
    page.counter("prompt_tokens_total", counters.prompt_tokens)
    page.counter("generation_tokens_total", now.generation_tokens)
    page.counters("request_success_total", "finished_reason", counters.finished)
    page.histogram("time_to_first_token_seconds", counters.ttft)
    page.histogram("request_queue_time_seconds", counters.queued)
    page.histogram("request_prefill_time_seconds", counters.prefill)
    page.histogram("request_decode_time_seconds", counters.decode)
    page.histogram("e2e_request_latency_seconds", counters.whole)
    return page.text()


def _sglang(now: Snapshot) -> str:
    page, counters = _Page("sglang:", engine_type="unified", model_name=now.model), now.counters
    page.gauge("num_running_reqs", now.running)
    page.gauge("num_queue_reqs", now.waiting)
    page.gauge("token_usage", now.kv_ratio)
    hit_ratio = now.prefix_hit_tokens / now.prefix_queried_tokens if now.prefix_queried_tokens else 0.0
    page.gauge("cache_hit_rate", hit_ratio)
    page.counter("num_retracted_requests_total", now.preemptions)
    page.counter("num_requests_total", counters.requests)
    page.counter("prompt_tokens_total", counters.prompt_tokens)
    page.counter("generation_tokens_total", now.generation_tokens)
    page.counter("cached_tokens_total", counters.cached_tokens)
    page.histogram("time_to_first_token_seconds", counters.ttft)
    page.histogram("queue_time_seconds", counters.queued)
    page.histogram("e2e_request_latency_seconds", counters.whole)
    return page.text()


def _tgi(now: Snapshot) -> str:
    page, counters = _Page("tgi_"), now.counters
    page.gauge("batch_current_size", now.running)
    page.gauge("queue_size", now.waiting)
    page.counter("request_count", counters.requests)
    page.counter("request_success", sum(counters.finished.values()))
    page.summed("request_input_length", counters.prompt_tokens, counters.requests)
    page.summed("request_generated_tokens", counters.generation_tokens, counters.requests)
    page.histogram("request_queue_duration", counters.queued)
    page.histogram("request_duration", counters.whole)
    return page.text()


def _llamacpp(now: Snapshot) -> str:
    page, counters = _Page("llamacpp:"), now.counters
    page.counter("prompt_tokens_total", counters.prompt_tokens - counters.cached_tokens)
    page.counter("prompt_tokens_cached_total", counters.cached_tokens)
    page.counter("prompt_seconds_total", counters.prefill.total_s)
    page.counter("tokens_predicted_total", now.generation_tokens)
    page.counter("tokens_predicted_seconds_total", counters.decode.total_s)
    page.gauge("requests_processing", now.running)
    page.gauge("requests_deferred", now.waiting)
    page.gauge("kv_cache_usage_ratio", now.kv_ratio)
    return page.text()


_PAGES: Mapping[str, Callable[[Snapshot], str]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tgi": _tgi,
    "llamacpp": _llamacpp,
}


def metric_page(engine: str, now: Snapshot) -> str:
    """The page, in the names of that engine."""
    return _PAGES[engine](now)


def merged(pages: Mapping[int, str]) -> str:
    """The pages of several replicas as one: every family once, every series with the number of its replica."""
    families: dict[str, list[str]] = {}
    for replica, page in pages.items():
        head = ""
        for line in page.splitlines():
            if line.startswith("#"):
                head = line
            elif not line.startswith("process_"):  # which each of them has of its own
                families.setdefault(head, []).append(_marked(line, f'replica="{replica}"'))
    return "\n".join([line for head, lines in families.items() for line in (head, *lines)] + [""])


def _marked(line: str, label: str) -> str:
    """A series with one more label."""
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{{{label},{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{{{label}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
