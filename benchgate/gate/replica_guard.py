"""Did every deployment have the replicas that its suite declares, whenever they were counted during the run?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchgate.gate.comparison import arms_of
from benchgate.gate.guard import gravest, held, spoils_of, tripped
from benchgate.model.deployment import Arm
from benchgate.model.replicas import AT_THE_END, ReplicaCount
from benchgate.model.run import AT_THE_START, Evidence, RunStatus
from benchgate.model.verdict import GuardResult
from benchgate.suite.capacity import level_of_stage

_NAME = "replicas-changed"
_MOST_SHOWN = 3
_REMEDY = (
    "see why replicas came or went (the scheduler's and the servers' logs), keep their number as it is declared, and "
    "run the suite again"
)


def replica_guards(evidence: Evidence) -> Iterator[GuardResult]:
    """Trip where a count differs from the declared number, could not be taken or is missing.

    Nothing for a run whose suite declares no replicas.
    """
    declared = {arm: wanted for arm in arms_of(evidence) if (wanted := _declared(evidence, arm)) is not None}
    if not declared:
        return
    found = [one for arm, wanted in declared.items() if (one := _of_arm(evidence, arm, wanted)) is not None]
    counts = sum(one.arm in declared for one in evidence.replicas)
    numbers = " and ".join(f"{wanted} of the {arm.value}" for arm, wanted in declared.items())
    yield gravest(found) or held(_NAME, f"all replicas were there at each of {counts} counts: {numbers}")


def _declared(evidence: Evidence, arm: Arm) -> int | None:
    """Return how many replicas the run's own suite declares, whatever policy judges it now; None where none."""
    stored = evidence.run.suite
    found: object = stored.get("deployments")
    for key in (stored.get(arm.value), "ready", "replicas"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int) else None


def _of_arm(evidence: Evidence, arm: Arm, wanted: int) -> GuardResult | None:
    counts = [one for one in evidence.replicas if one.arm is arm]
    wrong = [f"{one.shown} {one.when}" for one in counts if one.count != wanted]
    missing = [] if evidence.target_faults else list(_missing(evidence, arm, counts))
    if not wrong and not missing:
        return None
    told = [*wrong, *(f"no count {when}" for when in missing)]
    more = [f"and {len(told) - _MOST_SHOWN} more"] if len(told) > _MOST_SHOWN else []
    name = evidence.run.arms[arm].name if arm in evidence.run.arms else ""
    shown = "; ".join([*told[:_MOST_SHOWN], *more])
    what = f"the {arm.value} {name} did not have its {wanted} replicas throughout: {shown}"
    return tripped(_NAME, what, _REMEDY, spoils_of(arm, "load"))


def _missing(evidence: Evidence, arm: Arm, counts: list[ReplicaCount]) -> Iterator[str]:
    """Yield the moments of which there must be a count by what was measured, and is none."""
    moments = {one.when for one in counts}
    if AT_THE_START not in moments:
        yield AT_THE_START
    counted = {one.block for one in counts}
    measured = {one.block for one in evidence.load if one.arm is arm and level_of_stage(one.stage) is None}
    yield from (f"before block {block + 1}" for block in sorted(measured - counted))
    if evidence.run.status is RunStatus.COMPLETE and AT_THE_END not in moments:
        yield AT_THE_END
