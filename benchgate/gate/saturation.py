"""Was the client itself the bottleneck? Latencies of a saturated client are its own, not the server's."""

from __future__ import annotations

import numpy as np

from benchgate.model import metrics, records
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.run import ClientUse
from benchgate.units import show_duration, show_percent

_CPU_SHARE = 0.85  # of one core and worker: above it, reads wait for the interpreter
_LAG_S = 0.005  # lateness below this is noise of any scheduler
_LAG_OF_TTFT = 0.10  # and below this share of what is measured it cannot change a verdict
_LATE_SHARE = 0.01  # of the requests sent
_ACHIEVED = 0.95  # of the offered rate


def saturation_reasons(use: ClientUse, columns: RequestColumns, offered_rps: float | None) -> tuple[str, ...]:
    """Why the numbers of this stage are the client's and not the server's; empty when they are the server's.

    `offered_rps` is the rate an open loop was meant to send at, None for a closed loop, which has none.
    """
    found = (_faults(columns), _busy(use), _late(columns), _slow(columns, offered_rps))
    return tuple(reason for reason in found if reason is not None)


def _faults(columns: RequestColumns) -> str | None:
    count = sum(error == ErrorClass.CLIENT for error in columns.error)
    return f"{count} of {len(columns)} requests failed by a fault of the client's own" if count else None


def _busy(use: ClientUse) -> str | None:
    if use.cpu_share <= _CPU_SHARE:
        return None
    return f"the client used {show_percent(use.cpu_share)} of a core per worker (limit {show_percent(_CPU_SHARE)})"


def _late(columns: RequestColumns) -> str | None:
    """More than one request in a hundred sent late. One request alone is a hiccup, however few there are.

    Requests that were never sent are left out: that no connection could be had is not lateness.
    """
    lag_s = metrics.send_lag_s(columns)
    lag_s = lag_s[np.isfinite(lag_s)]
    ttft_s = metrics.ttft_s(columns)
    ttft_p50_s = metrics.quantile(ttft_s[np.isfinite(ttft_s)], 0.5)
    if ttft_p50_s is None:
        return None
    late = np.count_nonzero(lag_s > max(_LAG_S, _LAG_OF_TTFT * ttft_p50_s))
    lag_p99_s = metrics.quantile(lag_s, 0.99)
    if late <= max(1, _LATE_SHARE * len(lag_s)) or lag_p99_s is None:
        return None
    return f"p99 of the send lag is {show_duration(lag_p99_s)}, beside a median TTFT of {show_duration(ttft_p50_s)}"


def _slow(columns: RequestColumns, offered_rps: float | None) -> str | None:
    """Compares the span of the sends with the span of the schedule: a random schedule is never exactly its rate."""
    sent = columns.sent_ns != records.ABSENT
    if offered_rps is None or np.count_nonzero(sent) < 2:
        return None
    planned_ns, actual_ns = np.ptp(columns.intended_ns[sent]), np.ptp(columns.sent_ns[sent])
    if actual_ns == 0 or planned_ns / actual_ns >= _ACHIEVED:
        return None
    achieved_rps = offered_rps * float(planned_ns / actual_ns)
    return f"the client sent {achieved_rps:.3g} requests/s where {offered_rps:.3g} were offered"
