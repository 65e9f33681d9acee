"""What no check of a policy looks at, and what can be lost there without anybody being told.

A latency's median does not feel that a tenth of the requests failed, and a server that drops some is faster for the
rest. So failures that no required check counts are a guard's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from benchgate.gate.comparison import arms_of, load_of
from benchgate.gate.guard import held, tripped, unknown
from benchgate.gate.places import Place, places
from benchgate.model.deployment import Arm
from benchgate.model.metrics import succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from benchgate.stats.proportions import relative_errors_p
from benchgate.suite.background import looks_at, looks_at_background
from benchgate.suite.schema import Check, Suite

_GAP = 0.01
_MANY = 0.05
_COUNTING = ("error_rate", "goodput", "validity", "rejected")
"""Metrics that failures are part of."""


def failures_judged(evidence: Evidence, suite: Suite) -> GuardResult:
    """Failures that nobody counts: more of the candidate's than of the baseline's, or so many on either arm."""
    name = "failures-judged"
    if not places(suite):
        return unknown(name, "no load was measured")
    for place in places(suite):
        counts = {arm: _counted(evidence, suite, place, arm) for arm in arms_of(evidence)}
        for arm, (failed, of) in counts.items():
            if failed > _MANY * of:
                what = f"{failed} of {of} requests of the {arm.value} failed (bound {_MANY:.0%})"
                return _unseen(place, what, load_of(evidence, place.name, arm).values())
        failed, of = counts[Arm.CANDIDATE]
        theirs, beside = counts.get(Arm.BASELINE, (0, 0))
        if not of or not beside or failed / of - theirs / beside <= _GAP:
            continue
        if relative_errors_p(failed, of, theirs, beside) <= suite.gate.alpha:
            what = f"{failed} of {of} requests of the candidate failed, {theirs} of {beside} of the baseline"
            return _unseen(place, what, load_of(evidence, place.name, Arm.CANDIDATE).values())
    return held(name, "what failed is judged by a required check, or is hardly more than the baseline's")


def commonest_failure(executions: Iterable[LoadObservation]) -> str | None:
    """Return the commonest reason why requests failed, with their number; None where none failed.

    Like `144 of 160 requests failed, most of them so: protocol, a tool call, although no tools were offered`.
    """
    reasons: Counter[tuple[str, str]] = Counter()
    sent = failed = 0
    for rows in (rows for execution in executions for rows in execution.with_ramp):
        bad = np.flatnonzero(~succeeded(rows))
        sent, failed = sent + len(rows), failed + len(bad)
        if len(bad):
            told = zip(rows.error.take(bad), rows.error_detail.take(bad), strict=True)
            reasons.update((error or "no success", detail or "no reason recorded") for error, detail in told)
    if not failed:
        return None
    error, detail = reasons.most_common(1)[0][0]
    return f"{failed} of {sent} requests failed, most of them so: {error}, {detail}"


def _unseen(place: Place, what: str, executions: Iterable[LoadObservation]) -> GuardResult:
    why = commonest_failure(executions)
    told = f"stage {place.name}: {what}, and no required check counts them ({why})"
    where = f"stage: {place.stage}" + (f", class: {place.class_name}" if place.class_name else "")
    judge = f"judge them too, by {{metric: error_rate, {where}, margin: 1 point}}"
    return tripped("failures-judged", told, f"{judge}, and see in the report why they failed")


def _counted(evidence: Evidence, suite: Suite, place: Place, arm: Arm) -> tuple[int, int]:
    """Failures on an arm that no required check counts, and requests."""
    checks = [check for check in suite.gate.checks if check.required and _is_of(check, suite, place)]
    executions = list(load_of(evidence, place.name, arm).values())
    sent = [rows for o in executions for rows in o.with_ramp]
    of = sum(map(len, sent))
    if any(check.metric != "rejected" and check.of is None for check in checks):
        return 0, of
    classes = {"http_429" if check.metric == "rejected" else str(check.of) for check in checks}
    return sum(int(np.count_nonzero(~succeeded(rows) & ~rows.error.are(classes))) for rows in sent), of


def _is_of(check: Check, suite: Suite, place: Place) -> bool:
    """Whether a check counts failures there; background traffic is counted by checks that do not name it, too."""
    if check.metric not in _COUNTING or check.over is not None:  # against another stage, both may fail
        return False
    if place.requests is None:
        return looks_at_background(check, suite.gate.checks, place.stage, place.class_name, own_slo=place.own_slo)
    return looks_at(check, place.stage, place.class_name)
