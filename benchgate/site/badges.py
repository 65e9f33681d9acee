"""Badges of a suite: its newest outcome and its cost, as SVG and as the JSON that shields.io reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.escape import one_line
from benchgate.model.deployment import Arm
from benchgate.model.run import RunStatus
from benchgate.model.verdict import Outcome
from benchgate.report import display
from benchgate.report.display import MARKS
from benchgate.site.folder import NO_VERDICT, name_of
from benchgate.sizing.candidates import OF_LOAD, StoredRun, guard_objection, ineligible_because, unreadable_because
from benchgate.sizing.operating_point import GOOD, PricedLevel, cost_name
from benchgate.store.queries import RunSummary
from benchgate.suite.schema import Suite

_COLOURS = {
    Outcome.PASS: "#17713f",
    Outcome.WARN: "#8a5a00",
    Outcome.BLOCK: "#b3261e",
    Outcome.INCONCLUSIVE: "#5b45b0",
    Outcome.INVALID: "#4d5763",
}  # white on each is 4.5:1 or more
UNKNOWN = "#4d5763"
_LONGEST_LABEL = 40
_CHARACTER, _MARGIN = 7, 12  # pixels; the text is stretched or pressed to what this makes of it


@dataclass(frozen=True, slots=True)
class Badge:
    """Two words and a colour; widths are those of its halves, in pixels. `title` describes its run."""

    label: str
    message: str
    colour: str
    label_width: int
    message_width: int
    title: str


def newest_judging(runs: Sequence[RunSummary]) -> RunSummary | None:
    """Return the newest run that judges a candidate by the whole suite and has ended; `runs` are oldest first."""
    judging = (one for one in reversed(runs) if one.run.judges_whole_suite)
    return next((one for one in judging if one.run.status is not RunStatus.RUNNING), None)


def badge_of(suite: str, runs: Sequence[RunSummary], in_series: str | None = None) -> Badge:
    """Return the badge of the newest run in the suite's baseline series, by its id, else of its newest run.

    A run without a verdict shows that: an older one's is not its own.
    """
    served = next((one for one in runs if one.run.id == in_series), None)
    summary = served or newest_judging(runs)
    outcome = summary.outcomes[-1].outcome if summary is not None and summary.outcomes else None
    which = "what is in service" if served is not None else "the newest run"
    title = f"{which}, {name_of(summary)}" if summary is not None else "no run judges a candidate"
    label = one_line(suite, _LONGEST_LABEL) or "benchgate"
    message = NO_VERDICT if outcome is None else f"{MARKS[outcome]} {outcome.value}"
    return make_badge(label, message, UNKNOWN if outcome is None else _COLOURS[outcome], title)


def make_badge(label: str, message: str, colour: str, title: str) -> Badge:
    """Make a badge as wide as its words."""
    left, right = (_CHARACTER * len(text) + _MARGIN for text in (label, message))
    return Badge(label, message, colour, left, right, title)


def badge_json(badge: Badge) -> bytes:
    """Return the document that shields.io reads from an address: https://shields.io/badges/endpoint-badge."""
    document = {"schemaVersion": 1, "label": badge.label, "message": badge.message, "color": badge.colour}
    return (json.dumps(document, sort_keys=True) + "\n").encode()


_COST_COLOUR = "#2f5b8f"  # says nothing of good or bad; white on it is 6:1 or more
_LONGEST_TITLE = 80
_NOT_KNOWN = "unknown"


def cost_badge(in_service: StoredRun | None) -> Badge:
    """Return the price of the newest run of the baseline series at full use, with its day.

    "unknown" without such a run or a reliable number; the title has the reason.
    """
    if in_service is None:
        return make_badge("cost", _NOT_KNOWN, UNKNOWN, "no run is in the baseline series")
    level, of = _priced_level(in_service), f"what is in service, {one_line(in_service.short, _LONGEST_TITLE)}"
    if isinstance(level, str):
        return make_badge("cost", _NOT_KNOWN, UNKNOWN, one_line(f"{of}: {level}"))
    tokens = "good" if cost_name(Suite.from_stored(in_service.run.suite)).startswith(GOOD) else "output"
    day = one_line(in_service.run.started_at[:10])
    limits = level.usd.limits
    interval = "" if limits is None else f", {display.usd(limits.lower)} to {display.usd(limits.upper)} with 95 %"
    title = one_line(f"{of}, at full use at stage {level.stage}{interval}")
    return make_badge(f"1M {tokens} tokens", f"{display.usd(level.usd.value)} on {day}", _COST_COLOUR, title)


def _priced_level(stored: StoredRun) -> PricedLevel | str:
    """Return the cost of its tokens; else the reason why it is unknown."""
    fault = ineligible_because(stored.run, stored.verdict)
    if fault is not None or stored.verdict is None:
        return f"the run {fault}"
    return (
        unreadable_because(stored.run)
        or guard_objection(stored.verdict, OF_LOAD)
        or stored.level(Arm.CANDIDATE, in_use=False)
    )
