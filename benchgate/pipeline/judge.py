"""From the store to a verdict, a report and a publisher: the last part of the road, and all of it for a stored run.

Everything computed is computed from what is on disk: a verdict given right after a run and one given from the store a
year later take the same path here. Nothing that measures is loaded for it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.errors import ExitCode, PublishError, StoreError, UsageError
from benchgate.gate.judge import doubted, judge
from benchgate.gate.summary.metric_rows import metric_rows, number_pairs
from benchgate.model.run import Evidence, Run, RunStatus
from benchgate.model.verdict import Verdict, Waivers
from benchgate.pipeline.environment import utc_now
from benchgate.report.document import OWN, Terms, document_json, verdict_document, with_exit_code
from benchgate.report.stored_numbers import StoredNumbers, StoredSide
from benchgate.store.repository import Store
from benchgate.suite.schema import Suite
from benchgate.system import write_atomic

if TYPE_CHECKING:
    from benchgate.report.view import Report


@dataclass(frozen=True, eq=False)
class Decision:
    """A verdict with the evidence it rests on and the terms it was asked for on.

    `document` is what the store has of it, so never `strict`. `store_fault` says why the store could not keep it; None
    when it has. `evidence_sha256` is over all that was measured, and `reference_sha256` over the same of the run it is
    held against: None of one that is not over, or that the store does not have.
    """

    evidence: Evidence
    reference: Evidence | None
    verdict: Verdict
    terms: Terms
    document: dict[str, object]
    store_fault: str | None = None
    evidence_sha256: str | None = None
    reference_sha256: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The verdict's own code, on the terms it was asked for on."""
        return self.terms.exit_code(self.verdict)

    @cached_property
    def report(self) -> Report:
        """The report of it, each part of which is made once."""
        from benchgate.report.view import Report  # importing all its sections takes long

        return Report(
            self.evidence, self.verdict, against=self.reference, terms=self.terms, document=self.json_document
        )

    @property
    def json_document(self) -> dict[str, object]:
        """The verdict document for the verdict's own exit code."""
        return with_exit_code(self.document, self.exit_code)

    def asked(self, *, strict: bool) -> Decision:
        """The same decision for someone to whom a WARN is, or is not, as bad as a BLOCK."""
        return self if strict is self.terms.strict else replace(self, terms=replace(self.terms, strict=strict))

    def json(self, exit_code: ExitCode) -> str:
        """The verdict document in its one spelling, of a process that ends with this code: same store, same bytes."""
        return document_json(with_exit_code(self.document, exit_code))


def decide_stored(
    store: Store,
    run_id: str,
    against: str | None = None,
    *,
    policy: Suite | None = None,
    waivers: Waivers | None = None,
    keep: bool = True,
) -> Decision:
    """Judge a stored run: against its own baseline, or against the candidate of the stored run `against`.

    `policy` replaces the gate, slo and error budget that the run was measured under; what was measured, and what
    production had spent by then, stays what it was.
    `waivers` are those that are known of it. Without `keep` nothing is stored: who only looks at a run does not decide.
    """
    if against == run_id:
        raise UsageError(f"both sides are the run {run_id}; a run says nothing against itself: name two runs")
    if keep and store.run(run_id).status is RunStatus.RUNNING:
        with suppress(StoreError):  # of a store that cannot be written the verdict is told all the same
            store.mark_abandoned_runs()  # it may have been killed, and then it may go on
    evidence = store.evidence(run_id)
    reference = store.evidence(against) if against is not None else None
    terms = Terms(
        policy=_judged_by(policy, evidence.run) if policy is not None else None,
        reference_outcome=store.own_outcome(against) if against is not None else None,
    )
    verdict = judge(terms.suite(evidence.run), evidence, reference, waivers=waivers)
    verdict = doubted(verdict, terms.reference_outcome)
    document = verdict_document(evidence.run, verdict, against=reference.run if reference else None, terms=terms)
    fault = _keep(store, evidence, verdict, document, against) if keep else None
    hashes = (_evidence_sha256(store, run_id), None if against is None else _evidence_sha256(store, against))
    return Decision(evidence, reference, verdict, terms, document, fault, *hashes)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What was kept of a run that was just measured, and whether all of that is in the store.

    `fault` says what is not in the store and how it gets there, or why measuring ended early; None when all is well.
    """

    evidence: Evidence
    stored: bool
    fault: str | None


def decide_kept(store: Store, kept: Kept, *, waivers: Waivers | None = None) -> Decision:
    """Judge what was just measured, as `decide_stored` does at any later time once the store has it."""
    evidence = kept.evidence
    verdict = judge(OWN.suite(evidence.run), evidence, None, waivers=waivers)
    document = verdict_document(evidence.run, verdict)
    unkept = _keep(store, evidence, verdict, document, None) if kept.stored else None
    sha256 = _evidence_sha256(store, evidence.run.id) if kept.stored else None
    return Decision(evidence, None, verdict, OWN, document, kept.fault or unkept, sha256)


def stored_numbers(store: Store, run_id: str, against: str) -> StoredNumbers | None:
    """Two stored runs by the numbers kept of them, where one has no raw records; None where both have theirs.

    Nothing is decided and nothing stored.
    """
    sides = [(one, store.removal(one)) for one in (against, run_id)]
    if all(gone is None and store.run(one).measured_by is None for one, gone in sides):
        return None
    if against == run_id:
        raise UsageError(f"both sides are the run {run_id}; a run says nothing against itself: name two runs")
    reference, judged = (
        StoredSide(
            run=store.run(one),
            verdict=next((said.document for said in reversed(store.verdicts(one)) if said.of_the_run_itself), None),
            removed_at=gone.removed_at if gone is not None else None,
            removed_by=gone.reason if gone is not None else None,
        )
        for one, gone in sides
    )
    return StoredNumbers(reference, judged, number_pairs(store.metrics(against), store.metrics(run_id)))


def report_html(decision: Decision, *, in_site: bool = False) -> str:
    """The HTML report: same store, same bytes. That of a site differs from it in its way back to the site alone."""
    from benchgate.report.html import page_of  # few commands render a page

    return page_of(decision.report.view, in_site=in_site)


def write_report(decision: Decision, path: Path) -> str:
    """Write the HTML report and return the SHA-256 of what was written; PublishError when writing fails."""
    data = report_html(decision).encode()
    write_whole(path, data, "the report")
    return hashlib.sha256(data).hexdigest()


def write_whole(path: Path, data: bytes, what: str) -> None:
    """Write a result's file atomically. Raises PublishError when that fails."""
    try:
        write_atomic(path, data)
    except OSError as error:
        raise PublishError(f"{what} could not be written to {path}: {error.strerror}") from error


def publish_decision(
    decision: Decision, report_path: Path | None, *, exit_code: ExitCode, statement_path: Path | None = None
) -> None:
    """Tell the CI system this process runs in, if any."""
    from benchgate.integrations import github_outputs
    from benchgate.report.markdown import SUMMARY_BYTES, markdown_of

    github_outputs.publish(
        os.environ,
        verdict=decision.verdict,
        run_id=decision.evidence.run.id,
        exit_code=exit_code,
        report_path=report_path,
        statement_path=statement_path,
        render_summary=lambda: markdown_of(decision.report.view, SUMMARY_BYTES),
    )


def _keep(
    store: Store, evidence: Evidence, verdict: Verdict, document: Mapping[str, object], against: str | None
) -> str | None:
    """Store the verdict and the run's metrics; a store that fails now must not swallow the verdict."""
    try:
        store.save_verdict(evidence.run.id, document, compared_run_id=against, decided_at=utc_now())
        store.save_metrics(evidence.run.id, metric_rows(evidence))
    except StoreError as error:
        return str(error)
    return None


def _evidence_sha256(store: Store, run_id: str) -> str | None:
    """None also where the store fails now: what is vouched for less is better than a verdict that is lost."""
    try:
        return store.evidence_sha256(run_id)
    except StoreError:
        return None


def _judged_by(policy: Suite, run: Run) -> Suite:
    """The run's suite with the policy's gate, slo and error budget (its own of the latter two where that has none).

    Raises UsageError for a policy that speaks of what was not measured.
    """
    from benchgate.suite.rules.suite import rule_problems

    own = Suite.from_stored(run.suite)
    held_to = {"slo": policy.slo or own.slo, "error_budget": policy.error_budget or own.error_budget}
    suite = own.model_copy(update={"gate": policy.gate, **held_to})
    problems = rule_problems(suite)
    if problems:
        raise UsageError(f"this policy does not fit what the run measured: {problems[0]}")
    return suite
