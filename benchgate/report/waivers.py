"""Waivers as machines and people read them: each with what became of it, and those that will not hold for long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from benchgate.model.verdict import Verdict, Waiver, WaiverState, WaiverUse


def waiver_document(waiver: Waiver) -> dict[str, object]:
    """A waiver, whole, as plain JSON."""
    return {
        "check": waiver.check,
        "suite": waiver.suite,
        "deployment": waiver.deployment,
        "ceiling": waiver.ceiling,
        "expires": waiver.expires.isoformat(),
        "owner": waiver.owner,
        "issue": waiver.issue,
        "reason": waiver.reason,
        "approved_by": waiver.approved_by,
        **({"release": waiver.release} if waiver.release is not None else {}),
    }


def waivers_document(states: Sequence[WaiverState], as_of: date) -> dict[str, object]:
    """The waivers of this suite and candidate by what became of them; `expiring` are those that hold for days only."""
    by_use = {use.value: [_state(one) for one in states if one.use is use] for use in WaiverUse}
    expiring = [_state(one) for one in states if one.expires_soon]
    return {"as_of": as_of.isoformat(), **by_use, "expiring": expiring}


def waiver_lines(verdict: Verdict) -> Iterator[str]:
    """A line for each waiver that needs a word: whatever was not used or names no release, and what ends soon."""
    for state in verdict.waivers:
        waiver = state.waiver
        of = f"the waiver of {waiver.check} ({waiver.issue}, {waiver.owner})"
        if state.use is not WaiverUse.USED or waiver.release is None:
            yield f"{of} is {state.use}: {state.why}"
        if state.expires_soon:
            yield f"{of} {_ends(state.days_left)}: it holds to the end of {waiver.expires}, UTC"


def _ends(days_left: int) -> str:
    if days_left == 0:
        return "ends today"
    return f"ends in {days_left} day{'s' if days_left > 1 else ''}"


def _state(state: WaiverState) -> dict[str, object]:
    return {**waiver_document(state.waiver), "why": state.why, "days_left": state.days_left}
