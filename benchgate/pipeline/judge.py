"""Judge stored evidence: the verdict and its report.

A verdict right after a run and one a year later take the same path, from what is on disk. Nothing that measures is
imported here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate import credentials
from benchgate.errors import BenchgateError, ExitCode, PublishError, StoreError, UsageError
from benchgate.gate.judge import doubted, judge
from benchgate.gate.summary.metric_rows import metric_rows, number_pairs
from benchgate.model.run import Evidence, Run, RunStatus
from benchgate.model.verdict import Outcome, Verdict, Waivers
from benchgate.pipeline.environment import utc_now
from benchgate.report.document import OWN, Terms, document_json, policy_parts_sha256, verdict_document, with_exit_code
from benchgate.report.stored_numbers import StoredNumbers, StoredSide
from benchgate.store.repository import Store
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.system import OWNER_ONLY, write_atomic

if TYPE_CHECKING:
    from benchgate.report.view import Report


@dataclass(frozen=True, eq=False)
class Decision:
    """A verdict with its evidence and the terms it was requested on.

    `document` is the stored verdict document, so never `strict`. `store_fault` is the error with which the store failed
    to keep it. The hashes are over the evidence of the run and of the one it is compared with; None for a run that is
    not over, or that the store lacks.
    """

    evidence: Evidence
    reference: Evidence | None
    verdict: Verdict
    terms: Terms
    document: dict[str, object]
    store_fault: BenchgateError | None = None
    evidence_sha256: str | None = None
    reference_sha256: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        """Return the verdict's own exit code, on the terms it was requested on."""
        return self.terms.exit_code(self.verdict)

    @property
    def keeps_texts(self) -> bool:
        """Return True if the HTML report may show prompts and answers of users."""
        return any(one.run.keeps_texts for one in (self.evidence, self.reference) if one is not None)

    @cached_property
    def report(self) -> Report:
        """Return the report, each part of which is built once."""
        from benchgate.report.view import Report  # importing all its sections takes long

        return Report(
            self.evidence, self.verdict, against=self.reference, terms=self.terms, document=self.json_document
        )

    @property
    def json_document(self) -> dict[str, object]:
        """Return the verdict document for the verdict's own exit code."""
        return with_exit_code(self.document, self.exit_code)

    def with_strict(self, *, strict: bool) -> Decision:
        """Return the same decision with or without WARN counted as BLOCK."""
        return self if strict is self.terms.strict else replace(self, terms=replace(self.terms, strict=strict))

    def json(self, exit_code: ExitCode) -> str:
        """Return the canonical verdict document of a process that ends with this code: same store, same bytes."""
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
    """Judge a stored run against its own baseline, or against the candidate of the stored run `against`.

    `policy` replaces the gate, slo and error budget that the run was measured under; the evidence stays the same.
    Without `keep` nothing is stored.
    """
    if against == run_id:
        raise UsageError(f"both sides are the run {run_id}; a run says nothing against itself: name two runs")
    if keep and store.run(run_id).status is RunStatus.RUNNING:
        with suppress(StoreError):  # a store that cannot be written still gives a verdict
            store.mark_abandoned_runs()  # a killed run is interrupted, and not running
    evidence = store.evidence(run_id)
    reference = store.evidence(against) if against is not None else None
    terms = Terms(
        policy=_apply_policy(policy, evidence.run) if policy is not None else None,
        given_sha256=policy_parts_sha256(policy) if policy is not None else None,
        reference_outcome=_own_outcome(store, reference) if reference is not None else None,
    )
    verdict = judge(terms.suite(evidence.run), evidence, reference, waivers=waivers)
    verdict = doubted(verdict, terms.reference_outcome)
    document = verdict_document(evidence.run, verdict, against=reference.run if reference else None, terms=terms)
    fault = _keep(store, evidence, verdict, document, against) if keep else None
    hashes = (_evidence_sha256(store, run_id), None if against is None else _evidence_sha256(store, against))
    return Decision(evidence, reference, verdict, terms, document, fault, *hashes)


def _own_outcome(store: Store, reference: Evidence) -> Outcome | None:
    """Return the outcome of a run by its own policy: that of its verdict, or as of now if it never got one."""
    run = reference.run
    outcome = store.own_outcome(run.id)
    if outcome is not None or not run.judges_candidate:
        return outcome
    return judge(OWN.suite(run), reference, None).outcome


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """Evidence of a run that was just measured.

    `fault` is the error with what the store lacks of it, or why measuring ended early; None if all is well.
    """

    evidence: Evidence
    is_stored: bool
    fault: StoreError | None


def decide_measured(store: Store, measured: MeasuredRun, *, waivers: Waivers | None = None) -> Decision:
    """Judge a run that was just measured, as `decide_stored` does once the store has it.

    `waivers` hold as of the day on which it began, or was resumed, at the earliest: it may have waited for its servers
    since they were read, and an expired waiver lets no later run through.
    """
    evidence = measured.evidence
    if waivers is not None:
        began_at = max([evidence.run.started_at, *(one.at for one in evidence.resumptions)])
        waivers = waivers.not_before(date.fromisoformat(began_at[:10]))
    verdict = judge(OWN.suite(evidence.run), evidence, None, waivers=waivers)
    document = verdict_document(evidence.run, verdict)
    unkept = _keep(store, evidence, verdict, document, None) if measured.is_stored else None
    sha256 = _evidence_sha256(store, evidence.run.id) if measured.is_stored else None
    return Decision(evidence, None, verdict, OWN, document, measured.fault or unkept, sha256)


def stored_numbers(store: Store, run_id: str, against: str) -> StoredNumbers | None:
    """Return the stored numbers of two runs if one has no raw records; None if both have. Stores nothing."""
    sides = [(one, store.removal(one)) for one in (against, run_id)]
    if all(gone is None and store.run(one).measured_by is None for one, gone in sides):
        return None
    if against == run_id:
        raise UsageError(f"both sides are the run {run_id}; a run says nothing against itself: name two runs")
    reference, judged = (
        StoredSide(
            run=store.run(one),
            verdict=next((old.document for old in reversed(store.verdicts(one)) if old.of_the_run_itself), None),
            removed_at=gone.removed_at if gone is not None else None,
            removed_by=gone.reason if gone is not None else None,
        )
        for one, gone in sides
    )
    return StoredNumbers(reference, judged, number_pairs(store.metrics(against), store.metrics(run_id)))


def report_html(decision: Decision, *, in_site: bool = False) -> str:
    """Return the HTML report: same store, same bytes. In a site it has a link back to the site."""
    from benchgate.report.html import page_of  # few commands render a page

    return page_of(decision.report.view, in_site=in_site)


def write_report(decision: Decision, path: Path) -> str:
    """Write the HTML report and return its SHA-256. Raises PublishError when writing fails."""
    data = credentials.redact_bytes(report_html(decision).encode())
    write_whole(path, data, "the report", private=decision.keeps_texts)
    return hashlib.sha256(data).hexdigest()


def write_whole(path: Path, data: bytes, what: str, *, private: bool = False) -> None:
    """Write a result's file atomically, `private` for its owner alone.

    Raises PublishError when that fails; `what` names it in the message.
    """
    try:
        write_atomic(path, data, mode=OWNER_ONLY if private else 0o666)
    except OSError as error:
        raise PublishError(f"{what} could not be written to {path}: {error.strerror}") from error


def _keep(
    store: Store, evidence: Evidence, verdict: Verdict, document: Mapping[str, object], against: str | None
) -> StoreError | None:
    """Store the verdict and the run's metrics; return the error of a store that fails, so that the verdict is shown."""
    try:
        store.save_verdict(evidence.run.id, document, compared_run_id=against, decided_at=utc_now())
        store.save_metrics(evidence.run.id, metric_rows(evidence))
    except StoreError as error:
        return error
    return None


def _evidence_sha256(store: Store, run_id: str) -> str | None:
    """Return the hash; None if the store fails, because a verdict without it is better than none."""
    try:
        return store.evidence_sha256(run_id)
    except StoreError:
        return None


def _apply_policy(policy: Suite, run: Run) -> Suite:
    """Return the run's suite with the policy's gate, and with its SLOs and error budget if it has them.

    Raises UsageError for a policy without an SLO for a class that has one, or with checks of unmeasured metrics.
    """
    from benchgate.suite.rules.suite import rule_problems

    own = with_slos_of(policy, Suite.from_stored(run.suite))
    suite = own.model_copy(update={"gate": policy.gate, "error_budget": policy.error_budget or own.error_budget})
    problems = rule_problems(suite)
    if problems:
        raise UsageError(f"this policy does not fit what the run measured: {problems[0]}")
    return suite


def with_slos_of(policy: Suite, own: Suite) -> Suite:
    """Return a run's suite with the SLOs of a policy that has any. Each class of traffic gets that of its namesake.

    A class that is not in the policy gets the policy's `slo`, unless it has an SLO of its own: which of its keys were
    those of the run's `slo` is not known. Raises UsageError for a class with an SLO that gets none.
    """
    given = {traffic.name: traffic for traffic in traffic_classes(policy)}
    if policy.slo is None and not any(traffic.has_own_slo for traffic in given.values()):
        return own
    for traffic in traffic_classes(own):
        is_judged = traffic.slo_spec is not None and (traffic.has_own_slo or not traffic.is_background)
        inherited = None if traffic.has_own_slo else policy.slo
        found = given[traffic.name].slo_spec if traffic.name in given else inherited
        if found is None and is_judged:
            remedy = "write this stage and class into the policy too, with its `slo`"
            raise UsageError(f'the policy gives "{traffic.name}" no `slo`, and the run has one there; {remedy}')
    slos = {name: traffic.slo_spec for name, traffic in given.items() if traffic.has_own_slo}
    return own.model_copy(update={"slo": policy.slo, "load": own.load and own.load.with_class_slos(slos)})
