"""Which checks look at traffic in the background: those that name it, and those that bound all failures."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.suite.check import Check
from benchgate.suite.metric_kinds import FAILURE_METRICS


def looks_at(check: Check, stage: str, class_name: str | None) -> bool:
    """Whether a check is of this place of the load, named by it or not."""
    name = stage if class_name is None else f"{stage}/{class_name}"
    return check.place in (None, stage, name) and check.class_name in (None, class_name)


def looks_at_background(
    check: Check, checks: Sequence[Check | None], stage: str, class_name: str | None, *, own_slo: bool
) -> bool:
    """The same of a class in the background.

    What is only there to be in the way is judged in no time and by no SLO of the others, but its failures are: servers
    that drop it are faster for the rest. Its failures are judged otherwise where a check of them names it.
    """
    if not looks_at(check, stage, class_name):
        return False
    if _names(check, stage, class_name):
        return True
    if not _bounds_failures(check) or (check.metric == "goodput" and not own_slo):
        return False
    return not any(
        other is not None and _bounds_failures(other) and _names(other, stage, class_name) for other in checks
    )


def _bounds_failures(check: Check) -> bool:
    """All of them, and not one kind or what they are beside another place's."""
    return check.metric in FAILURE_METRICS and check.of is None and check.over is None


def _names(check: Check, stage: str, class_name: str | None) -> bool:
    named = check.class_name is not None or check.place == f"{stage}/{class_name}"
    return named and looks_at(check, stage, class_name)
