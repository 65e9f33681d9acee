"""Where the checks of a suite look: places of its load, tasks of its evals."""

from __future__ import annotations

from benchgate.suite.background import looks_at, looks_at_background
from benchgate.suite.check import Check
from benchgate.suite.metric_kinds import STAGE_METRICS
from benchgate.suite.parts import Parts, task_stem
from benchgate.suite.places import NamedPlace, places_of


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
