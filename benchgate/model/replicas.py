"""Counts of a deployment's replicas: how many were there at one moment of a run, of how many that are declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchgate.model.deployment import Arm

REPLICAS = "replicas"
"""The kind of the journal's event whose data is a `ReplicaCount`. The run's hash covers it."""

AT_THE_END = "at the end"

NOT_ALL_READY = "replicas were ready"
"""Part of a fault's reason where a deployment answers and does not have the declared number of replicas."""

NOT_COUNTABLE = "its replicas cannot be counted"
"""Part of a fault's reason where no way to count replicas is known."""


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """One count. `block` is that before which it was taken, from 0; None for a count that precedes no block.

    `count` is None where the replicas could not be counted; `problem` then says why.
    """

    arm: Arm
    when: str
    block: int | None
    count: int | None
    wanted: int
    problem: str | None = None

    def document(self) -> dict[str, object]:
        """Return the count as the journal keeps it."""
        place = {"arm": self.arm.value, "when": self.when, "block": self.block}
        return {**place, "count": self.count, "wanted": self.wanted, "problem": self.problem}

    @classmethod
    def from_document(cls, found: Mapping[str, Any]) -> ReplicaCount:
        """Read what `document` wrote. Raises KeyError, TypeError and ValueError for anything else."""
        whole = {name: found[name] for name in ("block", "count", "wanted")}
        if any(value is not None and (type(value) is not int or value < 0) for value in whole.values()):
            raise ValueError(f"{whole} are no counts")
        if whole["wanted"] is None:
            raise ValueError("it does not say how many were declared")
        problem = None if found["problem"] is None else str(found["problem"])
        return cls(Arm(found["arm"]), str(found["when"]), problem=problem, **whole)

    @property
    def shown(self) -> str:
        """Say the count: `7 of 8 replicas`, or why there is none."""
        if self.count is None:
            return f"not counted ({self.problem})"
        return f"{self.count} of {self.wanted} replicas"
