"""The burn of an error budget: how fast production would spend it if its requests failed as the candidate's did.

A share of failures divided by what the objective lets fail: at 1 a budget lasts exactly its window. The line is one
more required check, with the three-way rule: PASS only where a burn that would page is ruled out, WARN above 1, BLOCK
where it is shown to be above the alarm. It makes no verdict better: it is corrected for by itself alone, so that no
other check's p-value grows for it, and a verdict never rests on it alone.

What production has spent of its error budget, and the policy for when nothing is left of it.

While a budget is blown, what would be a warning at other times is a risk that nobody has room for: anything but a
clean PASS is blocked (`when_blown: block`). A clean PASS warns then. What cannot be promoted anyhow stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchgate.gate.check_results import Line, check_line
from benchgate.gate.comparison import Comparison, load_of, stricter_look
from benchgate.gate.decision import Finding, Problem, at_look, decide, defined
from benchgate.gate.derivation import made, number, own_share_steps
from benchgate.gate.evidence.shares import Counts, tally_of, unmeasured
from benchgate.gate.guards.base import kinds_of_metric, spoiling
from benchgate.gate.reasons import check_advice
from benchgate.model.deployment import Arm
from benchgate.model.run import BudgetReading
from benchgate.model.verdict import BUDGET, HISTORY, ArithmeticStep, CheckResult, GuardResult, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.overdispersed import miss_share_limits, miss_share_p, sample_size_to_decide
from benchgate.stats.sequential import holm
from benchgate.suite.error_budget import (
    BURN,
    BURN_ALARM,
    ErrorBudget,
    show_objective,
    show_window,
    worst_share,
)
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Gate, Suite, budget_classes
from benchgate.units import as_written, show_percent


def burn_checks(
    suite: Suite, comparison: Comparison, guards: Sequence[GuardResult], others: Sequence[CheckResult]
) -> tuple[CheckResult, ...]:
    """A line for each place of the load that the budget goes by; none for a suite without one.

    `others` are the outcomes of the policy's own checks: where one of them ended the load, the line says so.
    """
    budget = suite.error_budget
    if budget is None:
        return ()
    ended_by = tuple(check.title for check in others if check.required and check.stage and _blocks(check))
    look = stricter_look(suite, comparison)
    alpha = suite.gate.alpha if look is None else look.alpha
    guard = spoiling(guards, kinds_of_metric(budget.metric))
    found: list[tuple[str | None, Finding]] = []
    for place in budget_classes(suite) or (None,):
        finding = defined(_burn(budget, place, comparison, alpha))
        finding = finding if look is None else at_look(finding, look)
        problem = finding.problem if guard is None else Problem(Outcome.INVALID, guard.reason, guard.remedy or "")
        name = None if place is None else place.name
        found.append((name, replace(finding, problem=problem, ended_by=ended_by)))
    p_values = [finding.p_value for _, finding in found if finding.p_value is not None]
    adjusted = iter(holm(p_values))
    return tuple(
        _result(name, finding, next(adjusted) if finding.p_value is not None else None, suite.gate, p_values)
        for name, finding in found
    )


def _blocks(check: CheckResult) -> bool:
    return check.counted is Outcome.BLOCK


def _burn(budget: ErrorBudget, place: TrafficClass | None, comparison: Comparison, alpha: float) -> Finding:
    """What the candidate's failures come to, with limits on the effective number of requests."""
    finding = Finding(
        unit=Unit.MULTIPLE,
        scale=Scale.ABSOLUTE,
        margin=BURN_ALARM,
        method="share that failed over what the objective lets fail; Clopper-Pearson on effective requests",
        n=0,
        n_unit="requests",
        breach=True,
        nears=False,
    )
    if place is None:
        return replace(finding, problem=Problem(Outcome.INVALID, "its stage was not measured", _MEASURE))
    tally = tally_of(budget.metric, place.slo)
    counts = Counts.of(load_of(comparison.judged, place.name, Arm.CANDIDATE).values(), tally)
    allowed = 1 - budget.objective_ratio
    worst = worst_share(budget.objective_ratio)
    limits = miss_share_limits(counts.kept, counts.totals, alpha)
    if limits is None:
        return replace(finding, problem=unmeasured(budget.metric, place.name, counts))
    burn = counts.share / allowed
    return replace(
        finding,
        n=counts.scheduled,
        candidate=burn,
        harm=burn,
        limits=Limits(lower=limits.lower / allowed, upper=limits.upper / allowed),
        p_value=miss_share_p(counts.kept, counts.totals, worst, alpha),
        needs=sample_size_to_decide(counts.kept, counts.totals, 1 - worst, alpha),
        warning=_lasts(burn, budget.window_s) if burn > 1 else None,
        warning_advice=f"find out what fails at {place.name} before production's requests do",
        notes=(_counted(budget, counts),),
        steps=(*own_share_steps(counts, limits, alpha), *_steps(budget.objective_ratio, counts.share, limits)),
    )


def _lasts(burn: float, window_s: float) -> str:
    return f"at that rate a budget for {show_window(window_s)} is spent in {show_window(window_s / burn)}"


def _counted(budget: ErrorBudget, counts: Counts) -> str:
    failed = "failed" if budget.metric == "error_rate" else "were not good"
    allowed = as_written(show_percent(1 - budget.objective_ratio))
    told = f"{counts.missed:,} of {counts.scheduled:,} requests {failed}"
    return f"{told}; the objective of {show_objective(budget.objective_ratio)} lets {allowed} of them"


def _steps(objective_ratio: float, share: float, limits: Limits) -> tuple[ArithmeticStep, ...]:
    """From the share that failed and its limits to the burn and its limits."""
    allowed = 1 - objective_ratio
    ends = (("burn", share), ("burn at the lower limit", limits.lower), ("burn at the upper limit", limits.upper))
    return (
        made("share that the objective lets fail", f"1 - {number(objective_ratio)}", allowed),
        *(made(what, f"{number(value)} / {number(allowed)}", value / allowed) for what, value in ends),
    )


def _result(
    place: str | None, found: Finding, p_holm: float | None, gate: Gate, p_values: Sequence[float]
) -> CheckResult:
    outcome = decide(found, p_holm, gate.alpha, gate.warn_fraction)
    line = Line(
        id=BURN if place is None else f"{BURN}@{place}",
        title="Error budget burn" + ("" if place is None else f" at {place}"),
        family=BUDGET,
        metric=BURN,
        required=True,
        stage=place,
    )
    advice = check_advice(found, outcome, gate.alpha)
    return check_line(line, found, outcome, p_holm, gate, advice=advice, p_values=p_values)


_MEASURE = "run the suite again: its error budget is read, and its stage measured, by a run of its own"


SPENT = "error_budget"


def spent_checks(
    suite: Suite, spent: BudgetReading | None, others: Sequence[CheckResult], outcome: Outcome
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
    told = f"{as_written(show_percent(spent.spent_ratio))} of the {budget.shown} is spent"
    steps = (
        made("share of the budget that is spent, as it was read", "", spent.spent_ratio),
        ArithmeticStep("all other checks and guards", "", outcome.value),
        ArithmeticStep("of these no clean PASS", "", ", ".join(check.id for check in risks) or "none"),
        ArithmeticStep(
            "outcome", why or f"{number(spent.spent_ratio)} <= {number(suite.gate.warn_fraction)}", found.value
        ),
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
    budget: ErrorBudget, spent: BudgetReading, risks: Sequence[CheckResult], outcome: Outcome, warn_fraction: float
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
    spent: BudgetReading | None, outcome: Outcome, reason: str, advice: str | None, steps: tuple[ArithmeticStep, ...]
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
        steps=steps or (ArithmeticStep("outcome", reason, outcome.value),),
    )
