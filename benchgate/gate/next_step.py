"""What to do next about a verdict: one thing, the one that helps most."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.gate.verdict_sentence import decisive_checks
from benchgate.model.verdict import CheckResult, GuardResult, Outcome


def next_step(outcome: Outcome, checks: Sequence[CheckResult], guards: Sequence[GuardResult]) -> str | None:
    """A tripped guard's remedy where the evidence is no use, else the advice of the check that the sentence names.

    Where no check warns, the remedy of the guard that does. None for PASS, and where a warning needs nothing done
    before the promotion.
    """
    if outcome is Outcome.PASS:
        return None
    if outcome is Outcome.INVALID:
        remedy = next((guard.remedy for guard in guards if guard.tripped and guard.remedy), None)
        if remedy is not None:
            return remedy
    decisive = decisive_checks(outcome, checks)
    warning = [guard.remedy for guard in guards if guard.warns] if outcome is Outcome.WARN else []
    if warning and not decisive:
        return warning[0]
    return next((check.advice for check in decisive if check.advice), None) if decisive else _REQUIRE


_REQUIRE = "make at least one check `required`"
