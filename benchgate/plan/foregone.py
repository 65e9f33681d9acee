"""Checks of which it is known before anything is asked that they cannot pass: too few items for the margin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchgate.plan.evals import PlannedTask
from benchgate.stats.item_harm import answers_harm
from benchgate.stats.recovery import ScorePairs
from benchgate.suite.schema import Check, Suite
from benchgate.units import show_points


def foregone(suite: Suite, tasks: Sequence[PlannedTask]) -> tuple[str, ...]:
    """Every required check of accuracy that stays open even where the candidate answers just as the baseline does.

    Items are taken for independent: in clusters they carry less, so a check named here cannot pass in any case. Of
    tasks whose data was not read nothing is said.
    """
    items = _items(suite, tasks)
    return tuple(told for check in suite.gate.checks for told in _of_check(check, items, suite.gate.alpha))


def _items(suite: Suite, tasks: Sequence[PlannedTask]) -> Mapping[str, int | None]:
    """How many items the suite's tasks and groups of right and wrong have; None where that is not known."""
    counts: dict[str, int | None] = {}
    for task in tasks:
        if task.scale != "binary":
            continue
        entry = suite.quality.entry(task.name) if suite.quality is not None else None
        name = entry.name if entry is not None else task.name
        before = counts.get(name, 0)
        counts[name] = None if task.needs is not None or before is None else before + len(task.rows)
    return counts


def _of_check(check: Check, items: Mapping[str, int | None], alpha: float) -> Iterator[str]:
    if check.metric != "accuracy" or check.margin is None or not check.required:
        return
    judged = (
        [[name] for name in items] if check.task == "each" else [list(items) if check.task is None else [check.task]]
    )
    for names in judged:
        counts = [count for name in names if (count := items.get(name))]
        if len(counts) < len(names) or not counts:
            continue
        least = answers_harm([_unchanged(count) for count in counts], alpha).limits.upper
        if least >= check.margin:
            where = f" on {names[0]}" if check.task is not None else ""
            yield (
                f"accuracy{where} cannot pass: with {sum(counts):,} items, even where no answer changes, a loss of up "
                f"to {show_points(least)} cannot be ruled out, and the margin is {show_points(check.margin)}; ask more "
                "items, or accept a wider margin"
            )


def _unchanged(count: int) -> ScorePairs:
    return ScorePairs(np.ones(count), np.ones(count))
