"""All rules between sections, among them those of deployments, prices and error budgets; suites with other arms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from benchgate.errors import Problem, UsageError, suggestion
from benchgate.model.metric import COST_METRICS, METRICS
from benchgate.suite.address import written_out
from benchgate.suite.checks import Check
from benchgate.suite.error_budget import BURN_ALARM, budget_stage, fewest_requests, show_objective
from benchgate.suite.load import CAPACITY_STAGE, TrafficClass
from benchgate.suite.rules import checks, load
from benchgate.suite.rules.base import SECTIONS, Rule, arms, check_rule, rule
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import Stage
from benchgate.suite.yaml import Fault, Path, show_path

_OF_A_URL = ("model", "revision", "api_key", "headers", "tls", "proxy", "grpc", "context_tokens")
_ARMS = ("deployments", "baseline", "candidate", "candidates")
_BUDGET = ("error_budget",)


@rule(*(f"{section}.*" for section in SECTIONS))
def something_is_measured(suite: Suite) -> Iterator[Fault]:
    """Require a section that measures something."""
    if all(getattr(suite, section) is None for section in SECTIONS):
        yield Fault((), "nothing to measure; add at least one of `start`, `load`, `quality`, `divergence` and `shadow`")


def _place_of_candidate(suite: Suite) -> Path:
    if suite.candidate in suite.candidates:
        return ("candidates", suite.candidates.index(suite.candidate))
    return ("candidate",)


@rule("deployments.*")
def arms_exist(suite: Suite) -> Iterator[Fault]:
    """Require that baseline and candidate are deployments of the suite."""
    for path, name in ((("baseline",), suite.baseline), (_place_of_candidate(suite), suite.candidate)):
        if name not in suite.deployments:
            yield Fault(path, f'no deployment is named "{name}"; {suggestion(name, suite.deployments)}')


@rule(*_ARMS)
def arms_differ(suite: Suite) -> Iterator[Fault]:
    """Refuse two names for one endpoint. One name for both arms compares a deployment with itself on purpose."""
    one, other = suite.deployments.get(suite.baseline), suite.deployments.get(suite.candidate)
    if suite.baseline == suite.candidate or one is None or other is None or one.url is None:
        return
    # A gateway may route by a header, but not by a credential.
    ours, theirs = ((d.url, d.grpc, d.model, written_out(d.headers)) for d in (one, other))
    if ours == theirs:
        yield Fault(
            _place_of_candidate(suite),
            f'"{suite.baseline}" and "{suite.candidate}" are the same endpoint in both arms: same `url`, same `model`; '
            "correct one of them, or give both arms one name to compare a deployment with itself",
        )


@rule("deployments.*")
def own_deployment_has_no_keys_of_an_address(suite: Suite) -> Iterator[Fault]:
    """Refuse keys of an address for deployments that benchgate starts, and wrong numbers of replicas."""
    for name, spec in suite.deployments.items():
        if spec.url is not None:
            continue
        path = ("deployments", name)
        kind, engine = ("an embedded deployment", "llamacpp") if spec.embedded else ("a practice server", "vllm")
        if spec.engine != engine:
            what = "the embedded engine is llamacpp" if spec.embedded else "the practice server speaks as vllm"
            yield Fault((*path, "engine"), f"{what}, not {spec.engine}; remove it")
        for key in _OF_A_URL:
            if getattr(spec, key):
                yield Fault((*path, key.removesuffix("_tokens")), f"means nothing for {kind}; remove it")
        replicas, ready = spec.sim.replicas if spec.sim is not None else 1, spec.ready
        if ready is not None and spec.embedded is not None:
            message = "means nothing for an embedded deployment, which is one process; remove it"
            yield Fault((*path, "ready"), message, at_key=True)
        elif ready is not None:
            if replicas == 1:
                message = "counts replicas, and this practice server has one; give `sim` some `replicas`"
                yield Fault((*path, "ready"), message, at_key=True)
            elif replicas != ready.replicas:
                message = f"this practice server has {replicas} replicas; write that number"
                yield Fault((*path, "ready", "replicas"), message)
            if ready.metrics:
                message = "means nothing for a practice server, which reports them itself; remove it"
                yield Fault((*path, "ready", "metrics"), message)


@rule(*_ARMS, "start.*")
def started_deployment_is_own(suite: Suite) -> Iterator[Fault]:
    """Refuse repeated starts of deployments that benchgate does not start."""
    other = next(((arm, name) for arm, name, spec in arms(suite) if not spec.is_started), None)
    if suite.start is not None and other is not None:
        whose = f'the {other[0]} "{other[1]}" is not started by benchgate'
        remedy = "remove it, or give the deployment the commands of its server (`start` with `run`)"
        yield Fault(("start",), f"{whose}, so its start cannot be timed; {remedy}", at_key=True)


@rule("deployments.*")
def deployment_has_one_price(suite: Suite) -> Iterator[Fault]:
    """Refuse two kinds of price, and terms without a price by the hour."""
    for name, spec in suite.deployments.items():
        if spec.price_terms is not None and spec.price is None:
            remedy = "add it, like price: $4/h (of owned hardware its wear)"
            if suite.prices is not None:
                remedy = "where a file has the price, write them there, in the same entry of `prices`"
            message = f"are the terms of a `price`, which is missing; {remedy}"
            yield Fault(("deployments", name, "price_terms"), message)
        if spec.token_prices is not None and (spec.price or spec.price_terms) is not None:
            message = "a deployment is paid by the hour or by the token; keep `price` or `token_prices`"
            yield Fault(("deployments", name, "token_prices"), message)


@check_rule(*_ARMS, "prices")
def cost_check_has_a_price(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require prices of the deployments whose costs a check judges."""
    judged = [(arm, name, spec) for arm, name, spec in arms(suite) if check.margin is not None or arm != "baseline"]
    unpriced = next((f'{arm} "{name}"' for arm, name, spec in judged if not spec.is_priced), None)
    if check.metric in COST_METRICS and unpriced is not None:
        remedy = "add it, like price: $4/h, or name a file that has it, like prices: prices.yaml"
        yield "metric", f"the cost of its tokens is unknown: the {unpriced} has no `price`; {remedy}"


@rule(*_ARMS, "prices")
def cost_limit_has_a_price(suite: Suite) -> Iterator[Fault]:
    """Require prices by the hour for a limit of the load's cost."""
    if suite.load is None or suite.load.limit is None or suite.load.limit.cost_usd is None:
        return
    for arm, name, spec in arms(suite):
        if spec.price is None:
            why = "has no `price`; add it, or remove `cost`"
            if spec.token_prices is not None:
                why = "is paid by the token, and not by the time that the load takes; remove `cost`"
            yield Fault(("load", "limit", "cost"), f'the cost of the load is unknown: the {arm} "{name}" {why}')
            return


@check_rule(*_ARMS)
def accelerators_are_counted(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require the number of accelerators for a check per accelerator: a default of 1 would change nothing."""
    for arm, name, spec in arms(suite) if check.per is not None else ():
        if "accelerators" not in spec.model_fields_set and (check.margin is not None or arm == "candidate"):
            yield "per", f'divides by `accelerators`, which the {arm} "{name}" does not say; add it there'
            return


@rule(*_ARMS)
def replica_of_an_action_exists(suite: Suite) -> Iterator[Fault]:
    """Require the replicas that actions kill, drain or start."""
    for position, stage in enumerate(suite.load.sweep if suite.load is not None else ()):
        for at, action in enumerate(stage.actions or ()):
            key, number = action.on_replica or ("run", None)
            for arm, name, spec in arms(suite):
                replicas = spec.sim.replicas if spec.sim is not None else 1
                if number is not None and number >= (replicas if replicas > 1 else 0):
                    has = f"the replicas 0 to {replicas - 1}" if replicas > 1 else "no replicas"
                    remedy = "name one of them" if replicas > 1 else "give a `sim` some `replicas`, or `run` a command"
                    path = ("load", "sweep", position, "actions", at, key)
                    yield Fault(path, f'the {arm} "{name}" has {has}; {remedy}')
                    break


@rule("load.sweep.*", "quality.tasks.*")
def names_are_unique(suite: Suite) -> Iterator[Fault]:
    """Refuse two stages or two tasks of one name, and stages whose name stands for something else.

    A class "2.5" of a stage `capacity` would be taken for a look of a capacity search, and `accuracy@add` may be that
    of a task or of the items sent in a stage.
    """
    tasks = suite.quality.names if suite.quality is not None else ()
    listed: tuple[tuple[Path, Path, Sequence[str], str], ...] = (
        (("load", "sweep"), ("stage",), suite.stage_names, "name each stage differently"),
        (("quality", "tasks"), (), tasks, "name each task file differently"),
    )
    for path, key, names, remedy in listed:
        for number, name in enumerate(names):
            if name in names[:number]:
                message = f'the name "{name}" is taken by {{other}}; {remedy}'
                yield Fault((*path, number, *key), message, other=(*path, names.index(name)))
    for number, stage in enumerate(suite.load.sweep if suite.load is not None else ()):
        taken = dict.fromkeys(tasks if stage.verify_ratio else (), "a task whose items it sends")
        taken[CAPACITY_STAGE] = "the stages of `load.capacity`"
        if stage.name in taken:
            message = f'the name "{stage.name}" is that of {taken[stage.name]}; name this stage differently'
            yield Fault(("load", "sweep", number, "stage"), message)


@check_rule(*_ARMS, "shadow")
def judge_exists(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require a judge for checks of its verdicts."""
    if check.metric == "judge_loss" and suite.shadow is not None and suite.shadow.judge is None:
        yield "metric", "judge_loss needs a judge, and `shadow` has none; add `shadow.judge`"


@rule(*_ARMS, "shadow")
def judge_is_another_model(suite: Suite) -> Iterator[Fault]:
    """Refuse a judge that is one of the deployments that it judges."""
    judge = suite.shadow.judge if suite.shadow is not None else None
    for name in dict.fromkeys((suite.baseline, suite.candidate, *suite.candidates)):
        spec = suite.deployments.get(name)
        if judge is not None and spec is not None and (spec.url, spec.model) == (judge.url, judge.model):
            message = f'the judge is "{name}" itself, which it would judge too; name another model as judge'
            yield Fault(("shadow", "judge"), message)


@rule("load.sweep", "load.capacity", names=True)
def stage_of_the_error_budget_exists(suite: Suite) -> Iterator[Fault]:
    """Require the stage or class that an error budget names."""
    stage = suite.error_budget.stage if suite.error_budget is not None else None
    known = list(dict.fromkeys([*suite.stage_names, *(traffic.name for traffic in traffic_classes(suite))]))
    if stage is not None and known and stage not in known:
        yield Fault((*_BUDGET, "stage"), f'no stage of the sweep is named "{stage}"; {suggestion(stage, known)}')


@rule("error_budget", "load.sweep", "load.capacity", "gate.operating", "slo.*")
def error_budget_has_its_stage(suite: Suite) -> Iterator[Fault]:
    """Require a stage with defined failures, or good requests, for an error budget."""
    budget, stages = suite.error_budget, suite.stage_names
    if budget is None:
        return
    stage = budget_stage(budget, suite.gate.operating, stages)
    if not stages:
        yield Fault(_BUDGET, "goes by the failures of a stage, and this suite has none; add a `load` with a `sweep`")
    elif stage is None:
        message = f"does not say which stage is most like production; write `stage: {stages[0]}`, or another"
        yield Fault(_BUDGET, message)
    elif budget.metric == "goodput" and suite.slo is None:
        own = {traffic.name: traffic.has_own_slo for traffic in _classes_at(suite, stage)}
        lacking = next((name for name, has_slo in own.items() if not has_slo), None)
        if lacking is not None:
            message = f"goodput counts the requests that meet the `slo`, which this suite has not for {lacking}; add it"
            yield Fault((*_BUDGET, "metric"), message)


def _classes_at(suite: Suite, stage: str | None) -> list[TrafficClass]:
    """Return the class of traffic of this name, or the foreground classes of this stage."""
    found = [traffic for traffic in traffic_classes(suite) if stage in (traffic.name, traffic.stage)]
    return [traffic for traffic in found if not traffic.is_background or traffic.name == stage]


@rule("error_budget", "load.sweep", "load.blocks", "gate.operating", "gate.alpha")
def error_budget_has_enough_requests(suite: Suite) -> Iterator[Fault]:
    """Require enough requests at the stage of an error budget to rule out a fast burn."""
    budget, load = suite.error_budget, suite.load
    if budget is None or load is None:
        return
    stage = budget_stage(budget, suite.gate.operating, suite.stage_names)
    needed = fewest_requests(budget.objective_ratio, suite.gate.alpha)
    for traffic in _classes_at(suite, stage):
        sent = traffic.schedule.requests * load.blocks
        if not traffic.is_background and sent < needed:
            message = (
                f"an objective of {show_objective(budget.objective_ratio)} needs at least {needed:,} requests over all "
                f'blocks to rule out a burn of {BURN_ALARM}x, and "{traffic.name}" has '
                f"{load.blocks} * {traffic.schedule.requests}; measure more of them, or name a stage that has as many"
            )
            yield Fault(_BUDGET, message)
            return


RULES: tuple[Rule, ...] = (
    something_is_measured, arms_exist, arms_differ, own_deployment_has_no_keys_of_an_address,
    started_deployment_is_own, deployment_has_one_price, cost_check_has_a_price, cost_limit_has_a_price,
    accelerators_are_counted, replica_of_an_action_exists, names_are_unique, *load.RULES, *checks.RULES, judge_exists,
    judge_is_another_model, stage_of_the_error_budget_exists, error_budget_has_its_stage,
    error_budget_has_enough_requests,
)  # fmt: skip


def broken_references(suite: Suite, broken: frozenset[Path] = frozenset()) -> list[Fault]:
    """Return every name of a workload that does not exist; the workloads of levels rest on these."""
    return list(load.named_workload_exists.found(suite, broken))


_PRICES: Path = ("prices",)
_PRICE_RULES = tuple(rule for rule in RULES if _PRICES in rule.needs)


def _judged(suite: Suite) -> list[Suite]:
    return [suite.model_copy(update={"candidate": name}) for name in suite.candidates] or [suite]


def _faults(rules: Sequence[Rule], suite: Suite, broken: frozenset[Path]) -> list[Fault]:
    """Return every fault of these rules, for each candidate."""
    return list(dict.fromkeys(fault for rule in rules for one in _judged(suite) for fault in rule.found(one, broken)))


def broken_rules(suite: Suite, broken: frozenset[Path] = frozenset()) -> list[Fault]:
    """Return every fault of the rules whose needs are sound, for each candidate; none at a broken part.

    Rules that need prices wait while a price file is not read: it may have what is missing.
    """
    return _faults(RULES, suite, broken if suite.prices is None else broken | {_PRICES})


def price_faults(suite: Suite) -> list[Fault]:
    """Return every fault of the rules that waited for the prices of a file."""
    return _faults(_PRICE_RULES, suite, frozenset())


def rule_problems(suite: Suite) -> list[Problem]:
    """Return the problems of a suite with its prices. Its text is not at hand: they have no line and no column."""
    references = broken_references(suite)
    faults = [*references, *_faults(RULES, suite, frozenset(fault.path for fault in references))]
    return [Problem(suite.suite, None, None, show_path(fault.path), fault.text) for fault in faults]


def with_arms(suite: Suite, baseline: str | None, candidate: str | None) -> Suite:
    """Return a suite, without the prices of a file, with other deployments as arms; None keeps its own.

    Raises UsageError for unknown names, and for arms with which the suite breaks a rule.
    """
    chosen = {"baseline": baseline, "candidate": candidate}
    update: dict[str, object] = {arm: name for arm, name in chosen.items() if name is not None}
    if candidate is not None:
        update["candidates"] = ()
    changed = suite.model_copy(update=update)
    if faults := broken_rules(changed):
        raise UsageError("\n".join(f"{show_path(fault.path)}: {fault.text}" for fault in faults))
    return changed


def of_candidate(suite: Suite, name: str) -> Suite:
    """Return the suite with one of its several candidates alone."""
    return suite.model_copy(update={"candidate": name, "candidates": ()})


def each_candidate(suite: Suite) -> tuple[Suite, ...]:
    """Return a suite for each of its candidates, in order, as if it named that one alone: each has its own run."""
    return tuple(of_candidate(suite, name) for name in suite.candidates) or (suite,)


_SECTIONS_OF_PARTS = {"load": ("load", "slo", "error_budget"), "quality": ("quality",), "shadow": ("shadow",)}


_QUICK_BLOCKS = 4  # the fewest whose interval can be narrower than a common margin
_QUICK_ITEMS = 50  # of each eval task, of the shadow prompts and of the positions of fixed texts
_QUICK_LOAD_S = 90.0  # of all open loops, both arms and all blocks together
_QUICK_ROUNDS = 4  # requests of a closed loop in a block, as a multiple of its concurrency
_LEAST_QUICK_REQUESTS = 8


def quick_look(suite: Suite) -> Suite:
    """Return the suite with fewer blocks, shorter stages and fewer items, and the same checks, for about three minutes.

    Its evidence is weaker than the suite demands, whatever its power happens to be: a margin that a short run meets by
    chance was not shown at the length that was agreed on. So such a run never promotes, and the gate gives it
    INCONCLUSIVE in place of PASS and WARN. A BLOCK stands: a demonstrated regression needs no more evidence. Repeated
    starts and the search for capacity are left out with their checks, because neither can be shortened.
    """
    load, quality, shadow, divergence = suite.load, suite.quality, suite.shadow, suite.divergence
    kept = tuple(check for check in suite.gate.checks if check.metric not in ("capacity", "cold_start"))
    if load is not None and not load.sweep:
        load = None
    budget = suite.error_budget if load is not None else None
    if load is not None:
        blocks = min(load.blocks, _QUICK_BLOCKS)
        longest_s = _QUICK_LOAD_S / blocks / 2 / len(load.sweep)
        sweep = tuple(_shortened(stage, longest_s) for stage in load.sweep)
        load = load.model_copy(update={"blocks": blocks, "looks": (), "limit": None, "capacity": None, "sweep": sweep})
    if quality is not None:
        own = [task.limit and {"limit": _fewer(task.limit)} for task in quality.tasks]
        tasks = tuple(task.model_copy(update=one or {}) for task, one in zip(quality.tasks, own, strict=True))
        quality = quality.model_copy(update={"limit": _fewer(quality.limit), "tasks": tasks})
    if shadow is not None:
        shadow = shadow.model_copy(update={"limit": _fewer(shadow.limit)})
    if divergence is not None:
        divergence = divergence.model_copy(update={"positions": _fewer(divergence.positions)})
    if not kept or not any((load, quality, shadow, divergence)):
        raise UsageError(f"{suite.suite} measures nothing that could be shortened; leave --quick out")
    sections = {
        "start": None,
        "error_budget": budget,
        "load": load,
        "quality": quality,
        "shadow": shadow,
        "divergence": divergence,
    }
    return suite.model_copy(update={**sections, "gate": suite.gate.model_copy(update={"checks": kept})})


def _fewer(limit: int | None) -> int:
    return _QUICK_ITEMS if limit is None else min(limit, _QUICK_ITEMS)


def _shortened(stage: Stage, longest_s: float) -> Stage:
    """Return the stage with fewer requests; profiles, mixed classes and stages with actions stay as they are."""
    if stage.classes or stage.actions or not (stage.is_level_rate or stage.concurrency is not None):
        return stage
    requests = stage.requests
    if stage.concurrency is not None:
        requests = min(requests, max(_QUICK_ROUNDS * stage.concurrency, _LEAST_QUICK_REQUESTS))
    elif stage.rate_rps is not None:
        requests = min(requests, max(round(stage.rate_rps * longest_s), _LEAST_QUICK_REQUESTS))
    if stage.duration_s is None or stage.rate_rps is None:
        return stage.model_copy(update={"requests": requests})
    return stage.model_copy(update={"requests": requests, "duration_s": requests / stage.rate_rps})


def only_part(suite: Suite, part: Literal["load", "quality", "shadow"]) -> Suite:
    """Return the suite with nothing but one part and its checks. Raises UsageError without any."""
    if getattr(suite, part) is None:
        raise UsageError(f"{suite.suite} has no `{part}`; add it (docs/reference/suite.md), or run the whole suite")
    kept = tuple(c for c in suite.gate.checks if METRICS[c.metric].family == part)
    kept = tuple(c for c in kept if METRICS[c.metric].family == "load" or c.stage is None)  # of items among a load
    if not kept:
        raise UsageError(f"no check of {suite.suite} rests on its `{part}`; add one, or run the whole suite")
    sections = ("start", "slo", "error_budget", "load", "quality", "divergence", "shadow")
    absent: dict[str, object] = {name: None for name in sections if name not in _SECTIONS_OF_PARTS[part]}
    if part == "load" and suite.load is not None:
        sweep = tuple(stage.model_copy(update={"verify_ratio": None}) for stage in suite.load.sweep)
        absent["load"] = suite.load.model_copy(update={"sweep": sweep})
    return suite.model_copy(update={**absent, "gate": suite.gate.model_copy(update={"checks": kept})})
