"""Where the checks of a suite look: places of its load, tasks of its evals.

What checks of the load must be to the load: enough requests, values that exist there, failures that are judged.

What checks of evals and of recorded prompts must be to them: no task and no judge that nobody looks at.

What the lines of a policy must be to what is measured, and to each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from benchgate.model.metric import (
    ADVISORY_METRICS,
    FAILURE_METRICS,
    LATENCY_METRICS,
    MEAN,
    METRICS,
    QUANTILES,
    STAGE_METRICS,
    TELEMETRY_METRICS,
)
from benchgate.suite.checks import Check, looks_at, looks_at_background
from benchgate.suite.messages import suggestion
from benchgate.suite.rules.parts import MEASUREMENTS, Parts, task_stem
from benchgate.suite.stages import Level, NamedPlace, Stage, places_of
from benchgate.suite.yaml import Fault


def all_places(parts: Parts) -> list[NamedPlace]:
    """Every place of the stages that are sound, in order."""
    return [place for stage in parts.stages if stage is not None for place in places_of(stage)]


def place_names(parts: Parts) -> list[str]:
    """Of every place, in order; of a stage that is itself wrong, its own."""
    names: list[str] = []
    for stage, name in zip(parts.stages, parts.stage_names, strict=True):
        names += [name] if stage is None and name is not None else []
        names += [place.name for place in places_of(stage)] if stage is not None else []
    return names


def judged_places(parts: Parts, check: Check) -> list[NamedPlace]:
    """The places that a check judges."""
    return [place for place in all_places(parts) if _judges(parts, check, place)]


def _judges(parts: Parts, check: Check, place: NamedPlace) -> bool:
    stage, name = place.stage.name, place.class_name
    if place.requests is not None:
        return looks_at(check, stage, name)
    return looks_at_background(check, parts.checks, stage, name, own_slo=own_slo(place))


def own_slo(place: NamedPlace) -> bool:
    """Whether its class says itself what a good request is."""
    classes = place.stage.classes
    return classes is not None and place.class_name is not None and classes[place.class_name].slo is not None


def looked_at_by(parts: Parts, check: Check) -> list[str]:
    """Where a check looks: places of the load, tasks for accuracy (pooled is a place of its own)."""
    if check.metric in STAGE_METRICS:
        judged = [place.name for place in judged_places(parts, check)]
        broken = [n for s, n in zip(parts.stages, parts.stage_names, strict=True) if s is None and n is not None]
        return judged + [name for name in broken if check.stage in (None, name)]
    if check.task == "each" or (check.metric, check.task) == ("score", None):
        return [task_stem(task) for task in parts.tasks]
    return [check.task or ""]


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
    q = QUANTILES.get(check.statistic or "p50", 0.5)
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


def has_its_floor(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    """Greedy answers of one server differ from run to run, so flips mean nothing without the baseline's own."""
    if check.metric == "flips" and parts.tasks and parts.repeat_baseline is False:
        message = "flips are counted beyond those of the baseline against itself; set `quality.repeat_baseline: true`"
        yield Fault(("gate", "checks", number, "metric"), message)


def early_stop_is_judged(parts: Parts) -> Iterator[Fault]:
    """Evals end early when a required check shows harm; without one that can, they never would."""
    if not parts.stop_early or None in parts.checks or not parts.checks:
        return
    if not any(c and c.required and c.margin and c.metric in ("accuracy", "score") for c in parts.checks):
        message = (
            "ends the evals when a required check on `accuracy` or `score` with a `margin` shows harm, and there is "
            "none; add {metric: accuracy, task: each, margin: 5 points}"
        )
        yield Fault(("quality", "stop_early"), message)


def tasks_are_judged(parts: Parts) -> Iterator[Fault]:
    """Where evals are judged at all, every task is: one that no check looks at could be lost without a word.

    A check that says `required: false` is a decision too, and it warns. Flips do not tell a loss from a gain.
    """
    if None in parts.checks or not any(c and METRICS[c.metric].family == "quality" for c in parts.checks):
        return
    looked_at = {c.task for c in parts.checks if c and c.metric in ("accuracy", "score")}
    stems = [task_stem(task) for task in parts.tasks]
    misnamed = {task.split("/")[0] for task in looked_at if task is not None} - {*stems, "each"}
    if looked_at & {None, "each"} or misnamed:  # the misnamed one may be the one that is missed
        return
    for number, task in enumerate(stems):
        if task not in looked_at:
            message = (
                f'"{task}" could be lost unjudged: no check looks at its `accuracy` or `score`; add {{metric: '
                f"accuracy, task: {task}, margin: 5 points}}, with `required: false` if it is only to warn"
            )
            yield Fault(("quality", "tasks", number), message)


def judge_is_heard(parts: Parts) -> Iterator[Fault]:
    """Texts are sent to a judge for its verdict: one that no check looks at could find every answer worse."""
    if parts.shadow is None or parts.shadow.judge is None or None in parts.checks or not parts.checks:
        return
    if not any(c and c.metric == "judge_loss" for c in parts.checks):
        message = (
            "is sent texts, and no check looks at what it says; add {metric: judge_loss, margin: 5 points}, with "
            "`required: false` if it is only to warn, or remove `judge`"
        )
        yield Fault(("shadow", "judge"), message, at_key=True)


_OF_GOOD = ("goodput", "usd_per_million_good_tokens")


def broken_checks(parts: Parts) -> Iterator[Fault]:
    """Every check that does not fit what the suite measures, or another check."""
    yield from _operating_exists(parts)
    yield from failures_are_judged(parts)
    yield from _something_decides(parts)
    yield from early_stop_is_judged(parts)
    yield from tasks_are_judged(parts)
    yield from judge_is_heard(parts)
    first: dict[tuple[object, ...], int] = {}
    for number, check in enumerate(parts.checks):
        if check is not None:
            yield from _has_its_section(parts, number, check)
            yield from _names_what_exists(parts, number, check)
            yield from has_its_floor(parts, number, check)
            yield from _is_told(parts, number, check)
            yield from is_defined(parts, number, check)
            yield from has_enough_requests(parts, number, check)
            yield from has_pairs(parts, number, check)
            yield from has_levels(parts, number, check)
            yield from _is_new(parts, number, check, first)
        elif number in parts.readable:
            yield from _has_its_section(parts, number, parts.readable[number])
            yield from _names_what_exists(parts, number, parts.readable[number])


def _operating_exists(parts: Parts) -> Iterator[Fault]:
    names = place_names(parts)
    known = list(dict.fromkeys([*(name.split("/")[0] for name in names), *names]))
    if parts.operating is None or parts.operating in known:
        return
    if known:
        message = f'no stage of the sweep is named "{parts.operating}"; {suggestion(parts.operating, known)}'
        yield Fault(("gate", "operating"), message)
    elif "load" not in parts.declared or parts.searches:
        yield Fault(("gate", "operating"), "is a stage of `load.sweep`, which this suite has not; remove it")


def _something_decides(parts: Parts) -> Iterator[Fault]:
    """Checks that are advisory unless they say otherwise are not all there can be: nothing would ever be promoted."""
    sound = [check for check in parts.checks if check is not None]
    if not sound or len(sound) < len(parts.checks):
        return
    if all(check.metric in ADVISORY_METRICS and "required" not in check.model_fields_set for check in sound):
        message = f"{sound[0].metric} is advisory unless it says `required: true`, and no other check decides anything"
        yield Fault(("gate", "checks", 0), f"{message}; write it, or add a check that is required")


def _have_their_own_slo(parts: Parts, check: Check) -> bool:
    """Whether all classes of traffic that a check judges say themselves what a good request is."""
    judged = judged_places(parts, check)
    return bool(judged) and all(map(own_slo, judged))


def _without_slo(parts: Parts, check: Check) -> str:
    """What lacks one, where the suite has none for all."""
    lacking = [place for place in judged_places(parts, check) if place.class_name is not None and not own_slo(place)]
    return f'this suite has not, nor class "{lacking[0].name}"' if lacking else "this suite has not"


def _has_its_section(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    section = METRICS[check.metric].family
    path = ("gate", "checks", number, "metric")
    if section not in parts.declared and parts.declared & MEASUREMENTS:
        yield Fault(
            path, f"{check.metric} is measured by `{section}`, which this suite has not; add it or remove the check"
        )
    if section == "load" and check.metric != "capacity" and parts.searches and not parts.stages:
        yield Fault(path, f"{check.metric} is measured in stages, and this load only has a `capacity`; add a `sweep`")
    if check.metric in _OF_GOOD and "slo" not in parts.declared and not _have_their_own_slo(parts, check):
        yield Fault(
            path, f"{check.metric} counts the requests that meet the `slo`, which {_without_slo(parts, check)}; add it"
        )


def _names_what_exists(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    names = place_names(parts)
    stages = list(dict.fromkeys(name.split("/")[0] for name in names))
    for key, place in (("stage", check.stage), ("over", check.over)):
        # A whole stage may be judged, class by class; what it is held over must be one place.
        known = list(dict.fromkeys([*stages, *names])) if key == "stage" else names
        if check.metric in TELEMETRY_METRICS:  # of the server, which is that of the whole stage
            known = stages
        if place is not None and known and place not in known:
            message = f'no stage of the sweep is named "{place}"; {suggestion(place, known)}'
            yield Fault(("gate", "checks", number, key), message)
    yield from _class_exists(parts, number, check)
    stems = [task_stem(task) for task in parts.tasks]
    group = (check.task or "").split("/")[0]  # whether lm-eval's group has such a task is seen when it is read
    if (
        check.task is not None
        and stems
        and check.task not in (*stems, "each")
        and (group == check.task or group not in stems)
    ):
        message = f'no task of `quality` is named "{check.task}"; {suggestion(check.task, [*stems, "each"])}'
        yield Fault(("gate", "checks", number, "task"), message)


def _class_exists(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    if check.class_name is None or None in parts.stages:
        return
    classes = [p.class_name for p in all_places(parts) if p.class_name and check.stage in (None, p.stage.name)]
    if check.class_name in classes:
        return
    where = "this suite" if check.stage is None else f'stage "{check.stage}"'
    message = f'{where} has no class "{check.class_name}"; ' + (
        suggestion(check.class_name, classes) if classes else "it has no `classes` at all: remove `class`"
    )
    yield Fault(("gate", "checks", number, "class"), message)


def _is_told(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    """What a server says of itself cannot be judged where nobody asks it."""
    candidate = parts.deployments.get(parts.candidate) if parts.candidate is not None else None
    if check.metric in TELEMETRY_METRICS and candidate is not None and candidate.metrics == "off":
        message = f'{check.metric} is what the server says of itself, and "{parts.candidate}" has `metrics: off`'
        yield Fault(("gate", "checks", number, "metric"), f"{message}; remove one of them")


def _is_new(parts: Parts, number: int, check: Check, first: dict[tuple[object, ...], int]) -> Iterator[Fault]:
    """Two checks may bound one quantity in two ways (a margin and an SLO), not twice in the same way."""
    quantity = (check.metric, check.statistic or "p50", check.of, check.per, check.over, _way(check))
    for place in looked_at_by(parts, check):
        earlier = first.setdefault((*quantity, place), number)
        if earlier != number:
            yield Fault(
                ("gate", "checks", number),
                f"{_described(check, place)} is already judged by gate.checks[{earlier}]; keep one of them",
            )
            return


def _way(check: Check) -> str:
    """How it bounds: by a margin, from above or from below where both are possible, or by its one SLO."""
    if check.margin is not None:
        return "margin"
    either = check.over is not None or len(METRICS[check.metric].bounds) > 1
    return ("max" if check.max is not None else "min") if either else "slo"


def _described(check: Check, place: str) -> str:
    statistic = f" {check.statistic or 'p50'}" if check.metric in LATENCY_METRICS else ""
    where = f' of "{place}"' if place else ""
    over = f' over "{check.over}"' if check.over else ""
    per = f" per {check.per}" if check.per else ""
    return f"the {'margin' if check.margin is not None else 'SLO'} of {check.metric}{statistic}{per}{where}{over}"
