"""Where a server does no more at once, and the two curves that show it: two sentences for each side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.summary import StageSummary
from benchgate.stats.knee import LEAST_LEVELS, NoKnee, find_server_knee
from benchgate.suite.schema import Suite


def knee_lines(suite: Suite, summaries: Mapping[tuple[str, Arm], StageSummary | None]) -> tuple[str, ...]:
    """Of the closed-loop stages, by the means over blocks; none where a sweep has too few of them to have a knee."""
    loops = {
        level.name: level.course.concurrency
        for level in (suite.load.levels() if suite.load is not None else ())
        if level.course.concurrency is not None and not level.group
    }
    if len(set(loops.values())) < max(LEAST_LEVELS, len(loops)):
        return ()
    return tuple(
        f"{arm.value}: {_line(list(loops.values()), [summaries.get((name, arm)) for name in loops])}" for arm in Arm
    )


def _line(levels: Sequence[int], summaries: Sequence[StageSummary | None]) -> str:
    measured = [
        s
        for s in summaries
        if s is not None and s.output_tokens_per_s and s.e2e_p50_s is not None and math.isfinite(s.e2e_p50_s)
    ]
    if len(measured) < len(levels):
        return "no knee can be told: a stage has no throughput or no latency"
    tokens, waits = [s.output_tokens_per_s or 0.0 for s in measured], [s.e2e_p50_s or 0.0 for s in measured]
    spans = [s.decoding_at_once for s in measured if s.decoding_at_once is not None]
    decoding = spans if len(spans) == len(levels) else None
    found = find_server_knee(levels, tokens, decoding, waits)
    curves = f"{_curve(tokens)} tok/s" + (f" and {_curve(decoding)} requests decoding at once" if decoding else "")
    seen = f"at {' · '.join(map(str, levels))} in flight {curves}"
    if isinstance(found, NoKnee):
        return f"no knee: {found.reason}; {seen}"
    return (
        f"knee at {found.level:g} in flight, where {found.curve.value} bend: they grow as the power "
        f"{found.knee.slope_before:.2f} of the concurrency before it and {found.knee.slope_after:.2f} after it; {seen}"
    )


def _curve(values: Sequence[float]) -> str:
    """`0.95 · 1.90 · 1,520`: commas belong to thousands."""
    return " · ".join(show.number(value) for value in values)
