"""The verdict: evidence and policy in, one outcome with its reasons out.

Guards come first, then every check: its estimate, Holm's step-down over the required checks, the three-way rule, and a
cross-check over all blocks. Waivers, error budgets and the history of promotions add to them, and the worst of what is
required is the outcome. PASS needs every required check to pass at alpha, an intersection-union test that needs no
correction. BLOCK may come from any one of them, so their p-values go through Holm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchgate.gate.checks.evaluate import Judgement, evaluate
from benchgate.gate.comparison import Comparison, arms_of, compare, require_arms
from benchgate.gate.cumulative import attempt_notes, creep_checks
from benchgate.gate.decision import decide, inconclusive, invalid
from benchgate.gate.error_budget import burn_checks, spent_checks
from benchgate.gate.evidence.blocks import OWN_MACHINE
from benchgate.gate.evidence.deployments import differences
from benchgate.gate.guards import run_guards
from benchgate.gate.guards.base import compared, invalidating_guard, metric_kinds
from benchgate.gate.guards.roofline import slow_stream_notes
from benchgate.gate.guards.run import session_notes
from benchgate.gate.policy import CheckSpec, concrete_checks
from benchgate.gate.reasons import (
    ADVISORY_WARNINGS,
    Line,
    check_advice,
    check_line,
    check_reason,
    check_title,
    decisive_checks,
    margin_text,
    noise_notes,
    verdict_reason,
)
from benchgate.gate.summary.replica_figures import replica_figures
from benchgate.gate.summary.slow_replicas import slow_replica_notes
from benchgate.gate.waivers import apply_waivers
from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS
from benchgate.model.run import Evidence, Run, RunStatus
from benchgate.model.verdict import (
    BUDGET,
    HISTORY,
    CheckResult,
    GuardResult,
    Outcome,
    Verdict,
    Waivers,
    WaiverState,
    policy_sha256,
)
from benchgate.stats.sequential import holm
from benchgate.suite.schema import Gate, Suite


def judge(
    suite: Suite, judged: Evidence, reference: Evidence | None = None, *, waivers: Waivers | None = None
) -> Verdict:
    """Judge a run's candidate against its own baseline, or against the candidate of a stored run."""
    require_arms(*(run for run in (judged, reference) if run is not None))
    comparison = compare(judged, reference)
    guards = run_guards(comparison, suite)
    specs = tuple(concrete_checks(suite, judged))
    checks = check_results(specs, suite, comparison, guards)
    added = creep_checks(suite, judged, checks) if reference is None else ()
    attempts = attempt_notes(judged) if reference is None else ()
    notes = (
        *attempts,
        *noise_notes(comparison, suite),
        *session_notes(judged),
        *slow_replica_notes(judged),
        *slow_stream_notes(judged, suite),
    )
    states: tuple[WaiverState, ...] = ()
    if waivers is not None:
        checks, states = apply_waivers(waivers, specs, checks, suite, comparison)
    checks = (*checks, *added, *burn_checks(suite, comparison, guards))
    checks = (*checks, *spent_checks(suite, judged.budget_spent, checks, roll_up(checks, guards)))
    outcome = roll_up(checks, guards)
    alone = reference is None and len(arms_of(judged)) == 1
    baseline = None if alone else comparison.baseline_run.run.arms[comparison.baseline_arm].name
    names = (baseline, judged.run.arms[Arm.CANDIDATE].name)
    reason = verdict_reason(outcome, checks, guards, names)
    todo = next_step(outcome, checks, guards)
    if judged.run.imported and outcome.promotes:
        notes = (
            *notes,
            "the evals were made elsewhere and nothing shows what answered them: `promote` refuses this run",
        )
    if judged.run.only_part is not None and outcome in (Outcome.PASS, Outcome.WARN, Outcome.INCONCLUSIVE):
        option = "--quick" if judged.run.is_quick_look else "--only"
        reason = _not_whole(judged.run) if outcome.promotes else reason
        outcome, todo = Outcome.INCONCLUSIVE, f"run the whole suite, without {option}"
    unfinished = "The run has not ended. " if judged.run.status is RunStatus.RUNNING else ""
    return Verdict(
        outcome=outcome,
        reason=f"{unfinished}{reason}",
        checks=checks,
        guards=guards,
        alpha=suite.gate.alpha,
        policy_sha256=policy_sha256(suite.to_stored()["gate"]),
        differences=differences(comparison, suite),
        notes=notes,
        replicas=replica_figures(judged),
        next_step=todo,
        waivers=states,
        as_of=waivers.as_of if waivers is not None else None,
    )


def check_results(
    specs: tuple[CheckSpec, ...],
    suite: Suite,
    comparison: Comparison,
    guards: tuple[GuardResult, ...],
    *,
    untested: int = 0,
) -> tuple[CheckResult, ...]:
    """Decide every check.

    `untested` required checks are still to come. They count as if they showed nothing: Holm's p-values fall with any
    one that does, so no outcome will be milder once they are known.
    """
    judgements = evaluate(specs, suite, comparison)
    for judgement in judgements:
        check = judgement.spec.check
        kinds = metric_kinds(check.metric)  # and the `compared` form of each if it has a margin
        guard = invalidating_guard(guards, kinds if check.margin is None else kinds | {*compared(*kinds)})
        if guard is not None:  # its numbers stay
            judgement.estimate.problem = invalid(guard.reason, guard.remedy or "")
    required = [judgement.spec.check.required for judgement in judgements]
    own = _holm([one.estimate.p_value for one in judgements], required, untested)
    over_all = _holm([(one.all_blocks or one.estimate).p_value for one in judgements], required, untested)
    judgements = [
        replace(judgement, p_holm=p_holm, p_holm_all_blocks=p_all)
        for judgement, p_holm, p_all in zip(judgements, own, over_all, strict=True)
    ]
    for judgement in judgements:
        _cross_check(judgement, suite.gate)
    return tuple(_lines(judgements, suite.gate))


def _holm(p_values: Sequence[float | None], required: Sequence[bool], untested: int) -> list[float | None]:
    """Adjust p-values by Holm: those of the required checks together, and those of the advisory ones."""
    adjusted = list(p_values)
    for group in (True, False):
        at = [i for i, p in enumerate(p_values) if required[i] is group and p is not None]
        known = [p for i in at if (p := p_values[i]) is not None]
        for i, p_value in zip(at, holm([*known, *([1.0] * untested if group else [])]), strict=False):
            adjusted[i] = p_value
    return adjusted


def _cross_check(judgement: Judgement, gate: Gate) -> None:
    """Hold a check that excluded blocks to its outcome over all blocks: leaving some out must not help the candidate.

    A block in which the load generator was late says little of times, and what it adds to both arms hides a regression.
    But the candidate's own slow answers stood in it too. A check that would do worse with these blocks is INCONCLUSIVE,
    or WARN where it would only warn, and never BLOCK: what they show may be the client's.
    """
    estimate, everything = judgement.estimate, judgement.all_blocks
    if everything is None:
        return
    outcome = judgement.outcome(gate)
    over_all = decide(everything, judgement.p_holm_all_blocks, gate.alpha, gate.warn_fraction)
    if not outcome.promotes or over_all.severity <= outcome.severity:
        return
    shown = check_reason(everything, over_all, gate.warn_fraction, gate.alpha)
    if over_all is Outcome.WARN:
        shown = shown.removesuffix(f" of {margin_text(everything)}")  # the sentence has it already
        estimate.warning = f"over all blocks, with those excluded because the load generator was late: {shown}"
        estimate.warning_advice = f"weigh what all blocks show, or {OWN_MACHINE}"
    else:
        reason = f"holds only without the blocks in which the load generator was late (over all of them: {shown})"
        estimate.problem = inconclusive(reason, OWN_MACHINE)


def _lines(judgements: Sequence[Judgement], gate: Gate) -> Iterator[CheckResult]:
    for judgement in judgements:
        spec, check, estimate = judgement.spec, judgement.spec.check, judgement.estimate
        outcome = judgement.outcome(gate)
        tested = [
            (one.spec.id, one.estimate.p_value)
            for one in judgements
            if one.spec.check.required is check.required and one.estimate.p_value is not None
        ]
        everything = judgement.all_blocks
        if everything is not None and everything.n_unit == estimate.n_unit and everything.n > estimate.n:
            estimate.n_of = everything.n
        line = Line(
            id=spec.id,
            title=check_title(spec),
            family=METRICS[check.metric].family,
            metric=check.metric,
            required=check.required,
            statistic=spec.statistic,
            stage=spec.stage or check.stage,
            task=spec.task,
            over=spec.over,
        )
        yield check_line(
            line,
            estimate,
            outcome,
            judgement.p_holm,
            gate,
            advice=check_advice(estimate, outcome, gate.alpha),
            p_values=[p for _, p in tested],
            ids=[name for name, _ in tested],
        )


def roll_up(checks: tuple[CheckResult, ...], guards: tuple[GuardResult, ...]) -> Outcome:
    """Return the worst outcome of the required checks and guards: BLOCK > INVALID > INCONCLUSIVE > WARN > PASS.

    Advisory checks, guards that warn and waived checks can only warn. An advisory check warns also where it could not
    be evaluated: a rule that nobody could apply must not look like one that held. Without a required check the verdict
    is INVALID.
    """
    required = [check.counted for check in checks if check.required]
    judged = any(check.required and check.family not in (HISTORY, BUDGET) for check in checks)
    outcomes = required if judged else [*required, Outcome.INVALID]
    if any(guard.tripped for guard in guards):
        outcomes = [*outcomes, Outcome.INVALID]
    if any(guard.warns for guard in guards) or any(c.counted in ADVISORY_WARNINGS for c in checks if not c.required):
        outcomes = [*outcomes, Outcome.WARN]
    return max(outcomes, key=lambda outcome: outcome.severity)


def next_step(outcome: Outcome, checks: Sequence[CheckResult], guards: Sequence[GuardResult]) -> str | None:
    """Return the next action: a tripped guard's remedy, the advice of the named check, or a warning guard's remedy.

    None for PASS, and for a warning that needs nothing done before the promotion.
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


def _not_whole(run: Run) -> str:
    """Return why a run in which nothing failed does not pass: not all that its suite demands was measured."""
    if run.is_quick_look:
        found = "No required check failed in this quick look. It has fewer blocks and items than the suite demands"
    else:
        found = f"No required check of the suite's `{run.only_part}` failed. Its other parts were not measured"
    return f"{found}, so the run cannot promote the candidate."


_REQUIRE = "make at least one check `required`"


def reference_doubt(reference_outcome: Outcome | None) -> str | None:
    """Return a sentence without its period on a reference run that was itself not to be promoted; else None."""
    if reference_outcome is None or reference_outcome.promotes:
        return None
    return f"the reference run's own verdict was {reference_outcome}: being no worse than it does not mean being fit"


def doubted(verdict: Verdict, reference_outcome: Outcome | None) -> Verdict:
    """Return at most WARN, with the doubt first, if the reference run's own verdict did not let it be promoted."""
    doubt = reference_doubt(reference_outcome)
    if doubt is None or not verdict.outcome.promotes:
        return verdict
    return replace(verdict, outcome=Outcome.WARN, reason=f"{doubt[0].upper()}{doubt[1:]}. {verdict.reason}")
