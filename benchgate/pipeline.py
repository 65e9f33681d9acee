"""The road: suite → plan → measurements → store → verdict → report. The only place that knows several shells.

Everything measured is on disk before anything is computed from it, and everything computed is computed from what is
on disk: a verdict given right after a run and one given from the store a year later take the same path below.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from benchgate import __version__
from benchgate.circumstances import environment_facts, fresh_run_id, known_client, known_client_at, usable_cpus, utc_now
from benchgate.errors import ExitCode, PublishError, StoreError, TargetError, UsageError
from benchgate.gate.decide import judge
from benchgate.gate.metric_rows import metric_rows
from benchgate.load.cluster_crew import require_distributed
from benchgate.load.stamps import audit_refusal
from benchgate.load.traces import load_traces
from benchgate.measuring import Progress, declared, measure
from benchgate.model.client import ClientProfile
from benchgate.model.deployment import Arm, canonical_json
from benchgate.model.run import Evidence, Run, RunStatus
from benchgate.model.verdict import Verdict
from benchgate.plan.demand import chosen_workers
from benchgate.plan.preview import Preview, client_problems, preview
from benchgate.plan.schedule import Plan, make_plan, measurement_sha256
from benchgate.publish import github
from benchgate.quality.harness import require_lm_eval
from benchgate.quality.tasks import load_tasks
from benchgate.report.document import document_json, verdict_document, with_exit_code
from benchgate.report.html import render_html
from benchgate.report.markdown import render_markdown
from benchgate.report.terms import Terms
from benchgate.shadow.sample import load_prompts
from benchgate.store.repository import RunWriter, Store
from benchgate.suite.schema import Suite
from benchgate.targets.address import ServerAddress
from benchgate.targets.deployed import target_of


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Where a run keeps things, what it is called, and which cluster sends its load (None: this machine)."""

    store: str
    work_dir: Path  # engine logs, harness logs, made weights
    label: str | None = None
    cluster: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A verdict with the evidence it rests on and the terms it was asked for on.

    `document` is what the store has of it, so never `strict`. `store_fault` says why the store could not keep it; None
    when it has.
    """

    evidence: Evidence
    reference: Evidence | None
    verdict: Verdict
    terms: Terms
    document: dict[str, object]
    store_fault: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The verdict's own code, on the terms it was asked for on."""
        return self.terms.exit_code(self.verdict)

    def asked(self, *, strict: bool) -> Decision:
        """The same decision for someone to whom a WARN is, or is not, as bad as a BLOCK."""
        return replace(self, terms=replace(self.terms, strict=strict))

    def json(self, exit_code: ExitCode) -> str:
        """The verdict document in its one spelling, of a process that ends with this code: same store, same bytes."""
        return document_json(with_exit_code(self.document, exit_code))


def run_suite(suite: Suite, suite_dir: Path, options: RunOptions, progress: Progress) -> Decision:
    """Measure the suite's two arms and judge the candidate. Paths in the suite are relative to `suite_dir`."""
    if suite.quality is not None:
        require_lm_eval()
    if options.cluster is not None:
        _require_cluster(suite)
    _check_ways(suite, suite_dir)
    plan = read_plan(suite, suite_dir)
    with Store.open(options.store) as store:
        workers = _workers(suite, plan, known_client(store)) if options.cluster is None else None
        run = _describe(suite, plan, options)
        with _recorded(store, run, plan) as writer:
            logs, weights = options.work_dir / run.id, options.work_dir / "weights"
            complete = measure(suite, suite_dir, plan, writer, logs, weights, progress, workers, options.cluster)
            writer.finish(RunStatus.COMPLETE if complete else RunStatus.PARTIAL, utc_now())
        return decide_stored(store, run.id)


def _require_cluster(suite: Suite) -> None:
    """What `--cluster` needs is there: found out before there is a run."""
    if suite.load is None:
        raise UsageError(f"--cluster sends the load of a suite, and {suite.suite} has none; leave it out")
    require_distributed()


def _check_ways(suite: Suite, suite_dir: Path) -> None:
    """What the two arms refer to, variables and certificates, is there and fits: found out before there is a run."""
    audits = suite.load is not None and suite.load.audit
    for arm, name in ((Arm.BASELINE, suite.baseline), (Arm.CANDIDATE, suite.candidate)):
        spec = suite.deployments[name]
        try:
            url = "http://127.0.0.1" if spec.url is None else target_of(arm, spec, os.environ, suite_dir).url
        except UsageError as exc:
            raise UsageError(f"deployments.{name}: {exc}") from exc
        with suppress(TargetError):  # an address that is none is the fault of its arm, found when it is asked
            if audits and (refusal := audit_refusal(ServerAddress.of(url))) is not None:
                raise UsageError(f"load.audit: {name} cannot be audited: {refusal}")


def _workers(suite: Suite, plan: Plan, client: ClientProfile | None) -> int | None:
    """How many load generator processes this machine needs; None where its curve was never measured.

    Raises UsageError for more than it delivers: known before a request is sent.
    """
    if client is None:
        return None
    problems = client_problems(suite, plan, client, usable_cpus())
    if problems:
        raise UsageError("\n".join(problems))
    return chosen_workers(suite, plan, client, usable_cpus())


def read_plan(suite: Suite, suite_dir: Path) -> Plan:
    """Read the data files a suite names and make its plan, before any request is sent."""
    tasks = load_tasks(suite_dir, suite.quality.tasks) if suite.quality else ()
    prompts = load_prompts(suite_dir / suite.shadow.prompts) if suite.shadow else ()
    traces = load_traces(suite_dir, suite.load) if suite.load else {}
    return make_plan(suite, tasks, prompts, traces)


def preview_suite(suite: Suite, suite_dir: Path, store_address: str) -> Preview:
    """What a run of the suite would ask, and whether this machine can. Sends nothing and makes no store."""
    return preview(suite, read_plan(suite, suite_dir), known_client_at(store_address), usable_cpus())


def decide_stored(store: Store, run_id: str, against: str | None = None, *, policy: Suite | None = None) -> Decision:
    """Judge a stored run: against its own baseline, or against the candidate of the stored run `against`.

    `policy` replaces the gate and slo that the run was measured under; what was measured stays what it was.
    """
    if against == run_id:
        raise UsageError(f"both sides are the run {run_id}; a run says nothing against itself: name two runs")
    evidence = store.evidence(run_id)
    reference = store.evidence(against) if against is not None else None
    terms = Terms(
        policy=_judged_by(policy, evidence.run) if policy is not None else None,
        reference_outcome=store.own_outcome(against) if against is not None else None,
    )
    verdict = judge(terms.suite(evidence.run), evidence, reference)
    document = verdict_document(evidence.run, verdict, against=reference.run if reference else None, terms=terms)
    fault = _keep(store, evidence, verdict, document, against)
    return Decision(evidence, reference, verdict, terms, document, fault)


def write_report(decision: Decision, path: Path) -> None:
    """Write the HTML report; PublishError when that fails."""
    html = render_html(decision.evidence, decision.verdict, against=decision.reference, terms=decision.terms)
    part = path.with_name(f".{path.name}.part")  # renamed when whole: nobody ever opens half a report
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(html, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise PublishError(f"the report could not be written to {path}: {error.strerror}") from error


def publish_decision(decision: Decision, report_path: Path | None, *, exit_code: int) -> None:
    """Tell the CI system this process runs in, if any."""
    github.publish(
        os.environ,
        verdict=decision.verdict,
        run_id=decision.evidence.run.id,
        exit_code=exit_code,
        report_path=report_path,
        summary_markdown=render_markdown(
            decision.evidence, decision.verdict, against=decision.reference, terms=decision.terms
        ),
    )


@contextmanager
def _recorded(store: Store, run: Run, plan: Plan) -> Iterator[RunWriter]:
    """A run in the store that is never left looking complete, or still running, when it was cut short."""
    writer = store.begin_run(run, plan.canonical)
    try:
        yield writer
    except BaseException as cut:
        writer.event("cut_short", {"by": type(cut).__name__})
        writer.finish(RunStatus.PARTIAL, utc_now())
        raise


def _describe(suite: Suite, plan: Plan, options: RunOptions) -> Run:
    stored = suite.to_stored()
    return Run(
        id=fresh_run_id(),
        suite_name=suite.suite,
        suite=stored,
        suite_sha256=_sha256(stored),
        measurement_sha256=measurement_sha256(suite, plan),
        plan_sha256=plan.sha256,
        seed=suite.seed,
        tool_version=__version__,
        label=options.label,
        status=RunStatus.RUNNING,
        started_at=utc_now(),
        finished_at=None,
        environment=environment_facts(),
        arms={Arm.BASELINE: declared(suite, suite.baseline), Arm.CANDIDATE: declared(suite, suite.candidate)},
    )


def _keep(
    store: Store, evidence: Evidence, verdict: Verdict, document: Mapping[str, object], against: str | None
) -> str | None:
    """Store the verdict and the run's metrics; a store that fails now must not swallow the verdict."""
    try:
        store.save_verdict(evidence.run.id, document, compared_run_id=against)
        store.save_metrics(evidence.run.id, metric_rows(evidence))
    except StoreError as error:
        return str(error)
    return None


def _judged_by(policy: Suite, run: Run) -> Suite:
    """The run's suite with the policy's gate and slo (its own slo where the policy has none).

    Raises UsageError for a policy that speaks of what was not measured.
    """
    from benchgate.suite.rules import rule_problems

    own = Suite.from_stored(run.suite)
    suite = own.model_copy(update={"gate": policy.gate, "slo": policy.slo or own.slo})
    problems = rule_problems(suite)
    if problems:
        raise UsageError(f"this policy does not fit what the run measured: {problems[0]}")
    return suite


def _sha256(value: object) -> str:
    import hashlib

    return hashlib.sha256(canonical_json(value)).hexdigest()
