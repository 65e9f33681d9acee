"""What a suite has come to, as a badge: an SVG of our own, and the JSON that shields.io makes one of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.escape import one_line
from benchgate.model.run import RunStatus
from benchgate.model.verdict import Outcome
from benchgate.report.display import MARKS
from benchgate.site.listed import NO_VERDICT, name_of
from benchgate.store.queries import RunSummary

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
    """Two words and a colour; the widths are of its two halves, in pixels. `title` says what it is of."""

    label: str
    message: str
    colour: str
    label_width: int
    message_width: int
    title: str


def newest_judging(runs: Sequence[RunSummary]) -> RunSummary | None:
    """The newest run (they come oldest first) that judges a candidate, and is over or was cut short.

    No calibration and no file of another tool does.
    """
    judging = (one for one in reversed(runs) if not one.run.calibrates and one.run.measured_by is None)
    return next((one for one in judging if one.run.status is not RunStatus.RUNNING), None)


def badge_of(suite: str, runs: Sequence[RunSummary], in_series: str | None = None) -> Badge:
    """The badge of a suite: of the newest run in its baseline series, by its id, else of its newest run.

    A run without a verdict says so: an older one's is not its own.
    """
    served = next((one for one in runs if one.run.id == in_series), None)
    shown = served or newest_judging(runs)
    outcome = shown.outcomes[-1].outcome if shown is not None and shown.outcomes else None
    which = "what is in service" if served is not None else "the newest run"
    title = f"{which}, {name_of(shown)}" if shown is not None else "no run judges a candidate"
    label = one_line(suite, _LONGEST_LABEL) or "benchgate"
    message = NO_VERDICT if outcome is None else f"{MARKS[outcome]} {outcome.value}"
    return made(label, message, UNKNOWN if outcome is None else _COLOURS[outcome], title)


def made(label: str, message: str, colour: str, title: str) -> Badge:
    """A badge as wide as its words."""
    left, right = (_CHARACTER * len(text) + _MARGIN for text in (label, message))
    return Badge(label, message, colour, left, right, title)


def badge_json(badge: Badge) -> bytes:
    """As shields.io reads it from an address: https://shields.io/badges/endpoint-badge."""
    said = {"schemaVersion": 1, "label": badge.label, "message": badge.message, "color": badge.colour}
    return (json.dumps(said, sort_keys=True) + "\n").encode()
