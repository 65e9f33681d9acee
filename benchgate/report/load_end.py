"""How many blocks the load had, and why no more, in words."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.model.run import Evidence, LoadEnd
from benchgate.model.verdict import CheckResult, Outcome, Verdict
from benchgate.report.terms import OWN
from benchgate.suite.load import Load

_WHY = {
    "decided": "what had to be was settled by then",
    "invalid": "what was not settled by then is INVALID, and more blocks did not cure that",
    "time": "the next look would have passed the suite's limit of time",
    "cost": "the next look would have passed the suite's limit of cost",
    "last": "there is no look after that",
}


def load_end_lines(evidence: Evidence, verdict: Verdict) -> tuple[str, ...]:
    """One line where the load could have ended at several looks; none where its number of blocks is fixed."""
    if evidence.ended is None:
        return ()
    replaced = OWN.policy_replaced(evidence.run, verdict)  # then other checks block than those that ended the load
    return (_ended(evidence.ended, () if replaced else verdict.checks),)


def blocks_asked(load: Load) -> str:
    """`20`, or `at most 20 (looked at after 5, 10 and 20)`."""
    if not load.looks:
        return str(load.blocks)
    *first, last = load.looks
    return f"at most {load.blocks} (looked at after {', '.join(map(str, first))} and {last})"


def _ended(ended: LoadEnd, checks: Sequence[CheckResult]) -> str:
    """A check that blocks ends the load too, and leaves others open."""
    blocking = [check.id for check in checks if _blocks(check)] if ended.why == "decided" else []
    why = f"{', '.join(blocking)} blocked, which more blocks do not change" if blocking else _WHY[ended.why]
    return f"ended after {ended.blocks} of at most {ended.of} blocks: {why}"


def _blocks(check: CheckResult) -> bool:
    of_load = check.family == "load" and check.metric != "capacity"
    return check.required and of_load and check.counted is Outcome.BLOCK
