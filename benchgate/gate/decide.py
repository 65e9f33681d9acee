"""Evidence and policy give the verdict: every check's outcome, Holm over the required ones, the roll-up, one sentence.

PASS needs every required check to pass, each at alpha (an intersection-union test needs no correction). BLOCK may come
from any one of them, so the p-values behind it go through Holm's step-down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchgate.gate.attempts import attempt_notes
from benchgate.gate.budget_spent import spent_checks
from benchgate.gate.check_line import Line, check_line
from benchgate.gate.comparison import Comparison, arms_of
from benchgate.gate.creep import creep_checks
from benchgate.gate.differences import differences
from benchgate.gate.error_budget import burn_checks
from benchgate.gate.findings import Measured, measured
from benchgate.gate.guard import kinds_of, spoiling
from benchgate.gate.guards import run_guards
from benchgate.gate.in_context import in_context
from benchgate.gate.next_step import next_step
from benchgate.gate.noise_notes import noise_notes
from benchgate.gate.rule import Finding, Problem, decide, defined
from benchgate.gate.second_look import held_to_all_blocks
from benchgate.gate.sentences import check_advice
from benchgate.gate.showing import check_title
from benchgate.gate.sittings import sitting_notes
from benchgate.gate.specs import CheckSpec, concrete_checks, family_of
from benchgate.gate.verdict_sentence import verdict_reason
from benchgate.gate.waiving import Waived, apply_waivers
from benchgate.model.run import Evidence, RunStatus
from benchgate.model.verdict import BUDGET, HISTORY, CheckResult, GuardResult, Outcome, Verdict, policy_sha256
from benchgate.model.waiver import Waivers
from benchgate.stats.multiplicity import holm
from benchgate.suite.schema import Suite


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
