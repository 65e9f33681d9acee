"""Guards over the deployments: comparable arms apart from the declared change, and two separate deployments.

`gate.evidence.deployments` compares them. A difference invalidates comparisons, never the candidate's own numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchgate.gate.comparison import TiedRuns, arms_of
from benchgate.gate.evidence.deployments import Declared, compare_deployments, declared, declared_sides, keys_declaring
from benchgate.gate.guards.base import (
    EVERYTHING,
    LIVE_SERVERS,
    SPEED,
    NotApplicable,
    Passed,
    Violation,
    compared,
    guard,
)
from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS
from benchgate.model.run import AT_THE_START, Evidence
from benchgate.model.verdict import Difference
from benchgate.suite.schema import Suite

_SHAPES_ANSWERS = ("vocabulary", "chat_template", "request_fields")


@guard(
    "arms-alike", "both are served alike, as far as the servers report", invalidates=compared(SPEED), needs=LIVE_SERVERS
)
def arms_alike(run: Evidence, suite: Suite) -> Violation | NotApplicable | Passed | None:
    """Flag deployments that differ in something that is not declared as the change.

    Every field that both arms must share counts, and a field reported by one arm only differs. So does a server whose
    `engine_version` contradicts its suite. If every load check has a bound of its own, only fields that shape prompts
    and responses count.
    """
    if len(run.run.arms) < len(Arm):
        return Violation("the run recorded only one deployment", "run the suite again", invalidates=(SPEED,))
    if any(fault.when == AT_THE_START for fault in run.target_faults):
        return NotApplicable("a deployment was down at the start, so its properties were not read")
    baseline, candidate = (declared(run.run, arm) for arm in (Arm.BASELINE, Arm.CANDIDATE))
    assert baseline is not None and candidate is not None, "the run knows both arms"
    return _compare("arms", (baseline, candidate), suite)


@guard(
    "sides-alike",
    "both are served alike, as far as the servers report",
    invalidates=compared(SPEED),
    needs=LIVE_SERVERS,
)
def sides_alike(comparison: TiedRuns, suite: Suite) -> Violation | Passed | None:
    """Flag the same differences between the candidates of two stored runs."""
    sides = declared_sides(comparison)
    if sides is None:
        return Violation("a run did not record its candidate", "run the suite again", invalidates=(SPEED,))
    return _compare("deployments of the two runs", sides, suite)


def has_only_load_bounds(suite: Suite) -> bool:
    """Return True if there are checks of load or starts, and all of them have a bound instead of a margin."""
    checks = [check for check in suite.gate.checks if METRICS[check.metric].family in ("load", "start")]
    return bool(checks) and all(check.margin is None for check in checks)


def _compare(who: str, sides: tuple[Declared, Declared], suite: Suite) -> Violation | Passed | None:
    allowed = suite.gate.allow_different
    differing = [one for one in compare_deployments(*sides, allowed) if one.field is not None]
    undeclared = [one for one in differing if not one.declared]
    reasons, remedies = [], []
    for side in sides:
        version, name = side.contradicting_version, side.deployment.name
        if version is not None:
            reasons.append(
                f"the server of {name} reports engine version {version}, but the suite declares {side.engine_version}"
            )
            key = f'`deployments.{name}.engine_version: "{version}"`'
            remedies.append(f"serve {name} with version {side.engine_version}, or write {key}")
    relevant = _relevant(undeclared, suite)
    if relevant:
        fields = list(dict.fromkeys(str(one.field) for one in relevant))
        keys = {key: field for key, field in keys_declaring(*sides, allowed).items() if field in fields}
        reasons.append(f"the {who} differ in {_show(relevant)}")
        remedies.append(_how_to_declare(keys, fields))
    if reasons:
        kinds = () if has_only_load_bounds(suite) else None
        return Violation("; ".join(reasons), "; ".join(remedies), invalidates=kinds)
    if undeclared:
        reason = f"the {who} differ in {_show(undeclared)}, which is not declared"
        return Passed(f"{reason}; no load check compares the two, so none is affected")
    if differing:
        return Passed(f"the {who} differ only in the declared change: {_show(differing)}")
    return None


def _relevant(undeclared: list[Difference], suite: Suite) -> list[Difference]:
    """Return the differences that affect a comparison.

    If load checks have only bounds, other checks may still compare responses: fields that shape these stay relevant.
    """
    if not has_only_load_bounds(suite):
        return undeclared
    others = [check for check in suite.gate.checks if METRICS[check.metric].family not in ("load", "start")]
    answers = any(check.margin is not None or METRICS[check.metric].family == "divergence" for check in others)
    return [one for one in undeclared if answers and one.field in _SHAPES_ANSWERS]


def _how_to_declare(keys: Mapping[str, str], fields: Sequence[str]) -> str:
    """Return the remedy. `keys` maps each suite key to the field that it declares.

    Keys of the deployments come before `allow_different`: every report shows their values.
    """
    permit = f"`gate.allow_different: [{', '.join(fields)}]`"
    if not keys:
        return f"serve both alike; or, if this is the change under test, write {permit}"
    rest = [field for field in fields if field not in keys.values()]
    written = ", ".join(keys) + (f" and `gate.allow_different: [{', '.join(rest)}]`" if rest else "")
    return (
        f"serve both alike; or, if this is the change under test, write {written} and run the suite again (the stored "
        f"run needs {permit})"
    )


def _show(differing: Iterable[Difference]) -> str:
    return ", ".join(f"{d.what} ({d.baseline} for the baseline, {d.candidate} for the candidate)" for d in differing)


@guard("two-deployments", "no sign that one deployment answers for both arms", invalidates=EVERYTHING)
def two_deployments(run: Evidence, suite: Suite) -> Violation | NotApplicable | Passed | None:
    """Flag one deployment that answers for both arms: compared with itself, any candidate passes.

    The servers report it: two model names at one address for the same weights (and neither is an adapter), or one
    process that answers for both under one model name. A gateway's metrics page may serve several models, so different
    model names do not trip. The same name in the suite for both arms is intended; two equal addresses are rejected
    before a run begins.
    """
    if len(arms_of(run)) < len(Arm) or len(run.run.arms) < len(Arm):
        return NotApplicable("one deployment was measured")
    baseline, candidate = run.run.arms[Arm.BASELINE], run.run.arms[Arm.CANDIDATE]
    if baseline.name == candidate.name:
        return Passed("the suite names one deployment for both arms")
    reason, weights = None, baseline.facts.get("weights_at")
    two_names = baseline.url is not None and baseline.url == candidate.url and baseline.model != candidate.model
    is_adapter = any(deployment.facts.get("adapter_of") is not None for deployment in (baseline, candidate))
    if two_names and not is_adapter and weights is not None and weights == candidate.facts.get("weights_at"):
        reason = f"{baseline.model} and {candidate.model} are two names of one server for the same weights, {weights}"
    markers = {
        arm: {marker for window in run.telemetry if window.arm is arm for marker in window.markers} for arm in Arm
    }
    if reason is None and baseline.model == candidate.model and markers[Arm.BASELINE] & markers[Arm.CANDIDATE]:
        reason = f"one server process answers for both arms, as {baseline.model}"
    if reason is None:
        return None
    remedy = "correct the `url`, `model` or `metrics` of one of them, so that requests reach the candidate itself"
    return Violation(reason, remedy)
