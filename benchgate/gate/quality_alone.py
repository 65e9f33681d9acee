"""What an average hides: one task, or one task of a group, that broke alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchgate.gate.comparison import Comparison
from benchgate.gate.quality_pairs import Pairs, few_clusters, pair_unit
from benchgate.gate.rule import Problem
from benchgate.stats.multiplicity import holm

_NAMED = 3
"""So many are named, the worst first; the others are counted."""

Alone = tuple[float, float, str]
"""p-value of "it did not break", how bad it is, and what is said of it."""


def broken_alone(
    comparison: Comparison,
    units: Mapping[str, tuple[str, ...]],
    paired: Sequence[Pairs],
    alpha: float,
    look: Callable[[Pairs], Alone],
) -> str | None:
    """What is said of the parts of an average that are shown to have broken, all of them together at alpha."""
    looked = [look(_as_items(one)) for one in _parts(comparison, units, paired)]
    adjusted = holm([p_value for p_value, _, _ in looked])
    broken = sorted(
        ((bad, text) for (_, bad, text), p_holm in zip(looked, adjusted, strict=True) if p_holm <= alpha), reverse=True
    )
    told = [text for _, text in broken[:_NAMED]]
    if len(broken) > _NAMED:
        told.append(f"{len(broken) - _NAMED} more likewise")
    return ", ".join(told) or None


def _parts(comparison: Comparison, units: Mapping[str, tuple[str, ...]], paired: Sequence[Pairs]) -> list[Pairs]:
    """Each of several tasks, and each task that a group consists of."""
    parts = list(paired) if len(paired) > 1 else []
    for tasks in units.values():
        leaves = [pair_unit(comparison, task, (task,)) for task in tasks] if len(tasks) > 1 else []
        parts += [leaf for leaf in leaves if not isinstance(leaf, Problem) and len(leaf) > 1]
    return parts


def _as_items(one: Pairs) -> Pairs:
    """Of a part of few clusters its items alone can be judged: what is said is said of these."""
    return replace(one, clusters=None) if few_clusters([one]) is not None else one
