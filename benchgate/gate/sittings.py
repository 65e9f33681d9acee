"""A run that was cut short and went on: what it says of itself, and how often that may be.

What was only begun when it was cut short is measured again, so whoever ends runs can choose what is thrown away: blocks
in which nothing goes well so far. What that is worth at most to somebody who sees all stands in docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchgate.gate.guard import held, tripped
from benchgate.model.run import Evidence, Resumption
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
    """A sentence that tells of the sittings; none where there was one."""
    found = evidence.resumptions
    if not found:
        return ()
    went_on = "; ".join(f"cut short, went on at {one.at}{_again(one)}" for one in found)
    return (f"measured in {len(found) + 1} sittings: {went_on}",)


def _again(one: Resumption) -> str:
    return f", and measured again from the beginning: {', '.join(one.again)}" if one.again else ""
