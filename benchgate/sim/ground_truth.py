"""Ground truth by the server's own clock, and its counters for Prometheus.

The truth says when requests were whole, and when bytes went to the kernel. Instants are of CLOCK_MONOTONIC in ns, so a
client on the same machine can be held against them one by one. What comes once a token is counted in bins of about a
microsecond: hours of streams then take no more memory than the first second. Counters run as long as the process: no
reset touches them.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, floor
from typing import Any, Literal, NamedTuple

from benchgate.sim.engine import Model
from benchgate.sim.requests import ApiRequest
from benchgate.sim.settings import NS

_BIN_BITS = 10  # a bin is 1,024 ns
_BINS = 1 << 20  # up to 1.07 s; what is longer is rare and kept as it is
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

# `n`, `mean`, `p50`, `p90`, `p95`, `p99` and `max`, in seconds; None where there is nothing.
Spread = dict[str, float | int | None]


class Durations:
    """Histogram in constant memory: each duration to within a microsecond up to a second, and exact beyond."""

    def __init__(self) -> None:
        self._counts = array("I", bytes(4 * _BINS))
        self._long_ns: list[int] = []
        self._total_ns = 0
        self._longest_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration, which is not negative."""
        self._total_ns += duration_ns
        if duration_ns > self._longest_ns:
            self._longest_ns = duration_ns
        try:
            self._counts[duration_ns >> _BIN_BITS] += 1
        except IndexError:
            self._long_ns.append(duration_ns)

    def state(self) -> dict[str, Any]:
        """Return all of it as JSON: the non-empty bins, and the long durations."""
        used = self._counts[: (self._longest_ns >> _BIN_BITS) + 1]
        bins = [(place, count) for place, count in enumerate(used) if count]
        return {"bins": bins, "long_ns": self._long_ns, "total_ns": self._total_ns, "longest_ns": self._longest_ns}

    def absorb(self, state: dict[str, Any]) -> None:
        """Count all that another has counted."""
        for place, count in state["bins"]:
            self._counts[place] += count
        self._long_ns += state["long_ns"]
        self._total_ns += state["total_ns"]
        self._longest_ns = max(self._longest_ns, state["longest_ns"])

    def spread(self) -> Spread:
        """Return the distribution; a quantile is the middle of the bin in which it lies."""
        sums = list(accumulate(self._counts[: (self._longest_ns >> _BIN_BITS) + 1]))
        n_short, n = sums[-1], sums[-1] + len(self._long_ns)
        if n == 0:
            return spread([])
        long_ns = sorted(self._long_ns)

        def at(rank: int) -> float:
            if rank >= n_short:
                return float(long_ns[rank - n_short])
            middle_ns = (bisect_right(sums, rank) + 0.5) * (1 << _BIN_BITS)
            return min(middle_ns, float(self._longest_ns))

        quantiles = {name: at(min(n - 1, ceil(q * n) - 1)) / NS for name, q in _QUANTILES.items()}
        return {"n": n, "mean": self._total_ns / n / NS, **quantiles, "max": self._longest_ns / NS}


def spread(durations_ns: Sequence[int]) -> Spread:
    """Return the distribution of durations, in seconds; quantiles by linear interpolation, as in numpy."""
    n = len(durations_ns)
    if n == 0:
        return {"n": 0, "mean": None, **dict.fromkeys(_QUANTILES), "max": None}
    ordered = sorted(durations_ns)

    def at(q: float) -> float:
        place = q * (n - 1)
        low, high = ordered[floor(place)], ordered[ceil(place)]
        return (low + (high - low) * (place - floor(place))) / NS

    return {"n": n, "mean": sum(ordered) / n / NS, **{k: at(q) for k, q in _QUANTILES.items()}, "max": ordered[-1] / NS}


# The whole answer went to the kernel; the client left before; the server answered with an error or cut the answer.
Outcome = Literal["finished", "aborted", "failed"]
_OUTCOMES: tuple[Outcome, ...] = ("finished", "aborted", "failed")
_ABSENT = -1
_COLUMNS = (
    "received_ns", "first_ns", "last_ns", "tokens", "input_tokens", "cached_tokens", "started_ns", "service_ns",
)  # fmt: skip
_COUNTS = ("requests", "shed", "over_tokens", "in_flight", "max_in_flight", "late_writes", "preemptions")


class RequestLabels(NamedTuple):
    """Labels of a request; None where it was not understood."""

    endpoint: str | None = None
    model: str | None = None
    priority: int | None = None


class CompletedRequest(NamedTuple):
    """An answer that is over. `first_ns` and `last_ns` are of writes with output, None when there was none.

    `started_ns`: it left the queue; None where there is no queue or it never did. `service_ns`: how long its server in
    the queue model works on it.
    """

    outcome: Outcome
    request_id: str | None
    fault: str
    received_ns: int
    labels: RequestLabels = RequestLabels()
    first_ns: int | None = None
    last_ns: int | None = None
    tokens: int = 0
    input_tokens: int = 0
    cached_tokens: int | None = None
    started_ns: int | None = None
    service_ns: int | None = None


class GroundTruth:
    """Everything since one reset. An answer belongs to the truth in which its request arrived."""

    def __init__(self, preempted_before: int = 0) -> None:
        self.requests = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.faults: Counter[str] = Counter()
        self.shed = 0
        self.over_tokens = 0  # of answers that are over
        self.in_flight = 0
        self.max_in_flight = 0
        self.late_writes = 0  # the kernel did not take them whole at once: their stamps are too early
        self.preemptions = -preempted_before  # what the engine has counted by the end comes to it
        self.gaps = Durations()
        self.lags = Durations()
        self._began_cpu_s = time.process_time()
        self._began_ns: int | None = None
        self._ended_ns = 0
        self._labels: list[RequestLabels] = []
        self._ids: list[str | None] = []
        self._how: list[tuple[Outcome, str]] = []
        self._columns = {name: array("q") for name in _COLUMNS}

    def arrived(self, received_ns: int, fault: str) -> None:
        """Count a whole request, not necessarily in the order of service."""
        self.requests += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if fault:
            self.faults[fault] += 1
        self._began_ns = received_ns if self._began_ns is None else min(self._began_ns, received_ns)

    def refused(self, received_ns: int, request_id: str | None) -> None:
        """Count a request for something that the server does not offer."""
        self.arrived(received_ns, "")
        self.ended(CompletedRequest("failed", request_id, "", received_ns))

    def ended(self, over: CompletedRequest) -> None:
        """Count an answer that is over."""
        self.in_flight -= 1
        self.outcomes[over.outcome] += 1
        self.over_tokens += over.tokens
        self._labels.append(over.labels)
        self._ids.append(over.request_id)
        self._how.append((over.outcome, over.fault))
        for name, column in self._columns.items():
            value: int | None = getattr(over, name)
            column.append(_ABSENT if value is None else value)
        if over.last_ns is not None:
            self._ended_ns = max(self._ended_ns, over.last_ns)

    def document(self, *, tokens_under_way: int = 0, preempted: int = 0, with_requests: bool) -> dict[str, object]:
        """Return the truth so far, with one row for each completed request, in the order of their ends."""
        finished = [at for at, (outcome, _) in enumerate(self._how) if outcome == "finished"]
        span_s = None  # from the first request to the last output of a completed answer
        if self._began_ns is not None and self._ended_ns >= self._began_ns:
            span_s = (self._ended_ns - self._began_ns) / NS
        document: dict[str, object] = {
            "requests": self.requests,
            **{outcome: self.outcomes[outcome] for outcome in _OUTCOMES},
            "shed": self.shed,
            "in_flight": self.in_flight,
            "max_in_flight": self.max_in_flight,
            "output_tokens": self.over_tokens + tokens_under_way,
            "input_tokens": sum(self._columns["input_tokens"]),
            "cached_tokens": sum(max(0, cached) for cached in self._columns["cached_tokens"]),
            "preemptions": self.preemptions + preempted,
            "span_s": span_s,
            "ttft_s": spread(self._since_received("first_ns", range(len(self._ids)))),
            "itl_s": self.gaps.spread(),
            "e2e_s": spread(self._since_received("last_ns", finished)),
            "schedule_lag_s": self.lags.spread(),
            "late_writes": self.late_writes,
            "cpu_s": time.process_time() - self._began_cpu_s,
            "faults": dict(self.faults),
            "by_endpoint": self._by("endpoint"),
            "by_model": self._by("model"),
            "by_priority": self._by("priority"),
        }
        return document | {"rows": self._rows()} if with_requests else document

    def state(self, *, tokens_under_way: int, preempted: int) -> dict[str, Any]:
        """Return all of it as JSON, for `absorb`."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        counts["over_tokens"] += tokens_under_way
        counts["preemptions"] += preempted
        return {
            "counts": counts,
            "outcomes": self.outcomes,
            "faults": self.faults,
            "gaps": self.gaps.state(),
            "lags": self.lags.state(),
            "cpu_s": time.process_time() - self._began_cpu_s,
            "began_ns": self._began_ns,
            "ended_ns": self._ended_ns,
            "labels": self._labels,
            "ids": self._ids,
            "how": self._how,
            "columns": {name: column.tolist() for name, column in self._columns.items()},
        }

    def absorb(self, state: dict[str, Any]) -> None:
        """Add the state of another server. `max_in_flight` is an upper bound afterwards."""
        for name, count in state["counts"].items():
            setattr(self, name, getattr(self, name) + count)
        self.outcomes.update(state["outcomes"])
        self.faults.update(state["faults"])
        self.gaps.absorb(state["gaps"])
        self.lags.absorb(state["lags"])
        self._began_cpu_s -= state["cpu_s"]
        began_ns = [instant for instant in (self._began_ns, state["began_ns"]) if instant is not None]
        self._began_ns = min(began_ns, default=None)
        self._ended_ns = max(self._ended_ns, state["ended_ns"])
        self._labels += [RequestLabels(*labels) for labels in state["labels"]]
        self._ids += state["ids"]
        self._how += [(outcome, fault) for outcome, fault in state["how"]]
        for name, values in state["columns"].items():
            self._columns[name].extend(values)

    def _since_received(self, column: str, which: Iterable[int]) -> list[int]:
        instants, received = self._columns[column], self._columns["received_ns"]
        return [instants[at] - received[at] for at in which if instants[at] != _ABSENT]

    def _by(self, kind: str) -> dict[str, object]:
        groups: dict[object, list[int]] = {}
        for at, labels in enumerate(self._labels):
            value = getattr(labels, kind)
            if value is not None:
                groups.setdefault(value, []).append(at)
        return {str(value): self._group(groups[value]) for value in sorted(groups, key=str)}

    def _group(self, which: list[int]) -> dict[str, object]:
        outcomes = Counter(self._how[at][0] for at in which)
        return {
            "requests": len(which),
            **{outcome: outcomes[outcome] for outcome in _OUTCOMES},
            "output_tokens": sum(self._columns["tokens"][at] for at in which),
            "ttft_s": spread(self._since_received("first_ns", which)),
        }

    def _rows(self) -> list[dict[str, object]]:
        rows = []
        for at, (labels, request_id, (outcome, fault)) in enumerate(
            zip(self._labels, self._ids, self._how, strict=True)
        ):
            values = {name: None if column[at] == _ABSENT else column[at] for name, column in self._columns.items()}
            values["output_tokens"] = values.pop("tokens")
            rows.append({"id": request_id, "outcome": outcome, "fault": fault or None, **labels._asdict(), **values})
        return rows


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


def merged(pages: Mapping[int, str], roles: Mapping[int, str]) -> str:
    """Merge the pages of several replicas: every family once, every series with the number and role of its replica."""
    families: dict[str, list[str]] = {}
    for replica, page in pages.items():
        head = ""
        for line in page.splitlines():
            if line.startswith("#"):
                head = line
            elif not line.startswith("process_"):  # which each of them has of its own
                name, _, rest = line.partition("{")  # every series has labels
                labels = f'replica="{replica}",' + (f'role="{roles[replica]}",' if replica in roles else "")
                families.setdefault(head, []).append(f"{name}{{{labels}{rest}")
    return "\n".join([line for head, lines in families.items() for line in (head, *lines)] + [""])
