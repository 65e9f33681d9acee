"""What means nothing for a deployment that benchgate starts itself, and what can be done to one during a stage."""

from __future__ import annotations

from collections.abc import Iterator

from benchgate.suite.metric_kinds import COST_METRICS
from benchgate.suite.parts import Parts
from benchgate.suite.schema import DeploymentSpec
from benchgate.suite.stage import Stage
from benchgate.suite.text import Fault, Path

_OF_A_URL = ("model", "revision", "api_key", "headers", "tls", "proxy")


def broken_deployments(parts: Parts) -> Iterator[Fault]:
    """Everything about deployments that does not fit together, beyond their own keys."""
    yield from _ours(parts)
    yield from _replicas(parts)
    yield from _starts(parts)
    yield from _prices(parts)
    yield from _counted(parts)
    for position, stage in zip(parts.stage_at, parts.stages, strict=True):
        if stage is not None:
            yield from _actions(parts, stage, ("load", "sweep", position, "actions"))


def _ours(parts: Parts) -> Iterator[Fault]:
    for name, spec in parts.deployments.items():
        if spec is None or spec.url is not None:
            continue
        kind, engine = ("an embedded deployment", "llamacpp") if spec.embedded else ("a practice server", "vllm")
        if spec.engine != engine:
            what = "the embedded engine is llamacpp" if spec.embedded else "the practice server speaks as vllm"
            yield Fault(("deployments", name, "engine"), f"{what}, not {spec.engine}; remove it")
        for key in _OF_A_URL:
            if getattr(spec, key):
                yield Fault(("deployments", name, key), f"means nothing for {kind}; remove it")


def _replicas(parts: Parts) -> Iterator[Fault]:
    """Of what benchgate starts itself, only a practice server has replicas, and it reports them itself."""
    for name, spec in parts.deployments.items():
        if spec is None or spec.url is not None or spec.ready is None:
            continue
        place = ("deployments", name, "ready")
        if spec.embedded is not None:
            yield Fault(place, "means nothing for an embedded deployment, which is one process; remove it", at_key=True)
            continue
        replicas = spec.sim.replicas if spec.sim is not None else 1
        if replicas == 1:
            yield Fault(
                place, "counts replicas, and this practice server has one; give `sim` some `replicas`", at_key=True
            )
        elif replicas != spec.ready.replicas:
            yield Fault((*place, "replicas"), f"this practice server has {replicas} replicas; write that number")
        if spec.ready.metrics:
            yield Fault(
                (*place, "metrics"), "means nothing for a practice server, which reports them itself; remove it"
            )


def _starts(parts: Parts) -> Iterator[Fault]:
    """Only what benchgate starts itself can be started over and over."""
    for arm, name, spec in _arms(parts):
        if "start" in parts.declared and spec.url is not None:
            message = f'the {arm} "{name}" is not started by benchgate, so how long that takes is not known; remove it'
            yield Fault(("start",), message, at_key=True)
            return


def _prices(parts: Parts) -> Iterator[Fault]:
    """A deployment has one kind of price, and terms of nothing but that."""
    for name, spec in parts.deployments.items():
        if spec is not None and spec.price_terms is not None and spec.price is None:
            remedy = "add it, like price: $4/h (of owned hardware its wear)"
            if parts.awaits_prices:
                remedy = "where a file has the price, write them there, in the same entry of `prices`"
            message = f"are the terms of a `price`, which is missing; {remedy}"
            yield Fault(("deployments", name, "price_terms"), message)
        if spec is not None and spec.token_prices is not None and (spec.price or spec.price_terms) is not None:
            message = "a deployment is paid by the hour or by the token; keep `price` or `token_prices`"
            yield Fault(("deployments", name, "token_prices"), message)
    if not parts.awaits_prices:
        yield from _lacking_prices(parts)


def _counted(parts: Parts) -> Iterator[Fault]:
    """What is divided by accelerators needs their number written: the usual 1 would change nothing in silence."""
    for number, check in enumerate(parts.checks):
        if check is None or check.per is None:
            continue
        for arm, name, spec in _arms(parts):
            if "accelerators" not in spec.model_fields_set and (check.margin is not None or arm == "candidate"):
                message = f'divides by `accelerators`, which the {arm} "{name}" does not say; add it there'
                yield Fault(("gate", "checks", number, "per"), message)
                break


def _lacking_prices(parts: Parts) -> Iterator[Fault]:
    """What the load costs, and what its tokens do, is known only of deployments that have a price."""
    for number, check in enumerate(parts.checks):
        if check is None or check.metric not in COST_METRICS:
            continue
        for arm, name, spec in _arms(parts):
            priced = spec.price is not None or spec.token_prices is not None
            if not priced and (check.margin is not None or arm == "candidate"):
                has = "has no `price`; add it, like price: $4/h, or name a file that has it, like prices: prices.yaml"
                message = f'what its tokens cost is not known: the {arm} "{name}" {has}'
                yield Fault(("gate", "checks", number, "metric"), message)
                break
    if parts.limit is None or parts.limit.cost_usd is None:
        return
    for arm, name, spec in _arms(parts):
        if spec.price is None:
            why = "has no `price`; add it, or remove `cost`"
            if spec.token_prices is not None:
                why = "is paid by the token, and not by the time that the load takes; remove `cost`"
            message = f'what the load costs is not known: the {arm} "{name}" {why}'
            yield Fault(("load", "limit", "cost"), message)
            return


def _actions(parts: Parts, stage: Stage, path: Path) -> Iterator[Fault]:
    """Replicas are those of practice servers; what else is to be done is a command's."""
    for position, action in enumerate(stage.actions or ()):
        if action.run is not None:
            continue
        key, number = ("kill", action.kill) if action.kill is not None else ("start", action.start)
        for arm, name, spec in _arms(parts):
            replicas = spec.sim.replicas if spec.sim is not None else 1
            if number is not None and number >= (replicas if replicas > 1 else 0):
                has = f"the replicas 0 to {replicas - 1}" if replicas > 1 else "no replicas"
                remedy = "name one of them" if replicas > 1 else "give a `sim` some `replicas`, or `run` a command"
                yield Fault((*path, position, key), f'the {arm} "{name}" has {has}; {remedy}')
                break


def _arms(parts: Parts) -> Iterator[tuple[str, str, DeploymentSpec]]:
    for arm, name in (("baseline", parts.baseline), ("candidate", parts.candidate)):
        spec = parts.deployments.get(name) if name is not None else None
        if name is not None and spec is not None:
            yield arm, name, spec
