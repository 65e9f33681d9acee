"""Bottleneck of a stage: queue, prefill, decode, KV cache or client. For reports only; no check uses it.

A mean request's time has three parts: queue, prefill and decode. The server's own figures come first. Without them the
queue time follows from the number of waiting requests (Little's law: mean wait = mean number waiting / requests per
second), and the rest from the client's TTFT and E2E.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray, RequestColumns
from benchgate.model.request_metrics import e2e_s, succeeded, ttft_s
from benchgate.model.run import LoadObservation
from benchgate.model.telemetry import Counter, Gauge, TelemetryWindow, ratio_of_changes, total_change
from benchgate.units import show_duration, show_number, show_percent

KV_FULL = 0.95


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Bottleneck: queue, prefill, decode, KV cache, client, or "not known"; `why` gives the figures."""

    name: str
    why: str


NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a mean successful request's time; None if unknown."""

    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None


def bottleneck(
    windows: Sequence[TelemetryWindow], executions: Sequence[LoadObservation], client_strain: str | None
) -> Bottleneck:
    """Return the bottleneck of a stage over all blocks. `client_strain` is the reason if it was the client."""
    if client_strain is not None:
        return Bottleneck("client", client_strain)
    reported = [window for window in windows if window.readings]
    if not reported:
        return Bottleneck(NOT_KNOWN, "the server reported no metrics")
    full = _kv_full(reported)
    if full is not None:
        return Bottleneck("KV cache", full)
    blocks = {window.block for window in reported}
    requests = [rows for o in executions if o.block in blocks for rows in o.with_ramp]  # the server's figures have both
    parts = parts_of(reported, requests)
    named = {"queue": parts.queue_s, "prefill": parts.prefill_s, "decode": parts.decode_s}
    known = {name: value for name, value in named.items() if value is not None}
    total = sum(known.values())
    if len(known) < len(named) or total <= 0:
        return Bottleneck(NOT_KNOWN, "the server does not report where its time goes")
    shares = ", ".join(f"{name} {show_duration(value)} ({100 * value / total:.0f} %)" for name, value in known.items())
    largest = max(known, key=lambda name: known[name])
    why = f"of a mean request: {shares}"
    for gauge, name in ((Gauge.GPU_BUSY, "accelerators busy"), (Gauge.GPU_BANDWIDTH, "memory bandwidth used")):
        means = [mean for window in reported if (mean := window.mean(gauge)) is not None]
        why += f"; {name} {show_percent(sum(means) / len(means))}" if means else ""
    return Bottleneck(largest, why)


def _kv_full(windows: Sequence[TelemetryWindow]) -> str | None:
    if preempted := total_change(windows, Counter.PREEMPTIONS):
        usage = max((peak for window in windows if (peak := window.peak(Gauge.KV_USAGE)) is not None), default=None)
        held = "" if usage is None else f", KV cache up to {show_percent(usage)} full"
        return f"{show_number(preempted)} requests were preempted from the KV cache and recomputed{held}"
    sampled = [reading.values for window in windows for reading in window.busy]
    together = [(one.get(Gauge.KV_USAGE, 0.0), one.get(Gauge.WAITING, 0.0)) for one in sampled]
    full = [(usage, waiting) for usage, waiting in together if usage >= KV_FULL and waiting > 0]
    if not full:
        return None
    usage, waiting = max(full, key=lambda one: one[1])
    return f"the KV cache was {show_percent(usage)} full while {show_number(waiting)} requests waited"


def parts_of(windows: Sequence[TelemetryWindow], requests: Sequence[RequestColumns]) -> Parts:
    """Return means over the requests of all blocks, preferring the server's own figures."""
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
    """Return seconds per request, over the server's own number of requests or else those answered in all windows."""
    if total_change(windows, over) is not None:
        return ratio_of_changes(windows, seconds, over)
    changes_s = [window.change(seconds) for window in windows]
    known_s = [change_s for change_s in changes_s if change_s is not None]
    return sum(known_s) / answered if known_s and answered and len(known_s) == len(changes_s) else None


def _by_littles_law(windows: Sequence[TelemetryWindow], answered: int) -> float | None:
    waiting = [(window.mean(Gauge.WAITING), window.ended_s) for window in windows]
    known = [(mean, length_s) for mean, length_s in waiting if mean is not None]
    if not known or not answered:
        return None
    length_s = sum(length_s for _, length_s in waiting)
    known_s = sum(length_s for _, length_s in known)
    mean_waiting = sum(mean * length_s for mean, length_s in known) / known_s if known_s > 0 else 0.0
    return mean_waiting * length_s / answered


def _mean(requests: Sequence[RequestColumns], metric: Callable[[RequestColumns], FloatArray]) -> float | None:
    values: list[FloatArray] = [metric(columns) for columns in requests]
    finite = np.concatenate([found[np.isfinite(found)] for found in values]) if values else np.empty(0)
    return float(finite.mean()) if len(finite) else None
