"""The verdict as the body of a webhook: compact JSON, in the shape that Standard Webhooks recommends.

Nothing in it is of the moment: the same verdict gives the same bytes, so that a receiver can tell a repetition.
"""

from __future__ import annotations

import json

from benchgate.model.deployment import Arm
from benchgate.report.results import Kind, Level, Result, Told, plain
from benchgate.report.sides import deployments

TYPE = "benchgate.verdict"
_QUIET = (Level.HOLDS, Level.UNKNOWN)
_MOST_REASON = 300  # of a check: what is sent stays small, as the specification asks


def render_notice(told: Told, *, report_sha256: str | None) -> str:
    """The body. `report_sha256` is of the HTML report that `link` leads to.

    Every check and every guard that does not simply hold has its outcome and reason; the rest is counted.
    """
    verdict, *others = told.results()
    arms = deployments(told.run, told.reference)
    data = {
        "run_id": plain(told.run.id),
        "against_run_id": None if told.reference is None else plain(told.reference.id),
        "suite": plain(told.run.suite_name),
        "baseline": plain(arms[Arm.BASELINE][1].name),
        "candidate": plain(arms[Arm.CANDIDATE][1].name),
        "verdict": told.verdict.outcome.value,
        "promotes": not verdict.level.stops,
        "exit_code": int(told.exit_code),
        "reason": verdict.reason,
        "doubt": verdict.details[0] if told.doubtful else None,
        "checks": [_short(one) for one in others if one.kind is Kind.CHECK and one.level is not Level.HOLDS],
        "guards": [_short(one) for one in others if one.kind is Kind.GUARD and one.level not in _QUIET],
        "checks_held": sum(one.kind is Kind.CHECK and one.level is Level.HOLDS for one in others),
        "suite_sha256": plain(told.run.suite_sha256),
        "policy_sha256": told.verdict.policy_sha256,
        "report_sha256": report_sha256,
        "url": told.link,
    }
    message = {"type": TYPE, "timestamp": plain(told.run.finished_at or told.run.started_at), "data": data}
    return json.dumps(message, sort_keys=True, separators=(",", ":"))


def _short(one: Result) -> dict[str, object]:
    required = {} if one.kind is Kind.GUARD else {"required": one.required}
    reason = plain(one.reason, _MOST_REASON)
    return {"id": one.id, "title": one.title, "outcome": one.outcome, "reason": reason, **required}
