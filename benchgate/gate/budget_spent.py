"""What production has spent of its error budget, and the policy for when nothing is left of it.

While a budget is blown, what would be a warning at other times is a risk that nobody has room for: anything but a
clean PASS is blocked (`when_blown: block`). A clean PASS warns then. What cannot be promoted anyhow stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.gate.steps import made, number
from benchgate.model.error_budget import BudgetSpent
from benchgate.model.verdict import BUDGET, HISTORY, CheckResult, Outcome, Scale, Step, Unit
from benchgate.suite.error_budget import ErrorBudget
from benchgate.suite.schema import Suite
from benchgate.units import as_written, show_percent

SPENT = "error_budget"


def spent_checks(
    suite: Suite, spent: BudgetSpent | None, others: Sequence[CheckResult], outcome: Outcome
) -> tuple[CheckResult, ...]:
    """The one line on it; none for a suite without a budget.

    `others` are all other checks, waived ones with their waivers, and `outcome` is what they and the guards come to.
    """
    budget = suite.error_budget
    if budget is None:
        return ()
    if spent is None:
        reason = "what production had spent of its budget is not known: the run did not read it"
        return (_line(None, Outcome.INVALID, reason, "run the suite again: it is read when a run starts", ()),)
    risks = tuple(check for check in others if _is_risk(check, suite.gate.alpha))
    found, why, advice = _judged(budget, spent, risks, outcome, suite.gate.warn_fraction)
    told = f"{as_written(show_percent(spent.spent_ratio))} of the {budget.told} is spent"
    steps = (
        made("share of the budget that is spent, as it was read", "", spent.spent_ratio),
        Step("all other checks and guards", "", outcome.value),
        Step("of these no clean PASS", "", ", ".join(check.id for check in risks) or "none"),
        Step("outcome", why or f"{number(spent.spent_ratio)} <= {number(suite.gate.warn_fraction)}", found.value),
    )
    return (_line(spent, found, f"{told}{why and f': {why}'}", advice, steps),)


def _is_risk(check: CheckResult, alpha: float) -> bool:
    """Whether it warns, is waived or shows harm: an advisory check too, and harm that a check's own rule lets pass."""
    if check.counted is Outcome.WARN or (not check.required and check.counted in _HARM):
        return True
    compares = check.scale is not Scale.ABSOLUTE and check.family != HISTORY
    return compares and check.p_holm is not None and check.p_holm <= alpha


_HARM = (Outcome.BLOCK, Outcome.INVALID)


def _judged(
    budget: ErrorBudget, spent: BudgetSpent, risks: Sequence[CheckResult], outcome: Outcome, warn_fraction: float
) -> tuple[Outcome, str, str | None]:
    """The outcome, why, and what to do."""
    if not spent.blown:
        if spent.spent_ratio <= warn_fraction:
            return Outcome.PASS, "", None
        why = f"past the warning at {as_written(show_percent(warn_fraction))}, and short of a blown one"
        return Outcome.WARN, why, "hold back what is not urgent: once the budget is blown, whatever warns is blocked"
    if not outcome.promotes:
        return Outcome.WARN, "it is blown, and the candidate is not promoted for other reasons", _RECOVER
    if outcome is Outcome.PASS and not risks:
        return Outcome.WARN, "it is blown; every other check of the candidate is a clean PASS", _RECOVER
    told = f"it is blown, and the candidate is no clean PASS{_named(risks)}"
    if budget.when_blown == "warn":
        return Outcome.WARN, f"{told}; by the suite's policy (`when_blown: warn`) that is no reason to block", _RECOVER
    return Outcome.BLOCK, f"{told}; by policy (`when_blown: block`) nothing risky is promoted then", _CLEAN


def _named(risks: Sequence[CheckResult]) -> str:
    """` (Goodput at c4 is WARN, and 2 more)`."""
    if not risks:
        return ""
    first, more = risks[0], len(risks) - 1
    state = first.shown if first.counted is not Outcome.PASS else "shown to lose"
    return f" ({first.title} is {state}{f', and {more} more' if more else ''})"


_RECOVER = "let the budget recover before changes that need not be made now"
_CLEAN = "promote a candidate that passes every check, or wait until the budget has recovered"


def _line(
    spent: BudgetSpent | None, outcome: Outcome, reason: str, advice: str | None, steps: tuple[Step, ...]
) -> CheckResult:
    ratio = None if spent is None else spent.spent_ratio
    return CheckResult(
        id=SPENT,
        title="Error budget spent in production",
        family=BUDGET,
        metric=SPENT,
        statistic=None,
        stage=None,
        task=None,
        required=True,
        outcome=outcome,
        reason=reason,
        advice=advice,
        unit=Unit.RATIO,
        scale=Scale.ABSOLUTE,
        baseline=None,
        candidate=ratio,
        harm=ratio,
        lower=ratio,
        upper=ratio,
        margin=1.0,
        p_value=None,
        p_holm=None,
        n=0 if spent is None else 1,
        n_unit="reading",
        method="one reading, when the run started",
        notes=() if spent is None else (f"by {spent.source}, read at {spent.read_at}",),
        at_least=False,
        steps=steps or (Step("outcome", reason, outcome.value),),
    )
