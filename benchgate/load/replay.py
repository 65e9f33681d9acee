"""A trace played again by a bare load test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchgate.load.traces import load_trace
from benchgate.plan.arrivals import TracedRequest, mean_rps, peak_rps, replayed_offsets_ns

_NS_PER_S = 1_000_000_000
_MOST_ROWS = 1_000_000  # where no number of requests bounds them
_MOST_SPEED = 1_000  # as in a suite's stage


@dataclass(frozen=True, slots=True)
class Replay:
    """The rows of a trace that are sent, and how much faster than recorded."""

    path: str
    speed: float
    rows: tuple[TracedRequest, ...]

    @property
    def offsets_ns(self) -> tuple[int, ...]:
        """Intended sends since the start."""
        return replayed_offsets_ns(self.rows, self.speed)

    @property
    def mean_rps(self) -> float:
        """The rate offered on the whole."""
        return mean_rps(self.offsets_ns)

    @property
    def peak_rps(self) -> float:
        """The most requests that are due within one second."""
        return peak_rps(self.offsets_ns)


def read_replay(path: str, speed: float, requests: int | None, duration_s: float | None) -> Replay:
    """The first `requests` rows of a trace, or those that are due within `duration_s` at that speed.

    Raises SuiteError for a trace that cannot be read, and ValueError when it has fewer rows, or the speed is none.
    """
    if not 0 < speed <= _MOST_SPEED:
        raise ValueError(f"{speed:g} is no speed; write a number above 0 and at most {_MOST_SPEED:,}, like 2")
    rows = load_trace(Path(path), requests or _MOST_ROWS)
    if requests is not None and len(rows) < requests:
        raise ValueError(f"{path} has {len(rows):,} rows, fewer than the {requests:,} requests; ask for fewer")
    if duration_s is not None:
        rows = tuple(row for row in rows if row.at_ns <= duration_s * speed * _NS_PER_S)
    return Replay(path, speed, rows)
