"""The ceiling of a waiver: a bound in the words of the check that it is for, and that check held to it instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ValidationError

from benchgate import units
from benchgate.suite.check import Check
from benchgate.suite.metric_kinds import KINDS
from benchgate.suite.vocabulary import suggestion

_ABSOLUTE = re.compile(r":(?P<side>slo|max|min)(?P<over>-over-.+)?$")
_NO_WAIVER = ("error_budget", "error_budget_burn")


@dataclass(frozen=True, slots=True)
class Bounded:
    """What the id of a check says of it: its metric, and how it is bounded; no `side` where it has a margin."""

    metric: str
    side: str | None
    over: bool


def bounded(check_id: str) -> Bounded:
    """`ttft-p95@c4` → a margin of ttft; `goodput@c4:slo` → a `min`. ValueError for an id that no check can have."""
    metric = re.split(r"[-@:]", check_id, maxsplit=1)[0]
    if metric in _NO_WAIVER:
        raise ValueError(f"{metric} cannot be waived: an error budget is spent whoever answers for it")
    if metric not in KINDS:
        raise ValueError(
            f'no check is called "{check_id}": an id begins with its metric, and there is no "{metric}"; '
            f"{suggestion(metric, KINDS)}"
        )
    found = _ABSOLUTE.search(check_id)
    if found is None:
        return Bounded(metric, None, over=False)
    side = found["side"] if found["side"] != "slo" else next(iter(KINDS[metric].sides), "max")
    return Bounded(metric, side, over=found["over"] is not None)


def check_ceiling(check_id: str, text: object) -> None:
    """Let a ceiling pass that is a bound in the unit of the check with this id; ValueError otherwise."""
    _ = _probe(bounded(check_id), text)


def held_to(check: Check, ceiling: str) -> Check:
    """The check with the ceiling in place of its own bound, and with nothing that would widen it.

    ValueError for a ceiling in another unit than that of the check.
    """
    probe = _probe(_bounds_of(check), ceiling)
    bounds = {"margin": probe.margin, "max": probe.max, "min": probe.min, "min_abs": None}
    return check.model_copy(update=bounds)


def _bounds_of(check: Check) -> Bounded:
    if check.margin is not None:
        return Bounded(check.metric, None, over=False)
    return Bounded(check.metric, "max" if check.max is not None else "min", over=check.over is not None)


def _probe(bound: Bounded, text: object) -> Check:
    """A check of the metric that is held to the ceiling: what may stand in a suite may be a ceiling."""
    line: dict[str, object] = {"metric": bound.metric, bound.side or "margin": text}
    if bound.over:
        line |= {"stage": "one", "over": "other"}
    try:
        return Check.model_validate(line)
    except ValidationError as error:
        raise ValueError(_first(error, text)) from None


def _first(error: ValidationError, text: object) -> str:
    detail = error.errors(include_url=False)[0]
    context = detail.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    return f"found {units.show_found(text)}; expected a bound with its unit, like 8%, 3 points or 600ms"
