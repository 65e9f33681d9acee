"""Which rows of a file of recorded prompts a level sends in a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchgate.model.records import IntArray
from benchgate.plan.material import Material, Recorded
from benchgate.suite.levels import Level
from benchgate.suite.schema import Load
from benchgate.suite.warmup import first_round_of

WARMUP = -1
"""Block number of the first round of a warm-up; round k after it is block -1 - k."""

_PROMPTS = 4  # what tells the generator of this order from others


def recorded_rows(
    load: Load, level: Level, material: Material, seed: int, block: int, count: int | None = None
) -> Sequence[Recorded] | None:
    """As many rows as the level sends; None when its texts are made up.

    The file is gone through in one order, drawn from the seed, by all levels and blocks that use it one after the
    other, the warm-up first; so no prompt comes twice before all have come once. Later rounds of the warm-up send
    `count` of the rows that no block sends, and where there are too few, those of the first round again: a prompt that
    is measured is never sent before. ValueError when the file has fewer rows than one level sends.
    """
    name = level.workload.prompts
    if name is None:
        return None
    rows = material.prompts[name]
    users, place = _users(load, level)
    first_rounds, sent = [first_round_of(load.warmup, one) for one in users], [one.course.requests for one in users]
    order = _order(rows, seed)
    if block < WARMUP:
        count = first_rounds[place] if count is None else count
        unused = order[sum(first_rounds) + load.blocks * sum(sent) :]
        order = unused if len(unused) >= count else order[: sum(first_rounds)]
        first = ((WARMUP - block - 1) * len(users) + place) * count
    elif block == WARMUP:
        first, count = sum(first_rounds[:place]), first_rounds[place]
    else:
        first, count = sum(first_rounds) + block * sum(sent) + sum(sent[:place]), sent[place]
        if len(rows) < count:
            raise ValueError(f"{name} has {len(rows):,} rows and {level.name} sends {count:,}")
    return [rows[order[(first + step) % len(order)]] for step in range(count)]


def spare_rows(load: Load, level: Level, material: Material, seed: int, block: int) -> Sequence[Recorded] | None:
    """Return the recorded prompts that the ramp of a level may send in a block; None where prompts are made up.

    They are the rows that no block sends, where there are any: each block begins at another one of them. Else they are
    those that this block does not send, the latest that were sent before it first; and all rows of a file that one
    block sends as a whole.
    """
    name = level.workload.prompts
    if name is None:
        return None
    rows = material.prompts[name]
    users, place = _users(load, level)
    warmup = sum(first_round_of(load.warmup, one) for one in users)
    each = sum(one.course.requests for one in users)
    order, sent = _order(rows, seed), warmup + load.blocks * each
    if sent < len(rows):
        never, of_one = order[sent:], 4 * (level.course.concurrency or level.course.requests)
        return [rows[at] for at in np.roll(never, -(block * len(users) + place) * of_one)]
    first = warmup + block * each
    here = {order[(first + step) % len(rows)] for step in range(each)}
    others = (order[(first - 1 - step) % len(rows)] for step in range(len(rows)))
    return [rows[at] for at in others if at not in here] or list(rows)


def unsent_rows(rows: Sequence[Recorded], sent: Sequence[Recorded]) -> Sequence[Recorded]:
    """Return the rows of a file that are not sent, by their lines; all of them where all are sent."""
    lines = {row.line for row in sent}
    return [row for row in rows if row.line not in lines] or rows


def _users(load: Load, level: Level) -> tuple[list[Level], int]:
    """Return all levels that send prompts of the same file, and the place of this one among them."""
    users = [one for one in load.levels() if one.workload.prompts == level.workload.prompts]
    return users, [one.name for one in users].index(level.name)


def _order(rows: Sequence[Recorded], seed: int) -> IntArray:
    generator = np.random.default_rng([seed, _PROMPTS])
    order: IntArray = generator.permutation(len(rows))
    return order
