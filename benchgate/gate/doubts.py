"""What makes dollars say less beside others than they seem to, though each number is right by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchgate.gate.accelerators_paid import overpaid
from benchgate.gate.alike_runs import StoredRun
from benchgate.gate.differences import of_other_vocabularies
from benchgate.gate.unit_costs import idles_more
from benchgate.model.deployment import Arm, Deployment
from benchgate.suite.schema import Suite

_Known = tuple[str, Deployment]
"""What a deployment is called, and itself."""


def doubts_of_baseline(one: StoredRun) -> tuple[str, ...]:
    """Of what every share and every saving is of."""
    why = [overpaid(found) for _, found in _known(one, Arm.BASELINE)]
    return tuple(f"it {found}, so the others may seem cheaper beside it" for found in why if found is not None)


def doubts_of_candidate(one: StoredRun, alike: Sequence[StoredRun], *, in_use: bool) -> tuple[str, ...]:
    """Of a run whose numbers count beside those of `alike`: what a check of its cost would warn of."""
    ours = next(_known(one, Arm.CANDIDATE), None)
    if ours is None or not ours[1].has_price:
        return ()
    others = [*_known(one, Arm.BASELINE)]
    others += [known for other in alike if other is not one for known in _known(other, Arm.CANDIDATE)]
    idle = None if in_use else _idles_more(ours, others)
    return tuple(filter(None, (_other_tokens(one, ours, others), idle)))


def _known(one: StoredRun, arm: Arm) -> Iterator[_Known]:
    deployment = one.run.arms.get(arm)
    if deployment is not None:
        yield one.called(arm), deployment


def _other_tokens(one: StoredRun, ours: _Known, others: Sequence[_Known]) -> str | None:
    suite = Suite.from_stored(one.run.suite)
    for name, other in others:
        if of_other_vocabularies(other, ours[1], suite):
            return f"its vocabulary may be another than that of {name}, so as many tokens are other texts"
    return None


def _idles_more(ours: _Known, others: Sequence[_Known]) -> str | None:
    """Held against whoever idles least."""
    priced = [known for known in others if known[1].has_price]
    if not priced:
        return None
    name, least = min(priced, key=lambda known: known[1].in_use_factor or 1.0)
    return idles_more(least, ours[1], (name, ours[0]))
