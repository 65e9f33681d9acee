"""Where a server does no more at once, and the two curves that show it: two sentences for each side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.summary import StageSummary
from benchgate.stats.knee import MIN_LEVELS, NoKnee, ServerKnee, find_server_knee
from benchgate.suite.schema import Suite, traffic_classes


def knee_lines(suite: Suite, summaries: Mapping[tuple[str, Arm], StageSummary | None]) -> tuple[str, ...]:
    """Of the closed-loop stages, by the means over blocks; none where a sweep has too few of them to have a knee."""
    loops = _closed_loops(suite)
    return tuple(f"{arm.value}: {_line(_Sweep.of(loops, summaries, arm))}" for arm in Arm) if loops else ()


def knee_levels(suite: Suite, summaries: Mapping[tuple[str, Arm], StageSummary | None]) -> dict[Arm, float]:
    """How many requests are in flight at the knee of each side that has one."""
    loops = _closed_loops(suite)
    sweeps = {arm: _Sweep.of(loops, summaries, arm) for arm in Arm} if loops else {}
    found = {arm: sweep.knee() for arm, sweep in sweeps.items() if sweep is not None}
    return {arm: knee.level for arm, knee in found.items() if not isinstance(knee, NoKnee)}


def _closed_loops(suite: Suite) -> dict[str, int]:
    """The stages of the sweep that keep so many requests in flight, by name; none where they are too few, or alike."""
    loops = {
        traffic.name: traffic.schedule.concurrency
        for traffic in traffic_classes(suite)
        if traffic.schedule.concurrency is not None and traffic.class_name is None
    }
    return {} if len(set(loops.values())) < max(MIN_LEVELS, len(loops)) else loops


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One side's means at every level, in order; `decoding` is None where it is not known of each."""

    levels: tuple[int, ...]
    tokens_per_s: tuple[float, ...]
    decoding: tuple[float, ...] | None
    waits_s: tuple[float, ...]

    @classmethod
    def of(
        cls, loops: Mapping[str, int], summaries: Mapping[tuple[str, Arm], StageSummary | None], arm: Arm
    ) -> _Sweep | None:
        """None where a stage has no throughput or no latency."""
        known = [s for name in loops if (s := summaries.get((name, arm))) is not None]
        tokens = tuple(s.output_tokens_per_s for s in known if s.output_tokens_per_s)
        waits_s = tuple(s.e2e_p50_s for s in known if s.e2e_p50_s is not None and math.isfinite(s.e2e_p50_s))
        if min(len(tokens), len(waits_s)) < len(loops):
            return None
        spans = tuple(s.decoding_at_once for s in known if s.decoding_at_once is not None)
        return cls(tuple(loops.values()), tokens, spans if len(spans) == len(loops) else None, waits_s)

    def knee(self) -> ServerKnee | NoKnee:
        """Where its curves bend."""
        return find_server_knee(self.levels, self.tokens_per_s, self.decoding, self.waits_s)


def _line(sweep: _Sweep | None) -> str:
    if sweep is None:
        return "no knee can be told: a stage has no throughput or no latency"
    found = sweep.knee()
    tokens = f"{_curve(sweep.tokens_per_s)} tok/s"
    decoding = f" and {_curve(sweep.decoding)} requests decoding at once" if sweep.decoding else ""
    seen = f"at {' · '.join(map(str, sweep.levels))} in flight {tokens}{decoding}"
    if isinstance(found, NoKnee):
        return f"no knee: {found.reason}; {seen}"
    return (
        f"knee at {found.level:g} in flight, where {found.curve.value} bend: they grow as the power "
        f"{found.knee.slope_before:.2f} of the concurrency before it and {found.knee.slope_after:.2f} after it; {seen}"
    )


def _curve(values: Sequence[float]) -> str:
    """`0.95 · 1.90 · 1,520`: commas belong to thousands."""
    return " · ".join(show.number(value) for value in values)
