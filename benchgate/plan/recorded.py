"""Which rows of a file of recorded prompts a level sends in a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchgate.plan.material import Material, Recorded
from benchgate.suite.levels import Level
from benchgate.suite.schema import Load

WARMUP = -1
"""What stands for the number of a block in the warm-up."""

_PROMPTS = 4  # what tells the generator of this order from others


def recorded_rows(load: Load, level: Level, material: Material, seed: int, block: int) -> Sequence[Recorded] | None:
    """As many rows as the level sends; None when its texts are made up.

    The file is gone through in one order, drawn from the seed, by all levels and blocks that use it one after the
    other, the warm-up first; so no prompt comes twice before all have come once. ValueError when it has fewer rows than
    one level sends.
    """
    name = level.workload.prompts
    if name is None:
        return None
    rows = material.prompts[name]
    users = [one for one in load.levels() if one.workload.prompts == name]
    place = [one.name for one in users].index(level.name)
    sizes = [_sent(load, one, WARMUP) for one in users], [_sent(load, one, 0) for one in users]
    if block == WARMUP:
        first, count = sum(sizes[0][:place]), sizes[0][place]
    else:
        first, count = sum(sizes[0]) + block * sum(sizes[1]) + sum(sizes[1][:place]), sizes[1][place]
    if block != WARMUP and len(rows) < count:
        raise ValueError(f"{name} has {len(rows):,} rows and {level.name} sends {count:,}")
    generator = np.random.default_rng([seed, _PROMPTS])
    order = generator.permutation(len(rows))
    return [rows[order[(first + step) % len(rows)]] for step in range(count)]


def _sent(load: Load, level: Level, block: int) -> int:
    return load.warmup_requests if block == WARMUP else level.course.requests
