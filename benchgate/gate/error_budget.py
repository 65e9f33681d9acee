"""Checks of the suite's error budget: its burn by this candidate, and how much of it production has spent.

Burn is the candidate's share of failures over the share that the objective allows: at 1 a budget lasts exactly its
window. PASS only if a burn that would page is ruled out, WARN above 1, BLOCK if it is shown to be above the alarm. Burn
checks are corrected for multiple testing among themselves, so no other check's p-value grows for them.

While the budget is blown (spent), a risk that would only warn at other times has no room left: anything but a clean
PASS is blocked (`when_blown: block`), and a clean PASS warns. A candidate that is not promoted anyway stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchgate.gate.checks.shares import trace_counts
from benchgate.gate.comparison import Comparison, load_of, stricter_look
from benchgate.gate.decision import Estimate, Rule, adjust_for_looks, decide, invalid
from benchgate.gate.evidence.shares import Counts, tally_of, unmeasured
from benchgate.gate.evidence.tokens import demonstrated_inflation, note_inflation
from benchgate.gate.guards.base import invalidating_guard, metric_kinds
from benchgate.gate.reasons import Line, check_advice, check_line
from benchgate.model.deployment import Arm
from benchgate.model.run import BudgetReading
from benchgate.model.verdict import BUDGET, HISTORY, CheckResult, GuardResult, Outcome, Scale, Unit
from benchgate.stats.clusters import miss_share_limits, miss_share_p, sample_size_to_decide
from benchgate.stats.distributions import Limits
from benchgate.stats.sequential import holm
from benchgate.stats.trace import Trace, digits
from benchgate.suite.error_budget import BURN, BURN_ALARM, ErrorBudget, show_objective, show_window, worst_share
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite, budget_classes
from benchgate.units import as_written, show_percent

SPENT = "error_budget"

_RULE = Rule(Unit.MULTIPLE, Scale.ABSOLUTE, breach=True, nears=False)
_METHOD = "share that failed over the share that the objective allows; Clopper-Pearson on effective requests"
_MEASURE = "run the suite again: a run reads its own error budget and measures its own stages"
_RECOVER = "let the budget recover before changes that need not be made now"
_CLEAN = "promote a candidate that passes every check, or wait until the budget has recovered"


def burn_checks(suite: Suite, comparison: Comparison, guards: Sequence[GuardResult]) -> tuple[CheckResult, ...]:
    """Judge the burn at every place of the load where the budget's failures are counted; none without a budget."""
    budget = suite.error_budget
    if budget is None:
        return ()
    look = stricter_look(suite, comparison)
    alpha = suite.gate.alpha if look is None else look.alpha
    guard = invalidating_guard(guards, metric_kinds(budget.metric))
    estimates: list[tuple[str | None, Estimate]] = []
    for place in budget_classes(suite) or (None,):
        estimate = Estimate(_RULE, BURN_ALARM, method=_METHOD, n_unit="requests")
        with estimate.keeping_problems():
            _measure_burn(estimate, budget, place, suite, comparison, alpha)
        estimate.clear_undefined()
        if look is not None:
            adjust_for_looks(estimate, look)
        if guard is not None:
            estimate.problem = invalid(guard.reason, guard.remedy or "")
        estimates.append((None if place is None else place.name, estimate))
    p_values = [estimate.p_value for _, estimate in estimates if estimate.p_value is not None]
    adjusted, gate = iter(holm(p_values)), suite.gate
    lines = []
    for name, estimate in estimates:
        p_holm = next(adjusted) if estimate.p_value is not None else None
        outcome = decide(estimate, p_holm, gate.alpha, gate.warn_fraction)
        line = Line(
            id=BURN if name is None else f"{BURN}@{name}",
            title="Error budget burn" + ("" if name is None else f" at {name}"),
            family=BUDGET,
            metric=BURN,
            required=True,
            stage=name,
        )
        advice = check_advice(estimate, outcome, gate.alpha)
        lines.append(check_line(line, estimate, outcome, p_holm, gate, advice=advice, p_values=p_values))
    return tuple(lines)


def _measure_burn(
    estimate: Estimate,
    budget: ErrorBudget,
    place: TrafficClass | None,
    suite: Suite,
    comparison: Comparison,
    alpha: float,
) -> None:
    if place is None:
        raise invalid("its stage was not measured", _MEASURE)
    slo, inflation = place.slo, None
    if budget.metric == "goodput" and slo is not None and slo.tpot_s is not None:
        inflation = demonstrated_inflation(comparison.request_pairs, place.name, suite)
        slo = slo if inflation is None else slo.restated(inflation.estimate)
    tally = tally_of(budget.metric, slo)
    counts = Counts.of(load_of(comparison.judged, place.name, Arm.CANDIDATE).values(), tally)
    trace_counts(estimate.trace, "candidate", counts)
    limits = miss_share_limits(counts.kept, counts.totals, alpha, estimate.trace)
    if limits is None:
        raise unmeasured(budget.metric, place.name, counts)
    allowed, worst = 1 - budget.objective_ratio, worst_share(budget.objective_ratio)
    burn = counts.share / allowed
    estimate.n, estimate.candidate, estimate.value = counts.scheduled, burn, burn
    estimate.limits = Limits(lower=limits.lower / allowed, upper=limits.upper / allowed)
    estimate.p_value = miss_share_p(counts.kept, counts.totals, worst, alpha)
    estimate.needed_at = partial(sample_size_to_decide, counts.kept, counts.totals, 1 - worst)
    estimate.trace.made("share that the objective allows to fail", f"1 - {digits(budget.objective_ratio)}", allowed)
    estimate.trace.made("burn", f"{digits(counts.share)} / {digits(allowed)}", burn)
    for end in ("lower", "upper"):
        formula = f"{digits(getattr(limits, end))} / {digits(allowed)}"
        estimate.trace.made(f"burn at the {end} limit", formula, getattr(estimate.limits, end))
    if burn > 1:
        window, lasts = show_window(budget.window_s), show_window(budget.window_s / burn)
        estimate.warn(f"at that rate a budget for {window} is spent in {lasts}")
    estimate.warning_advice = f"find out what fails at {place.name} before production's requests do"
    failed = "failed" if budget.metric == "error_rate" else "were not good"
    failures = f"{counts.missed:,} of {counts.scheduled:,} requests {failed}"
    share = as_written(show_percent, allowed)
    estimate.notes = [f"{failures}; the objective of {show_objective(budget.objective_ratio)} allows {share} of them"]
    if inflation is not None:
        note_inflation(estimate, "goodput", inflation)


def spent_checks(
    suite: Suite, spent: BudgetReading | None, others: Sequence[CheckResult], outcome: Outcome
) -> tuple[CheckResult, ...]:
    """Judge how much of the budget production has spent; no line without a budget.

    `others` are all other checks, waived ones with their waivers, and `outcome` is theirs together with the guards.
    """
    budget = suite.error_budget
    if budget is None:
        return ()
    trace = Trace()
    if spent is None:
        reason = "the budget that production has spent is not known: the run did not read it"
        trace.text("outcome", reason, Outcome.INVALID.value)
        rerun = "run the suite again: the budget is read when a run starts"
        return (_spent_line(None, Outcome.INVALID, reason, rerun, trace),)
    warn_fraction = suite.gate.warn_fraction
    # checks that warn, are waived, or show a regression, even an advisory or allowed one
    risks = []
    for check in others:
        advisory_failure = not check.required and check.counted in (Outcome.BLOCK, Outcome.INVALID)
        compares = check.scale is not Scale.ABSOLUTE and check.family != HISTORY
        regressed = compares and check.p_holm is not None and check.p_holm <= suite.gate.alpha
        if check.counted is Outcome.WARN or advisory_failure or regressed:
            risks.append(check)
    decided, why, advice = _decide_spent(budget, spent, risks, outcome, warn_fraction)
    reason = f"{as_written(show_percent, spent.spent_ratio)} of the {budget.shown} is spent{why and f': {why}'}"
    trace.made("share of the budget that is spent, as it was read", "", spent.spent_ratio)
    trace.text("all other checks and guards", "", outcome.value)
    trace.text("checks among them without a clean PASS", "", ", ".join(check.id for check in risks) or "none")
    trace.text("outcome", why or f"{digits(spent.spent_ratio)} <= {digits(warn_fraction)}", decided.value)
    return (_spent_line(spent, decided, reason, advice, trace),)


def _decide_spent(
    budget: ErrorBudget, spent: BudgetReading, risks: Sequence[CheckResult], outcome: Outcome, warn_fraction: float
) -> tuple[Outcome, str, str | None]:
    if not spent.blown:
        if spent.spent_ratio <= warn_fraction:
            return Outcome.PASS, "", None
        why = f"past the warning at {as_written(show_percent, warn_fraction)}, but not blown"
        return Outcome.WARN, why, "hold back what is not urgent: once the budget is blown, whatever warns is blocked"
    if not outcome.promotes:
        return Outcome.WARN, "it is blown, and the candidate is not promoted for other reasons", _RECOVER
    if outcome is Outcome.PASS and not risks:
        return Outcome.WARN, "it is blown; every other check of the candidate is a clean PASS", _RECOVER
    why = "it is blown, and the candidate is no clean PASS"
    if risks:
        first, more = risks[0], len(risks) - 1
        state = first.shown if first.counted is not Outcome.PASS else "shown to lose"
        why += f" ({first.title} is {state}{f', and {more} more' if more else ''})"
    if budget.when_blown == "warn":
        return Outcome.WARN, f"{why}; by the suite's policy (`when_blown: warn`) that is no reason to block", _RECOVER
    return Outcome.BLOCK, f"{why}; by policy (`when_blown: block`) nothing risky is promoted then", _CLEAN


def _spent_line(
    spent: BudgetReading | None, outcome: Outcome, reason: str, advice: str | None, trace: Trace
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
        steps=tuple(trace.steps),
    )
