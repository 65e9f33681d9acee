"""Where load is judged: a stage, or each class of traffic of one, under the name its observations are stored by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchgate.suite.stage import Stage, stage_of_class
from benchgate.suite.stage_forms import expanded


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """`stage`, or `stage/class` where a stage has classes. `course` is when its requests come, as of a stage alone.

    `requests` are those of one execution; None in the background, where as many are sent as the others leave time for.
    """

    name: str
    stage: Stage
    class_name: str | None
    course: Stage
    requests: int | None


def places_of(stage: Stage) -> Iterator[NamedPlace]:
    """The stage itself, its classes in order, or the stages that it becomes where it varies a value."""
    for one in expanded((stage,)):
        if one.classes is None:
            yield NamedPlace(one.name, one, None, one, one.requests)
        for name, spec in (one.classes or {}).items():
            course = stage_of_class(spec, f"{one.name}/{name}")
            yield NamedPlace(course.name, one, name, course, None if spec.background else course.requests)
