"""What a look of a capacity search asks.

Which looks are taken follows from what was seen, so a plan cannot hold them; what each asks follows from the suite, its
seed, the level and how often that was looked at. Two arms that look at one level ask it the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchgate.plan.material import NOTHING, Material
from benchgate.plan.planned import PlannedStage
from benchgate.plan.schedule import planned_stage
from benchgate.stats.search import Look
from benchgate.suite.capacity import CAPACITY_STAGE, Capacity
from benchgate.suite.schema import Load, Stage

_STREAM = 0xCA9AC17  # keeps its random numbers apart from the sweep's
_LEVEL_STEPS = 10**6


def look_stage(
    load: Load, capacity: Capacity, look: Look, seed: Sequence[int], material: Material = NOTHING
) -> PlannedStage:
    """What one look sends, under the name its observation is stored by.

    `seed` are the suite's and how often this level has been looked at: no look asks what an earlier one has warmed up.
    `material` is what the files of the load hold.
    """
    said = {"stage": CAPACITY_STAGE, "requests": look.requests, "workload": capacity.workload}
    if capacity.over == "rate":
        stage = Stage.model_validate({**said, "rate": f"{look.level:.12g}/s", "arrival": capacity.arrival})
    else:
        stage = Stage.model_validate({**said, "concurrency": int(look.level)})
    drawn_by = [_STREAM, round(look.level * _LEVEL_STEPS), *seed]
    asked = planned_stage(load, stage, drawn_by, material, seed=seed[0])
    return replace(asked, name=f"{CAPACITY_STAGE}/{look.name}")
