"""What a stage waited for, by what its server said and the client measured: queue, prefill, decode, KV cache, client.

It explains and decides nothing. A mean request's time has three parts: waiting for a place, reading the prompt, writing
the answer. The server's own figures of them count first; else the queue follows from how many waited (Little's law:
mean wait = mean number waiting / requests per second) and the rest from the client's TTFT and E2E.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray, RequestColumns
from benchgate.model.request_metrics import e2e_s, succeeded, ttft_s
from benchgate.model.run import LoadObservation
from benchgate.model.telemetry import Counter, Gauge, TelemetryWindow
from benchgate.units import show_duration, show_number, show_percent

KV_FULL = 0.95


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`name` is one of queue, prefill, decode, KV cache, client, or "not known"; `why` gives the figures."""

    name: str
    why: str


NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the time of a mean successful request went, in seconds; None where it cannot be told."""

    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None


def bottleneck(
    windows: Sequence[TelemetryWindow], executions: Sequence[LoadObservation], client_strain: str | None
) -> Bottleneck:
    """Of one stage on one arm, over all blocks. `client_strain` says why the client was the bottleneck, if it was."""
    if client_strain is not None:
        return Bottleneck("client", client_strain)
    told = [window for window in windows if window.readings]
    if not told:
        return Bottleneck(NOT_KNOWN, "the server told nothing of itself")
    full = _kv_full(told)
    if full is not None:
        return Bottleneck("KV cache", full)
    parts = parts_of(told, [rows for o in executions for rows in o.with_ramp])  # the server's figures are of both
    named = {"queue": parts.queue_s, "prefill": parts.prefill_s, "decode": parts.decode_s}
    known = {name: value for name, value in named.items() if value is not None}
    total = sum(known.values())
    if len(known) < len(named) or total <= 0:
        return Bottleneck(NOT_KNOWN, "the server does not tell where its time goes")
    shares = ", ".join(f"{name} {show_duration(value)} ({100 * value / total:.0f} %)" for name, value in known.items())
    largest = max(known, key=lambda name: known[name])
    return Bottleneck(largest, f"of a mean request: {shares}{_of_accelerators(told)}")


def _kv_full(windows: Sequence[TelemetryWindow]) -> str | None:
    """Requests thrown out of the cache, or waiting while it is full."""
    thrown_out = _total(windows, Counter.PREEMPTIONS)
    usage, waiting = _largest(windows, Gauge.KV_USAGE), _largest(windows, Gauge.WAITING)
    if thrown_out:
        held = "" if usage is None else f", KV cache up to {show_percent(usage)} full"
        return f"{show_number(thrown_out)} requests were thrown out of the KV cache and began again{held}"
    if usage is not None and usage >= KV_FULL and waiting:
        return f"the KV cache was {show_percent(usage)} full while {show_number(waiting)} requests waited"
    return None


def parts_of(windows: Sequence[TelemetryWindow], requests: Sequence[RequestColumns]) -> Parts:
    """Means over the requests of all blocks; the server's own figures where it gives them."""
    answered = sum(int(np.count_nonzero(succeeded(columns))) for columns in requests)
    ttft_mean_s, e2e_mean_s = _mean(requests, ttft_s), _mean(requests, e2e_s)
    queue_s = _per(windows, Counter.QUEUE_S, Counter.QUEUED, answered)
    if queue_s is None:
        queue_s = _by_littles_law(windows, answered)
    prefill_s = _per(windows, Counter.PREFILL_S, Counter.PREFILLED, answered)
    if prefill_s is None and ttft_mean_s is not None and queue_s is not None:
        prefill_s = max(0.0, ttft_mean_s - queue_s)
    decode_s = _per(windows, Counter.DECODE_S, Counter.DECODED, answered)
    if decode_s is None and ttft_mean_s is not None and e2e_mean_s is not None:
        decode_s = max(0.0, e2e_mean_s - ttft_mean_s)
    return Parts(queue_s, prefill_s, decode_s)


def _per(windows: Sequence[TelemetryWindow], seconds: Counter, over: Counter, answered: int) -> float | None:
    """Seconds per request: over the server's own number of them, else over those answered."""
    total_s, count = _total(windows, seconds), _total(windows, over)
    if total_s is None:
        return None
    number = answered if count is None else count
    return total_s / number if number else None


def _by_littles_law(windows: Sequence[TelemetryWindow], answered: int) -> float | None:
    waiting = [(window.mean(Gauge.WAITING), window.ended_s) for window in windows]
    known = [(mean, length_s) for mean, length_s in waiting if mean is not None]
    if not known or not answered:
        return None
    length_s = sum(length_s for _, length_s in waiting)
    looked_at_s = sum(length_s for _, length_s in known)
    mean_waiting = sum(mean * length_s for mean, length_s in known) / looked_at_s if looked_at_s > 0 else 0.0
    return mean_waiting * length_s / answered


def _total(windows: Sequence[TelemetryWindow], word: Counter) -> float | None:
    changes = [change for window in windows if (change := window.change(word)) is not None]
    return sum(changes) if changes else None


def _largest(windows: Sequence[TelemetryWindow], word: Gauge) -> float | None:
    return max((peak for window in windows if (peak := window.peak(word)) is not None), default=None)


def _of_accelerators(windows: Sequence[TelemetryWindow]) -> str:
    """How busy the accelerators were, where somebody read them."""
    said = ((Gauge.GPU_BUSY, "accelerators busy"), (Gauge.GPU_BANDWIDTH, "memory bandwidth used"))
    means = ((name, [m for window in windows if (m := window.mean(word)) is not None]) for word, name in said)
    return "".join(f"; {name} {show_percent(sum(found) / len(found))}" for name, found in means if found)


def _mean(requests: Sequence[RequestColumns], metric: Callable[[RequestColumns], FloatArray]) -> float | None:
    """Over the requests that succeeded, to which the metric applies."""
    values: list[FloatArray] = [metric(columns) for columns in requests]
    finite = np.concatenate([found[np.isfinite(found)] for found in values]) if values else np.empty(0)
    return float(finite.mean()) if len(finite) else None
