"""The forms a stage may take: which keys belong together, and what becomes of a stage that varies a value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchgate.suite.course import MOST_BURSTS, MOST_REQUESTS, requests_of
from benchgate.suite.workload import Prefix
from benchgate.units import as_written, show_duration

if TYPE_CHECKING:
    from benchgate.suite.classes import ClassSpec
    from benchgate.suite.stage import Bursts, Stage

_LONGEST_NAME = 64

# What each form of a stage needs and what else it may have, by the key that marks it.
_FORMS: dict[str, tuple[set[str], set[str]]] = {
    "concurrency": ({"requests"}, set()),
    "rate": (set(), {"arrival", "requests", "for", "ramp_to", "bursts", "ramp"}),
    "steps": (set(), {"arrival"}),
    "trace": ({"requests"}, {"speed", "block"}),
}
_MEANS_NOTHING = {
    "concurrency": "in a closed loop; give `rate` or leave it out",
    "rate": "without `trace`; leave it out",
    "steps": "beside `steps`, which bring their own rates and times; leave it out",
    "trace": "beside `trace`, which brings its own instants; leave it out",
}
_SPELT = {
    "rate_rps": "rate", "ramp_to_rps": "ramp_to", "duration_s": "for",
    "block_tokens": "block", "input_tokens": "input", "output_tokens": "output",
}  # fmt: skip
_ASKED = {"workload", "input", "output", "prefix"}  # what is asked, beside the form, which says when


def expanded(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages with each that varies a value as one stage for every value."""
    return tuple(one for stage in stages for one in (_varied(stage) if stage.each is not None else [stage]))


def _varied(stage: Stage) -> Iterator[Stage]:
    assert stage.each is not None
    field = stage.each.field
    for value in stage.each.values:
        share = field == "prefix_share"
        now: dict[str, Any] = {"prefix": Prefix.model_construct(share_ratio=value)} if share else {field: value}
        name = f"{stage.name}-{value * 100 if share else value:g}"
        counted = "requests" in stage.model_fields_set
        requests = stage.requests if counted else requests_of({**stage.__dict__, **now})
        one = stage.model_copy(update={"name": name, "each": None, "requests": requests, **now})
        if not counted:
            one.model_fields_set.discard("requests")  # nobody said it: it follows from the rate
        yield one


def complaint_of(stage: Stage) -> str | None:
    """Why a stage cannot be run as it is written, and what to write; None when it can."""
    if stage.classes is not None:
        return _classes_complaint(stage)
    if stage.each is not None:
        varied = "prefix" if stage.each.field == "prefix_share" else _SPELT.get(stage.each.field, stage.each.field)
        if varied in {_SPELT.get(key, key) for key in stage.model_fields_set}:
            return f"`{varied}` is what `each` varies; leave it out"
    if stage.actions is not None and stage.ramp is not None:
        return _NO_RAMP
    for one in expanded((stage,)):
        complaint = _form_complaint(one) or _profile_complaint(one)
        if complaint is not None:
            return complaint
        if len(one.name) > _LONGEST_NAME:
            return f"the name {one.name} is too long; shorten the name of the stage"
    return None


def _classes_complaint(stage: Stage) -> str | None:
    stray = sorted({_SPELT.get(key, key) for key in stage.model_fields_set} - {"name", "classes", "actions"})
    if stray:
        return f"`{stray[0]}` means nothing beside `classes`, each of which says its own; move it there"
    classes = stage.classes or {}
    if stage.actions is not None and any(spec.ramp is not None for spec in classes.values()):
        return _NO_RAMP
    if all(spec.background for spec in classes.values()):
        return "every class is `background`, which goes on for as long as another class lasts; let one of them end"
    return None


_NO_RAMP = "`ramp` means nothing beside `actions`, whose instants count from the start of the stage; leave it out"


def class_complaint(name: str, spec: ClassSpec, alone: Stage) -> str | None:
    """Why a class cannot be run as it is written; `alone` is the stage it would be without the others."""
    if spec.background and spec.concurrency is None:
        return f"class {name} is `background`, a closed loop that others end; give it a `concurrency` and no other form"
    if spec.background and spec.ramp is not None:
        return f"class {name} is `background`, which runs through the ramp of the others; leave `ramp` out"
    form = None if spec.background and not (spec.rate_rps or spec.trace) else _form_complaint(alone)
    complaint = form or _profile_complaint(alone)
    return None if complaint is None else f"class {name}: {complaint.replace('a stage', 'a class')}"


def _form_complaint(stage: Stage) -> str | None:
    """Why the keys of a stage do not fit together, and what to write; None when they do."""
    given = {_SPELT.get(key, key) for key in stage.model_fields_set if getattr(stage, key) is not None} - {"name"}
    given -= {*_ASKED, "actions"}
    forms = given & _FORMS.keys()
    if len(forms) != 1:
        return "a stage needs exactly one of `concurrency` (closed loop) and `rate`, `steps` or `trace` (open loop)"
    (form,) = forms
    needed, allowed = _FORMS[form]
    if "for" in given and form in ("concurrency", "trace"):
        return "`for` would let each arm answer another number of requests here; write `requests` instead"
    stray = sorted(given - needed - allowed - {form})
    if stray:
        return f"`{stray[0]}` means nothing {_MEANS_NOTHING[form]}"
    missing = sorted(needed - given)
    if missing:
        return f"`{missing[0]}` is required and missing; say how many requests each block sends to each arm"
    return _length_complaint(given) if form == "rate" else None


def _length_complaint(given: set[str]) -> str | None:
    shape = given & {"ramp_to", "bursts"}
    if len(shape) > 1:
        return "`ramp_to` and `bursts` are two courses of the rate; write one stage for each"
    if shape and "ramp" in given:
        return f"`ramp` is for a level rate, and `{shape.pop()}` keeps its edges; leave `ramp` out"
    if not shape and ("requests" in given) == ("for" in given):
        return "a stage at a `rate` needs exactly one of `requests` and `for`, like `requests: 100` or `for: 60s`"
    if shape and "requests" in given:
        return f"`requests` follow from the rates and the time with `{shape.pop()}`; write `for: 60s` instead"
    if shape and "for" not in given:
        return f"`{shape.pop()}` needs the time it takes; write `for: 60s`"
    return None


def _profile_complaint(stage: Stage) -> str | None:
    """Why the course of the rate cannot be run, and what to write; None when it can."""
    if stage.bursts is not None and stage.duration_s is not None:
        complaint = _bursts_complaint(stage.bursts, stage.duration_s)
        if complaint is not None:
            return complaint
    if not 1 <= stage.requests <= MOST_REQUESTS:
        return f"comes to {stage.requests:,} requests a block; a stage has 1 to {MOST_REQUESTS:,}: change rate or time"
    return None


def _bursts_complaint(spikes: Bursts, duration_s: float) -> str | None:
    every, held = show_duration(spikes.every_s), show_duration(spikes.duration_s)
    if spikes.duration_s >= spikes.every_s:
        return f"bursts of {held} every {every} leave no time between them; make `bursts.for` shorter than `every`"
    if duration_s / spikes.every_s > MOST_BURSTS:
        return f"has more than {MOST_BURSTS:,} bursts; make `bursts.every` longer or `for` shorter"
    needed_s = len(spikes.factors) * spikes.every_s
    if duration_s < needed_s * (1 - 1e-9):
        told = as_written(show_duration(needed_s))
        return f"ends before the last of the {len(spikes.factors)} factors; write `for` of at least {told}"
    return None
