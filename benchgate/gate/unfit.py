"""Whether a stored run may be counted on beyond its verdict: what it was judged, and what its guards object to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchgate.gate.guard import ALL_OF_LOAD
from benchgate.model.run import Run, RunStatus

OF_LOAD = ALL_OF_LOAD
OF_QUALITY = frozenset({"quality"})


def unfit(run: Run, verdict: Mapping[str, Any] | None) -> str | None:
    """Why nothing of a run counts, as what follows its name; None where it may. `verdict` is its own latest one."""
    if run.status is not RunStatus.COMPLETE:
        return "is still running" if run.status is RunStatus.RUNNING else "was cut short"
    if run.calibrates:
        return "is a calibration: both of its arms are one deployment"
    if run.measured_by is not None:
        return f"has only the numbers of a file of {run.measured_by}'s, which were never judged"
    if verdict is None:
        return "has no verdict yet (`benchgate gate` gives it one)"
    return "is INVALID: its evidence is not usable" if verdict["outcome"] == "INVALID" else None


def objection(verdict: Mapping[str, Any], kinds: frozenset[str]) -> str | None:
    """What a tripped guard says against numbers of these kinds, whatever the verdict; None where none does."""
    for guard in verdict["guards"]:
        if guard["tripped"] and not kinds.isdisjoint(guard.get("spoils", kinds)):
            return str(guard["reason"])
    return None
