"""Whether the numbers that a store keeps of a run are those that its records make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.model.run import MetricRow

_HAIR = 1e-9  # another machine may add in another order


@dataclass(frozen=True, slots=True)
class Unlike:
    """A number that is kept, and what the records make of it; None where they make none."""

    kept: MetricRow
    made: MetricRow | None


def unlike(kept: Sequence[MetricRow], made: Sequence[MetricRow]) -> list[Unlike]:
    """Those that are kept otherwise than they are made. Those that are not kept at all are `lacking`."""
    by_key = {_key(row): row for row in made}
    pairs = [(row, by_key.get(_key(row))) for row in kept]
    return [Unlike(row, ours) for row, ours in pairs if ours is None or not _alike(row, ours)]


def lacking(kept: Sequence[MetricRow], made: Sequence[MetricRow]) -> list[MetricRow]:
    """Those that the records make and nobody kept."""
    keys = {_key(row) for row in kept}
    return [row for row in made if _key(row) not in keys]


def _key(row: MetricRow) -> tuple[object, ...]:
    return row.arm, row.name, row.statistic, row.stage, row.task


def _alike(one: MetricRow, other: MetricRow) -> bool:
    return one.n == other.n and all(
        mine == theirs
        if mine is None or theirs is None
        else math.isclose(mine, theirs, rel_tol=_HAIR, abs_tol=_HAIR * _HAIR)
        for mine, theirs in ((one.value, other.value), (one.lower, other.lower), (one.upper, other.upper))
    )
