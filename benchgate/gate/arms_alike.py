"""Are the two sides served alike, but for what the policy declares as the change? What is compared: `differences`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from benchgate.gate.comparison import Comparison
from benchgate.gate.differences import between, sides_of
from benchgate.gate.guard import SPEED, held, tripped, unknown
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import AT_THE_START, Evidence
from benchgate.model.verdict import Difference, GuardResult
from benchgate.suite.schema import Suite


def arms_alike(evidence: Evidence, suite: Suite) -> GuardResult:
    """Every field that both arms must share and the policy does not allow to differ; known of one arm only differs."""
    arms = evidence.run.arms
    if len(arms) < len(Arm):
        return tripped("arms-alike", "the run does not know both deployments", "run the suite again", (SPEED,))
    if any(fault.when == AT_THE_START for fault in evidence.target_faults):
        return unknown("arms-alike", "a deployment was not there, so what it is was not asked")
    return _alike("arms-alike", "arms", (arms[Arm.BASELINE], arms[Arm.CANDIDATE]), suite.gate.allow_different)


def sides_alike(comparison: Comparison, suite: Suite) -> GuardResult:
    """The same of the two candidates that a comparison of stored runs holds against each other."""
    sides = sides_of(comparison)
    if sides is None:
        return tripped("sides-alike", "a run does not know its candidate", "run the suite again", (SPEED,))
    return _alike("sides-alike", "deployments of the two runs", sides, suite.gate.allow_different)


def _alike(name: str, who: str, sides: tuple[Deployment, Deployment], allowed: Collection[str]) -> GuardResult:
    differing = [one for one in between(*sides, allowed) if one.field is not None]
    undeclared = [one for one in differing if not one.declared]
    if undeclared:
        fields = dict.fromkeys(str(one.field) for one in undeclared)
        declare = f"`gate.allow_different: [{', '.join(fields)}]`"
        remedy = f"serve both alike; or, when that is the change to judge, write {declare}"
        return tripped(name, f"the {who} differ in {_told(undeclared)}", remedy, (SPEED,))
    if differing:
        return held(name, f"the {who} differ only in what the policy allows: {_told(differing)}")
    return held(name, f"{'both arms' if who == 'arms' else 'both'} are served alike, as far as the servers say")


def _told(differing: Iterable[Difference]) -> str:
    return ", ".join(f"{d.what} ({d.baseline} for the baseline, {d.candidate} for the candidate)" for d in differing)
