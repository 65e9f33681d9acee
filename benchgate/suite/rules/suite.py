"""What means nothing for a deployment that benchgate starts itself, and what can be done to one during a stage.

What the shadow comparison must be to the rest of a suite, and a suite that is nothing else.

What an `error_budget` must be to the load whose failures it is held against.

What the sections of a suite must be to each other. Each rule reads the sound parts and yields what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchgate.errors import Problem, UsageError
from benchgate.model.metric import COST_METRICS, METRICS
from benchgate.suite.connection import written_out
from benchgate.suite.error_budget import (
    BURN_ALARM,
    ErrorBudget,
    fewest_requests,
    show_objective,
    stage_of,
)
from benchgate.suite.messages import suggestion
from benchgate.suite.rules.checks import all_places, broken_checks, own_slo, place_names
from benchgate.suite.rules.load import broken_capacity, broken_workloads
from benchgate.suite.rules.parts import MEASUREMENTS, Parts, parts_of, task_stem
from benchgate.suite.schema import DeploymentSpec, Suite
from benchgate.suite.stages import NamedPlace, Stage, places_of
from benchgate.suite.yaml import Fault, Path, show_path

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
    for arm, name, spec in _deployed_arms(parts):
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
        for arm, name, spec in _deployed_arms(parts):
            if "accelerators" not in spec.model_fields_set and (check.margin is not None or arm == "candidate"):
                message = f'divides by `accelerators`, which the {arm} "{name}" does not say; add it there'
                yield Fault(("gate", "checks", number, "per"), message)
                break


def _lacking_prices(parts: Parts) -> Iterator[Fault]:
    """What the load costs, and what its tokens do, is known only of deployments that have a price."""
    for number, check in enumerate(parts.checks):
        if check is None or check.metric not in COST_METRICS:
            continue
        for arm, name, spec in _deployed_arms(parts):
            priced = spec.price is not None or spec.token_prices is not None
            if not priced and (check.margin is not None or arm == "candidate"):
                has = "has no `price`; add it, like price: $4/h, or name a file that has it, like prices: prices.yaml"
                message = f'what its tokens cost is not known: the {arm} "{name}" {has}'
                yield Fault(("gate", "checks", number, "metric"), message)
                break
    if parts.limit is None or parts.limit.cost_usd is None:
        return
    for arm, name, spec in _deployed_arms(parts):
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
        for arm, name, spec in _deployed_arms(parts):
            replicas = spec.sim.replicas if spec.sim is not None else 1
            if number is not None and number >= (replicas if replicas > 1 else 0):
                has = f"the replicas 0 to {replicas - 1}" if replicas > 1 else "no replicas"
                remedy = "name one of them" if replicas > 1 else "give a `sim` some `replicas`, or `run` a command"
                yield Fault((*path, position, key), f'the {arm} "{name}" has {has}; {remedy}')
                break


def _deployed_arms(parts: Parts) -> Iterator[tuple[str, str, DeploymentSpec]]:
    for arm, name in (("baseline", parts.baseline), ("candidate", parts.candidate)):
        spec = parts.deployments.get(name) if name is not None else None
        if name is not None and spec is not None:
            yield arm, name, spec


def broken_shadow(parts: Parts) -> Iterator[Fault]:
    """Everything in which a sound `shadow` does not fit the checks and the deployments."""
    shadow = parts.shadow
    if shadow is None:
        return
    for number, check in enumerate(parts.checks):
        if check is not None and check.metric == "judge_loss" and shadow.judge is None:
            message = "judge_loss is what a judge says of the answers, and `shadow` has none; add `shadow.judge`"
            yield Fault(("gate", "checks", number, "metric"), message)
    arms = {name: parts.deployments.get(name) for name in (parts.baseline, parts.candidate, *parts.candidates) if name}
    for name, spec in arms.items():
        judge = shadow.judge
        if judge is not None and spec is not None and (spec.url, spec.model) == (judge.url, judge.model):
            message = f'the judge is "{name}" itself, which it would judge too; name another model as judge'
            yield Fault(("shadow", "judge"), message)


def only_shadow(suite: Suite) -> Suite:
    """The suite without anything but its shadow comparison and the checks on it, as if nothing else had been written.

    Raises UsageError where it has no such thing, or no check that rests on it.
    """
    if suite.shadow is None:
        raise UsageError(f"{suite.suite} has no `shadow`; add it (docs/shadow.md), or run the whole suite")
    checks = tuple(check for check in suite.gate.checks if METRICS[check.metric].family == "shadow")
    if not checks:
        raise UsageError(
            f"no check of {suite.suite} rests on its shadow comparison; add one, like "
            "{metric: shadow_excess, margin: 3 points}"
        )
    absent = dict.fromkeys(("start", "slo", "error_budget", "load", "quality", "divergence"))
    return suite.model_copy(update={**absent, "gate": suite.gate.model_copy(update={"checks": checks})})


_AT = ("error_budget",)


def burn_places(suite: Suite) -> tuple[NamedPlace, ...]:
    """Where the failures are counted that a budget goes by; of a class in the background as checks of failures do."""
    budget, sweep = suite.error_budget, suite.load.sweep if suite.load is not None else ()
    if budget is None:
        return ()
    name = stage_of(budget, suite.gate.operating, [stage.name for stage in sweep])
    return tuple(
        place
        for stage in sweep
        for place in places_of(stage)
        if place.name == name
        or (stage.name == name and (place.requests is not None or own_slo(place) or budget.metric == "error_rate"))
    )


def broken_budget(parts: Parts) -> Iterator[Fault]:
    """Everything in which a sound `error_budget` does not fit the load."""
    budget = parts.budget
    if budget is None:
        return
    if "load" not in parts.declared or (parts.searches and not parts.stages):
        yield Fault(_AT, "goes by the failures of a stage, and this suite has none; add a `load` with a `sweep`")
        return
    names = place_names(parts)
    stages = list(dict.fromkeys(name.split("/")[0] for name in names))
    stage = stage_of(budget, parts.operating, stages)
    known = list(dict.fromkeys([*stages, *names]))
    if stage is None and stages:
        yield Fault(_AT, f"does not say which stage is most like production; write `stage: {stages[0]}`, or another")
    elif stage is not None and budget.stage is not None and stage not in known:
        yield Fault((*_AT, "stage"), f'no stage of the sweep is named "{stage}"; {suggestion(stage, known)}')
    elif stage is not None:
        yield from _goodput_is_defined(parts, budget, stage)
        yield from _has_enough_requests(parts, budget, stage)


def _goodput_is_defined(parts: Parts, budget: ErrorBudget, stage: str) -> Iterator[Fault]:
    """A request is good by an SLO of its own class, or by the suite's."""
    if budget.metric != "goodput" or "slo" in parts.declared:
        return
    judged = [place for place in all_places(parts) if stage in (place.name, place.stage.name)]
    asked = [place for place in judged if place.requests is not None or place.name == stage]
    lacking = next((place.name for place in asked if not own_slo(place)), None)
    if lacking is not None:
        message = f"goodput counts the requests that meet the `slo`, which this suite has not for {lacking}; add it"
        yield Fault((*_AT, "metric"), message)


def _has_enough_requests(parts: Parts, budget: ErrorBudget, stage: str) -> Iterator[Fault]:
    """With fewer requests the line could never pass, whatever the candidate does."""
    if "objective_ratio" not in budget.model_fields_set or parts.alpha is None or parts.blocks is None:
        return  # each is wrong itself
    needed = fewest_requests(budget.objective_ratio, parts.alpha)
    for place in all_places(parts):
        if stage in (place.name, place.stage.name) and (place.requests or needed) * parts.blocks < needed:
            message = (
                f"an objective of {show_objective(budget.objective_ratio)} needs at least {needed:,} requests over all "
                f'blocks to rule out a burn of {BURN_ALARM}x, and "{place.name}" has {parts.blocks} * {place.requests}'
            )
            yield Fault(_AT, f"{message}; measure more of them, or name a stage that has as many")
            return


def broken_rules(parts: Parts) -> Iterator[Fault]:
    """Everything in which the sound parts of a suite do not fit together, whichever of its candidates is judged."""
    told: set[Fault] = set()
    for candidate in parts.candidates or (parts.candidate,):
        for fault in _broken(replace(parts, candidate=candidate)):
            if fault not in told:
                told.add(fault)
                yield fault


def _broken(parts: Parts) -> Iterator[Fault]:
    yield from _something_to_measure(parts)
    yield from _arms(parts)
    yield from broken_deployments(parts)
    yield from _stage_names(parts)
    yield from _task_names(parts)
    yield from broken_workloads(parts)
    yield from broken_checks(parts)
    yield from broken_shadow(parts)
    yield from broken_capacity(parts)
    yield from broken_budget(parts)


def rule_problems(suite: Suite) -> list[Problem]:
    """The same for a suite whose text is not at hand, such as one with another gate put in: problems without place."""
    return [
        Problem(suite.suite, None, None, show_path(fault.path), fault.message)
        for fault in broken_rules(parts_of(suite))
    ]


def with_arms(suite: Suite, baseline: str | None, candidate: str | None) -> Suite:
    """The suite with other deployments as its arms; None keeps the suite's own, a candidate takes the place of several.

    Raises UsageError for a name that the suite does not have, with the nearest one it has.
    """
    chosen = {"baseline": baseline, "candidate": candidate}
    update: dict[str, object] = {arm: name for arm, name in chosen.items() if name is not None}
    if candidate is not None:
        update["candidates"] = ()
    changed = suite.model_copy(update=update)
    parts = parts_of(changed)
    arms = [replace(parts, candidate=name) for name in changed.candidates] or [parts]
    faults = [f"{show_path(fault.path)}: {fault.message}" for one in arms for fault in _arms(one)]
    if faults:
        raise UsageError("\n".join(dict.fromkeys(faults)))
    return changed


def each_candidate(suite: Suite) -> tuple[Suite, ...]:
    """A suite for each of its candidates, in order, as if it named that one alone: each is a run of its own."""
    several = (suite.model_copy(update={"candidate": name, "candidates": ()}) for name in suite.candidates)
    return tuple(several) or (suite,)


def _something_to_measure(parts: Parts) -> Iterator[Fault]:
    if not parts.declared & MEASUREMENTS:
        yield Fault((), "nothing to measure; add at least one of `start`, `load`, `quality`, `divergence` and `shadow`")


def _arms(parts: Parts) -> Iterator[Fault]:
    candidate = _place_of_candidate(parts)
    for arm, name in ((("baseline",), parts.baseline), (candidate, parts.candidate)):
        if parts.deployments and name is not None and name not in parts.deployments:
            yield Fault(arm, f'no deployment is named "{name}"; {suggestion(name, parts.deployments)}')
    if parts.baseline is None or parts.candidate is None or parts.baseline == parts.candidate:
        return  # one name for both arms is a comparison of a deployment with itself, on purpose
    one, other = parts.deployments.get(parts.baseline), parts.deployments.get(parts.candidate)
    if one is not None and other is not None and one.url is not None and _endpoint(one) == _endpoint(other):
        yield Fault(
            candidate,
            f'"{parts.baseline}" and "{parts.candidate}" are the same endpoint in both arms: same `url`, same `model`; '
            "correct one of them, or give both arms one name to compare a deployment with itself",
        )


def _place_of_candidate(parts: Parts) -> Path:
    if parts.candidate in parts.candidates:
        return ("candidates", parts.candidates.index(parts.candidate))
    return ("candidate",)


def _endpoint(spec: DeploymentSpec) -> tuple[object, ...]:
    """What tells deployments apart before any of them is asked: a gateway may go by a header, a credential is none."""
    return spec.url, spec.model, written_out(spec.headers)


def _stage_names(parts: Parts) -> Iterator[Fault]:
    for number, name in enumerate(parts.stage_names):
        if name is not None and name in parts.stage_names[:number]:
            first = parts.stage_at[parts.stage_names.index(name)]
            yield Fault(
                ("load", "sweep", parts.stage_at[number], "stage"),
                f'the name "{name}" is taken by load.sweep[{first}]; name each stage differently',
            )


def _task_names(parts: Parts) -> Iterator[Fault]:
    stems = [task_stem(task) for task in parts.tasks]
    for number, stem in enumerate(stems):
        if stem in stems[:number]:
            yield Fault(
                ("quality", "tasks", number),
                f'the name "{stem}" is taken by quality.tasks[{stems.index(stem)}]; name each task file differently',
            )
