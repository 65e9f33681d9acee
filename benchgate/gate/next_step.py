"""What to do next about a verdict: one thing, the one that helps most."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.gate.verdict_sentence import decisive_checks
from benchgate.model.verdict import CheckResult, GuardResult, Outcome


def next_step(outcome: Outcome, checks: Sequence[CheckResult], guards: Sequence[GuardResult]) -> str | None:
    """A tripped guard's remedy where the evidence is no use, else the advice of the check that the sentence names.

    None for PASS, and where a warning needs nothing done before the promotion.
    """
    if outcome is Outcome.PASS:
        return None
    if outcome is Outcome.INVALID:
        remedy = next((guard.remedy for guard in guards if guard.tripped and guard.remedy), None)
        if remedy is not None:
            return remedy
    decisive = decisive_checks(outcome, checks)
    return next((check.advice for check in decisive if check.advice), None) if decisive else _REQUIRE


_REQUIRE = "make at least one check `required`"
