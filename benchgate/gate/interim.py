"""Interim analyses of the load: stop, or measure more blocks.

The decision is a pure function of stored evidence, so it can be reproduced later. A check decided here stays decided in
the verdict: `untested` counts the checks measured afterwards (evals, recorded prompts) in Holm's correction in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchgate.gate.comparison import LiveBaseline, look_of
from benchgate.gate.error_budget import burn_checks
from benchgate.gate.guards import run_guards
from benchgate.gate.judge import check_results
from benchgate.gate.policy import CheckSpec, concrete_checks
from benchgate.gate.waivers import apply_waivers
from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS, TASK_METRICS
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome, Waivers
from benchgate.suite.schema import Suite, measured_usd_per_hour

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class StopLoad:
    """Decision to end the load. `checks` are the results that it rests on."""

    reason: Literal["decided", "invalid", "last"]
    checks: tuple[CheckResult, ...]


@dataclass(frozen=True, slots=True)
class ContinueLoad:
    """Decision to measure up to `blocks` blocks in total. `undecided` are those of `checks` that need them."""

    blocks: int
    checks: tuple[CheckResult, ...]
    undecided: tuple[CheckResult, ...]


def next_step(suite: Suite, evidence: Evidence, waivers: Waivers | None = None) -> StopLoad | ContinueLoad | None:
    """Return the decision after an interim analysis; None if the suite has a fixed number of blocks.

    The load ends when a required load check blocks, or when all are decided; if none is required, when all advisory
    ones are. Decided means that it promotes, blocks, or is INVALID for the second time. Without load checks the load
    ends at once. A blocking check does not end the load while more blocks may show that it stays within a waiver.
    """
    look = look_of(suite, evidence)
    if look is None or suite.load is None:
        return None
    checks = load_checks(suite, evidence, waivers)
    if look.last:
        return StopLoad("last", checks)
    tolerated: set[str] = set()
    if waivers is not None:
        candidate = evidence.run.arms[Arm.CANDIDATE]
        ours = (waiver for waiver in waivers.entries if waiver.names(evidence.run.suite_name, candidate.name))
        tolerated = {w.check for w in ours if w.fits(candidate.fingerprint) and w.days_left(waivers.as_of) >= 0}
    blocking = [check for check in checks if check.required and check.counted is Outcome.BLOCK]
    if any(check.id not in tolerated for check in blocking):
        return StopLoad("decided", checks)
    invalid = [check for check in checks if check.outcome is Outcome.INVALID]
    before: tuple[CheckResult, ...] = ()
    if invalid and look.number > 1:
        before = load_checks(suite, evidence_of_blocks(evidence, suite.load.looks[look.number - 2]))
    still_invalid = {check.id for check in before if check.outcome is Outcome.INVALID}
    undecided = tuple(
        check
        for check in checks
        if not check.counted.promotes
        and not (check.counted is Outcome.INVALID and check.id in still_invalid)
        and not (check.counted is Outcome.BLOCK and check.id not in tolerated)
    )
    if not undecided:
        return StopLoad("invalid" if invalid else "decided", checks)
    return ContinueLoad(suite.load.looks[look.number], checks, undecided)


def evidence_of_blocks(evidence: Evidence, blocks: int) -> Evidence:
    """Return the evidence with only the first `blocks` blocks of the load."""
    return replace(
        evidence,
        load=tuple(o for o in evidence.load if o.block < blocks),
        telemetry=tuple(w for w in evidence.telemetry if w.block < blocks),
    )


def load_checks(suite: Suite, evidence: Evidence, waivers: Waivers | None = None) -> tuple[CheckResult, ...]:
    """Return the load checks on the evidence so far: the required ones, or all if none is required.

    They include the burn of an error budget.
    """
    comparison = LiveBaseline(evidence)
    specs = [spec for spec in concrete_checks(suite, evidence) if spec.stages]
    judged = tuple(spec for spec in specs if spec.check.required) or tuple(specs)
    guards = run_guards(comparison, suite)
    checks = check_results(judged, suite, comparison, guards, untested=_untested(suite, judged))
    if waivers is not None:
        checks = apply_waivers(waivers, judged, checks, suite, comparison)[0]
    return (*checks, *burn_checks(suite, comparison, guards))


def limit_passed(suite: Suite, spent_s: float, next_s: float) -> Literal["time", "cost"] | None:
    """Return the suite's limit that `next_s` more seconds of load would exceed after `spent_s`; None if none.

    The cost covers all accelerators of the measured deployments for the duration of the load. Without a price it is
    unknown, and exceeds every limit.
    """
    limit = suite.load.limit if suite.load is not None else None
    if limit is None:
        return None
    if limit.time_s is not None and spent_s + next_s > limit.time_s:
        return "time"
    if limit.cost_usd is not None:
        hourly_usd = measured_usd_per_hour(suite)
        if hourly_usd is None or hourly_usd * (spent_s + next_s) / _SECONDS_PER_HOUR > limit.cost_usd:
            return "cost"
    return None


def _untested(suite: Suite, judged: Sequence[CheckSpec]) -> int:
    if not any(spec.check.required for spec in judged):
        return 0
    tasks = len(suite.quality.names) if suite.quality is not None else 0
    later = 0
    for check in suite.gate.checks:
        if check.required and METRICS[check.metric].scope not in ("stage", "sweep"):
            per_task = check.metric in TASK_METRICS and (
                check.task == "each" or (check.task, check.metric) == (None, "score")
            )
            later += max(1, tasks) if per_task else 1
    return later
