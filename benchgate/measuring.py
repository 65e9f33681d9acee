"""Drives the shells through the plan: both arms brought up, load in interleaved blocks, evals, the shadow comparison.

Every observation is handed to the run's writer, and is on disk, before the next one is made.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from benchgate.embedded.server import serve
from benchgate.errors import EmbeddedError, TargetError
from benchgate.load.cluster import ClusterFleet
from benchgate.load.fleet import Fleet
from benchgate.load.sizing import workers_for_stage
from benchgate.load.worker import Shard, StageResult, stage_shard
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metrics import succeeded
from benchgate.model.records import ErrorClass
from benchgate.model.run import LoadObservation, TargetFault
from benchgate.plan.schedule import Plan, PlannedStage
from benchgate.quality.harness import evaluate
from benchgate.shadow.mirror import mirror
from benchgate.store.repository import RunWriter
from benchgate.suite.headers import written_out
from benchgate.suite.schema import DeploymentSpec, Load, Suite
from benchgate.targets.address import ServerAddress
from benchgate.targets.deployed import target_of
from benchgate.targets.dialect import Endpoint, Target, dialect_of
from benchgate.targets.probe import still_alive, wait_ready

_THIS_MACHINE = "this machine"
_LOOPBACK = frozenset({"127.0.0.1", "::1", "0.0.0.0", "::"})  # a server on one of them answers on the others


class Progress(Protocol):
    """What a run tells whoever watches it. `steps` is how many `step` calls will follow."""

    def begin(self, phase: str, steps: int) -> None:
        """A phase starts."""

    def step(self, done: str) -> None:
        """One step of the phase is done and stored."""


class _TargetDown(Exception):
    """A deployment stopped answering; measuring on would only record its absence again and again."""

    def __init__(self, fault: TargetFault) -> None:
        super().__init__(fault.reason)
        self.fault = fault


def measure(
    suite: Suite,
    suite_dir: Path,
    plan: Plan,
    writer: RunWriter,
    log_dir: Path,
    weights_dir: Path,
    progress: Progress,
    workers: int | None = None,
    cluster: str | None = None,
) -> bool:
    """Measure all that the plan holds; True when it was all measured, False when a deployment was not there.

    Paths of certificates in the suite are relative to `suite_dir`. `workers` is how many load generator processes this
    machine needs for it, by the curve measured here; None where there is none, and then the usual cost is assumed.
    `cluster` is the address of a dask scheduler, whose workers send the load instead of this machine.
    """
    with ExitStack() as stack:
        try:
            progress.begin("deployments", len(Arm))
            targets = {
                arm: _bring_up(stack, suite, arm, writer, log_dir, weights_dir, suite_dir, progress) for arm in Arm
            }
            _require_two(suite, targets)
            if suite.load is not None:
                with _fleet(suite.load, plan, log_dir / "load", workers, cluster) as fleet:
                    _measure_load(suite, suite.load, plan, targets, writer, progress, fleet)
            _measure_quality(suite, plan, targets, writer, log_dir, progress)
            _measure_shadow(suite, plan, targets, writer, progress)
        except _TargetDown as down:
            writer.add_target_fault(down.fault)
            return False
    return True


def declared(suite: Suite, name: str) -> Deployment:
    """What the suite says of a deployment, as the run remembers it; no secret, not even its reference."""
    spec = suite.deployments[name]
    asked = _declared_of_requests(spec)
    if spec.embedded is not None:
        return Deployment(
            name=name,
            model="benchgate-tiny",
            engine="llamacpp",
            url=None,
            settings={**spec.embedded.model_dump(mode="json"), **asked},
            price_usd_per_hour=spec.price,
            accelerators=spec.accelerators,
        )
    return Deployment(
        name=name,
        model=spec.model or "",
        engine=spec.engine,
        url=spec.url,
        settings=asked,
        price_usd_per_hour=spec.price,
        accelerators=spec.accelerators,
    )


def _declared_of_requests(spec: DeploymentSpec) -> dict[str, object]:
    """How requests to this deployment differ from its engine's usual ones; empty when they do not."""
    said: dict[str, object] = {"extra": spec.extra, "leave_out": list(spec.leave_out)}
    said["headers"] = written_out(spec.headers)
    said["proxy"] = spec.proxy is not None  # that there is one: its address may be a secret
    if spec.max_tokens_field != "max_tokens":
        said["max_tokens_field"] = spec.max_tokens_field
    return {key: value for key, value in said.items() if value}


def _bring_up(
    stack: ExitStack,
    suite: Suite,
    arm: Arm,
    writer: RunWriter,
    log_dir: Path,
    weights_dir: Path,
    suite_dir: Path,
    progress: Progress,
) -> Target:
    """Start the arm if it is ours to start, wait until it answers a real completion, and note what it says it is."""
    name = suite.baseline if arm is Arm.BASELINE else suite.candidate
    spec = suite.deployments[name]
    deployment = declared(suite, name)
    try:
        if spec.embedded is not None:
            server = stack.enter_context(
                serve(spec.embedded, name=f"{arm}-{name}", cache_dir=weights_dir, log_dir=log_dir)
            )
            target = Target(arm, server.url, server.model, dialect_of(spec))
        else:
            target = target_of(arm, spec, os.environ, suite_dir)
        facts = wait_ready(
            target,
            endpoint=_endpoint(suite),
            ready_s=suite.limits.ready_s,
            connect_s=suite.limits.connect_s,
        )
    except (EmbeddedError, TargetError) as fault:
        raise _TargetDown(TargetFault(arm, "at the start", str(fault))) from fault
    writer.set_arm(arm, replace(deployment, facts=facts))
    progress.step(f"{arm} {name} answers")
    return target


def _require_two(suite: Suite, targets: dict[Arm, Target]) -> None:
    """Two names for one server would pass whatever the candidate is; one name for both arms is meant so.

    The suite's rules see two equal addresses as they are written; here references are resolved and hosts looked up.
    """
    baseline, candidate = targets[Arm.BASELINE], targets[Arm.CANDIDATE]
    if suite.baseline != suite.candidate and same_server(baseline, candidate):
        reason = "both arms are served by the same endpoint and model; correct the url or the model of one of them"
        raise _TargetDown(TargetFault(Arm.CANDIDATE, "at the start", reason))


def _fleet(load: Load, plan: Plan, folder: Path, workers: int | None, cluster: str | None) -> Fleet | ClusterFleet:
    if cluster is not None:
        return ClusterFleet(cluster, None if load.workers == "auto" else load.workers)
    return Fleet(workers or _workers(load, plan), folder)


def _workers(load: Load, plan: Plan) -> int:
    """How many load generator processes: as asked for, or what the stage that offers most needs."""
    if load.workers != "auto":
        return load.workers
    return max(workers_for_stage(stage) for stage in plan.blocks[0].stages)


def _measure_load(
    suite: Suite,
    load: Load,
    plan: Plan,
    targets: dict[Arm, Target],
    writer: RunWriter,
    progress: Progress,
    fleet: Fleet | ClusterFleet,
) -> None:
    """Warm both arms up, then every block: each stage on one arm and at once on the other."""
    progress.begin("load", (len(plan.warmup) + sum(len(block.stages) for block in plan.blocks)) * len(Arm))
    for stage in plan.warmup:
        for arm in Arm:
            fleet.run(_asked(suite, load, targets[arm], stage))
            progress.step(f"warm-up {stage.name} on {arm}")
    position = 0
    for block in plan.blocks:
        for stage in block.stages:
            for arm in block.order:
                place = partial(LoadObservation, stage.name, arm, block.number, position)
                result = _sent(fleet, _asked(suite, load, targets[arm], stage), place, writer)
                position += 1
                where = f"block {block.number + 1} of {len(plan.blocks)}, stage {stage.name}"
                progress.step(f"{where} on {arm}")
                if _looks_dead(result):
                    _require_alive(suite, targets[arm], f"after {where}")


def _asked(suite: Suite, load: Load, target: Target, stage: PlannedStage) -> Shard:
    return stage_shard(
        target,
        stage,
        endpoint=load.workload.endpoint,
        ignore_eos=load.workload.ignore_eos,
        limits=suite.limits,
        audit=load.audit,
    )


def _sent(
    fleet: Fleet | ClusterFleet, asked: Shard, place: Callable[..., LoadObservation], writer: RunWriter
) -> StageResult:
    """Run a stage and store it; when that is interrupted, what was answered by then."""
    try:
        result = fleet.run(asked)
    except KeyboardInterrupt:
        cut = fleet.salvage()
        if len(cut.requests):
            writer.add_load(place(cut.requests, cut.window_s, cut.client))
        raise
    writer.add_load(place(result.requests, result.window_s, result.client))
    return result


def _measure_quality(
    suite: Suite, plan: Plan, targets: dict[Arm, Target], writer: RunWriter, log_dir: Path, progress: Progress
) -> None:
    """Every eval task on both arms; the harness runs in processes of its own."""
    if suite.quality is None:
        return
    progress.begin("quality", len(plan.tasks) * len(Arm))
    faulted: set[Arm] = set()
    for observation in evaluate(targets, plan.tasks, suite.quality, log_dir, limits=suite.limits):
        writer.add_quality(observation)
        progress.step(f"{observation.task} on {observation.arm}")
        if observation.fault is not None:
            faulted.add(observation.arm)
    for arm in sorted(faulted):
        _require_alive(suite, targets[arm], "after the evals")


def _measure_shadow(
    suite: Suite, plan: Plan, targets: dict[Arm, Target], writer: RunWriter, progress: Progress
) -> None:
    """Every recorded prompt to the baseline, the baseline again, and the candidate."""
    if suite.shadow is None:
        return
    progress.begin("shadow", len(plan.shadow))
    baseline, candidate = targets[Arm.BASELINE], targets[Arm.CANDIDATE]
    compared = mirror(
        baseline,
        candidate,
        plan.shadow,
        suite.shadow,
        suite.limits,
        on_progress=lambda done: progress.step(f"{done} prompts"),
    )
    faulted = False
    for observation in compared:
        writer.add_shadow(observation)
        faulted = observation.fault is not None
    for target in (baseline, candidate) if faulted else ():
        _require_alive(suite, target, "after the shadow comparison")


def _endpoint(suite: Suite) -> Endpoint:
    """The endpoint to ask whether a target is there: one that the suite will measure."""
    if suite.load is not None:
        return suite.load.workload.endpoint
    return suite.quality.endpoint if suite.quality is not None else "chat"


def _looks_dead(result: StageResult) -> bool:
    """No request came through, or the address refused connections: worth a look before the next stage."""
    refused = any(error == ErrorClass.CONNECT for error in result.requests.error)
    return refused or not succeeded(result.requests).any()


def _require_alive(suite: Suite, target: Target, when: str) -> None:
    reason = still_alive(target, endpoint=_endpoint(suite))
    if reason is not None:
        raise _TargetDown(TargetFault(target.arm, when, reason))


def same_server(one: Target, other: Target) -> bool:
    """Same model, port (or socket) and path, at one host, with the same headers where those are written out.

    Hosts are one when they are spelled alike, or when an address and a name, or two names of this machine, meet in an
    address. Two other names that do may be two servers behind one proxy, which tells them apart by name; a gateway may
    tell by a header.
    """
    ours, theirs = ServerAddress.of(one.url), ServerAddress.of(other.url)
    if (one.model, one.open_headers, ours.prefix) != (other.model, other.open_headers, theirs.prefix):
        return False
    if ours.socket is not None or theirs.socket is not None:
        return _file(ours.socket) == _file(theirs.socket)
    if _port(ours) != _port(theirs):
        return False
    names = ours.host.rstrip("."), theirs.host.rstrip(".")
    if names[0] == names[1]:
        return True
    shared = _addresses(names[0]) & _addresses(names[1])
    return bool(shared) and (_THIS_MACHINE in shared or any(name in shared for name in names))


def _file(path: str | None) -> str | None:
    """A socket's own path, however it is reached."""
    return None if path is None else str(Path(path).resolve())


def _port(address: ServerAddress) -> int:
    return address.port or (443 if address.scheme == "https" else 80)


def _addresses(host: str) -> frozenset[str]:
    """The addresses of a host, those of the loopback interface as one; none when it cannot be looked up."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return frozenset()
    return frozenset(_THIS_MACHINE if address in _LOOPBACK else address for address in found)
