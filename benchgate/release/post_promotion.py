"""What follows a recorded promotion: a command of the reader's runs. The promotion stands whatever fails."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from benchgate.errors import PublishError
from benchgate.integrations.hook import run_hook
from benchgate.model.deployment import Deployment
from benchgate.model.history import Promotion


def follow(
    command: Sequence[str],
    promotion: Promotion,
    candidate: Deployment,
    environment: Mapping[str, str],
    limit_s: float,
) -> None:
    """Run the hook to its end. Raises PublishError, which says that the promotion stands, where it fails."""
    read = json.dumps(document(promotion, candidate), indent=2, sort_keys=True) + "\n"
    try:
        run_hook(command, variables(promotion, candidate), read, environment, limit_s)
    except PublishError as error:
        raise PublishError(
            f"the promotion of run {promotion.run_id} is recorded and stands, but {error}; what follows a promotion is "
            "done once more by the same command with --repeat"
        ) from error


def variables(promotion: Promotion, candidate: Deployment) -> dict[str, str]:
    """What the hook finds in its environment. What is not known is there, and empty."""
    grounds = promotion.grounds
    told = {
        "RUN_ID": promotion.run_id,
        "SUITE": promotion.suite,
        "DEED": promotion.deed.value,
        "IN_SERIES": "true" if promotion.in_series else "false",
        "PROMOTED_AT": promotion.promoted_at,
        "PROMOTED_BY": promotion.origin.by,
        "REF": promotion.origin.ref or "",
        "COMMIT": promotion.origin.commit or "",
        "CANDIDATE": candidate.name,
        "CANDIDATE_MODEL": candidate.model,
        "CANDIDATE_REVISION": grounds.revision or "" if grounds is not None else "",
        "VERDICT": grounds.outcome.value if grounds is not None else "",
        "VERDICT_SHA256": grounds.verdict_sha256 if grounds is not None else "",
        "EVIDENCE_SHA256": grounds.evidence_sha256 if grounds is not None else "",
        "SUITE_SHA256": grounds.suite_sha256 if grounds is not None else "",
        "REPORT_SHA256": grounds.report_sha256 if grounds is not None else "",
    }
    return {f"BENCHGATE_{name}": value for name, value in told.items()}


def document(promotion: Promotion, candidate: Deployment) -> dict[str, object]:
    """What the hook reads: the record, and the candidate that it is about."""
    served = {"name": candidate.name, "model": candidate.model, "engine": candidate.engine}
    return {**promotion.to_json(), "in_series": promotion.in_series, "candidate": served}
