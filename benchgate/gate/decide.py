"""Evidence and policy give the verdict: every check's outcome, Holm over the required ones, the roll-up, one sentence.

PASS needs every required check to pass, each at alpha (an intersection-union test needs no correction). BLOCK may come
from any one of them, so the p-values behind it go through Holm's step-down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchgate.gate import load_checks, quality_checks, shadow_checks, share_checks, slo_checks
from benchgate.gate.block_values import in_other_pieces
from benchgate.gate.comparison import Comparison
from benchgate.gate.guard import SPEED_METRICS, kinds_of
from benchgate.gate.guards import run_guards
from benchgate.gate.rule import Finding, Problem, decide
from benchgate.gate.sentences import check_advice, check_reason, check_title, verdict_reason
from benchgate.gate.usable_blocks import left_out_notes, usable
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Unit, Verdict, policy_sha256
from benchgate.stats.multiplicity import holm
from benchgate.suite.schema import LATENCY_METRICS, LOAD_METRICS, STATISTICS, Check, Suite


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """One check of the policy made concrete: one metric, at one stage, on one task."""

    check: Check
    statistic: str | None
    stage: str | None
    task: str | None

    @property
    def id(self) -> str:
        """Stable name, like `ttft-p95@c4`, `accuracy@tiny_add` or `goodput@c4:slo`."""
        name = self.check.metric if self.statistic is None else f"{self.check.metric}-{self.statistic}"
        place = self.stage or self.task
        absolute = ":slo" if self.check.margin is None else ""
        return f"{name}@{place}{absolute}" if place else f"{name}{absolute}"


def judge(suite: Suite, judged: Evidence, reference: Evidence | None = None) -> Verdict:
    """The verdict on a run's candidate: against its own baseline, or against the candidate of a stored run."""
    comparison = Comparison(judged, reference)
    guards = run_guards(comparison, suite)
    specs = tuple(concrete_checks(suite, judged))
    timed = usable(comparison, suite)
    findings = [_spoilt(spec, _measured(spec, suite, comparison, timed), guards) for spec in specs]
    adjusted = _adjusted(specs, findings)
    checks = tuple(
        _result(spec, finding, p_holm, suite) for spec, finding, p_holm in zip(specs, findings, adjusted, strict=True)
    )
    outcome = roll_up(checks, guards)
    names = (comparison.baseline_name(), comparison.candidate_name())
    return Verdict(
        outcome=outcome,
        reason=verdict_reason(outcome, checks, guards, names),
        checks=checks,
        guards=guards,
        alpha=suite.gate.alpha,
        policy_sha256=policy_sha256(suite.to_stored()["gate"]),
    )


def concrete_checks(suite: Suite, evidence: Evidence) -> Iterator[CheckSpec]:
    """The policy's checks, one per stage and per task where it names none."""
    stages = [stage.name for stage in suite.load.sweep] if suite.load else []
    tasks = list(dict.fromkeys(observation.task for observation in evidence.quality))
    for check in suite.gate.checks:
        if check.metric in LOAD_METRICS:
            statistic = (check.statistic or "p50") if check.metric in LATENCY_METRICS else None
            for stage in [check.stage] if check.stage else stages:
                yield CheckSpec(check, statistic, stage, None)
        elif check.task == "each" and tasks:
            for task in tasks:
                yield CheckSpec(check, None, None, task)
        else:
            yield CheckSpec(check, None, None, check.task)


def roll_up(checks: tuple[CheckResult, ...], guards: tuple[GuardResult, ...]) -> Outcome:
    """BLOCK > INVALID > INCONCLUSIVE > WARN > PASS over required checks and guards; advisory checks can only warn.

    They warn also when they could not be evaluated: a rule nobody could apply must not look like one that held. No
    required check at all is INVALID: a gate that looked at nothing has nothing to say.
    """
    required = [check.outcome for check in checks if check.required]
    outcomes = required or [Outcome.INVALID]
    if any(guard.tripped for guard in guards):
        outcomes = [*outcomes, Outcome.INVALID]
    if any(check.outcome in _WARNING for check in checks if not check.required):
        outcomes = [*outcomes, Outcome.WARN]
    return max(outcomes, key=lambda outcome: outcome.severity)


_WARNING = (Outcome.WARN, Outcome.BLOCK, Outcome.INVALID)  # of an advisory check


def _spoilt(spec: CheckSpec, finding: Finding, guards: tuple[GuardResult, ...]) -> Finding:
    """A check of a kind that a tripped guard spoils keeps its numbers and loses its say."""
    kinds = kinds_of(spec.check.metric, family_of(spec.check.metric))
    for guard in guards:
        if guard.tripped and kinds.intersection(guard.spoils):
            return replace(finding, problem=Problem(Outcome.INVALID, guard.reason, guard.remedy or ""))
    return finding


def family_of(metric: str) -> str:
    """Which kind of evidence a metric rests on: load, quality or shadow."""
    return "load" if metric in LOAD_METRICS else "quality" if metric == "accuracy" else "shadow"


def _measured(spec: CheckSpec, suite: Suite, comparison: Comparison, timed: Comparison) -> Finding:
    """Measure one check: times and rates in the usable blocks (`timed`), whatever else in all of them.

    What was measured on answers of unlike lengths says so, whatever its numbers are.
    """
    if spec.stage is None or spec.check.metric not in SPEED_METRICS:
        return _find(spec, suite, comparison)
    finding = _find(spec, suite, timed)
    return replace(
        finding,
        problem=finding.problem or _in_other_pieces(spec, timed),
        warning=finding.warning or load_checks.length_warning(timed, spec.stage),
        notes=(*finding.notes, *left_out_notes(comparison, spec.stage, suite)),
    )


def _in_other_pieces(spec: CheckSpec, comparison: Comparison) -> Problem | None:
    """A pace is compared with a pace of answers that came in like pieces, in either run."""
    if spec.check.metric not in ("tpot", "itl") or spec.stage is None:
        return None
    problem = in_other_pieces(comparison.judged, spec.stage)
    if problem is None and comparison.reference is not None:
        problem = in_other_pieces(comparison.reference, spec.stage)
    return problem


def _find(spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
    """Measure one check."""
    check, alpha = spec.check, suite.gate.alpha
    breach = check.block_when == "breach"
    if check.metric == "accuracy":
        tasks = (spec.task,) if spec.task and spec.task != "each" else _all_tasks(comparison)
        if not tasks:
            return _never_measured(check, "no eval task was run")
        if check.margin is not None:
            return quality_checks.relative(comparison, tasks, margin=check.margin, breach=breach, alpha=alpha)
        return quality_checks.absolute(comparison, tasks, slo=_slo(check, suite), alpha=alpha)
    if check.metric == "shadow_excess":
        return shadow_checks.relative(comparison, margin=check.margin or 0.0, breach=breach, alpha=alpha)
    assert spec.stage is not None, "a load check has a stage: the suite was validated"
    if check.metric in ("goodput", "error_rate"):
        misses = share_checks.misses_of(check.metric, suite.slo.per_request if suite.slo else None)
        if check.margin is None:
            return share_checks.absolute(
                comparison, check.metric, spec.stage, misses, slo=_slo(check, suite), alpha=alpha
            )
        flip = check.metric == "goodput"
        return share_checks.relative(
            comparison, spec.stage, misses, flip=flip, margin=check.margin, breach=breach, alpha=alpha
        )
    q = STATISTICS[spec.statistic] if spec.statistic else 0.5
    if check.margin is not None:
        return load_checks.relative(
            comparison, check.metric, spec.stage, q, margin=check.margin, breach=breach, alpha=alpha
        )
    return slo_checks.absolute(comparison, check.metric, spec.stage, q, slo=_slo(check, suite), alpha=alpha)


def _slo(check: Check, suite: Suite) -> float:
    """The bound of an absolute check; goodput without one is held to the target of the suite's slo."""
    if check.slo_value is not None:
        return check.slo_value
    assert suite.slo is not None, "goodput needs an slo: the suite was validated"
    return suite.slo.target_ratio


def _all_tasks(comparison: Comparison) -> tuple[str, ...]:
    return tuple(dict.fromkeys(observation.task for observation in comparison.judged.quality))


def _never_measured(check: Check, reason: str) -> Finding:
    return Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE if check.margin is not None else Scale.ABSOLUTE,
        margin=check.margin if check.margin is not None else check.slo_value or 0.0,
        method="none",
        n=0,
        n_unit="items",
        problem=Problem(Outcome.INVALID, reason, "see the faults of the targets and run the suite again"),
    )


def _adjusted(specs: tuple[CheckSpec, ...], findings: list[Finding]) -> list[float | None]:
    """p-values after Holm, over the required checks and over the advisory ones apart."""
    adjusted: list[float | None] = [finding.p_value for finding in findings]
    for required in (True, False):
        tested = [i for i, spec in enumerate(specs) if spec.check.required is required and adjusted[i] is not None]
        for i, p_value in zip(tested, holm([p for i in tested if (p := adjusted[i]) is not None]), strict=True):
            adjusted[i] = p_value
    return adjusted


def _result(spec: CheckSpec, finding: Finding, p_holm: float | None, suite: Suite) -> CheckResult:
    check = spec.check
    outcome = decide(finding, p_holm, suite.gate.alpha, suite.gate.warn_fraction)
    return CheckResult(
        id=spec.id,
        title=check_title(check.metric, spec.statistic, spec.stage, spec.task),
        family=family_of(check.metric),
        metric=check.metric,
        statistic=spec.statistic,
        stage=spec.stage,
        task=spec.task,
        required=check.required,
        outcome=outcome,
        reason=check_reason(finding, outcome, suite.gate.warn_fraction),
        advice=check_advice(finding, outcome),
        unit=finding.unit,
        scale=finding.scale,
        baseline=finding.baseline,
        candidate=finding.candidate,
        harm=finding.harm,
        lower=finding.limits.lower if finding.limits else None,
        upper=finding.limits.upper if finding.limits else None,
        margin=finding.margin,
        p_value=finding.p_value,
        p_holm=p_holm,
        n=finding.n,
        n_unit=finding.n_unit,
        method=finding.method,
        notes=finding.notes,
    )
