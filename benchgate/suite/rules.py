"""What the sections of a suite must be to each other. Each rule reads the sound parts and yields what it finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchgate.errors import Problem, UsageError
from benchgate.suite.capacity_rules import broken_capacity
from benchgate.suite.check_rules import broken_checks
from benchgate.suite.deployment_rules import broken_deployments
from benchgate.suite.error_budget_rules import broken_budget
from benchgate.suite.headers import written_out
from benchgate.suite.parts import MEASUREMENTS, Parts, parts_of, task_stem
from benchgate.suite.schema import DeploymentSpec, Suite
from benchgate.suite.shadow_rules import broken_shadow
from benchgate.suite.text import Fault, Path, show_path
from benchgate.suite.vocabulary import suggestion
from benchgate.suite.workload_rules import broken_workloads


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
