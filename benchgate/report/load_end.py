"""How many blocks the load had, and why no more, in words."""

from __future__ import annotations

from benchgate.model.run import Evidence, LoadEnd
from benchgate.suite.schema import Load

_WHY = {
    "decided": "what had to be was settled by then",
    "invalid": "what was not settled by then is INVALID, and more blocks did not cure that",
    "time": "the next look would have passed the suite's limit of time",
    "cost": "the next look would have passed the suite's limit of cost",
    "last": "there is no look after that",
}


def load_end_lines(evidence: Evidence) -> tuple[str, ...]:
    """One line where the load could have ended at several looks; none where its number of blocks is fixed."""
    return () if evidence.ended is None else (_ended(evidence.ended),)


def blocks_asked(load: Load) -> str:
    """`20`, or `at most 20 (looked at after 5, 10 and 20)`."""
    if not load.looks:
        return str(load.blocks)
    *first, last = load.looks
    return f"at most {load.blocks} (looked at after {', '.join(map(str, first))} and {last})"


def _ended(ended: LoadEnd) -> str:
    return f"ended after {ended.blocks} of at most {ended.of} blocks: {_WHY[ended.why]}"
