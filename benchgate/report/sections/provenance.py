"""The section on the measurement: identity, workload, machine, the commands that repeat it, and its limits."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchgate import units
from benchgate.gate.summary.figures import attainment
from benchgate.model.deployment import Arm, flatten_json
from benchgate.model.records import TokenSource
from benchgate.model.run import Evidence, Run, merged_addresses
from benchgate.model.verdict import Verdict
from benchgate.report import display
from benchgate.report.comparability import Side, Sides
from benchgate.report.document import OTHER_POLICY, OWN, Terms
from benchgate.report.sections.load import load_end_lines, planned_blocks
from benchgate.report.sections.stages import Executions, StageRow
from benchgate.suite.load import Load
from benchgate.suite.quality import Compare, Shadow
from benchgate.suite.schema import Suite, arms_of_stored, measured_arms
from benchgate.suite.stages import region_name
from benchgate.suite.workload import AdapterMix, Workload, shown_length

_WORKERS_NAMED = 8
_DELAY_SOURCES = {"kernel": "kernel timestamps of every answer", "canary": "a canary task in the client's event loop"}


@dataclass(frozen=True, slots=True)
class FactGroup:
    """Named facts under a heading."""

    title: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A command line with its purpose."""

    purpose: str
    line: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """Facts behind the numbers; `command` gives the verdict again, `more` the page, a check and the measurement."""

    groups: tuple[FactGroup, ...]
    command: str
    more: tuple[Command, ...]
    limits: tuple[str, ...]


def provenance(
    evidence: Evidence,
    sides: Sides,
    rows: Sequence[StageRow],
    executions: Executions,
    verdict: Verdict,
    against: Run | None,
    terms: Terms,
) -> Provenance:
    """Collect facts of the run (and of the reference run), the machine and both deployments."""
    run, suite = evidence.run, terms.suite(evidence.run)
    groups = [FactGroup("This run", tuple(_run_facts(run)))]
    if against is not None:
        groups.append(FactGroup("Reference run", tuple(_run_facts(against))))
    groups.append(FactGroup("Workload and policy", tuple(_suite_facts(suite, evidence, verdict))))
    groups.append(
        FactGroup("Machine of the import" if run.imported else "Machine", tuple(flatten_json(run.environment)))
    )
    groups.append(FactGroup("Load generator", tuple(_client_facts(sides))))
    groups += [
        FactGroup("Deployment" if sides.alone else side.role.value.capitalize(), tuple(_deployment_facts(side)))
        for side in sides
    ]
    return Provenance(
        groups=tuple(group for group in groups if group.facts),
        command=reproduce(run, verdict, against, terms),
        more=tuple(_more_commands(run, verdict, against, terms)),
        limits=(
            *_limits(evidence, rows, verdict, against, terms),
            *unjudged_slo(rows, executions, verdict, tuple(suite.regions)),
        ),
    )


def reproduce(run: Run, verdict: Verdict, against: Run | None, terms: Terms = OWN) -> str:
    """Return the command that gives this verdict again from the store."""
    judging = f"benchgate gate {shlex.quote(run.id)}"
    if against is not None:
        judging = f"benchgate compare {shlex.quote(against.id)} {shlex.quote(run.id)}"
    policy = " --policy SUITE" if terms.policy_replaced(run, verdict) else ""
    return f"{judging}{policy}{_waivers(verdict)}"


def promotion_command(run: Run, verdict: Verdict) -> str:
    """Return the command that records the promotion of the run's candidate by this verdict."""
    return f"benchgate promote {shlex.quote(run.id)}{_waivers(verdict)}"


def _waivers(verdict: Verdict) -> str:
    return f" --waivers FILE --as-of {verdict.as_of}" if verdict.as_of is not None else ""


def _more_commands(run: Run, verdict: Verdict, against: Run | None, terms: Terms) -> Iterator[Command]:
    """Yield commands for this page, the steps of its first check, and the measurement unless it was imported."""
    held = f" --against {shlex.quote(against.id)}" if against is not None else ""
    judging = reproduce(run, verdict, against, terms)
    page = f"benchgate report {shlex.quote(run.id)}{held}{_waivers(verdict)} --out report.html"
    if terms.policy_replaced(run, verdict):  # `report` judges by the run's own policy
        page = f"{judging} --report report.html"
    yield Command("Write this page", page)
    checks = (*verdict.failing(), *verdict.checks)
    if checks:
        yield Command("Show the arithmetic of a check", f"{judging} --explain {shlex.quote(checks[0].id)}")
    if not run.imported:
        suite = "Repeat the measurement with the suite file of the SHA-256 below"
        yield Command(f"{suite} and benchgate {run.tool_version}", "benchgate run SUITE")


def _run_facts(run: Run) -> Iterator[tuple[str, str]]:
    yield "run", run.id
    if run.label is not None:
        yield "label", run.label
    yield "status", run.status.value
    yield "started", run.started_at
    yield "finished", run.finished_at or "never"
    yield "benchgate", run.tool_version
    yield "suite", run.suite_name
    yield "suite SHA-256", run.suite_sha256
    yield "measurement SHA-256", run.measurement_sha256
    yield "plan SHA-256", run.plan_sha256
    yield "seed", str(run.seed)


def _suite_facts(suite: Suite, evidence: Evidence, verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield the suite's settings; an import sent no request, so it has no time limits."""
    if suite.load is not None:
        yield from workload_facts(suite.load)
        stages = (f"{stage.name}: {stage.requests:,} requests per block and arm" for stage in suite.load.sweep)
        yield "sweep", "; ".join(stages)
        together = "both arms in each with the same prompts and schedule, in alternating order"
        alone = len(measured_arms(suite)) == 1
        yield "blocks", f"{planned_blocks(suite.load)}, {'of the one deployment' if alone else together}"
        yield from (("load", line) for line in load_end_lines(evidence, verdict))
        if suite.load.warmup == "auto":
            least = "at least 8 requests, and 2 for each slot, per stage and arm"
            yield "warm-up", f"{least}, until TTFT no longer falls, discarded"
        else:
            yield "warm-up", f"{suite.load.warmup:,} requests per stage and arm, discarded"
    if suite.quality is not None:
        limit = "all items" if suite.quality.limit is None else f"the first {suite.quality.limit:,} items"
        yield "tasks", f"{', '.join(entry.task for entry in suite.quality.tasks)} ({limit} of each)"
    if suite.divergence is not None:
        places = f"{suite.divergence.positions:,} positions in the second halves of their pieces"
        yield "fixed texts", f"{suite.divergence.texts}: {places}; digests stored"
    if suite.shadow is not None:
        texts = "texts" if suite.shadow.store_text else "digests"
        yield "shadow", f"{suite.shadow.prompts}: {_shadow_text(suite.shadow)}; {texts} stored"
        if (similarity := suite.shadow.similarity) is not None:
            yield "similarity", f"{similarity.model}, the same from a cosine of {similarity.same_above}"
        if (judge := suite.shadow.judge) is not None:
            yield "judge", f"{judge.model}, {'the suite' if judge.prompt else 'benchgate'}'s own prompt, both orders"
    if not evidence.run.imported:
        limits = suite.limits
        bounds = (
            ("connect", limits.connect_s),
            ("first token", limits.first_token_s),
            ("stall", limits.stall_s),
            ("whole request", limits.total_s),
        )
        shown = (f"{name} {units.as_written(units.show_duration, bound)}" for name, bound in bounds)
        yield "time limits", ", ".join(shown)
    yield "alpha", f"{units.as_written(units.show_percent, suite.gate.alpha)}, one-sided"


def _client_facts(sides: Sides) -> Iterator[tuple[str, str]]:
    """Yield facts that matter to latencies; the client's speed stands with the stages."""
    used = [observation.client for side in sides for observation in side.load]
    if not used:
        return
    least, most = min(use.workers for use in used), max(use.workers for use in used)
    yield "processes", str(least) if least == most else f"{least} to {most}"
    sources = sorted({_DELAY_SOURCES.get(use.read_delay_by or "", "not measured") for use in used})
    yield "read delays measured by", ", ".join(sources)
    starts = [use.start_uncertainty_s for use in used if use.start_uncertainty_s is not None]
    if starts:
        offsets = [use.clock_offset_s for use in used if use.clock_offset_s is not None]
        by = f"; their clocks are up to {display.duration(max(offsets))} off, which is allowed for" if offsets else ""
        yield "start skew", f"workers of the cluster started up to {display.duration(max(starts))} apart{by}"
    again = {side.role: sum(int((o.requests.reconnects > 0).sum()) for o in side.load) for side in sides}
    if any(again.values()):
        counts = ", ".join(f"{role.value} {count:,}" for role, count in again.items())
        yield "resent requests", f"{counts} (the server had closed the kept-alive connection)"


def _deployment_facts(side: Side) -> Iterator[tuple[str, str]]:
    deployment = side.deployment
    yield "name", deployment.name
    yield "model", deployment.model
    yield "engine", deployment.engine
    yield "url", deployment.url or ("embedded" if deployment.engine == "llamacpp" else "practice server")
    for seen in merged_addresses(observation.client.addresses for observation in side.load):
        workers = ", ".join(str(number + 1) for number in seen.workers)
        workers = f"worker{'s' if len(seen.workers) > 1 else ''} {workers}"
        if len(seen.workers) > _WORKERS_NAMED:
            workers = f"{len(seen.workers):,} workers"
        answers = "" if seen.resolved == seen.connected else f"; DNS answered {', '.join(seen.resolved) or 'nothing'}"
        name = "addresses" if seen.region is None else f"addresses in {seen.region}"
        yield name, f"{', '.join(seen.connected) or 'none connected'} from {workers}{answers}"
    yield "fingerprint", deployment.fingerprint
    for name, text in flatten_json(deployment.settings):
        yield f"declared: {name}", text
    for name, text in flatten_json(deployment.facts):
        yield f"reported: {name}", text


def _limits(
    evidence: Evidence, rows: Sequence[StageRow], verdict: Verdict, against: Run | None, terms: Terms
) -> Iterator[str]:
    yield "The results hold for the workload, tasks and machine named here."
    yield f"{display.limits_sentence(verdict)}."
    yield "With little data, a true regression near half of its margin can be decided either way."
    yield "Checks are decided one by one: a gain in one never offsets a loss in another."
    if doubt := terms.reference_doubt():
        yield f"{doubt[0].upper()}{doubt[1:]}."
    if terms.policy_replaced(evidence.run, verdict):
        yield f"{OTHER_POLICY[0].upper()}{OTHER_POLICY[1:]}."
    if verdict.as_of is not None:
        yield f"Waivers were evaluated as of {verdict.as_of} (UTC); another day may give another verdict."
    if len(arms_of_stored(evidence.run.suite)) == 1:
        yield "One deployment was measured, once, and compared with nothing."
    if not rows:
        yield "No load was measured: speed, failures and cost are unknown."
    elif any(row.summary and set(row.summary.token_sources) - {TokenSource.USAGE.value} for row in rows):
        yield "Some answers had no token count; their chunks were counted instead, which are not tokens."
    if not evidence.quality:
        yield "No task was run: the quality of answers is unknown."
    if evidence.shadow is None or against is not None:
        yield "No shadow traffic was compared: it is unknown how often answers to real prompts change."
    elif all(item.primary_text is None for item in evidence.shadow.items):
        yield "The texts of shadow answers were not stored, so there are no examples."


def _shadow_text(shadow: Shadow) -> str:
    sent = "to the baseline twice and the candidate once"
    if shadow.secondary_ratio < 1:
        sent = f"to the baseline and the candidate, {display.percent(shadow.secondary_ratio)} to the baseline again"
    rule = shadow.compare
    rules = [f"compared by {rule.by}"] if rule != Compare() else []
    rules += [f"without {', '.join(rule.ignore_paths)}"] if rule.ignore_paths else []
    rules += [f"numbers within {display.percent(rule.tolerance)}"] if rule.tolerance else []
    rules += [] if rule.case else ["ignoring case"]
    return ", ".join([sent, *rules])


def workload_facts(load: Load) -> Iterator[tuple[str, str]]:
    """Yield the facts of every workload; a named one has its name before each."""
    yield from _workload_facts(load.workload, "")
    for name, workload in load.workloads.items():
        yield from _workload_facts(workload, f"{name}: ")
    for stage in load.sweep:
        if stage.actions is not None:
            yield f"done during {stage.name}", "; ".join(action.shown for action in stage.actions)


def _workload_facts(workload: Workload, prefix: str) -> Iterator[tuple[str, str]]:
    yield f"{prefix}endpoint", workload.endpoint
    yield f"{prefix}prompts", _prompts(workload)
    if workload.output_tokens is not None:
        end = "end-of-sequence ignored" if workload.ignore_eos else "or fewer"
        yield f"{prefix}answers", f"{shown_length(workload.output_tokens)} tokens, {end}"
    more = list(_more(workload))
    if more:
        yield f"{prefix}options", "; ".join(more)


def _prompts(workload: Workload) -> str:
    if workload.sessions is not None:
        return f"agent sessions recorded in {workload.sessions}, order drawn from the seed"
    if workload.prompt_set is not None:
        return f"recorded in {workload.prompt_set.name}, order drawn from the seed"
    length = shown_length(workload.input_tokens) if workload.input_tokens is not None else "no"
    text = f"{length} tokens of random {workload.text}, every prompt unique"
    prefix, retrieval = workload.prefix, workload.retrieval
    if retrieval is not None:
        drawn = f"{retrieval.each:,} of {retrieval.pool:,} documents of {retrieval.document_tokens:,} tokens"
        text += f" after {drawn} ({retrieval.weights}, order {retrieval.order})"
    if prefix is None:
        return text
    if prefix.prefix_tokens is not None:
        shared = f"{prefix.prefix_tokens:,} tokens"
    else:
        shared = units.as_written(units.show_percent, prefix.share_ratio or 0.0) + " of each"
    return f"{text} after a shared prefix of {shared}, one of {prefix.groups:,}"


def _more(workload: Workload) -> Iterator[str]:
    if workload.session is not None:
        yield f"conversations of {shown_length(workload.session.turns)} turns with the model's own answers"
    if workload.leave is not None:
        share = units.as_written(units.show_percent, workload.leave.share_ratio)
        yield f"{share} of the clients cancel after {workload.leave.after}"
    if workload.generates and not workload.stream:
        yield "not streamed"
    for kind, media in workload.media.items():
        noun = {"images": "images", "audio": "audio clips", "videos": "videos"}[kind]
        yield f"{media.count} {noun} in each request"
    if workload.tools is not None:
        yield "tool definitions"
    if workload.answer_schema is not None:
        yield "answers validated by a JSON schema" + (", constrained by the engine" if workload.constrained else "")
    if isinstance(workload.adapter, AdapterMix):
        yield f"one of {len(workload.adapters):,} LoRA adapters ({workload.adapter.weights})"
    elif workload.adapter is not None:
        yield f"LoRA adapter {workload.adapter}"
    if workload.priority is not None:
        yield f"priority {workload.priority}"
    if workload.tokenizer is not None:
        yield f"tokenizer {workload.tokenizer}"
    if workload.body:
        yield f"fields {', '.join(sorted(workload.body))}"


def unjudged_slo(
    rows: Sequence[StageRow], executions: Executions, verdict: Verdict, regions: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for each stage at which the candidate misses its SLO and no check judges that.

    Checks of all `regions` judge their stage.
    """
    judged = {check.stage for check in verdict.checks if check.metric == "goodput"}
    for row in rows:
        if row.role is not Arm.CANDIDATE or row.slo is None or row.target_ratio is None:
            continue
        if row.stage in judged or (regions and judged.issuperset(region_name(row.stage, one) for one in regions)):
            continue
        met = attainment(executions.get((row.stage, row.role), ()), row.slo)
        if met is None or met.share is None or met.share >= row.target_ratio:
            continue
        share = units.beside(units.show_percent, met.share, row.target_ratio)
        target = units.as_written(units.show_percent, row.target_ratio)
        met_text = f"{share} of the requests met the SLO, target {target}"
        yield f"No check judges goodput at {row.stage}: {met_text}."
