"""What an `error_budget` must be to the load whose failures it is held against."""

from __future__ import annotations

from collections.abc import Iterator

from benchgate.suite.check_places import all_places, own_slo, place_names
from benchgate.suite.error_budget import (
    BURN_ALARM,
    ErrorBudget,
    fewest_requests,
    show_objective,
    stage_of,
)
from benchgate.suite.parts import Parts
from benchgate.suite.places import NamedPlace, places_of
from benchgate.suite.schema import Suite
from benchgate.suite.text import Fault
from benchgate.suite.vocabulary import suggestion

_AT = ("error_budget",)


def burn_places(suite: Suite) -> tuple[NamedPlace, ...]:
    """Where the failures are counted that a budget goes by; of a class in the background as checks of failures do."""
    budget, sweep = suite.error_budget, suite.load.sweep if suite.load is not None else ()
    if budget is None:
        return ()
    name = stage_of(budget, suite.gate.operating, [stage.name for stage in sweep])
    return tuple(
        place
        for stage in sweep
        for place in places_of(stage)
        if place.name == name
        or (stage.name == name and (place.requests is not None or own_slo(place) or budget.metric == "error_rate"))
    )


def broken_budget(parts: Parts) -> Iterator[Fault]:
    """Everything in which a sound `error_budget` does not fit the load."""
    budget = parts.budget
    if budget is None:
        return
    if "load" not in parts.declared or (parts.searches and not parts.stages):
        yield Fault(_AT, "goes by the failures of a stage, and this suite has none; add a `load` with a `sweep`")
        return
    names = place_names(parts)
    stages = list(dict.fromkeys(name.split("/")[0] for name in names))
    stage = stage_of(budget, parts.operating, stages)
    known = list(dict.fromkeys([*stages, *names]))
    if stage is None and stages:
        yield Fault(_AT, f"does not say which stage is most like production; write `stage: {stages[0]}`, or another")
    elif stage is not None and budget.stage is not None and stage not in known:
        yield Fault((*_AT, "stage"), f'no stage of the sweep is named "{stage}"; {suggestion(stage, known)}')
    elif stage is not None:
        yield from _goodput_is_defined(parts, budget, stage)
        yield from _has_enough_requests(parts, budget, stage)


def _goodput_is_defined(parts: Parts, budget: ErrorBudget, stage: str) -> Iterator[Fault]:
    """A request is good by an SLO of its own class, or by the suite's."""
    if budget.metric != "goodput" or "slo" in parts.declared:
        return
    judged = [place for place in all_places(parts) if stage in (place.name, place.stage.name)]
    asked = [place for place in judged if place.requests is not None or place.name == stage]
    lacking = next((place.name for place in asked if not own_slo(place)), None)
    if lacking is not None:
        message = f"goodput counts the requests that meet the `slo`, which this suite has not for {lacking}; add it"
        yield Fault((*_AT, "metric"), message)


def _has_enough_requests(parts: Parts, budget: ErrorBudget, stage: str) -> Iterator[Fault]:
    """With fewer requests the line could never pass, whatever the candidate does."""
    if "objective_ratio" not in budget.model_fields_set or parts.alpha is None or parts.blocks is None:
        return  # each is wrong itself
    needed = fewest_requests(budget.objective_ratio, parts.alpha)
    for place in all_places(parts):
        if stage in (place.name, place.stage.name) and (place.requests or needed) * parts.blocks < needed:
            message = (
                f"an objective of {show_objective(budget.objective_ratio)} needs at least {needed:,} requests over all "
                f'blocks to rule out a burn of {BURN_ALARM}x, and "{place.name}" has {parts.blocks} * {place.requests}'
            )
            yield Fault(_AT, f"{message}; measure more of them, or name a stage that has as many")
            return
