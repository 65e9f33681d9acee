"""Waivers applied: a check that would stop a promotion is decided once more, with the waiver's ceiling as its bound.

A waiver covers BLOCK and INCONCLUSIVE of one required check of one suite on one candidate, and only where harm is shown
to stay within the ceiling: not being able to tell is no ground to tolerate. What is INVALID says nothing that anybody
could answer for. A waived check is never PASS: it warns. Between two stored runs nothing is promoted, and nothing
waived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from benchgate.gate.checks.evaluate import evaluate
from benchgate.gate.comparison import Comparison, TiedRuns
from benchgate.gate.decision import decide
from benchgate.gate.policy import CheckSpec
from benchgate.gate.reasons import check_reason
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.verdict import RELEASE_CHARACTERS, CheckResult, Outcome, Waiver, Waivers, WaiverState, WaiverUse
from benchgate.suite.schema import Suite

_WAIVABLE = (Outcome.BLOCK, Outcome.INCONCLUSIVE)


def apply_waivers(
    waivers: Waivers, specs: Sequence[CheckSpec], checks: Sequence[CheckResult], suite: Suite, comparison: Comparison
) -> tuple[tuple[CheckResult, ...], tuple[WaiverState, ...]]:
    """Apply waivers to the checks, the results of `specs` in the same order.

    Return all checks, and what became of each waiver of this suite and candidate.
    """
    results, states = list(checks), []
    candidate = comparison.judged.run.arms[Arm.CANDIDATE]
    for waiver in waivers.entries:
        if not waiver.names(comparison.judged.run.suite_name, candidate.name):
            continue  # of another suite or candidate: a file may hold those too
        at = [position for position, check in enumerate(checks) if check.id == waiver.check]
        refusal = _other_case(waiver, waivers.as_of, candidate, comparison)
        refusal = refusal or _refusal(waiver, [checks[position] for position in at], checks)
        for position in at if refusal is None else ():
            refusal = refusal or _beyond(waiver, specs[position], suite, comparison)
        for check, position in [(checks[position], position) for position in at] if refusal is None else ():
            terms = f"until {waiver.expires} ({waiver.issue}, approved by {waiver.approved_by})"
            reason = f"{check.reason}; waived up to {waiver.ceiling} {terms}: {waiver.reason}"
            todo = "mend it" if check.outcome is Outcome.BLOCK else "measure more, until it is settled,"
            stops = f"before the end of {waiver.expires}, or it stops the promotion again"
            advice = f"{todo} {stops}; {waiver.owner} answers for it"
            results[position] = replace(check, waiver=waiver, reason=reason, advice=advice)
        states.append(_state(waiver, waivers.as_of, refusal))
    return tuple(results), tuple(states)


def _other_case(waiver: Waiver, as_of: date, candidate: Deployment, comparison: Comparison) -> str | None:
    if waiver.days_left(as_of) < 0:
        return f"it expired at the end of {waiver.expires}"
    if isinstance(comparison, TiedRuns):
        return "it is for a run beside its own baseline, and this compares two stored runs"
    if not waiver.fits(candidate.fingerprint):
        return (
            f"it is for the release {waiver.release}, and what was judged under the name {candidate.name} is "
            f"{candidate.fingerprint[:RELEASE_CHARACTERS]}"
        )
    return None


def _refusal(waiver: Waiver, meant: Sequence[CheckResult], checks: Sequence[CheckResult]) -> str | None:
    if not meant:
        from benchgate.errors import nearest  # slow to import

        near = nearest(waiver.check, [check.id for check in checks])
        return "no check has this id" + (f"; did you mean {near}?" if near else "")
    for check in meant:
        if check.outcome is Outcome.INVALID:
            return "the check is INVALID: its evidence is not usable, and that cannot be waived"
        if check.outcome not in _WAIVABLE:
            return f"the check is {check.outcome} without it"
        if not check.required:
            return "the check is advisory: it stops no promotion"
    return None


def _beyond(waiver: Waiver, spec: CheckSpec, suite: Suite, comparison: Comparison) -> str | None:
    """Return why the regression is not shown to stay within the ceiling; None if it is.

    Everything is measured again, because other requirements of a check may depend on its bound. Excluded blocks may not
    help here either.
    """
    from benchgate.suite.waivers import held_to  # slow to import

    try:
        check = held_to(spec.check, waiver.ceiling)
    except ValueError as error:
        return f"its ceiling does not fit the check: {error}"
    (judgement,) = evaluate((replace(spec, check=check),), suite, comparison)
    for estimate in (judgement.estimate, judgement.all_blocks):
        if estimate is None:
            continue
        # By the check's own p-value: other checks do not matter to whether it stays within the ceiling.
        outcome = decide(estimate, estimate.p_value, suite.gate.alpha, suite.gate.warn_fraction)
        if not outcome.promotes:
            reason = check_reason(estimate, outcome, suite.gate.warn_fraction, suite.gate.alpha)
            return f"the regression is not shown to stay within its ceiling of {waiver.ceiling}: {reason}"
    return None


def _state(waiver: Waiver, as_of: date, refusal: str | None) -> WaiverState:
    left = waiver.days_left(as_of)
    if refusal is None:
        unnamed = (
            "" if waiver.release is not None else f"; it names no release: it covers whatever is {waiver.deployment}"
        )
        return WaiverState(waiver, WaiverUse.USED, f"harm is shown to stay within {waiver.ceiling}{unnamed}", left)
    return WaiverState(waiver, WaiverUse.EXPIRED if left < 0 else WaiverUse.UNUSED, refusal, left)
