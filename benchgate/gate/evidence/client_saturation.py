"""Client saturation: was the load generator the bottleneck of a stage?

A *loss* is a request or a worker that the client's own machine lost: the planned load was not sent, and no number of it
holds. A *strain* is lateness: the times are the client's, while a server's answer (a 500, say) is still the server's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchgate.model import records, request_metrics
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.run import ClientUse
from benchgate.suite.schema import ClientBounds
from benchgate.units import show_duration, show_number, show_percent

_LEAST_LATE = 2  # one late request alone is a hiccup, however few there are (unless it is very late)
_P99_LEAST_S = 2.0  # the canary looks 50 times a second, and the p99 of fewer than 100 looks is the worst of them
_CPU_WINDOW_S = 5.0  # `ClientUse.busiest_share` is the largest share over as long
_CPU_LEAST_S = 1.0  # in less, opening connections and encoding requests are most of what the client does
_UNRECORDED_CPU_SHARE = 0.85  # over a whole stage, of a client that did not measure its read delay
_SERVERS_OWN = frozenset({ErrorClass.CONNECT, ErrorClass.TLS})  # why a request may rightly never be sent


def saturation_reasons(
    use: ClientUse, columns: RequestColumns, offered_rps: float | None, bounds: ClientBounds | None = None
) -> tuple[str, ...]:
    """Return why the numbers of this stage are the client's and not the server's; empty if they are the server's.

    `offered_rps` is the rate an open loop was to send at, None for a closed loop. Without `bounds` the defaults hold. A
    strain that a fault of the client already names, of one shard, is not repeated.
    """
    found = strains(use, columns, offered_rps, bounds or ClientBounds())
    return (*losses(use, columns), *(one for one in found if not any(fault.endswith(one) for fault in use.faults)))


def losses(use: ClientUse, *columns: RequestColumns) -> tuple[str, ...]:
    """Return what the load generator lost: workers, requests never sent, requests that it failed itself."""
    lost = list(use.faults)
    for rows in columns:
        # due and never sent, unless the server refused a connection or failed an earlier turn
        unsent = (rows.sent_ns == records.ABSENT) & rows.error.are((None, ErrorClass.CLIENT))
        count = int(np.count_nonzero(unsent))
        if count:
            lost.append(f"{count} of {len(rows)} requests were never sent (allowed: none)")
        count = int(np.count_nonzero(rows.error.are((ErrorClass.CLIENT,)) & ~unsent))
        if count:
            failed = f"{count} of {len(rows)} requests failed by a fault of the load generator's own machine"
            lost.append(f"{failed} (allowed: none)")
    return tuple(lost)


def strains(
    use: ClientUse, columns: RequestColumns, offered_rps: float | None, bounds: ClientBounds
) -> tuple[str, ...]:
    """Return the signs that the client set the pace: late sends, late reads, a busy interpreter, a rate not reached."""
    late = (*_late_sends(columns, bounds), *_late_reads(use, bounds))
    return (*late, *_busy(use, bounds), *_behind(columns, offered_rps, bounds))


def doubtful_failures(columns: RequestColumns) -> int:
    """Count failures that a strained client may have caused itself: no answer in time, or no connection."""
    return int(np.count_nonzero(columns.error.are((ErrorClass.TIMEOUT, *_SERVERS_OWN, ErrorClass.CLIENT))))


def _late_sends(columns: RequestColumns, bounds: ClientBounds) -> Iterator[str]:
    """Yield send lag beyond the bounds. Opening a connection is no lag, and requests never sent are a loss."""
    lag_s = request_metrics.client_lag_s(columns)
    lag_s = lag_s[np.isfinite(lag_s)]
    if len(lag_s) == 0:
        return
    late, most_s = int(np.count_nonzero(lag_s > bounds.send_lag_p99_s)), float(lag_s.max())
    if late >= _LEAST_LATE and late > 0.01 * len(lag_s):
        p99_s = request_metrics.quantile(lag_s, 0.99)
        assert p99_s is not None, "there are requests"
        yield f"the p99 of the send lag is {show_duration(p99_s)} (bound {_ms(bounds.send_lag_p99_s)})"
    elif most_s > bounds.send_lag_max_s:
        yield f"a request was sent {show_duration(most_s)} late (bound {_ms(bounds.send_lag_max_s)})"


def _late_reads(use: ClientUse, bounds: ClientBounds) -> Iterator[str]:
    """Yield read delay beyond the bounds: the p99, or the median of a stage whose p99 is the worst of a few samples.

    A single stall of a shared machine moves no median. Tails of such a stage are judged by `without_clouded_blocks`.
    """
    p50_s, p99_s, most_s = use.read_delay_p50_s, use.read_delay_p99_s, use.read_delay_max_s
    if p50_s is None or p99_s is None or most_s is None:
        if use.busiest_share is not None:  # a client that measures itself did not measure this
            yield "how late the client read what had arrived was not measured"
        return
    name, delay_s = ("p99", p99_s) if use.wall_s >= _P99_LEAST_S else ("median", p50_s)
    if delay_s > bounds.read_delay_p99_s:
        delay = f"the {name} of how long what had arrived waited for the client is {show_duration(delay_s)}"
        yield f"{delay} (bound {_ms(bounds.read_delay_p99_s)})"
    elif most_s > bounds.read_delay_max_s:
        yield f"what had arrived waited {show_duration(most_s)} for the client (bound {_ms(bounds.read_delay_max_s)})"


def _busy(use: ClientUse, bounds: ClientBounds) -> Iterator[str]:
    """Yield CPU use beyond the bound: over 5 s if the stage was that long, else over all of it.

    A run without a recorded read delay is judged by the CPU of the whole stage, at any length: something must always
    vouch for the client.
    """
    if use.read_delay_p99_s is None and use.busiest_share is None:
        share, bound, over = use.cpu_share, _UNRECORDED_CPU_SHARE, "over the stage"
    elif use.busiest_share is not None:
        share, bound, over = use.busiest_share, bounds.cpu_share, f"over {_CPU_WINDOW_S:g} s"
    elif use.wall_s >= _CPU_LEAST_S or use.wall_s <= 0:
        share, bound, over = use.cpu_share, bounds.cpu_share, "over the stage"
    else:
        return
    if share > bound:
        yield f"the client used {show_percent(share)} of a core per worker {over} (bound {bound:.0%})"


def _behind(columns: RequestColumns, offered_rps: float | None, bounds: ClientBounds) -> Iterator[str]:
    """Yield a rate below the schedule's, by the spans of sends and schedule: a random schedule never has its rate.

    In a short stage one per cent is less than the lag any send may have, so that much is always allowed.
    """
    sent = columns.sent_ns != records.ABSENT
    if offered_rps is None or np.count_nonzero(sent) < 2:
        return
    ready_ns = columns.sent_ns - np.maximum(columns.connecting_ns, 0)  # what it waited for its connection is no pace
    planned_s, actual_s = (float(np.ptp(at[sent])) * 1e-9 for at in (columns.intended_ns, ready_ns))
    if actual_s <= planned_s / bounds.achieved_ratio + bounds.send_lag_p99_s:
        return
    achieved_rps = offered_rps * planned_s / actual_s
    what = f"the client sent {show_number(achieved_rps)} requests/s where {show_number(offered_rps)} were offered"
    yield f"{what} (bound {bounds.achieved_ratio:.0%})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms"
