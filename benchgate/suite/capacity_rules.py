"""What a capacity search must be to the rest of its suite."""

from __future__ import annotations

from collections.abc import Iterator

from benchgate.suite.capacity import CAPACITY_STAGE, Capacity
from benchgate.suite.check import Check
from benchgate.suite.parts import Parts
from benchgate.suite.text import Fault
from benchgate.suite.vocabulary import suggestion
from benchgate.units import as_written, show_percent


def broken_capacity(parts: Parts) -> Iterator[Fault]:
    """Everything in which the search and the checks of what it finds do not fit the suite."""
    if parts.searches:
        yield from _has_an_slo(parts)
        yield from _has_its_name(parts)
    if parts.capacity is not None:
        yield from _has_its_workload(parts, parts.capacity)
    for number, check in enumerate(parts.checks):
        if check is not None and check.metric == "capacity":
            yield from _fits(parts, number, check)


def _has_an_slo(parts: Parts) -> Iterator[Fault]:
    if "slo" not in parts.declared:
        message = "a capacity is the load at which enough requests meet the `slo`, which this suite has not; add it"
        yield Fault(("load", "capacity"), message)


def _has_its_name(parts: Parts) -> Iterator[Fault]:
    for position, name in zip(parts.stage_at, parts.stage_names, strict=True):
        if name == CAPACITY_STAGE:
            message = f'the name "{name}" is that of the stages of `load.capacity`; name this stage differently'
            yield Fault(("load", "sweep", position, "stage"), message)


def _has_its_workload(parts: Parts, capacity: Capacity) -> Iterator[Fault]:
    name = capacity.workload
    if name is not None and name not in parts.workloads:
        message = f'`workloads` has no "{name}"; {suggestion(name, parts.workloads)}'
        yield Fault(("load", "capacity", "workload"), message)
        return
    asked = parts.workload if name is None else parts.workloads[name]
    if asked is not None and asked.leave is not None:
        message = (
            "a request whose client leaves is neither good nor bad, so a search would count it as missing the `slo`; "
            "search with a workload without `leave`"
        )
        yield Fault(("load", "capacity"), message)


def _fits(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    """A check can be met by what the search can find."""
    path = ("gate", "checks", number)
    if not parts.searches and "load" in parts.declared:
        yield Fault((*path, "metric"), "capacity is found by `load.capacity`, which this suite has not; add it")
    capacity = parts.capacity
    if capacity is None:
        return
    if check.margin is not None and 1 / (1 - check.margin) <= 1 + capacity.resolution_ratio:
        told = as_written(show_percent(capacity.resolution_ratio))
        message = f"a capacity known to {told} cannot be held to this margin; make `load.capacity.resolution` finer"
        yield Fault((*path, "margin"), message)
    if check.min is None or check.slo_value is None:
        return
    if ("/" in check.min) != (capacity.over == "rate"):
        wanted = 'a rate like "8/s"' if capacity.over == "rate" else "a number in flight like 8"
        yield Fault((*path, "min"), f"the search is over the {capacity.over}; write {wanted}")
        return
    candidate = parts.deployments.get(parts.candidate or "")
    each = candidate.accelerators if check.per is not None and candidate is not None else 1
    if check.slo_value * each > capacity.highest:
        yield Fault((*path, "min"), "is more than the search goes up to; raise `load.capacity.to`")
