"""Rules between the sections of a suite, and the valid part of a suite on which they run while other keys are wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from benchgate.suite.checks import Check
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import Fault, Path

SECTIONS = ("start", "load", "quality", "divergence", "shadow")  # sections that measure something


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over a whole suite. It is skipped while a part that it needs is wrong."""

    faults: Callable[[Suite], Iterator[Fault]]
    needs: tuple[Path, ...]  # `load.sweep`: nothing in it is wrong; `load.sweep.*`: it is a list of any entries
    names: bool  # it also checks wrong parts, whose stand-ins keep the names that they refer to

    def found(self, suite: Suite, broken: frozenset[Path]) -> Iterator[Fault]:
        """Yield the faults of a suite of which some parts are stand-ins."""
        if any(need[: len(path)] == path or path[: len(need)] == need for need in self.needs for path in broken):
            return
        for fault in self.faults(suite):
            if self.names or not any(fault.path[: len(path)] == path for path in broken):
                yield fault


def rule(*needs: str, names: bool = False) -> Callable[[Callable[[Suite], Iterator[Fault]]], Rule]:
    """Make a rule of a function that yields the faults of a suite."""
    return lambda faults: Rule(faults, tuple(tuple(need.split(".")) for need in needs), names)


def check_rule(*needs: str) -> Callable[[Callable[[Suite, Check], Iterator[tuple[str, str]]]], Rule]:
    """Make a rule of a function that yields the faults of one check, each by its key and message."""

    def of(faults: Callable[[Suite, Check], Iterator[tuple[str, str]]]) -> Rule:
        def of_suite(suite: Suite) -> Iterator[Fault]:
            for number, check in enumerate(suite.gate.checks):
                yield from (Fault(("gate", "checks", number, key), message) for key, message in faults(suite, check))

        return rule(*needs)(of_suite)

    return of


_WORKLOAD = {"input": 1, "output": 1}
_STAND_INS: dict[Path, Any] = {
    ("suite",): "unnamed",
    ("deployments",): {"unnamed": {"sim": {}}},
    ("deployments", "*"): {"sim": {}},
    ("load", "workload"): _WORKLOAD,
    ("load", "workloads", "*"): _WORKLOAD,
    ("load", "sweep", "*"): {"concurrency": 1, "requests": 1},
    ("quality", "tasks"): ["unnamed"],
    ("quality", "tasks", "*"): "unnamed",
    ("gate", "checks", "*"): {"metric": "error_rate", "max": "1%", "required": False},
    ("error_budget",): {"objective": "99%", "window": "30d", "spent": "0%"},
}
"""Valid data in place of what is wrong, so that names and positions stay."""
_OF_A_TASK = {"metric": "accuracy", "min": "1%", "required": False}


def valid_part(data: Mapping[str, Any]) -> tuple[Suite | None, frozenset[Path]]:
    """Return the suite without its broken parts, and the paths of those; None if too little is valid.

    The smallest part around a mistake (a deployment, a workload, a stage, a task, a check, else a key of a section) is
    replaced by a stand-in or removed; if that does not help, so is the part around it.
    """
    valid = copy.deepcopy(dict(data))
    broken: set[Path] = set()
    while True:
        try:
            return Suite.model_validate(valid), frozenset(broken)
        except ValidationError as error:
            wrong: set[Path] = set()
            for place in (detail["loc"] for detail in error.errors(include_url=False)):
                at = next((n for n in (3, 2) if len(place) >= n and (*place[: n - 1], "*") in _STAND_INS), 2)
                part = place[:at]
                while part in broken:  # replaced before, which did not help
                    part = part[:-1]
                wrong.add(part)
            if () in wrong:
                return None, frozenset()
            innermost = {part for part in wrong if not any(other[: len(part)] == part for other in wrong - {part})}
            for part in innermost:
                _replace(valid, part)
            broken |= innermost


def _replace(data: dict[str, Any], part: Path) -> None:
    *above, last = part
    holder: Any = data
    for key in above:
        holder = holder[key]
    stand_in = _STAND_INS.get((*above, "*"), _STAND_INS.get(part))
    if stand_in is None:
        holder.pop(last, None)
        return
    written = holder.get(last) if isinstance(holder, dict) else holder[last]
    keys = written.items() if isinstance(written, dict) else ()
    names = {key: name for key, name in keys if key in ("stage", "task") and isinstance(name, str)}
    match part:
        case ("load", "sweep", _):
            stand_in = {**stand_in, "stage": names.get("stage", f"unnamed-{last}")}
        case ("quality", "tasks", _):
            stand_in = f"{stand_in}-{last}"
        case ("gate", "checks", _) | ("error_budget",):
            stand_in = {**(_OF_A_TASK if "task" in names else stand_in), **names}
    holder[last] = stand_in


def written_positions(data: Mapping[str, Any], broken: frozenset[Path] = frozenset()) -> list[int]:
    """Return for each stage its position in the sweep as written, where a stage with `each` is one entry."""
    load = data.get("load")
    sweep = load.get("sweep") if isinstance(load, Mapping) else None
    positions = []
    for at, entry in enumerate(sweep if isinstance(sweep, list) else ()):
        each = entry.get("each") if isinstance(entry, Mapping) and ("load", "sweep", at) not in broken else None
        positions += [at] * (len(next(iter(each.values()))) if each else 1)
    return positions


def arms(suite: Suite) -> Iterator[tuple[str, str, DeploymentSpec]]:
    """Yield baseline and candidate, each with its name and its deployment, as far as the suite has it."""
    for arm, name in (("baseline", suite.baseline), ("candidate", suite.candidate)):
        if name in suite.deployments:
            yield arm, name, suite.deployments[name]
