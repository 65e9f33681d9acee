"""Which rows of a file of recorded prompts a level sends in a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
    users = [one for one in load.levels() if one.workload.prompts == name]
    place = [one.name for one in users].index(level.name)
    first_rounds, sent = [first_round_of(load.warmup, one) for one in users], [one.course.requests for one in users]
    taken = sum(first_rounds) + load.blocks * sum(sent)
    generator = np.random.default_rng([seed, _PROMPTS])
    order = generator.permutation(len(rows))
    if block < WARMUP:
        count = first_rounds[place] if count is None else count
        unused = order[taken:]
        order = unused if len(unused) >= count else order[: sum(first_rounds)]
        first = ((WARMUP - block - 1) * len(users) + place) * count
    elif block == WARMUP:
        first, count = sum(first_rounds[:place]), first_rounds[place]
    else:
        first, count = sum(first_rounds) + block * sum(sent) + sum(sent[:place]), sent[place]
        if len(rows) < count:
            raise ValueError(f"{name} has {len(rows):,} rows and {level.name} sends {count:,}")
    return [rows[order[(first + step) % len(order)]] for step in range(count)]
