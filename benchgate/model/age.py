"""How long ago a run ended, and whether that is too long: what goes into service rests on what was measured lately."""

from __future__ import annotations

from datetime import UTC, datetime

PROMOTED_WITHIN_S = 30 * 86_400.0
"""How long after its end a run is promoted, unless somebody says otherwise."""

_AHEAD_S = 300.0  # that another machine's clock may be


def too_old(ended: str | None, now: str, max_age_s: float) -> str | None:
    """Why what ended at an instant is not of today; None where it is. Instants are RFC 3339 with an offset.

    By when it was over: a verdict can be reached anew, and what it rests on stays as old as it is. An instant that is
    missing, unreadable or still to come is too old.
    """
    then, today = _instant(ended), _instant(now)
    if then is None or today is None:
        return "nobody knows when it was measured"
    age_s = (today - then).total_seconds()
    if age_s < -_AHEAD_S:
        return f"it ended at {ended}, which is still to come: some clock is wrong"
    if age_s > max_age_s:
        return f"it ended {_shown(age_s)} ago, and may be {_shown(max_age_s)} old; measure it again"
    return None


def _shown(age_s: float) -> str:
    return f"{age_s / 86_400:,.1f} days" if age_s >= 172_800 else f"{age_s / 3600:.1f} hours"


def _instant(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if text is not None else None
    except ValueError:
        return None
    return found.astimezone(UTC) if found is not None and found.tzinfo is not None else None
