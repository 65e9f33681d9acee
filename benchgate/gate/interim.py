"""Between two looks at the load: is it settled, or are more blocks to be measured?

A pure function of what the store holds, so anybody can ask again later why a run ended where it did. What is settled
here stays so in the verdict: what is measured afterwards (evals, recorded prompts) can only make Holm's p-values fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchgate.gate.comparison import Comparison, look_of
from benchgate.gate.error_budget import burn_checks
from benchgate.gate.guards import run_guards
from benchgate.gate.judge import check_results
from benchgate.gate.policy import CheckSpec, concrete_checks
from benchgate.gate.waivers import apply_waivers
from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS, TASK_METRICS
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome
from benchgate.model.waiver import Waivers
from benchgate.suite.schema import Suite, measured_arms

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class StopLoad:
    """The load ends here. `checks` are those it was decided by, as they stand now."""

    reason: Literal["decided", "invalid", "last"]
    checks: tuple[CheckResult, ...]


@dataclass(frozen=True, slots=True)
class ContinueLoad:
    """More is to be measured, up to so many blocks in all. `checks` are as in `StopLoad`; `open` are not settled."""

    blocks: int
    checks: tuple[CheckResult, ...]
    undecided: tuple[CheckResult, ...]


def next_step(suite: Suite, evidence: Evidence, waivers: Waivers | None = None) -> StopLoad | ContinueLoad | None:
    """What to do after a look; None where the suite has a fixed number of blocks.

    The load ends when a required check of it blocks, or when each is settled; where none is required, when each that is
    advisory is. StopLoad is what promotes, what blocks, and what is INVALID for the second time: the blocks of a whole
    look more did not cure it. No check of the load at all: nothing to go on for. A check that blocks ends nothing while
    more blocks may show that it stays within what a waiver of it tolerates.
    """
    look = look_of(suite, evidence)
    if look is None or suite.load is None:
        return None
    checks = load_checks(suite, evidence, waivers)
    if look.last:
        return StopLoad("last", checks)
    tolerated = _tolerated(waivers, evidence)
    if any(_blocks(check, tolerated) for check in checks):
        return StopLoad("decided", checks)
    invalid = [check for check in checks if check.outcome is Outcome.INVALID]
    before = _at_the_look_before(suite, evidence, look.number) if invalid else ()
    still = {check.id for check in before if check.outcome is Outcome.INVALID}
    unsettled = tuple(check for check in checks if not _settled(check, still, tolerated))
    if not unsettled:
        return StopLoad("invalid" if invalid else "decided", checks)
    return ContinueLoad(suite.load.looks[look.number], checks, unsettled)


def load_checks(suite: Suite, evidence: Evidence, waivers: Waivers | None = None) -> tuple[CheckResult, ...]:
    """The checks by which the load ends, over the evidence so far: the required ones of its blocks, else the others.

    The burn of an error budget is one of them.
    """
    comparison = Comparison(evidence)
    specs = [spec for spec in concrete_checks(suite, evidence) if spec.stages]
    judged = tuple(spec for spec in specs if spec.check.required) or tuple(specs)
    guards = run_guards(comparison, suite)
    checks = check_results(judged, suite, comparison, guards, untested=_still_to_come(suite, judged))
    if waivers is not None:
        checks = apply_waivers(waivers, judged, checks, suite, comparison).checks
    return (*checks, *burn_checks(suite, comparison, guards, checks))


def limit_passed(suite: Suite, spent_s: float, next_s: float) -> Literal["time", "cost"] | None:
    """Which of the suite's limits going on would pass, after `spent_s` of load and with `next_s` more; None for none.

    The cost is that of all accelerators of the deployments measured, for as long as the load takes.
    """
    limit = suite.load.limit if suite.load is not None else None
    if limit is None:
        return None
    if limit.time_s is not None and spent_s + next_s > limit.time_s:
        return "time"
    if limit.cost_usd is not None and _usd(suite, spent_s + next_s) > limit.cost_usd:
        return "cost"
    return None


def _usd(suite: Suite, seconds: float) -> float:
    """What the deployments cost for so long. Without a price nothing is known, and every limit is passed."""
    names = {Arm.BASELINE: suite.baseline, Arm.CANDIDATE: suite.candidate}
    specs = [suite.deployments[names[arm]] for arm in measured_arms(suite)]
    each = [(spec.usd_per_hour, spec.accelerators) for spec in specs]
    return sum(float("inf") if usd is None else usd * count for usd, count in each) * seconds / _SECONDS_PER_HOUR


def _tolerated(waivers: Waivers | None, evidence: Evidence) -> set[str]:
    """The checks that a waiver of this suite and candidate names, and that holds today."""
    if waivers is None:
        return set()
    candidate = evidence.run.arms[Arm.CANDIDATE]
    ours = (waiver for waiver in waivers.entries if waiver.names(evidence.run.suite_name, candidate.name))
    return {w.check for w in ours if w.fits(candidate.fingerprint) and w.days_left(waivers.as_of) >= 0}


def _blocks(check: CheckResult, tolerated: set[str]) -> bool:
    return check.required and check.counted is Outcome.BLOCK and check.id not in tolerated


def _settled(check: CheckResult, still_invalid: set[str], tolerated: set[str]) -> bool:
    if check.counted is Outcome.INVALID:
        return check.id in still_invalid
    if check.counted is Outcome.BLOCK:
        return check.id not in tolerated
    return check.counted.promotes


def _at_the_look_before(suite: Suite, evidence: Evidence, number: int) -> tuple[CheckResult, ...]:
    """The same checks over what there was at the look before this one; none at the first."""
    if number == 1 or suite.load is None:
        return ()
    blocks = suite.load.looks[number - 2]
    then = replace(
        evidence,
        load=tuple(o for o in evidence.load if o.block < blocks),
        telemetry=tuple(w for w in evidence.telemetry if w.block < blocks),
    )
    return load_checks(suite, then)


def _still_to_come(suite: Suite, judged: Sequence[CheckSpec]) -> int:
    """At most how many required checks are measured after the load, each of which Holm will count."""
    if not any(spec.check.required for spec in judged):
        return 0
    tasks = len(suite.quality.names) if suite.quality is not None else 0
    later = 0
    for check in suite.gate.checks:
        if check.required and METRICS[check.metric].scope not in ("stage", "sweep"):
            of_each = check.metric in TASK_METRICS and (
                check.task == "each" or (check.task, check.metric) == (None, "score")
            )
            later += max(1, tasks) if of_each else 1
    return later
