"""What checks of the load must be to the load: enough requests, values that exist there, failures that are judged."""

from __future__ import annotations

import math
from collections.abc import Iterator

from benchgate.suite.check import Check
from benchgate.suite.check_places import all_places, judged_places, looked_at_by, place_names
from benchgate.suite.levels import Level
from benchgate.suite.metric_kinds import FAILURE_METRICS, LATENCY_METRICS, MEAN, STAGE_METRICS, STATISTICS
from benchgate.suite.parts import Parts
from benchgate.suite.stage import Stage
from benchgate.suite.text import Fault

_LEAST_LEVELS = 5
_OF_TOKENS = ("output_throughput", "output_length", "validity")
_OF_STREAMS = ("tpot", "itl", "ttfot")


def failures_are_judged(parts: Parts) -> Iterator[Fault]:
    """Medians and throughput hardly move when a third of the requests fails, so they never decide alone.

    Every place that a required load check looks at needs a required error_rate or goodput check of its own as well:
    over all failures, and not over those of another place. So does what runs in the background there: a server that
    drops it is faster for the rest.
    """
    names = {None, *place_names(parts)}
    stages = {name.split("/")[0] for name in names if name is not None}
    if any(check is None or check.stage not in names | stages or check.over not in names for check in parts.checks):
        return  # the broken one may be the one that is missed
    required = [(n, c) for n, c in enumerate(parts.checks) if c and c.required and c.metric in STAGE_METRICS]
    bounding = [c for _, c in required if c.metric in FAILURE_METRICS and c.of is None and c.over is None]
    covered = {place for check in bounding for place in looked_at_by(parts, check)}
    for number, check in required:
        looked_at = _looked_at(parts, check)
        uncovered = [place for place in (*looked_at, *_behind(parts, looked_at)) if place not in covered]
        covered.update(uncovered)  # said once
        if uncovered:
            named = " and ".join(f'"{place}"' for place in uncovered)
            named_one = check.stage is not None or uncovered[0] not in looked_at
            where = f", stage: {uncovered[0]}" if named_one else ""
            yield Fault(
                ("gate", "checks", number),
                f"requests of stage {named} could fail unjudged: no required check bounds `error_rate` or `goodput` "
                f"there; add {{metric: error_rate{where}, max: 1%}}",
            )


def _looked_at(parts: Parts, check: Check) -> list[str]:
    """The same, with the place that its value is held over."""
    return [*looked_at_by(parts, check), *([check.over] if check.over is not None else [])]


def _behind(parts: Parts, looked_at: list[str]) -> list[str]:
    """The classes in the background of the stages that are looked at."""
    stages = {name.split("/")[0] for name in looked_at}
    behind = [place for place in all_places(parts) if place.requests is None and place.stage.name in stages]
    return [place.name for place in behind if place.name not in looked_at]


def is_defined(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    """Judged where requests have no such value, a check would only ever be INVALID."""
    wanted = {place for place in (*looked_at_by(parts, check), check.over) if place is not None}
    for level in parts.levels:
        why = _undefined(check.metric, level) if level.name in wanted else None
        if why is not None:
            where = f'stage "{level.name}"'
            message = f"{check.metric} is undefined for {why}, as {where} asks for; change the workload or the check"
            yield Fault(("gate", "checks", number, "metric"), message)
            return


def _undefined(metric: str, level: Level) -> str | None:
    """What of its workload leaves a level without this metric; None when it has it."""
    workload = level.workload
    if not workload.generates and metric in (*_OF_TOKENS, *_OF_STREAMS):
        return f"{workload.endpoint}, which make no text"
    if not workload.streams and metric in _OF_STREAMS:
        return "answers that come whole (`stream: false`)"
    most = workload.most_output_tokens
    if metric in ("tpot", "itl") and most is not None and most < 2:
        return "answers of 1 token"
    if metric == "validity" and workload.answer_schema is None and workload.tools is None:
        return "answers that nothing is said of (no `schema` and no `tools`)"
    return None


def has_enough_requests(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    """Below ln(alpha) / ln(q) requests no observation is an upper limit of quantile q: at 5 %, 59 for p95, 299 for p99.

    The largest of n observations lies above quantile q with probability 1 - q**n, which must reach 1 - alpha.
    """
    q = STATISTICS.get(check.statistic or "p50", 0.5)
    if q == 0.5 or check.metric not in LATENCY_METRICS or parts.alpha is None or parts.blocks is None:
        return
    needed = math.ceil(math.log(parts.alpha) / math.log(q))
    judged = [place for place in judged_places(parts, check) if place.requests is not None]
    short = [place for place in judged if (place.requests or 0) * parts.blocks < needed]
    if short:
        found = ", ".join(f'"{place.name}" has {parts.blocks} * {place.requests}' for place in short)
        looks = " (and some more where it is looked at several times, as `plan` says)" if parts.several_looks else ""
        message = (
            f"{check.statistic} needs at least {needed} requests in a stage over all blocks{looks}, and {found}; "
            f"{_longer(short[0].course, math.ceil(needed / parts.blocks))}, or choose a lower statistic"
        )
        yield Fault(("gate", "checks", number, "statistic"), message)


def has_pairs(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    """A mean is judged request by request, and in the background the arms do not ask the same ones."""
    if check.statistic != MEAN:
        return
    for place in judged_places(parts, check):
        if place.requests is None:
            message = (
                f'mean is judged request by request, and of "{place.name}", which runs in the background, each arm '
                "asks as many as the others leave time for; choose p50"
            )
            yield Fault(("gate", "checks", number, "statistic"), message)
            return


def _longer(stage: Stage, requests: int) -> str:
    """How a stage comes to have so many requests."""
    if stage.profile is None:
        return f"write `requests: {requests}` or more"
    return f"make the stage longer or its rates higher, to {requests} requests or more"


def has_levels(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    """A knee is where a curve bends: it needs points on either side, and one of each level."""
    if check.metric != "knee" or None in parts.stages:
        return
    levels = [p.stage.concurrency for p in all_places(parts) if p.stage.concurrency is not None]
    remedy = "sweep at least 5 with `each: {concurrency: [1, 2, 4, 8, 16]}`"
    if len(set(levels)) < len(levels):
        message = f"a knee is looked for over all closed-loop stages, of which two keep as many in flight; {remedy}"
        yield Fault(("gate", "checks", number, "metric"), message)
    elif len(levels) < _LEAST_LEVELS:
        message = f"a knee needs stages with at least {_LEAST_LEVELS} numbers of requests in flight, and there are "
        yield Fault(("gate", "checks", number, "metric"), f"{message}{len(levels)}; {remedy}")
