"""What a million tokens of what is in service cost when that was measured, as a badge."""

from __future__ import annotations

from benchgate.escape import one_line
from benchgate.model.deployment import Arm
from benchgate.report import display
from benchgate.site.badge import UNKNOWN, Badge, made
from benchgate.sizing.candidates import OF_LOAD, StoredRun, guard_objection, ineligible_because, unreadable_because
from benchgate.sizing.operating_point import GOOD, PricedLevel, cost_name
from benchgate.suite.schema import Suite

_COLOUR = "#2f5b8f"  # says nothing of good or bad; white on it is 6:1 or more
_LONGEST = 80
_NOT_KNOWN = "unknown"


def cost_badge(in_service: StoredRun | None) -> Badge:
    """Of the newest run of the baseline series: its price at full use at the level that counts, and its day.

    "unknown" where there is no such run, or no number of it that may be counted on; the title says why.
    """
    if in_service is None:
        return made("cost", _NOT_KNOWN, UNKNOWN, "no run is in the baseline series")
    level, of = _level(in_service), f"what is in service, {one_line(in_service.short, _LONGEST)}"
    if isinstance(level, str):
        return made("cost", _NOT_KNOWN, UNKNOWN, one_line(f"{of}: {level}"))
    tokens = "good" if cost_name(Suite.from_stored(in_service.run.suite)).startswith(GOOD) else "output"
    day = one_line(in_service.run.started_at[:10])
    limits = level.usd.limits
    told = "" if limits is None else f", {display.usd(limits.lower)} to {display.usd(limits.upper)} with 95 %"
    title = one_line(f"{of}, at full use at stage {level.stage}{told}")
    return made(f"1M {tokens} tokens", f"{display.usd(level.usd.value)} on {day}", _COLOUR, title)


def _level(stored: StoredRun) -> PricedLevel | str:
    """What its tokens cost; else why nobody can say."""
    fault = ineligible_because(stored.run, stored.verdict)
    if fault is not None or stored.verdict is None:
        return f"the run {fault}"
    return (
        unreadable_because(stored.run)
        or guard_objection(stored.verdict, OF_LOAD)
        or stored.level(Arm.CANDIDATE, in_use=False)
    )
