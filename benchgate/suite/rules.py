"""What the sections of a suite must be to each other. Each rule reads the sound parts and yields what it finds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import PurePosixPath

from benchgate.errors import Problem, UsageError
from benchgate.suite.headers import written_out
from benchgate.suite.parts import Parts, parts_of
from benchgate.suite.references import reference_name
from benchgate.suite.schema import (
    FAILURE_METRICS,
    LATENCY_METRICS,
    LOAD_METRICS,
    STATISTICS,
    Check,
    DeploymentSpec,
    Stage,
    Suite,
)
from benchgate.suite.text import Fault, show_path
from benchgate.suite.vocabulary import suggestion

MEASUREMENTS = frozenset({"load", "quality", "shadow"})


def broken_rules(parts: Parts) -> Iterator[Fault]:
    """Everything in which the sound parts of a suite do not fit together."""
    yield from _something_to_measure(parts)
    yield from _arms(parts)
    yield from _embedded(parts)
    yield from _stage_names(parts)
    yield from _task_names(parts)
    yield from _failures_are_judged(parts)
    first: dict[tuple[object, ...], int] = {}
    for number, check in enumerate(parts.checks):
        if check is not None:
            yield from _has_its_section(parts, number, check)
            yield from _names_what_exists(parts, number, check)
            yield from _is_defined(parts, number, check)
            yield from _has_enough_requests(parts, number, check)
            yield from _is_new(parts, number, check, first)


def rule_problems(suite: Suite) -> list[Problem]:
    """The same for a suite whose text is not at hand, such as one with another gate put in: problems without place."""
    return [
        Problem(suite.suite, None, None, show_path(fault.path), fault.message)
        for fault in broken_rules(parts_of(suite))
    ]


def with_arms(suite: Suite, baseline: str | None, candidate: str | None) -> Suite:
    """The suite with other deployments as its arms; None keeps the suite's own.

    Raises UsageError for a name that the suite does not have, with the nearest one it has.
    """
    chosen = {"baseline": baseline, "candidate": candidate}
    changed = suite.model_copy(update={arm: name for arm, name in chosen.items() if name is not None})
    faults = [f"{show_path(fault.path)}: {fault.message}" for fault in _arms(parts_of(changed))]
    if faults:
        raise UsageError("\n".join(faults))
    return changed


def env_names(suite: Suite) -> frozenset[str]:
    """The environment variables that the suite's deployments refer to, in either arm or none."""
    references = [text for spec in suite.deployments.values() for text in references_of(spec)]
    return frozenset(name for text in references if (name := reference_name(text)) is not None)


def references_of(spec: DeploymentSpec) -> list[str]:
    """The texts of a deployment in which a reference may stand, whether or not one does."""
    return [text for text in (spec.url, spec.api_key, spec.proxy, *spec.headers.values()) if text is not None]


def task_stem(path: str) -> str:
    """What a check calls the task of a task file: `tasks/add.yaml` → `add`."""
    return PurePosixPath(path).stem


def _something_to_measure(parts: Parts) -> Iterator[Fault]:
    if not parts.declared & MEASUREMENTS:
        yield Fault((), "nothing to measure; add at least one of `load`, `quality` and `shadow`")


def _arms(parts: Parts) -> Iterator[Fault]:
    for arm, name in (("baseline", parts.baseline), ("candidate", parts.candidate)):
        if parts.deployments and name is not None and name not in parts.deployments:
            yield Fault((arm,), f'no deployment is named "{name}"; {suggestion(name, parts.deployments)}')
    if parts.baseline is None or parts.candidate is None or parts.baseline == parts.candidate:
        return  # one name for both arms is a comparison of a deployment with itself, on purpose
    one, other = parts.deployments.get(parts.baseline), parts.deployments.get(parts.candidate)
    if one is not None and other is not None and one.url is not None and _endpoint(one) == _endpoint(other):
        yield Fault(
            ("candidate",),
            f'"{parts.baseline}" and "{parts.candidate}" are the same endpoint in both arms: same `url`, same `model`; '
            "correct one of them, or give both arms one name to compare a deployment with itself",
        )


def _endpoint(spec: DeploymentSpec) -> tuple[object, ...]:
    """What tells deployments apart before any of them is asked: a gateway may go by a header, a credential is none."""
    return spec.url, spec.model, written_out(spec.headers)


def _embedded(parts: Parts) -> Iterator[Fault]:
    for name, spec in parts.deployments.items():
        if spec is None or spec.embedded is None:
            continue
        if spec.engine != "llamacpp":
            yield Fault(
                ("deployments", name, "engine"), f"the embedded engine is llamacpp, not {spec.engine}; remove it"
            )
        for key in ("model", "api_key", "headers", "tls", "proxy"):
            if getattr(spec, key):
                yield Fault(("deployments", name, key), "means nothing for an embedded deployment; remove it")


def _stage_names(parts: Parts) -> Iterator[Fault]:
    for number, name in enumerate(parts.stage_names):
        if name is not None and name in parts.stage_names[:number]:
            first = parts.stage_names.index(name)
            yield Fault(
                ("load", "sweep", number, "stage"),
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


def _has_its_section(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    section = "load" if check.metric in LOAD_METRICS else "quality" if check.metric == "accuracy" else "shadow"
    path = ("gate", "checks", number, "metric")
    if section not in parts.declared and parts.declared & MEASUREMENTS:
        yield Fault(
            path, f"{check.metric} is measured by `{section}`, which this suite has not; add it or remove the check"
        )
    if check.metric == "goodput" and "slo" not in parts.declared:
        yield Fault(path, "goodput counts the requests that meet the `slo`, which this suite has not; add it")


def _names_what_exists(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    stages = [name for name in parts.stage_names if name is not None]
    if check.stage is not None and stages and check.stage not in stages:
        message = f'no stage of the sweep is named "{check.stage}"; {suggestion(check.stage, stages)}'
        yield Fault(("gate", "checks", number, "stage"), message)
    stems = [task_stem(task) for task in parts.tasks]
    if check.task is not None and stems and check.task not in (*stems, "each"):
        message = f'no task file of `quality` is named "{check.task}"; {suggestion(check.task, [*stems, "each"])}'
        yield Fault(("gate", "checks", number, "task"), message)


def _is_defined(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    if check.metric in ("tpot", "itl") and parts.workload is not None and parts.workload.output_tokens < 2:
        message = (
            f"{check.metric} is undefined for answers of 1 token; raise `load.workload.output` or remove the check"
        )
        yield Fault(("gate", "checks", number, "metric"), message)


def _has_enough_requests(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    """Below ln(alpha) / ln(q) requests no observation is an upper limit of quantile q: at 5 %, 59 for p95, 299 for p99.

    The largest of n observations lies above quantile q with probability 1 - q**n, which must reach 1 - alpha.
    """
    if check.statistic in (None, "p50") or check.metric not in LATENCY_METRICS:
        return
    if parts.alpha is None or parts.blocks is None:
        return
    needed = math.ceil(math.log(parts.alpha) / math.log(STATISTICS[check.statistic]))
    short = [stage for stage in _judged(parts, check) if stage.requests * parts.blocks < needed]
    if short:
        found = ", ".join(f'"{stage.name}" has {parts.blocks} * {stage.requests}' for stage in short)
        message = (
            f"{check.statistic} needs at least {needed} requests in a stage over all blocks, and {found}; "
            f"{_longer(short[0], math.ceil(needed / parts.blocks))}, or choose a lower statistic"
        )
        yield Fault(("gate", "checks", number, "statistic"), message)


def _longer(stage: Stage, requests: int) -> str:
    """How a stage comes to have so many requests."""
    if stage.profile is None:
        return f"write `requests: {requests}` or more"
    return f"make the stage longer or its rates higher, to {requests} requests or more"


def _failures_are_judged(parts: Parts) -> Iterator[Fault]:
    """Medians and throughput hardly move when a third of the requests fails, so they never decide alone.

    Every stage that a required load check judges needs a required error_rate or goodput check as well.
    """
    if any(check is None or check.stage not in (None, *parts.stage_names) for check in parts.checks):
        return  # the broken one may be the one that is missed
    required = [(n, c) for n, c in enumerate(parts.checks) if c and c.required and c.metric in LOAD_METRICS]
    covered = {stage for _, check in required if check.metric in FAILURE_METRICS for stage in _places(parts, check)}
    for number, check in required:
        uncovered = [stage for stage in _places(parts, check) if stage not in covered]
        covered.update(uncovered)  # said once
        if uncovered:
            named = " and ".join(f'"{stage}"' for stage in uncovered)
            where = f", stage: {uncovered[0]}" if check.stage is not None else ""
            yield Fault(
                ("gate", "checks", number),
                f"requests of stage {named} could fail unjudged: no required check bounds `error_rate` or `goodput` "
                f"there; add {{metric: error_rate{where}, max: 1%}}",
            )


def _judged(parts: Parts, check: Check) -> list[Stage]:
    return [stage for stage in parts.stages if stage is not None and check.stage in (None, stage.name)]


def _is_new(parts: Parts, number: int, check: Check, first: dict[tuple[object, ...], int]) -> Iterator[Fault]:
    """Two checks may bound one quantity in two ways (a margin and an SLO), not twice in the same way."""
    quantity = (check.metric, check.statistic or "p50", "margin" if check.margin is not None else "slo")
    for place in _places(parts, check):
        earlier = first.setdefault((*quantity, place), number)
        if earlier != number:
            yield Fault(
                ("gate", "checks", number),
                f"{_described(check, place)} is already judged by gate.checks[{earlier}]; keep one of them",
            )
            return


def _places(parts: Parts, check: Check) -> list[str]:
    """Where a check looks: stages for load metrics, tasks for accuracy (pooled is a place of its own)."""
    if check.metric in LOAD_METRICS:
        return [check.stage] if check.stage else [name for name in parts.stage_names if name is not None]
    if check.task == "each":
        return [task_stem(task) for task in parts.tasks]
    return [check.task or ""]


def _described(check: Check, place: str) -> str:
    statistic = f" {check.statistic or 'p50'}" if check.metric in LATENCY_METRICS else ""
    where = f' of "{place}"' if place else ""
    return f"the {'margin' if check.margin is not None else 'SLO'} of {check.metric}{statistic}{where}"
