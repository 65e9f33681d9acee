"""What the shadow comparison must be to the rest of a suite, and a suite that is nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from benchgate.errors import UsageError
from benchgate.suite.metric_kinds import KINDS
from benchgate.suite.parts import Parts
from benchgate.suite.schema import Suite
from benchgate.suite.text import Fault


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
    checks = tuple(check for check in suite.gate.checks if KINDS[check.metric].needs == "shadow")
    if not checks:
        raise UsageError(
            f"no check of {suite.suite} rests on its shadow comparison; add one, like "
            "{metric: shadow_excess, margin: 3 points}"
        )
    absent = dict.fromkeys(("start", "slo", "error_budget", "load", "quality", "divergence"))
    return suite.model_copy(update={**absent, "gate": suite.gate.model_copy(update={"checks": checks})})
