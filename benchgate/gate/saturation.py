"""Was the client itself the bottleneck? Latencies of a saturated client are its own, not the server's."""

from __future__ import annotations

import numpy as np

from benchgate.model import metrics, records
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.run import ClientUse
from benchgate.units import show_duration, show_percent

_CPU_SHARE = 0.85  # of one core and worker: above it, reads wait for the interpreter
_LAG_S = 0.005  # lateness below this is noise of any scheduler
_LAG_OF_MEDIAN = 0.10  # and below this share of the median TTFT it cannot change what a median says
_LAG_OF_TAIL = 0.25  # nor below this share of the p99 of TTFT what a tail says
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
    """The client's own delay beside what it reports, like with like: median beside median, p99 beside p99.

    One late request alone is a hiccup, however few there are. Requests that were never sent are left out: that no
    connection could be had is not lateness.
    """
    lag_s, ttft_s = metrics.send_lag_s(columns), metrics.ttft_s(columns)
    lag_s, ttft_s = lag_s[np.isfinite(lag_s)], ttft_s[np.isfinite(ttft_s)]
    for name, q, share in (("median", 0.5, _LAG_OF_MEDIAN), ("p99", 0.99, _LAG_OF_TAIL)):
        reported_s, own_s = metrics.quantile(ttft_s, q), metrics.quantile(lag_s, q)
        if reported_s is None or own_s is None:
            return None
        late = np.count_nonzero(lag_s > max(_LAG_S, share * reported_s))
        if late > max(1, (1 - q) * len(lag_s)):
            return f"the {name} of the send lag is {show_duration(own_s)}, that of TTFT {show_duration(reported_s)}"
    return None


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
