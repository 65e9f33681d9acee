"""Times and figures of one execution that cannot be: of a broken clock, or of records that somebody wrote."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np

from benchgate.model.records import ABSENT, BoolArray
from benchgate.model.run import ClientUse, LoadObservation
from benchgate.units import show_duration

_ROUNDING_S = 1e-6  # a window is seconds in a float, and of several workers a sum of them; instants are nanoseconds


def impossible(execution: LoadObservation, is_open: bool, *, conversing: bool = False) -> str | None:
    """Return what cannot be; None where all of it can. `conversing`: its requests are turns of conversations.

    A window that is too short would make every rate higher than it was. It runs from the first intended send to the
    last end of the requests counted in it (`load.result`), so it is no shorter than from the first send to the last
    end. That of a closed loop with a ramp is the time in which its requests began.
    """
    count = int(np.count_nonzero(_before_it_was_sent(execution)))
    if count:
        return f"{count} of {len(execution.requests)} requests were answered before they were sent"
    wrong = _no_number(execution.client)
    if wrong:
        return f"the load generator's own {wrong}, which is no figure"
    held_full = not is_open and len(execution.ramp) > 0
    window_s, span_s = execution.window_s, _begins_s(execution, conversing) if held_full else _span_s(execution)
    if not math.isfinite(window_s) or window_s < span_s - _ROUNDING_S:
        what = "to begin" if held_full else "from the first send to the last end"
        took = f"and its requests took {show_duration(span_s)} {what}"
        return f"it is said to have lasted {window_s:g} s, {took}"
    return None


def _before_it_was_sent(execution: LoadObservation) -> BoolArray:
    columns = execution.requests
    sent = columns.sent_ns
    early: BoolArray = (columns.end_ns != ABSENT) & (sent != ABSENT) & (columns.end_ns < sent)
    there = np.diff(columns.chunk_start) > 0
    if there.any():
        first = columns.chunk_ns[np.clip(columns.chunk_start[:-1], 0, len(columns.chunk_ns) - 1)]
        early |= there & (sent != ABSENT) & (first < sent)
    return early


def _no_number(client: ClientUse) -> str | None:
    """The first of its figures that is not finite, or below nothing: `cpu_s is nan`."""
    for field in fields(client):
        value = getattr(client, field.name)
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            return f"{field.name} is {value:g}"
    return None


def _span_s(execution: LoadObservation) -> float:
    """From the first send to the last end of the requests that ended; 0 where none did."""
    sent_ns, end_ns = execution.requests.sent_ns, execution.requests.end_ns
    ended = (sent_ns != ABSENT) & (end_ns != ABSENT)
    return float(end_ns[ended].max() - sent_ns[ended].min()) * 1e-9 if ended.any() else 0.0


def _begins_s(execution: LoadObservation, conversing: bool) -> float:
    """Return the least time in which the requests of one worker can have begun.

    The window of several workers lies between the shortest and the longest of theirs. Which request was whose is not
    recorded, so it is the shortest time in which any as many began as each worker had. Conversations are not dealt
    evenly, and their later turns begin after the window: of them nothing is known.
    """
    begins_ns = np.sort(execution.requests.intended_ns)
    each = len(begins_ns) // max(1, execution.client.workers)
    if conversing or each < 2:
        return 0.0
    return float((begins_ns[each - 1 :] - begins_ns[: len(begins_ns) - each + 1]).min()) * 1e-9
