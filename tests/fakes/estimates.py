"""Estimates as a check would make them, with the fields of their rule beside their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from benchgate.gate.decision import CannotJudge, Estimate, Look, Rule, adjust_for_looks
from benchgate.model.verdict import Scale, Unit
from benchgate.stats.trace import Trace

_OF_RULE = {field.name for field in fields(Rule)}


def estimate(unit: Unit, scale: Scale, margin: float, **changes: Any) -> Estimate:
    """An estimate of a check in this unit, on this scale, with this margin."""
    return changed(Estimate(Rule(unit, scale), margin, "m", 8), **changes)


def changed(one: Estimate, **changes: Any) -> Estimate:
    """A copy with these fields, its own or its rule's."""
    rule = replace(one.rule, **{name: value for name, value in changes.items() if name in _OF_RULE})
    own = {name: value for name, value in changes.items() if name not in _OF_RULE}
    return replace(one, **{"notes": list(one.notes), "trace": Trace(list(one.trace.steps)), **own, "rule": rule})


def seen_at(one: Estimate, look: Look) -> Estimate:
    """A copy adjusted for this interim look."""
    copy = changed(one)
    adjust_for_looks(copy, look)
    return copy


def refusal(evaluate: Callable[[], object]) -> CannotJudge | None:
    """Why this refuses to judge its evidence; None if it does not."""
    try:
        evaluate()
    except CannotJudge as cannot:
        return cannot
    return None
