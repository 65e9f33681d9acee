"""What a check's sentence must know of more than the check: what was left out, and which other one ended the load.

What to do next about a verdict: one thing, the one that helps most.

Leaving blocks out may take a candidate's chance away, never give it one.

A block in which the load generator was late says little of times, and what it adds to the baseline hides what the
candidate costs: without it a check is sharper. But the candidate's own slow answers stood in that block too. So what
passes without such blocks must not look worse with them: the candidate is then not promoted, and not blocked either,
for what was seen there may be the client's.

Evidence and policy give the verdict: every check's outcome, Holm over the required ones, the roll-up, one sentence.

PASS needs every required check to pass, each at alpha (an intersection-union test needs no correction). BLOCK may come
from any one of them, so the p-values behind it go through Holm's step-down.

What a stored comparison is worth: a candidate is no fitter than the run it is held against was found to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchgate.gate.check_results import Line, check_line
from benchgate.gate.checks.evaluate import Measured, measured
from benchgate.gate.comparison import Comparison, arms_of
from benchgate.gate.decision import Finding, Problem, decide, defined
from benchgate.gate.error_budget import burn_checks, spent_checks
from benchgate.gate.evidence.blocks import OWN_MACHINE
from benchgate.gate.evidence.deployments import differences
from benchgate.gate.guards import run_guards
from benchgate.gate.guards.base import kinds_of, spoiling
from benchgate.gate.guards.run import sitting_notes
from benchgate.gate.history.cumulative import attempt_notes, creep_checks
from benchgate.gate.policy import CheckSpec, concrete_checks, family_of
from benchgate.gate.reasons import (
    check_advice,
    check_reason,
    check_title,
    decisive_checks,
    noise_notes,
    told_margin,
    verdict_reason,
)
from benchgate.gate.waivers import Waived, apply_waivers
from benchgate.model.run import Evidence, RunStatus
from benchgate.model.verdict import BUDGET, HISTORY, CheckResult, GuardResult, Outcome, Verdict, policy_sha256
from benchgate.model.waiver import Waivers
from benchgate.stats.sequential import holm
from benchgate.suite.schema import Gate, Suite


def in_context(
    specs: Sequence[CheckSpec],
    found: Sequence[Measured],
    findings: Sequence[Finding],
    adjusted: Sequence[float | None],
    gate: Gate,
) -> list[Finding]:
    """The findings, each with `n_of`, `ended_by` and `required`; nothing of these decides anything."""
    outcomes = [decide(f, p, gate.alpha, gate.warn_fraction) for f, p in zip(findings, adjusted, strict=True)]
    blocking = tuple(
        check_title(spec)
        for spec, outcome in zip(specs, outcomes, strict=True)
        if spec.stages and spec.check.required and outcome is Outcome.BLOCK
    )
    return [
        replace(finding, n_of=_n_of(one, finding), ended_by=blocking, required=spec.check.required)
        for spec, one, finding in zip(specs, found, findings, strict=True)
    ]


def _n_of(one: Measured, finding: Finding) -> int | None:
    """How many there are of what the check counts, where it left some out."""
    whole = one.over_all
    return None if whole is None or whole.n_unit != finding.n_unit or whole.n <= finding.n else whole.n


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


def held_to_all_blocks(
    found: list[Measured],
    findings: list[Finding],
    adjusted: list[float | None],
    adjusted_over_all: list[float | None],
    gate: Gate,
) -> list[Finding]:
    """The findings, each with a problem or a warning where it would do better than over all blocks.

    `adjusted` are the p-values of `findings` after Holm, `adjusted_over_all` those over all blocks.
    """
    return [
        _held(one.over_all, finding, p_holm, p_over_all, gate)
        for one, finding, p_holm, p_over_all in zip(found, findings, adjusted, adjusted_over_all, strict=True)
    ]


def _held(
    over_all: Finding | None, finding: Finding, p_holm: float | None, p_over_all: float | None, gate: Gate
) -> Finding:
    if over_all is None:
        return finding
    outcome = decide(finding, p_holm, gate.alpha, gate.warn_fraction)
    with_all = decide(over_all, p_over_all, gate.alpha, gate.warn_fraction)
    if not outcome.promotes or with_all.severity <= outcome.severity:
        return finding
    told = check_reason(over_all, with_all, gate.warn_fraction, gate.alpha)
    if with_all is Outcome.WARN:
        told = told.removesuffix(f" of {told_margin(over_all)}")  # which stands in the sentence already
        warning = f"over all blocks, with those that were left out because the load generator was late: {told}"
        return replace(finding, warning=warning, warning_advice=f"weigh what all blocks show, or {OWN_MACHINE}")
    reason = f"holds only without the blocks in which the load generator was late (over all of them: {told})"
    return replace(finding, problem=Problem(Outcome.INCONCLUSIVE, reason, OWN_MACHINE))


def judge(
    suite: Suite, judged: Evidence, reference: Evidence | None = None, *, waivers: Waivers | None = None
) -> Verdict:
    """The verdict on a run's candidate: against its own baseline, or against the candidate of a stored run."""
    comparison = Comparison(judged, reference)
    guards = run_guards(comparison, suite)
    specs = tuple(concrete_checks(suite, judged))
    checks = check_results(specs, suite, comparison, guards)
    added = creep_checks(suite, judged, checks) if reference is None else ()
    attempts = attempt_notes(judged) if reference is None else ()
    notes = (*attempts, *noise_notes(comparison, suite), *sitting_notes(judged))
    waived = Waived(checks, ()) if waivers is None else apply_waivers(waivers, specs, checks, suite, comparison)
    checks = (*waived.checks, *added, *burn_checks(suite, comparison, guards, waived.checks))
    checks = (*checks, *spent_checks(suite, judged.budget_spent, checks, roll_up(checks, guards)))
    outcome = roll_up(checks, guards)
    alone = reference is None and len(arms_of(judged)) == 1
    names = (None if alone else comparison.baseline_name(), comparison.candidate_name())
    return Verdict(
        outcome=outcome,
        reason=f"{_so_far(judged)}{verdict_reason(outcome, checks, guards, names)}",
        checks=checks,
        guards=guards,
        alpha=suite.gate.alpha,
        policy_sha256=policy_sha256(suite.to_stored()["gate"]),
        differences=differences(comparison, suite),
        notes=notes,
        next_step=next_step(outcome, checks, guards),
        waivers=waived.states,
        as_of=waivers.as_of if waivers is not None else None,
    )


def _so_far(judged: Evidence) -> str:
    return "The run has not ended. " if judged.run.status is RunStatus.RUNNING else ""


def check_results(
    specs: tuple[CheckSpec, ...],
    suite: Suite,
    comparison: Comparison,
    guards: tuple[GuardResult, ...],
    *,
    untested: int = 0,
) -> tuple[CheckResult, ...]:
    """Every check's outcome. `untested` required checks are still to come: they count as if they showed nothing.

    Whatever they show, the outcomes here will not be milder for it: Holm's p-values fall with any one of them.
    """
    found = [_defined(one) for one in measured(specs, suite, comparison)]
    findings = [_spoilt(spec, one.finding, guards) for spec, one in zip(specs, found, strict=True)]
    adjusted = _adjusted(specs, findings, untested)
    findings = held_to_all_blocks(found, findings, adjusted, _adjusted(specs, _over_all(found), untested), suite.gate)
    findings = in_context(specs, found, findings, adjusted, suite.gate)
    tested = {required: _tested(specs, findings, required=required) for required in (True, False)}
    return tuple(
        _result(spec, finding, p_holm, suite, tested[spec.check.required])
        for spec, finding, p_holm in zip(specs, findings, adjusted, strict=True)
    )


def _tested(specs: Sequence[CheckSpec], findings: Sequence[Finding], *, required: bool) -> list[tuple[str, float]]:
    """The p-values of the checks that share one error, each with its check's id."""
    return [
        (spec.id, finding.p_value)
        for spec, finding in zip(specs, findings, strict=True)
        if spec.check.required is required and finding.p_value is not None
    ]


def _defined(found: Measured) -> Measured:
    """A number that is undefined is missing, before any p-value is held against another."""
    return Measured(defined(found.finding), None if found.over_all is None else defined(found.over_all))


def roll_up(checks: tuple[CheckResult, ...], guards: tuple[GuardResult, ...]) -> Outcome:
    """BLOCK > INVALID > INCONCLUSIVE > WARN > PASS over required checks and guards; advisory checks can only warn.

    So can guards that warn, and what is waived. Advisory checks warn also when they could not be evaluated: a rule
    nobody could apply must not look like one that held. No required check at all is INVALID: a gate that looked at
    nothing has nothing to say.
    """
    required = [check.counted for check in checks if check.required]
    judged = any(check.required and check.family not in (HISTORY, BUDGET) for check in checks)
    outcomes = required if judged else [*required, Outcome.INVALID]
    if any(guard.tripped for guard in guards):
        outcomes = [*outcomes, Outcome.INVALID]
    if any(guard.warns for guard in guards) or any(c.counted in _WARNING for c in checks if not c.required):
        outcomes = [*outcomes, Outcome.WARN]
    return max(outcomes, key=lambda outcome: outcome.severity)


_WARNING = (Outcome.WARN, Outcome.BLOCK, Outcome.INVALID)  # of an advisory check


def _spoilt(spec: CheckSpec, finding: Finding, guards: tuple[GuardResult, ...]) -> Finding:
    """A check of a kind that a tripped guard spoils keeps its numbers and loses its say."""
    guard = spoiling(guards, kinds_of(spec.check))
    if guard is None:
        return finding
    return replace(finding, problem=Problem(Outcome.INVALID, guard.reason, guard.remedy or ""))


def _over_all(found: list[Measured]) -> list[Finding]:
    """The findings over every block, whatever was left out."""
    return [one.over_all or one.finding for one in found]


def _adjusted(specs: tuple[CheckSpec, ...], findings: list[Finding], untested: int) -> list[float | None]:
    """p-values after Holm, over the required checks and over the advisory ones apart."""
    adjusted: list[float | None] = [finding.p_value for finding in findings]
    for required in (True, False):
        tested = [i for i, spec in enumerate(specs) if spec.check.required is required and adjusted[i] is not None]
        p_values = [p for i in tested if (p := adjusted[i]) is not None]
        unseen = [1.0] * (untested if required else 0)
        for i, p_value in zip(tested, holm([*p_values, *unseen]), strict=False):
            adjusted[i] = p_value
    return adjusted


def _result(
    spec: CheckSpec, finding: Finding, p_holm: float | None, suite: Suite, tested: Sequence[tuple[str, float]]
) -> CheckResult:
    check = spec.check
    outcome = decide(finding, p_holm, suite.gate.alpha, suite.gate.warn_fraction)
    line = Line(
        id=spec.id,
        title=check_title(spec),
        family=family_of(check.metric),
        metric=check.metric,
        required=check.required,
        statistic=spec.statistic,
        stage=spec.stage,
        task=spec.task,
        over=check.over,
    )
    return check_line(
        line,
        finding,
        outcome,
        p_holm,
        suite.gate,
        advice=check_advice(finding, outcome, suite.gate.alpha),
        p_values=[p for _, p in tested],
        ids=[name for name, _ in tested],
    )


def reference_doubt(reference_outcome: Outcome | None) -> str | None:
    """A sentence, without its end, on a reference run that was itself not to be promoted; None of any other."""
    if reference_outcome is None or reference_outcome.promotes:
        return None
    return f"the reference run's own verdict was {reference_outcome}: being no worse than it does not mean being fit"


def doubted(verdict: Verdict, reference_outcome: Outcome | None) -> Verdict:
    """At most WARN, and its first sentence is why, where the reference run's own verdict did not let it be promoted.

    What is not promoted anyway stays as it is.
    """
    doubt = reference_doubt(reference_outcome)
    if doubt is None or not verdict.outcome.promotes:
        return verdict
    return replace(verdict, outcome=Outcome.WARN, reason=f"{doubt[0].upper()}{doubt[1:]}. {verdict.reason}")
