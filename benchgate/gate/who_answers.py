"""Are there two deployments at all? A candidate that is the baseline under another name would pass whatever it is."""

from __future__ import annotations

from benchgate.gate.comparison import arms_of
from benchgate.gate.guard import held, tripped, unknown
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult

_NAME = "two-deployments"
_EVERYTHING = ("load", "quality", "divergence", "shadow")


def two_deployments(evidence: Evidence) -> GuardResult:
    """Two names of one set of weights at one address, or one process that answers for both.

    A suite that names one deployment for both arms means it so. Two equal addresses are refused before a run begins;
    here is what only the servers can tell.
    """
    if len(arms_of(evidence)) < len(Arm) or len(evidence.run.arms) < len(Arm):
        return unknown(_NAME, "one deployment was measured")
    baseline, candidate = evidence.run.arms[Arm.BASELINE], evidence.run.arms[Arm.CANDIDATE]
    if baseline.name == candidate.name:
        return held(_NAME, "the suite means one deployment to be both arms")
    told = _one_set_of_weights(baseline, candidate) or _one_process(evidence, baseline, candidate)
    if told is not None:
        remedy = "correct the url, the model or the `metrics` of one of them, so that the candidate itself is asked"
        return tripped(_NAME, told, remedy, _EVERYTHING)
    return held(_NAME, "nothing says that one deployment answers for both arms")


def _one_set_of_weights(baseline: Deployment, candidate: Deployment) -> str | None:
    """A server that serves one model under several names tells for each of them where its weights are."""
    weights = baseline.facts.get("weights_at")
    if baseline.url is None or baseline.url != candidate.url or baseline.model == candidate.model:
        return None
    if any(deployment.facts.get("adapter_of") is not None for deployment in (baseline, candidate)):
        return None  # the same weights, and more
    if weights is None or weights != candidate.facts.get("weights_at"):
        return None
    return f"{baseline.model} and {candidate.model} are two names of one server for the same weights, {weights}"


def _one_process(evidence: Evidence, baseline: Deployment, candidate: Deployment) -> str | None:
    """By what tells one process from another on its page of metrics; one process may well serve two models."""
    if baseline.model != candidate.model:
        return None
    markers = {
        arm: {marker for window in evidence.telemetry if window.arm is arm for marker in window.markers} for arm in Arm
    }
    if markers[Arm.BASELINE] & markers[Arm.CANDIDATE]:
        return f"one server process answers for both arms, as {baseline.model}"
    return None
