"""Are the answers of a shadow comparison answers at all? Where they are not, it says nothing of the candidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchgate.gate.guard import held, tripped
from benchgate.gate.quality_answers import too_many
from benchgate.model.records import ShadowItem
from benchgate.model.run import Evidence
from benchgate.model.shadow import AnswerFacts, Label
from benchgate.model.verdict import GuardResult

MOST_EMPTY = 0.01
"""Of a side's answers, that may say nothing; of few answers two may."""
_NAMED = 3
_FEWEST = 20  # prompts, to see a pattern in all of them
_FEWEST_TOKENS = 32  # of a usual answer: a shorter one is quick by itself
_QUICKEST_NS_PER_TOKEN = 50_000
"""20,000 tokens per second of one stream, ten times as many as the quickest engines: such an answer was not made."""

_QUICK_NS, _MANY_TIMES = 5_000_000, 20  # as for evals
_REMEMBERED, _LEAST_REMEMBERED = 0.05, 10  # of the prompts, and at least so many
_NO_CACHE = "take the cache out of the way to both"
_SPOILT = ("shadow",)


def shadow_guards(evidence: Evidence) -> Iterator[GuardResult]:
    """Every guard of the shadow comparison; none where there are no facts about its answers."""
    items = evidence.shadow.items if evidence.shadow is not None else ()
    if not any(item.primary_facts is not None or item.candidate_facts is not None for item in items):
        return
    yield _not_empty(items)
    yield _not_refused(items)
    yield _not_cached(items)


def _not_empty(items: Sequence[ShadowItem]) -> GuardResult:
    name = "shadow-not-empty"
    for who, sides in {
        "baseline": [(item, item.primary_facts, item.primary, item.primary_finish) for item in items],
        "candidate": [(item, item.candidate_facts, item.candidate, item.candidate_finish) for item in items],
    }.items():
        # a call that failed came to no answer at all
        came = [(item.prompt_id, digest, finish) for item, facts, digest, finish in sides if facts is not None]
        empty = [(prompt, finish) for prompt, digest, finish in came if digest is None]
        if too_many(len(empty), len(came), MOST_EMPTY):
            told = f"{len(empty) / len(came):.1%} of the {who}'s answers to recorded prompts are empty"
            return tripped(name, f"{told}: {_named([prompt for prompt, _ in empty])}", _of_empty(empty), _SPOILT)
    return held(name, "the answers to recorded prompts are not empty")


def _not_refused(items: Sequence[ShadowItem]) -> GuardResult:
    """Two deployments behind one filter agree on everything that it takes away."""
    name, refused = (
        "shadow-not-refused",
        [item.primary_facts is not None and item.primary_facts.refusal for item in items],
    )
    if len(items) >= _FEWEST and 2 * sum(refused) > len(items):
        what = f"the baseline refuses {sum(refused)} of {len(items)} recorded prompts, so there is little to compare"
        return tripped(name, what, "see what filters its answers, or record prompts that it answers", _SPOILT)
    return held(name, "the baseline answers most recorded prompts")


def _not_cached(items: Sequence[ShadowItem]) -> GuardResult:
    """All answers the same, and in no time: something in between has answered in the candidate's place."""
    name = "shadow-not-cached"
    alike = [item.with_primary is not None and item.with_primary.label is Label.EXACT for item in items]
    if len(items) >= _FEWEST and all(alike) and (_all_quick(items) or _one_side_quick(items)):
        what = "every answer of the candidate is the baseline's own, and came sooner than any engine makes one"
        return tripped(name, f"{what}: from a cache", _NO_CACHE, _SPOILT)
    count = sum(map(_is_remembered, items))
    if count >= _LEAST_REMEMBERED and count > _REMEMBERED * len(items):
        what = (
            f"{count} of {len(items)} answers of the candidate are the baseline's own, and came within 5 ms on one arm"
        )
        told = f"{what}, a twentieth of the other's time (bound {_REMEMBERED:.0%}): from a cache"
        return tripped(name, told, _NO_CACHE, _SPOILT)
    return held(name, "the answers to recorded prompts were made for them")


def _is_remembered(item: ShadowItem) -> bool:
    """One answer of both, for which one of them needed hardly any time and the other a model's."""
    alike = item.with_primary is not None and item.with_primary.label is Label.EXACT
    if not alike or item.primary_facts is None or item.candidate_facts is None:
        return False
    quick, slow = sorted((item.primary_facts.latency_ns, item.candidate_facts.latency_ns))
    return quick < _QUICK_NS and quick < slow / _MANY_TIMES


def _of_empty(empty: Sequence[tuple[str, str | None]]) -> str:
    """More tokens help only an answer that was cut before it began."""
    if any(finish == "length" for _, finish in empty):
        return "raise `shadow.max_tokens`, and see whether the answer is in another field"
    return "see whether the answer is in another field; leave out prompts to which the model has nothing to say"


def _named(prompts: Sequence[str]) -> str:
    more = f" and {len(prompts) - _NAMED} more" if len(prompts) > _NAMED else ""
    return f"{', '.join(prompts[:_NAMED])}{more}"


def _all_quick(items: Sequence[ShadowItem]) -> bool:
    paces = [pace for item in items if (pace := _ns_per_token(item.candidate_facts)) is not None]
    return len(paces) == len(items) and float(np.median(paces)) < _QUICKEST_NS_PER_TOKEN


def _one_side_quick(items: Sequence[ShadowItem]) -> bool:
    """Of two deployments that answer alike, one needs nearly no time beside the other."""
    pairs = [(item.primary_facts, item.candidate_facts) for item in items]
    times = [(theirs.latency_ns, ours.latency_ns) for theirs, ours in pairs if theirs is not None and ours is not None]
    if not times:
        return False
    quick, slow = sorted(float(np.median(side)) for side in zip(*times, strict=True))
    return quick < _QUICK_NS and quick < slow / _MANY_TIMES


def _ns_per_token(facts: AnswerFacts | None) -> float | None:
    if facts is None or facts.tokens is None or facts.tokens < _FEWEST_TOKENS:
        return None
    return facts.latency_ns / facts.tokens
