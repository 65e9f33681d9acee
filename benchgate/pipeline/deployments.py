"""Deployments of a run: start those that benchgate serves, wait for the others, and record what each reports."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchgate import child_process
from benchgate.embedded.server import MODEL_ALIAS, serve
from benchgate.embedded.weights import weights_file
from benchgate.errors import EmbeddedError, Problem, SuiteError, TargetError, UsageError
from benchgate.model.deployment import Arm, Deployment, flatten_json
from benchgate.model.request import Endpoint
from benchgate.model.run import CHANGED, NOT_ALL_READY, ONE_SERVER, REPLICAS, DeploymentFault, ReplicaCount, ServerStart
from benchgate.pipeline.progress import Phase, Progress
from benchgate.pipeline.server_commands import Commands, commanded_server
from benchgate.pipeline.work import Work
from benchgate.plan.preview import longest_request
from benchgate.plan.schedule import Plan
from benchgate.quality.logprobs import probe_scoring
from benchgate.sim.process import start_sim
from benchgate.store.repository import RunWriter
from benchgate.suite.address import written_out
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.schema import Suite, measured_arms, traffic_classes
from benchgate.targets.address import ServerAddress, show_address
from benchgate.targets.dialect import Target, dialect_of, target_of
from benchgate.targets.probe import liveness_problem, server_facts, wait_ready
from benchgate.targets.server_lock import locked_servers
from benchgate.telemetry.replicas import Counted, ReplicaCounter, replica_counter
from benchgate.telemetry.sources import accelerator_facts, process_marker, sources_of
from benchgate.units import show_duration

_NOTE_EVERY_S = 0.5
_COUNT_AGAIN_S = 0.25

_THIS_MACHINE = "this machine"
_LOOPBACK = frozenset({"127.0.0.1", "::1", "0.0.0.0", "::"})  # a server on one of them answers on the others


class TargetDown(Exception):
    """A deployment does not answer, so nothing more can be measured. `faults` also has others that are down."""

    def __init__(self, fault: DeploymentFault, *others: DeploymentFault) -> None:
        super().__init__(fault.reason)
        self.faults = (fault, *others)


class Replicas:
    """Counts the replicas of each deployment that declares their number, throughout a run.

    `log` takes the output of commands that count; `waiting` is called with a line while some are missing.
    """

    def __init__(self, log: Path, waiting: Callable[[str], None]) -> None:
        self._log = log
        self._waiting = waiting
        self._counters: dict[Arm, ReplicaCounter] = {}

    def add(self, spec: DeploymentSpec, target: Target) -> None:
        """Count this deployment too, where it declares `ready`. Raises UsageError for a reference that is not set."""
        counter = replica_counter(spec, target, os.environ, self._log)
        if counter is not None:
            self._counters[target.arm] = counter

    def await_all(self, arm: Arm, ready_s: float) -> Counted:
        """Count until the declared number is reached, for at most `ready_s`; return the last count.

        Raises TargetError if they cannot be counted.
        """
        if (counter := self._counters.get(arm)) is None:
            return Counted(None)
        expected, before = counter.ready.replicas, None
        began_s = last_s = time.monotonic()
        while True:
            counted = counter.count()
            now_s = time.monotonic()
            if counted.count == expected or now_s + _COUNT_AGAIN_S >= began_s + ready_s:
                return counted
            if counted != before or now_s - last_s >= _NOTE_EVERY_S:
                before, last_s = counted, now_s
                shown = ReplicaCount(arm, "", None, counted.count, expected, counted.problem).shown
                self._waiting(f"the {arm} has {shown} after {now_s - began_s:.0f} s of {ready_s:g}")
            time.sleep(_COUNT_AGAIN_S)

    def require_all(self, arm: Arm, ready_s: float) -> None:
        """Wait for the declared number. Raises TargetError with the count if it is not reached in time."""
        counted, counter = self.await_all(arm, ready_s), self._counters.get(arm)
        if counter is None or counted.count == (expected := counter.ready.replicas):
            return
        found = "an unknown number" if counted.count is None else str(counted.count)
        why = f" ({counted.problem})" if counted.problem is not None else ""
        raise TargetError(f"{found} of {expected} {NOT_ALL_READY} after {ready_s:g} s{why}")

    def record(self, writer: RunWriter, when: str, *, block: int | None = None, only: Arm | None = None) -> None:
        """Count every deployment once, or `only` that of one arm, and write each count into the run's journal."""
        for arm, counter in self._counters.items():
            if only in (None, arm):
                counted = counter.count()
                one = ReplicaCount(arm, when, block, counted.count, counter.ready.replicas, counted.problem)
                writer.event(REPLICAS, one.document())


def declared_deployment(suite: Suite, name: str) -> Deployment:
    """Return a deployment as the suite declares it, in the form kept with a run; no secret, not even its reference."""
    spec = suite.deployments[name]
    # The settings by which requests to this deployment differ from its engine's usual ones.
    requests = {
        "extra": spec.extra,
        "leave_out": list(spec.leave_out),
        "headers": written_out(spec.headers),
        "proxy": spec.proxy is not None,  # its address may be a secret
        "max_tokens_field": None if spec.max_tokens_field == "max_tokens" else spec.max_tokens_field,
    }
    settings: dict[str, object] = {key: value for key, value in requests.items() if value}
    if spec.start is not None:
        settings["start"] = list(spec.start.run)
    if spec.revision is not None:
        settings["revision"] = spec.revision
    model = spec.model or ""
    if spec.embedded is not None:
        model, settings = MODEL_ALIAS, spec.embedded.model_dump(mode="json") | settings
    elif spec.sim is not None:
        model, settings = spec.sim.model, spec.sim.identity() | settings
    return Deployment(
        name=name,
        model=model,
        engine=spec.engine,
        url=spec.url,
        settings=settings,
        price_usd_per_hour=spec.usd_per_hour,
        accelerators=spec.accelerators,
        token_prices={} if spec.token_prices is None else spec.token_prices.to_stored(),
        price_terms={} if spec.price is None or spec.price_terms is None else spec.price_terms.to_stored(spec.price),
        price_entry=spec.price_entry,
    )


def require_context_fits(suite: Suite, plan: Plan, arm: Arm, facts: Mapping[str, object]) -> None:
    """Raise SuiteError if the longest request exceeds the context that an arm reports."""
    name = "max_model_len" if "max_model_len" in facts else "n_ctx"
    context = facts.get(name)
    if suite.load is None or not isinstance(context, int):
        return
    longest = longest_request(suite.load, plan)
    if longest is None or longest.tokens <= context:
        return
    tokens = f"at least {longest.input_tokens:,} tokens in and {longest.output_tokens:,} out"
    message = (
        f"request {longest.index} of {longest.level} asks for {tokens}, and the context of the {arm} holds {context:,} "
        f"(its {name}); shorten it, or take its row out of the file"
    )
    raise SuiteError([Problem("", None, None, "load", message)])


@dataclass(frozen=True, slots=True)
class Deployed:
    """Deployments that answer, with what those that benchgate did not start reported: their facts and processes."""

    targets: dict[Arm, Target]
    facts: Mapping[Arm, Mapping[str, object]]
    processes: Mapping[Arm, str | None]
    replicas: Replicas


@contextmanager
def exclusive_servers(
    suite: Suite, suite_dir: Path, progress: Progress, *, wait: bool
) -> Iterator[Callable[[str], None]]:
    """Keep other runs from measuring the suite's servers during the block. Yields a function that names this run.

    Servers that another run measures are waited for with `wait`, and otherwise raise UsageError.
    """
    targets = [
        target_of(arm, spec, os.environ, suite_dir)
        for arm in measured_arms(suite)
        if (spec := suite.deployments[suite.arm_names[arm]]).url is not None
    ]
    with locked_servers(targets, progress.status if wait else None) as name_holder:
        yield name_holder


@contextmanager
def deployed(work: Work, keep: Callable[[Arm, Deployment], None]) -> Iterator[Deployed]:
    """Bring all deployments up for the length of the block, and pass what each reports about itself to `keep`.

    Raises TargetDown for a deployment that is not there, or that cannot compute log-probabilities that a task needs.
    """
    suite, arms = work.suite, measured_arms(work.suite)
    replicas = Replicas(work.log_dir / "replicas.log", work.progress.status)
    targets: dict[Arm, Target] = {}
    with ExitStack() as stack:
        work.progress.begin(Phase("deployments", len(arms)))
        for arm in arms:
            try:
                targets[arm] = _bring_up(stack, work, arm, keep, replicas)
            except TargetDown as down:
                left = [other for other in arms if other is not arm and other not in targets]
                raise TargetDown(*down.faults, *_others_down(work, left)) from down
        # The suite's rules compare addresses as written; here references are resolved and hosts looked up. One name
        # for both arms is intended.
        if suite.baseline != suite.candidate and same_server(targets[Arm.BASELINE], targets[Arm.CANDIDATE]):
            reason = f"{ONE_SERVER}; correct the url or the model of one of them"
            raise TargetDown(DeploymentFault(Arm.CANDIDATE, "at the start", reason))
        facts = reported_facts(suite, targets)
        for arm, fault in probe_scoring(targets, work.plan.tasks, suite.limits).items():
            raise TargetDown(DeploymentFault(arm, "at the start", fault))
        processes: dict[Arm, str | None] = {}
        for arm, target in targets.items():
            spec = suite.deployments[suite.arm_names[arm]]
            if not spec.is_started:
                processes[arm] = process_marker(sources_of(spec, target, os.environ), target)
        yield Deployed(targets, facts, processes, replicas)


def _bring_up(
    stack: ExitStack, work: Work, arm: Arm, keep: Callable[[Arm, Deployment], None], replicas: Replicas
) -> Target:
    """Start the arm if it is ours to start, wait until it answers a real completion, and `keep` what it reports."""
    suite, name = work.suite, work.suite.arm_names[arm]
    spec, limits = suite.deployments[name], suite.limits
    # Every endpoint is probed with each adapter used there, those of the model itself first.
    probes: list[tuple[Endpoint, str | None]] = [(endpoint, None) for endpoint in endpoints_of(suite)]
    if suite.load is not None:
        workloads = [traffic.workload for traffic in traffic_classes(suite)]
        used = {(workload.endpoint, adapter) for workload in workloads for adapter in workload.adapters or (None,)}
        probes = sorted(used, key=lambda probe: (probe[1] is not None, probe[0], probe[1] or ""))
    facts: dict[str, object] = {}
    try:
        if spec.is_started:
            work.progress.status(f"the {arm} {name} is starting")
            _prepare_start(work, arm, spec)
            target = stack.enter_context(_served(work, arm, f"{arm}-{name}", spec))
        else:
            target = target_of(arm, spec, os.environ, work.suite_dir)
        for endpoint, adapter in probes:
            reported = wait_ready(
                target if adapter is None else target.with_adapter(adapter),
                endpoint=endpoint,
                ready_s=limits.ready_s,
                connect_s=limits.connect_s,
                may_start=spec.is_started or spec.ready is not None or "ready_s" in limits.model_fields_set,
                waiting=work.progress.status,
            )
            facts = facts or (reported if adapter is None else {})
        facts = facts or server_facts(target)  # no workload is of the model itself
        replicas.add(spec, target)
        replicas.require_all(arm, limits.ready_s)
    except (EmbeddedError, TargetError) as fault:
        raise TargetDown(DeploymentFault(arm, "at the start", str(fault))) from fault
    require_context_fits(suite, work.plan, arm, facts)
    facts |= accelerator_facts(sources_of(spec, target, os.environ), target)
    found = replace(declared_deployment(suite, name), facts=facts)
    for side in Arm if len(measured_arms(suite)) == 1 else (arm,):  # measured once, one deployment is both arms
        keep(side, found)
    work.progress.step(f"{arm} {name} answers")
    return target


def _others_down(work: Work, arms: Sequence[Arm]) -> Iterator[DeploymentFault]:
    """Probe each of the other servers once, so that all that are down are reported together."""
    for arm in arms:
        spec = work.suite.deployments[work.suite.arm_names[arm]]
        if spec.is_started:
            continue
        try:
            target = target_of(arm, spec, os.environ, work.suite_dir)
            reason = liveness_problem(target, endpoint=endpoints_of(work.suite)[0])
        except TargetError as fault:
            reason = str(fault)
        if reason is not None:
            yield DeploymentFault(arm, "at the start", reason)


def _prepare_start(work: Work, arm: Arm, spec: DeploymentSpec) -> None:
    """Do what comes before a start and is none of its time: make weights, await the end of the server before.

    Raises EmbeddedError, and TargetError for a server that goes on answering.
    """
    if spec.embedded is not None:
        weights_file(spec.embedded.weights, spec.embedded.extra_layers, work.weights_dir)
    if spec.start is None:
        return
    target = target_of(arm, spec, os.environ, work.suite_dir)
    where = f"the {arm} at {show_address(target.url)}"
    deadline_s = time.monotonic() + spec.start.stop_s
    while liveness_problem(target, endpoint=endpoints_of(work.suite)[0]) is None:
        if time.monotonic() >= deadline_s:
            raise TargetError(
                f"{where} answers before `start.run` was begun; stop that server, or correct `start.stop`"
            )
        work.progress.status(f"{where} still answers before its start")
        time.sleep(_COUNT_AGAIN_S)


@contextmanager
def _served(work: Work, arm: Arm, name: str, spec: DeploymentSpec) -> Iterator[Target]:
    """Serve a deployment that benchgate starts, and has prepared, during the block. Raises EmbeddedError, TargetError.

    One that commands start has completed a request when the block begins, as an embedded one has.
    """
    if spec.embedded is not None:
        with serve(spec.embedded, name=name, cache_dir=work.weights_dir, log_dir=work.log_dir) as server:
            yield Target(arm, server.url, server.model, dialect_of(spec))
        return
    if spec.start is not None:
        with _commanded(work, arm, name, spec) as target:
            yield target
        return
    assert spec.sim is not None, "a deployment without an address is one of the two: the suite was validated"
    try:
        sim = start_sim(spec.sim)
    except UsageError as fault:
        raise TargetError(f"the deployment {name!r} did not start: {fault}") from fault
    try:
        yield Target(arm, sim.url, spec.sim.model, dialect_of(spec), grpc=sim.grpc)
    finally:
        child_process.stop(sim.process)


@contextmanager
def _commanded(work: Work, arm: Arm, name: str, spec: DeploymentSpec) -> Iterator[Target]:
    """Start a server by the suite's commands, and stop it after the block. Raises TargetError."""
    assert spec.start is not None
    limits, endpoint = work.suite.limits, endpoints_of(work.suite)[0]
    target = target_of(arm, spec, os.environ, work.suite_dir)
    commands = Commands(spec.start.run, spec.start.stop, spec.start.stop_s)
    with commanded_server(commands, arm, work.log_dir / f"{name}.log") as server:

        def waiting(line: str) -> None:
            server.require_running()
            work.progress.status(line)

        wait_ready(target, endpoint=endpoint, ready_s=limits.ready_s, connect_s=limits.connect_s, waiting=waiting)
        server.require_running()
        yield target


def measure_starts(work: Work, writer: RunWriter) -> None:
    """Start every arm's server repeatedly, the arms in turn, and store the time to a successful completion.

    Begins with the first start that no earlier session completed. Weights are made, and the server before has ended,
    when the clock starts; the page cache of the last start stays. Raises TargetDown.
    """
    suite, limits, arms = work.suite, work.suite.limits, measured_arms(work.suite)
    first, times = work.completed.starts, suite.start.times if suite.start is not None else 0
    work.progress.begin(Phase("starts", (times - first) * len(arms)))
    for number in range(first, times):
        for arm in arms if number % 2 == 0 else tuple(reversed(arms)):
            name = suite.arm_names[arm]
            spec = suite.deployments[name]
            try:
                _prepare_start(work, arm, spec)
                began_s = time.monotonic()
                with _served(work, arm, f"{arm}-{name}-start-{number + 1}", spec) as target:
                    if spec.sim is not None:  # the others have completed a request already
                        wait_ready(target, endpoint="completions", ready_s=limits.ready_s, connect_s=limits.connect_s)
                    took_s = time.monotonic() - began_s
            except (EmbeddedError, TargetError) as fault:
                raise TargetDown(DeploymentFault(arm, "at the start", str(fault))) from fault
            writer.add(ServerStart(arm, number, took_s))
            work.progress.step(f"{arm} {name} start {number + 1} of {times}: {show_duration(took_s)}")


def endpoints_of(suite: Suite) -> tuple[Endpoint, ...]:
    """Return the endpoints for health checks, at least one: those that the suite will measure."""
    if suite.load is not None:
        return tuple(dict.fromkeys(traffic.workload.endpoint for traffic in traffic_classes(suite)))
    if suite.quality is None and suite.shadow is None and suite.divergence is not None:
        return ("completions",)
    return (suite.quality.endpoint,) if suite.quality is not None else ("chat",)


def require_alive(suite: Suite, target: Target, when: str) -> None:
    """Raise TargetDown if the target does not answer any more."""
    reason = liveness_problem(target, endpoint=endpoints_of(suite)[0])
    if reason is not None:
        raise TargetDown(DeploymentFault(target.arm, when, reason))


def reported_facts(suite: Suite, targets: Mapping[Arm, Target]) -> dict[Arm, dict[str, object]]:
    """Return what each deployment reports about itself now; those that benchgate started cannot change."""
    return {
        arm: server_facts(target)
        for arm, target in targets.items()
        if suite.deployments[suite.arm_names[arm]].url is not None
    }


def require_same_servers(
    suite: Suite, targets: Mapping[Arm, Target], at_start: Mapping[Arm, Mapping[str, object]]
) -> None:
    """Raise TargetDown if a deployment reports other facts than at the start.

    A fact that it no longer reports counts as the same: a busy server may not answer.
    """
    for arm, now in reported_facts(suite, targets).items():
        if changed := changed_facts(at_start[arm], now):
            reason = f"{CHANGED}: {'; '.join(changed)}"
            raise TargetDown(DeploymentFault(arm, "after the last measurement", reason))


def changed_facts(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Describe each reported fact that has another value now, like `version was 1 and is 2`."""
    was, now_is = dict(flatten_json(before)), dict(flatten_json(now))
    changed = [name for name, value in was.items() if now_is.get(name, value) != value]
    return [f"{name} was {was[name]} and is {now_is[name]}" for name in changed]


def facts_only_in(one: Mapping[str, object], other: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the names and values of the facts in `one` that are not in `other`."""
    names = dict(flatten_json(other)).keys()
    return [(name, value) for name, value in flatten_json(one) if name not in names]


def same_server(one: Target, other: Target) -> bool:
    """Return True for the same model, port (or socket), path and literal headers at one host.

    Hosts are the same if spelled alike, or if an address and a name, or two names of this machine, share an address.
    Two other names that share one may be two servers behind a proxy, which tells them apart by name.
    """
    ours, theirs = ServerAddress.of(one.url), ServerAddress.of(other.url)
    if (one.model, one.open_headers, one.grpc, ours.prefix) != (
        other.model,
        other.open_headers,
        other.grpc,
        theirs.prefix,
    ):
        return False
    if ours.socket is not None or theirs.socket is not None:
        files = [None if one.socket is None else Path(one.socket).resolve() for one in (ours, theirs)]
        return files[0] == files[1]
    if ours.tcp_port != theirs.tcp_port:
        return False
    names = ours.host.rstrip("."), theirs.host.rstrip(".")
    if names[0] == names[1]:
        return True
    shared = _addresses(names[0]) & _addresses(names[1])
    return bool(shared) and (_THIS_MACHINE in shared or any(name in shared for name in names))


def _addresses(host: str) -> frozenset[str]:
    """Return the addresses of a host, all loopback ones as one; none if the lookup fails."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return frozenset()
    return frozenset(_THIS_MACHINE if address in _LOOPBACK else address for address in found)
