"""From a decision to its statement: what was found of what, in hashes (docs/verify.md)."""

from __future__ import annotations

import hashlib

from benchgate import __version__
from benchgate.errors import ExitCode
from benchgate.model.deployment import Deployment, adapter_names, identity_of
from benchgate.model.run import Run
from benchgate.model.verdict import checks_by_result
from benchgate.pipeline.judge import Decision
from benchgate.report.comparability import deployments
from benchgate.report.document import document_json
from benchgate.report.statement import StatedArm, StatedFile, StatedRun, Statement


def statement_of(
    decision: Decision,
    exit_code: ExitCode,
    *,
    report: StatedFile | None = None,
    suite_file_sha256: str | None = None,
    url: str | None = None,
    tool_version: str = __version__,
) -> Statement:
    """The statement of a decision for a process that ends with this code: same store, same arguments, same bytes.

    `report` is the HTML report that was written of it, `url` the CI's page of the run.
    """
    run, verdict = decision.evidence.run, decision.verdict
    against = decision.reference.run if decision.reference is not None else None
    return Statement(
        outcome=verdict.outcome,
        exit_code=exit_code,
        strict=decision.terms.strict,
        tests=checks_by_result(verdict, exit_code),
        run=_run(run, decision.evidence_sha256),
        against=None if against is None else _run(against, decision.reference_sha256),
        arms={arm.value: _arm(one, of) for arm, (of, one) in deployments(run, against).items()},
        verdict_sha256=hashlib.sha256(document_json(decision.document).encode()).hexdigest(),
        policy_sha256=verdict.policy_sha256,
        policy_replaced=decision.terms.policy_replaced(run, verdict),
        waivers_as_of=verdict.as_of.isoformat() if verdict.as_of is not None else None,
        report=report,
        suite_file_sha256=suite_file_sha256,
        url=url,
        tool_version=tool_version,
    )


def _run(run: Run, evidence_sha256: str | None) -> StatedRun:
    return StatedRun(
        id=run.id,
        suite=run.suite_name,
        tool_version=run.tool_version,
        imported=run.imported,
        suite_sha256=run.suite_sha256,
        measurement_sha256=run.measurement_sha256,
        plan_sha256=run.plan_sha256,
        evidence_sha256=evidence_sha256,
    )


def _arm(deployment: Deployment, run: Run) -> StatedArm:
    adapters = tuple(sorted(set(adapter_names(run.suite.get("load")))))
    return StatedArm(
        name=deployment.name,
        model=deployment.model,
        engine=deployment.engine,
        fingerprint=deployment.fingerprint,
        revision=identity_of(deployment, adapters).revision,
        adapters=adapters,
    )
