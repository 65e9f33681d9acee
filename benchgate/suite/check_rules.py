"""What the lines of a policy must be to what is measured, and to each other."""

from __future__ import annotations

from collections.abc import Iterator

from benchgate.suite.check import Check
from benchgate.suite.check_eval_rules import early_stop_is_judged, has_its_floor, judge_is_heard, tasks_are_judged
from benchgate.suite.check_load_rules import failures_are_judged, has_enough_requests, has_levels, has_pairs, is_defined
from benchgate.suite.check_places import all_places, judged_places, looked_at_by, own_slo, place_names
from benchgate.suite.metric_kinds import ADVISORY_METRICS, KINDS, LATENCY_METRICS, TELEMETRY_METRICS
from benchgate.suite.parts import MEASUREMENTS, Parts, task_stem
from benchgate.suite.text import Fault
from benchgate.suite.vocabulary import suggestion

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
    section = KINDS[check.metric].needs
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
    either = check.over is not None or len(KINDS[check.metric].sides) > 1
    return ("max" if check.max is not None else "min") if either else "slo"


def _described(check: Check, place: str) -> str:
    statistic = f" {check.statistic or 'p50'}" if check.metric in LATENCY_METRICS else ""
    where = f' of "{place}"' if place else ""
    over = f' over "{check.over}"' if check.over else ""
    per = f" per {check.per}" if check.per else ""
    return f"the {'margin' if check.margin is not None else 'SLO'} of {check.metric}{statistic}{per}{where}{over}"
