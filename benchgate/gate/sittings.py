"""A run that was cut short and went on: what it says of itself, and how often that may be.

What was only begun when it was cut short is measured again, so whoever ends runs can choose what is thrown away: blocks
in which nothing goes well so far. What that is worth at most to somebody who sees all stands in docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchgate.gate.comparison import arms_of
from benchgate.gate.guard import TO_ITS_END, held, tripped
from benchgate.gate.telemetry_guards import restarts_between
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, Resumption, RunStatus
from benchgate.model.verdict import GuardResult

MOST_RESUMPTIONS = 1

_EVERYTHING = ("load", "quality", "divergence", "shadow")


def sitting_guards(evidence: Evidence) -> Iterator[GuardResult]:
    """Whether a run was cut short too often; nothing of one that never was."""
    times = len(evidence.resumptions)
    if times > MOST_RESUMPTIONS:
        what = f"the run was cut short and went on {times} times, each time without what it had only begun"
        remedy = "run the suite from its beginning, and let nothing end it more than once"
        yield tripped("few-interruptions", what, remedy, _EVERYTHING)
    elif times:
        yield held("few-interruptions", "the run was cut short and went on once, which is allowed")


def sitting_notes(evidence: Evidence) -> tuple[str, ...]:
    """Sentences that tell of the sittings, and of servers that were restarted meanwhile; none where there was one."""
    found = evidence.resumptions
    if not found:
        return ()
    went_on = "; ".join(f"cut short, went on at {one.at}{_without(one)}{_again(one)}" for one in found)
    return (f"measured in {len(found) + 1} sittings: {went_on}", *_restarts(evidence))


def to_its_end(evidence: Evidence) -> str:
    """What to do about a run that did not measure everything."""
    run = evidence.run
    if run.status is RunStatus.COMPLETE or run.finished_at is not None or run.calibrates or run.imported:
        return TO_ITS_END
    if len(evidence.resumptions) >= MOST_RESUMPTIONS:
        return "it was cut short and went on once already, and does so no more: run the suite from its beginning"
    running = "wait for it to end; where what measured it was killed, " if run.status is RunStatus.RUNNING else ""
    return f"{running}go on with it: `benchgate run SUITE --resume --run {run.id}`"


def _again(one: Resumption) -> str:
    return f", and measured again from the beginning: {', '.join(one.again)}" if one.again else ""


def _without(one: Resumption) -> str:
    """Nobody can say what was in a spool that was not there, or is an older copy: whole blocks that went badly."""
    if one.without_spool:
        gone = "without the spool in which records were kept (--without-spool)"
        return f" {gone}, so what was measured may be missing here"
    if one.by_spool:
        return " with what store and spool had of it, and nobody can vouch that the spool is all of what was kept"
    return ""


def _restarts(evidence: Evidence) -> Iterator[str]:
    """What benchgate starts itself is started anew in every sitting; of others the metrics tell, where they do.

    As each sitting begins they are asked: what they said while load was sent may be of the first sitting alone.
    """
    known = evidence.run.arms
    theirs = [arm for arm in arms_of(evidence) if arm in known and known[arm].url is not None]
    yield from restarts_between(evidence, theirs)
    silent = [arm for arm in theirs if not _same_in_all(arm, evidence.resumptions)]
    if silent:
        who = " and ".join(f"the {arm}" for arm in silent)
        yield f"whether the server of {who} was restarted between the sittings is not known"


def _same_in_all(arm: Arm, found: Sequence[Resumption]) -> bool:
    return all(arm.value in one.same_process for one in found)
