"""How it was measured: identity, question, machine and the command that repeats the verdict; and the limits."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from benchgate import units
from benchgate.model.deployment import flatten_json
from benchgate.model.records import TokenSource
from benchgate.model.run import Evidence, Run
from benchgate.model.verdict import Verdict
from benchgate.report import show
from benchgate.report.asked import asked_of
from benchgate.report.levels import limits_told
from benchgate.report.load_end import blocks_asked, load_end_lines
from benchgate.report.load_section import LoadSection
from benchgate.report.sides import Side, Sides
from benchgate.report.stage_rows import executions_of
from benchgate.report.terms import OTHER_POLICY, OWN, Terms
from benchgate.report.unjudged_slo import unjudged_slo
from benchgate.suite.schema import Suite, arms_of_stored, measured_arms
from benchgate.suite.shadow import Compare, Shadow


@dataclass(frozen=True, slots=True)
class FactGroup:
    """Labelled facts under a heading."""

    title: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Command:
    """Something to type, and what it gives."""

    what: str
    line: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything a reader needs to argue about the numbers; `command` and `more` to get them again."""

    groups: tuple[FactGroup, ...]
    command: str
    more: tuple[Command, ...]
    limits: tuple[str, ...]


def provenance(
    evidence: Evidence, sides: Sides, load: LoadSection | None, verdict: Verdict, against: Run | None, terms: Terms
) -> Provenance:
    """Facts of the run (and of the reference run), the machine and both deployments."""
    run = evidence.run
    groups = [FactGroup("This run", tuple(_run_facts(run)))]
    if against is not None:
        groups.append(FactGroup("Reference run", tuple(_run_facts(against))))
    groups.append(FactGroup("What was asked", tuple(_asked(terms.suite(run), evidence, verdict))))
    groups.append(
        FactGroup("Where it was imported" if run.imported else "Where it ran", tuple(flatten_json(run.environment)))
    )
    groups.append(FactGroup("The load generator", tuple(_client_facts(sides))))
    groups += [
        FactGroup("Deployment" if sides.alone else side.role.value.capitalize(), tuple(_deployment_facts(side)))
        for side in sides
    ]
    return Provenance(
        groups=tuple(group for group in groups if group.facts),
        command=reproduce(run, verdict, against, terms),
        more=tuple(_more_commands(run, verdict, against)),
        limits=(*_limits(evidence, load, verdict, against, terms), *_unjudged(sides, load, verdict)),
    )


def reproduce(run: Run, verdict: Verdict, against: Run | None, terms: Terms = OWN) -> str:
    """The command that gives this verdict again from the store."""
    waivers = f" --waivers FILE --as-of {verdict.as_of}" if verdict.as_of is not None else ""
    policy = " --policy SUITE" if terms.policy_replaced(run, verdict) else ""
    if against is None:
        return f"benchgate gate {shlex.quote(run.id)}{policy}{waivers}"
    if policy:
        return f"benchgate gate {shlex.quote(run.id)} --against {shlex.quote(against.id)}{policy}{waivers}"
    return f"benchgate compare {shlex.quote(against.id)} {shlex.quote(run.id)}{waivers}"


def _more_commands(run: Run, verdict: Verdict, against: Run | None) -> Iterator[Command]:
    """This page again, the steps of its first check, and (where a server was asked) the measurement."""
    held = f" --against {shlex.quote(against.id)}" if against is not None else ""
    waivers = f" --waivers FILE --as-of {verdict.as_of}" if verdict.as_of is not None else ""
    yield Command("This page again", f"benchgate report {shlex.quote(run.id)}{held}{waivers} --out report.html")
    checks = (*verdict.failing(), *verdict.checks)
    if checks:
        step = f"benchgate gate {shlex.quote(run.id)}{held}{waivers} --explain {shlex.quote(checks[0].id)}"
        yield Command("The arithmetic of a check, step by step", step)
    if not run.imported:
        suite = "The same measurement, with the suite file whose SHA-256 stands below"
        yield Command(f"{suite}, by benchgate {run.tool_version}", "benchgate run SUITE")


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


def _asked(suite: Suite, evidence: Evidence, verdict: Verdict) -> Iterator[tuple[str, str]]:
    """What the suite says of it; an import sent no request that a time limit would hold for."""
    if suite.load is not None:
        yield from asked_of(suite.load)
        stages = (f"{stage.name}: {stage.requests:,} requests per block and arm" for stage in suite.load.sweep)
        yield "sweep", "; ".join(stages)
        together = "both arms in each, same prompts and schedule, order alternating"
        alone = len(measured_arms(suite)) == 1
        yield "blocks", f"{blocks_asked(suite.load)}, {'of the one deployment' if alone else together}"
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
        yield "fixed texts", f"{suite.divergence.texts}: {places}; texts not kept, only their digests"
    if suite.shadow is not None:
        texts = "kept" if suite.shadow.store_text else "not kept, only their digests"
        yield "shadow", f"{suite.shadow.prompts}: {_shadow_asked(suite.shadow)}; texts {texts}"
        yield from _helpers(suite.shadow)
    if not evidence.run.imported:
        yield "time limits", _time_limits(suite)
    yield "alpha", f"{units.as_written(show.percent(suite.gate.alpha))}, one-sided"


def _time_limits(suite: Suite) -> str:
    limits = suite.limits
    bounds = (
        ("connect", limits.connect_s),
        ("first token", limits.first_token_s),
        ("stall", limits.stall_s),
        ("whole request", limits.total_s),
    )
    return ", ".join(f"{name} {units.as_written(show.duration(bound))}" for name, bound in bounds)


def _client_facts(sides: Sides) -> Iterator[tuple[str, str]]:
    """What it was, and what of it a reader of times must know; its speed stands with the stages."""
    used = [observation.client for side in sides for observation in side.load]
    if not used:
        return
    yield "processes", _range(sorted({use.workers for use in used}))
    told = sorted({_TELLERS.get(use.read_delay_by or "", "nobody") for use in used})
    yield "read delay told by", ", ".join(told)
    starts = [use.start_uncertainty_s for use in used if use.start_uncertainty_s is not None]
    if starts:
        yield "start", f"the workers of a cluster may have begun up to {show.duration(max(starts))} apart"
    again = {side.role: sum(int((o.requests.reconnects > 0).sum()) for o in side.load) for side in sides}
    if any(again.values()):
        counts = ", ".join(f"{role.value} {count:,}" for role, count in again.items())
        yield "requests sent again", f"{counts}: their kept-alive connection had been closed by the server"


_TELLERS = {"kernel": "the kernel, of every answer", "canary": "a canary in the client's own event loop"}


def _range(counts: list[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _deployment_facts(side: Side) -> Iterator[tuple[str, str]]:
    deployment = side.deployment
    yield "name", deployment.name
    yield "model", deployment.model
    yield "engine", deployment.engine
    yield "url", deployment.url or ("embedded" if deployment.engine == "llamacpp" else "practice server")
    yield "fingerprint", deployment.fingerprint
    for name, text in flatten_json(deployment.settings):
        yield f"declared: {name}", text
    for name, text in flatten_json(deployment.facts):
        yield f"server says: {name}", text


def _limits(
    evidence: Evidence, load: LoadSection | None, verdict: Verdict, against: Run | None, terms: Terms
) -> Iterator[str]:
    yield "It speaks of the workload, the tasks and the machine named here, and of nothing else."
    yield f"{limits_told(verdict)}."
    yield "A true harm near half of its margin can be decided either way when little was measured."
    yield "A gain in one check never pays for a loss in another, and nothing here is a score."
    if doubt := terms.reference_doubt():
        yield f"{doubt[0].upper()}{doubt[1:]}."
    if terms.policy_replaced(evidence.run, verdict):
        yield f"{OTHER_POLICY[0].upper()}{OTHER_POLICY[1:]}."
    if verdict.as_of is not None:
        day = f"Waivers were looked at as of {verdict.as_of} (UTC)"
        yield f"{day}: on another day the same evidence may not be let through."
    if len(arms_of_stored(evidence.run.suite)) == 1:
        yield "One deployment was measured, once: nothing is compared with anything but itself."
    if load is None:
        yield "No load was measured: it says nothing of speed, failures or cost."
    elif any(row.summary and set(row.summary.token_sources) - _COUNTED for row in load.rows):
        yield "Some answers came without a token count; their chunks were counted, which are not tokens."
    if not evidence.quality:
        yield "No task was run: it says nothing of the quality of the answers."
    if evidence.shadow is None or against is not None:
        yield "No shadow comparison is shown: it does not say how often answers to real prompts change."
    elif all(item.primary_text is None for item in evidence.shadow.items):
        yield "The texts of shadow answers were not kept, so no example can be shown."


def _unjudged(sides: Sides, load: LoadSection | None, verdict: Verdict) -> Iterator[str]:
    return unjudged_slo(load.rows if load is not None else (), executions_of(sides), verdict)


def _shadow_asked(shadow: Shadow) -> str:
    asked = "to the baseline twice and the candidate once"
    if shadow.secondary_ratio < 1:
        asked = f"to the baseline and the candidate, {show.percent(shadow.secondary_ratio)} to the baseline once more"
    rule = shadow.compare
    told = [f"compared by {rule.by}"] if rule != Compare() else []
    told += [f"without {', '.join(rule.ignore_paths)}"] if rule.ignore_paths else []
    told += [f"numbers within {show.percent(rule.tolerance)}"] if rule.tolerance else []
    told += [] if rule.case else ["upper and lower case alike"]
    return ", ".join([asked, *told])


def _helpers(shadow: Shadow) -> Iterator[tuple[str, str]]:
    """Who else was sent texts."""
    if shadow.similarity is not None:
        yield "similarity", f"{shadow.similarity.model}, the same from a cosine of {shadow.similarity.same_above}"
    if shadow.judge is not None:
        whose = "the suite's own prompt" if shadow.judge.prompt else "benchgate's own prompt"
        yield "judge", f"{shadow.judge.model}, {whose}, asked in both positions"


_COUNTED = {TokenSource.USAGE.value}
