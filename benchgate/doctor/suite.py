"""Checks of a suite before a run: its deployments and error budget, by short requests, and the machine for its plan."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchgate.doctor.machine import State, Symptom
from benchgate.errors import BenchgateError, BudgetError, SuiteError, TargetError, UsageError
from benchgate.gate.guards.text import unexpected_names
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS, Endpoint
from benchgate.pipeline.deployments import endpoints_of
from benchgate.pipeline.environment import utc_now
from benchgate.pipeline.error_budget import read_spent
from benchgate.plan.client_demand import default_workers, search_demands
from benchgate.plan.preview import Preview
from benchgate.quality.logprobs import probe_scoring
from benchgate.quality.tasks.loading import load_tasks
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.quality import Judge, Similarity
from benchgate.suite.schema import Suite, is_sent_by_grpc, traffic_classes
from benchgate.system import lacking, usable_cpus
from benchgate.targets.address import ServerAddress, show_address
from benchgate.targets.dialect import Target, target_of
from benchgate.targets.discovery import STREAMED, WITHIN_S, Fault, Listing, Trial, Trouble, list_models, try_completion
from benchgate.telemetry.engine_metrics import BadPageError, UnreadError, read_page
from benchgate.telemetry.prometheus import PrometheusSource
from benchgate.telemetry.replicas import replica_counter
from benchgate.telemetry.sources import PageSource, sources_of
from benchgate.units import as_written, show_duration, show_percent

CERTIFICATE_DAYS = 14.0
CLOCK_S = 5.0

_DAY_S = 86_400.0
_HERE = ("127.0.0.1", "::1", "localhost")
_UNRESOLVED = "correct the suite, or set the variable that it refers to"
_REMEDIES = {
    Trouble.AWAY: "start it, or correct `url`; behind a proxy set `proxy`; until then a run ends with 12",
    Trouble.TLS: "trust its certificate by `tls: {ca: FILE}`, or send a client certificate by `tls: {cert, key}`",
    Trouble.AUTH: "put a key that it takes into a variable, and name that: `api_key: ${env:NAME}`",
    Trouble.MODEL: "correct `model`, `url` or the endpoint",
    Trouble.REFUSED: "fix the server, or drop the rejected field with `leave_out`",
    Trouble.ODD: "look at the server: what answers there gives no completion",
}


def examine_deployments(
    suite: Suite,
    folder: Path,
    environment: Mapping[str, str],
    *,
    within_s: float = WITHIN_S,
    replica_log: Path | None = None,
) -> Iterator[Symptom]:
    """Yield checks of each deployment of a suite, without showing a key.

    `folder` is the suite's. Deployments that benchgate starts itself are not started. A command that counts replicas is
    run only with a `replica_log` for its output.
    """
    for name in dict.fromkeys((suite.baseline, *(suite.candidates or (suite.candidate,)))):
        arm = Arm.BASELINE if name == suite.baseline else Arm.CANDIDATE
        spec = suite.deployments[name]
        if spec.url is None:
            kind = "the embedded engine" if spec.embedded is not None else "the practice server"
            yield Symptom(name, State.OK, f"{kind}, which a run starts itself")
            continue
        if spec.start is not None:
            yield Symptom(name, State.OK, f"a server that a run starts by {' '.join(spec.start.run)!r}")
            continue
        try:
            target = target_of(arm, spec, environment, folder)
            yield from _deployment_symptoms(suite, name, spec, target, environment, min(within_s, suite.limits.ready_s))
            yield from _replicas(name, spec, target, environment, replica_log)
        except (UsageError, TargetError) as error:
            yield Symptom(name, State.FAIL, str(error), _UNRESOLVED)
    yield from _shadow_helpers(suite, folder, environment, within_s)


def _shadow_helpers(suite: Suite, folder: Path, environment: Mapping[str, str], within_s: float) -> Iterator[Symptom]:
    """Check judge and similarity model of a shadow comparison by one answer each."""
    shadow = suite.shadow
    helpers: tuple[tuple[str, Endpoint, Judge | Similarity | None], ...] = (
        ("judge", "chat", shadow.judge if shadow is not None else None),
        ("similarity", "embeddings", shadow.similarity if shadow is not None else None),
    )
    for name, endpoint, helper in helpers:
        if helper is None:
            continue
        try:
            spec = DeploymentSpec(url=helper.url, model=helper.model, api_key=helper.api_key, headers=helper.headers)
            target = target_of(Arm.CANDIDATE, spec, environment, folder)
            yield _answer(name, show_address(target.url), endpoint, target, Listing(None), within_s)
        except (UsageError, TargetError) as error:
            yield Symptom(name, State.FAIL, str(error), _UNRESOLVED)


def _deployment_symptoms(
    suite: Suite, name: str, spec: DeploymentSpec, target: Target, environment: Mapping[str, str], within_s: float
) -> Iterator[Symptom]:
    where = show_address(target.url)
    listing = list_models(target, within_s=within_s)
    if listing.fault is not None and listing.fault.trouble is not Trouble.AUTH:  # a key may be for completions alone
        yield _faulty(name, where, listing.fault)
        return
    yield from _connection_symptoms(name, spec, target, listing)
    answers = True
    of_quality: tuple[Endpoint, ...] = () if suite.quality is None else (suite.quality.endpoint,)
    for endpoint in dict.fromkeys((*endpoints_of(suite), *of_quality)):
        found = _answer(f"{name} {endpoint}", where, endpoint, target, listing, within_s, spec.answers_as)
        answers = answers and found.state is not State.FAIL
        yield found
    if answers:
        workloads = [traffic.workload for traffic in traffic_classes(suite)]
        endpoints = dict.fromkeys(workload.endpoint for workload in workloads if workload.streams)
        for endpoint in (one for one in endpoints if one in STREAMED):  # those whose streams a run would time
            trial = try_completion(target, endpoint, stream=True, within_s=within_s)
            yield _stream(f"{name} stream", endpoint, trial, where)
        yield from _metrics(name, spec, target, environment)


def _replicas(
    name: str, spec: DeploymentSpec, target: Target, environment: Mapping[str, str], log: Path | None
) -> Iterator[Symptom]:
    """Count the replicas of a deployment now; find nothing where its suite declares no number."""
    counter = replica_counter(spec, target, environment, log or Path(os.devnull))
    if counter is None:
        return
    declared = counter.ready.replicas
    if counter.ready.command is not None and log is None:
        found = f"{declared} are declared, and counted by the command {counter.ready.command!r}, which was not run"
        yield Symptom(f"{name} replicas", State.WARN, found, "read it, and add --allow-actions to let it count them")
        return
    try:
        counted = counter.count()
    except TargetError as error:
        yield Symptom(f"{name} replicas", State.FAIL, str(error), "until then a run ends with 12")
        return
    if counted.count is None:
        remedy = "without a count the load is INVALID; fix the command or page that counts them"
        yield Symptom(f"{name} replicas", State.FAIL, f"not counted: {counted.problem}", remedy)
    elif counted.count != declared:
        remedy = "bring all of them up, or correct `ready.replicas`; a run waits for them (`limits.ready`)"
        yield Symptom(f"{name} replicas", State.FAIL, f"{counted.count} of {declared} replicas", remedy)
    else:
        yield Symptom(f"{name} replicas", State.OK, f"{declared} of {declared} replicas")


def _faulty(name: str, where: str, fault: Fault) -> Symptom:
    return Symptom(name, State.FAIL, f"{where}: {fault.reason}", _REMEDIES[fault.trouble])


def _connection_symptoms(name: str, spec: DeploymentSpec, target: Target, listing: Listing) -> Iterator[Symptom]:
    """Check engine, certificate, unencrypted keys, and the server's clock."""
    if listing.engine not in ("openai", spec.engine):
        found = f"it answers as {listing.engine} does, not as {spec.engine}, which the suite names"
        remedy = f"set `engine: {listing.engine}`: each engine has its own request fields"
        yield Symptom(f"{name} engine", State.WARN, found, remedy)
    address = ServerAddress.of(target.url)
    if listing.certificate_ends_s is not None:
        day = datetime.fromtimestamp(listing.certificate_ends_s, UTC).date()
        left_days = (listing.certificate_ends_s - time.time()) / _DAY_S
        found = f"the certificate of {address.shown} is good until {day}"
        short = left_days < CERTIFICATE_DAYS
        renew = "renew it: from then on nothing is measured" if short else None
        yield Symptom(f"{name} tls", State.WARN if short else State.OK, found, renew)
    elif address.scheme == "http" and target.credentials() and address.host not in _HERE:
        remedy = "use https, or a private network"
        yield Symptom(f"{name} tls", State.WARN, f"{address.shown} gets its key over http, unencrypted", remedy)
    ahead_s = listing.clock_ahead_s
    if ahead_s is not None:
        off = abs(ahead_s) > CLOCK_S
        offset = f"{show_duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} ours"
        found = f"its clock is {offset}" if off else f"its clock agrees with ours to {CLOCK_S:g} s"
        set_both = "set both by NTP: its logs and our times would not fit together" if off else None
        yield Symptom(f"{name} clock", State.WARN if off else State.OK, found, set_both)


def _answer(
    name: str,
    where: str,
    endpoint: Endpoint,
    target: Target,
    listing: Listing,
    within_s: float,
    declared: Sequence[str] = (),
) -> Symptom:
    """Ask for one whole answer at an endpoint that the suite measures; `declared` are names its model may go by."""
    trial = try_completion(target, endpoint, stream=False, within_s=within_s)
    if trial.fault is not None:
        reason = trial.fault.reason
        if trial.fault.trouble is Trouble.MODEL and listing.models and target.model not in listing.models:
            reason += target.redact(f"; it serves {', '.join(listing.models[:8])}")
        return _faulty(name, where, Fault(trial.fault.trouble, reason))
    if endpoint in STREAMED and trial.finish_reason is None:
        remedy = "a request without one counts as failed; fix the server, or use another endpoint"
        return Symptom(name, State.FAIL, "answers without a finish reason of a whole answer", remedy)
    found = f"answers in {show_duration(trial.whole_s or 0.0)}"
    if ENDPOINTS[endpoint].generates and trial.output_tokens is None:
        return Symptom(name, State.WARN, f"{found}, without `usage`", "its tokens are unknown: make it report `usage`")
    other = [] if trial.model is None else unexpected_names([trial.model], target.model, declared)
    if other:
        remedy = f"if that is the right model under another name, write `answers_as: [{json.dumps(other[0])}]`"
        return Symptom(name, State.WARN, f"{found}, as {other[0]} instead of {target.model}", remedy)
    return Symptom(name, State.OK, found)


def _stream(name: str, endpoint: Endpoint, trial: Trial, where: str) -> Symptom:
    if trial.fault is not None:
        return _faulty(name, where, trial.fault)
    if trial.finish_reason is None:
        remedy = "a request without one counts as failed; a gateway may cut what the server sends last"
        return Symptom(name, State.FAIL, f"its {endpoint} stream ends without a finish reason", remedy)
    found = f"{trial.events} events, the first after {show_duration(trial.first_s or 0.0)}"
    if trial.output_tokens is None:
        remedy = "only chunks can be counted, not tokens: make it support `stream_options`"
        return Symptom(name, State.WARN, f"{found}, without `usage`", remedy)
    if trial.events < 2 <= trial.output_tokens:
        remedy = "a proxy buffers the stream: TTFT and TPOT are not the server's then"
        return Symptom(name, State.WARN, f"{trial.output_tokens} tokens came in one piece", remedy)
    return Symptom(name, State.OK, found)


_NO_METRICS = "set its address (`metrics: ADDRESS`), or `metrics: off`; without it no check of telemetry can be judged"


def _metrics(name: str, spec: DeploymentSpec, target: Target, environment: Mapping[str, str]) -> Iterator[Symptom]:
    """Check every page of the server's own metrics, and the series in a Prometheus."""
    sources = sources_of(spec, target, environment)
    names = [f"{name} metrics {replica.name}" for replica in sources.replicas] or [f"{name} metrics"]
    for title, address in zip(names, sources.addresses, strict=False):
        try:
            with PageSource(address, target) as source:
                fetched = source.fetch()
            page = read_page(fetched.text, target.model, fetched.start_time)
        except (UnreadError, BadPageError) as error:
            yield Symptom(title, State.WARN, str(error), _NO_METRICS)
            continue
        yield Symptom(title, State.OK, f"a page of {page.engine} with {len(page.values)} values that are read")
    if sources.prometheus is not None:
        try:
            with PrometheusSource(sources.prometheus) as prometheus:
                samples, age_s, _ = prometheus.fetch().read()
            count, label = len(sources.prometheus.replicas(samples)), sources.prometheus.label_of(samples)
        except (UnreadError, BadPageError) as error:
            yield Symptom(f"{name} metrics", State.WARN, str(error), "correct `prometheus` or `selector`")
            return
        found = f"series of {count} replicas by the label `{label}`, scraped {show_duration(max(age_s, 0.0))} ago"
        yield Symptom(f"{name} metrics", State.OK, found)


_OTHER_FILES = 256  # open beside the streams: libraries, the store, pipes of other processes


def examine_plan(suite: Suite, found: Preview) -> Iterator[Symptom]:
    """Yield what this machine lacks for a plan. Contacts no server."""
    # The load against the client's profile; `examine` reports a missing profile.
    remedy = "lower the load, add `workers`, or send from several machines (`--cluster`)"
    for line in found.problems:
        yield Symptom("offered load", State.FAIL, line, remedy)
    for line in found.unknowns:
        yield Symptom("offered load", State.WARN, line, "measure further: `benchgate doctor --client`")
    if found.stages and found.client_measured_at is not None and not found.problems and not found.unknowns:
        yield Symptom("offered load", State.OK, "within what the load generator delivers here")
    yield _files_for_streams(suite, found)
    has_embedded = any(spec.embedded is not None for spec in suite.deployments.values())
    for is_needed, feature, module, extra in (
        (suite.quality is not None, "`quality`", "lm_eval", "eval"),
        (has_embedded, "embedded deployments", "xllamacpp", "demo"),
        (is_sent_by_grpc(suite), "`grpc-infer`", "grpc", "grpc"),
    ):
        if is_needed and importlib.util.find_spec(module) is not None:
            yield Symptom(extra, State.OK, f"{module} is installed")
        elif is_needed:
            remedy = lacking(f"needed for {feature}", extra)
            yield Symptom(extra, State.FAIL, f"{module} is not installed", remedy)
    if found.to_fetch:
        listed = ", ".join(found.to_fetch)
        offline = [os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")]
        if any(value in ("1", "TRUE", "YES", "ON") for value in offline):
            missing = f"not on this machine, which is set to offline mode: {listed}"
            remedy = "fetch them where the hub can be reached, or unset HF_HUB_OFFLINE and HF_DATASETS_OFFLINE"
            yield Symptom("data sets", State.FAIL, missing, remedy)
        else:
            remedy = "a run fetches them before it asks any server; `benchgate plan` names what is missing"
            yield Symptom("data sets", State.WARN, f"not on this machine yet: {listed}", remedy)
    for line in found.refused:
        yield Symptom("checks", State.FAIL, line, "`benchgate plan` shows how much each check needs")


def _files_for_streams(suite: Suite, found: Preview) -> Symptom:
    """Check the limit of open files of each worker: one for every request in flight, unknown for an open loop."""
    stages = suite.load.sweep if suite.load is not None else ()
    if suite.load is not None and suite.load.workers != "auto":
        workers = suite.load.workers
    else:
        least = max((stage.workers or 1 for stage in found.stages), default=1)
        workers = min(least, default_workers(usable_cpus()))
    flights = [
        stage.concurrency or sum(one.concurrency or 0 for one in (stage.classes or {}).values()) for stage in stages
    ]
    flights += [demand.concurrency or 0 for demand in search_demands(suite)]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = math.ceil(max(flights, default=0) / workers) + _OTHER_FILES
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return Symptom("files for streams", State.OK, f"{needed:,} are enough for the closed loops")
    remedy = f"raise the hard limit (`ulimit -Hn`, or `nofile` in limits.conf) to {needed:,} or more, or add `workers`"
    each = " in each worker" if workers > 1 else ""
    return Symptom("files for streams", State.FAIL, f"at most {hard:,}, and the suite needs {needed:,}{each}", remedy)


def examine_scoring(suite: Suite, folder: Path, environment: Mapping[str, str]) -> Iterator[Symptom]:
    """Check that the deployments can score given texts, if a task of the suite needs it."""
    names = suite.arm_names
    if suite.quality is None or any(suite.deployments[name].is_started for name in names.values()):
        return
    try:
        tasks = load_tasks(folder, suite.quality, fetch=False)
        targets = {arm: target_of(arm, suite.deployments[name], environment, folder) for arm, name in names.items()}
        faults = probe_scoring(targets, tasks, suite.limits)
    except BenchgateError as error:
        yield Symptom("log-probs", State.FAIL, str(error), "correct the suite; until then a run ends without a verdict")
        return
    for arm, fault in faults.items():
        yield Symptom(f"{names[arm]} log-probs", State.FAIL, fault, "use another endpoint, engine or kind of task")
    if not faults and any(task.output_type != "generate_until" for task in tasks):
        yield Symptom("log-probs", State.OK, "both score given texts")


def examine_budget(suite: Suite, folder: Path, environment: Mapping[str, str]) -> Symptom:
    """Read the spent error budget as a run would, once: a Prometheus must answer with one number. Keeps nothing."""
    name, budget = "error budget", suite.error_budget
    try:
        spent = read_spent(suite, folder, environment, utc_now())
    except BudgetError as error:
        remedy = "correct `error_budget.spent.prometheus`, or what its query asks; until then `run` ends with 12"
        return Symptom(name, State.FAIL, str(error), remedy)
    except (SuiteError, UsageError) as error:
        remedy = "correct `error_budget.spent`, or what it names; until then `run` ends with 2"
        return Symptom(name, State.FAIL, str(error), remedy)
    if spent is None or budget is None:
        return Symptom(name, State.OK, f"{suite.suite} has none")
    found = f"{as_written(show_percent, spent.spent_ratio)} of the {budget.shown} is spent, by {spent.source}"
    if not spent.blown:
        return Symptom(name, State.OK, found)
    effect = "every candidate warns" if budget.when_blown == "warn" else "nothing but a clean PASS is promoted"
    return Symptom(name, State.WARN, found, f"it is blown: {effect} until it has recovered")
