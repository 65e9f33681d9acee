"""The one sentence of a verdict, for whoever must promote or not."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from benchgate.gate.guard import compared
from benchgate.gate.showing import show_value
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale

_OF_SPEED = (("load",), ("speed",), ("tokens",))
_OF_COMPARED = tuple(compared(*kinds) for kinds in _OF_SPEED)


def verdict_reason(
    outcome: Outcome, checks: tuple[CheckResult, ...], guards: tuple[GuardResult, ...], names: tuple[str | None, str]
) -> str:
    """The one sentence: what was decided about whom, and the number or the fault that decided it.

    `names` are baseline's and candidate's; no baseline where one deployment was measured alone and held to bounds.
    """
    baseline, candidate = names
    said = _SAID_OF_ONE if baseline is None else _SAID
    required = [check for check in checks if check.required]
    decisive = decisive_checks(outcome, checks)
    begin = f"{candidate} {said[outcome]}" if outcome in said else ""
    match outcome:
        case Outcome.BLOCK | Outcome.INCONCLUSIVE:
            return f"{begin}: {_told(decisive[0])}{_and_more(decisive)}."
        case Outcome.INVALID:
            tripped = [guard for guard in guards if guard.tripped]
            told = tripped[0].reason if tripped else _told(decisive[0]) if decisive else "no check is required"
            spoils = tripped[0].spoils if tripped else ()
            what = "the speed of " if spoils in (*_OF_SPEED, *_OF_COMPARED) else ""
            beside = f" against {baseline}" if baseline is not None and spoils in _OF_COMPARED else ""
            return f"Nothing can be said about {what}{candidate}{beside}: {_short(told).rstrip('.')}."
        case Outcome.WARN:
            waived = [check for check in required if check.waiver is not None]
            if waived:
                begin = f"{candidate} {_ONLY_BECAUSE[baseline is None]} {_are_waived(len(waived))}"
            warning = [guard for guard in guards if guard.warns]
            if not decisive and warning:
                others = [f"; guard {guard.id} warns too" for guard in warning[1:]]
                return (
                    f"{begin}: guard {warning[0].id} warns: {_short(warning[0].reason).rstrip('.')}{''.join(others)}."
                )
            named = "".join(f"; guard {guard.id} warns" for guard in warning)
            return f"{begin}: {_told(decisive[0])}{_and_more(decisive)}{named}."
        case _:
            held = f"all {len(required)} required checks hold" if len(required) > 1 else "the required check holds"
            compared = baseline is not None and any(check.scale is not Scale.ABSOLUTE for check in required)
            against = f" against {baseline}" if compared else ""
            return f"{begin}: {held}{against}{_closest(required)}."


_SAID = MappingProxyType(
    {
        Outcome.PASS: "may be promoted",
        Outcome.WARN: "may be promoted, with care",
        Outcome.INCONCLUSIVE: "is not promoted, because the evidence does not carry it",
        Outcome.BLOCK: "must not be promoted",
    }
)
_SAID_OF_ONE = MappingProxyType(
    {
        Outcome.PASS: "keeps to its bounds",
        Outcome.WARN: "keeps to its bounds, with care",
        Outcome.INCONCLUSIVE: "is not shown to keep to its bounds",
        Outcome.BLOCK: "does not keep to its bounds",
    }
)

_ONLY_BECAUSE = ("may be promoted only because", "is let through only because")


def _are_waived(count: int) -> str:
    return "1 check is waived" if count == 1 else f"{count} checks are waived"


def decisive_checks(outcome: Outcome, checks: Sequence[CheckResult]) -> list[CheckResult]:
    """The checks that made the outcome, the one that says most first; empty where none did.

    Advisory ones decide nothing but a warning, and only where no required check warns. Of warnings those come first
    that would stop the promotion, were they not waived.
    """
    required = [check for check in checks if check.required and check.counted is outcome]
    if required or outcome is not Outcome.WARN:
        return sorted(required, key=lambda check: (check.waiver is None, *_by_harm(check)))
    advisory = [check for check in checks if not check.required and check.counted in _WARNING]
    return sorted(advisory, key=lambda check: (-check.counted.severity, *_by_harm(check)))


_WARNING = (Outcome.WARN, Outcome.BLOCK, Outcome.INVALID)  # of an advisory check


def _by_harm(check: CheckResult) -> tuple[float]:
    """Largest harm against its margin first; then those that have no such number, in the policy's order."""
    return (-_size(check, check.harm) / check.margin if check.scale is not Scale.ABSOLUTE else 0.0,)


def _size(check: CheckResult, harm: float | None) -> float:
    """How much of a harm counts: where a change either way is harm, without its sign."""
    if harm is None:
        return 0.0
    return abs(harm) if check.two_sided else harm


def _closest(checks: list[CheckResult]) -> str:
    """Which passing check has used most of its margin, in its own words."""
    relative = [c for c in checks if c.scale is not Scale.ABSOLUTE and c.upper is not None]
    if not relative:
        return ""
    closest = max(relative, key=lambda c: max(_size(c, c.upper), _size(c, c.lower)) / c.margin)
    return f". Closest to its margin: {_told(closest)}"


def _told(check: CheckResult) -> str:
    values = ""
    if check.baseline is not None and check.candidate is not None:
        shown = f"{show_value(check.baseline, check.unit)} → {show_value(check.candidate, check.unit)}"
        values = f" ({shown}, {check.n:,} {check.n_unit})"
    joint = " " if check.reason.startswith(_MOVED) else ": "
    advisory = "" if check.required else ", which is advisory"
    return f"{check.title}{joint}{_short(check.reason)}{values}{advisory}"


_MOVED = ("rose by ", "fell by ", "is unchanged", "without bound")
"""How a reason begins that has the check's title for its subject."""
_LONGEST = 280


def _short(reason: str) -> str:
    """A reason that fits into one sentence; the whole of it stands beside its check or guard."""
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST].rsplit(' ', 1)[0].rstrip(',;:')} …"


def _and_more(checks: list[CheckResult]) -> str:
    more = len(checks) - 1
    return "" if more <= 0 else f"; and {more} more check{'s' if more > 1 else ''}"
