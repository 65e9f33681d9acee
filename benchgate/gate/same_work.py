"""Did both arms do the same work for the same requests? Whoever writes less is faster, and its speed says nothing.

Lengths within a tenth are the model's own way; beyond that a check warns (`load_checks`). Here is what goes further.
Why the bounds are where they are: docs/decisions.md, "Guards".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchgate.gate.comparison import paired_load
from benchgate.gate.guard import SPEED, held, tripped
from benchgate.gate.paired_guards import same_rows
from benchgate.gate.places import Place, places
from benchgate.model.metrics import succeeded
from benchgate.model.records import BoolArray, IntArray, TokenSource
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from benchgate.stats.proportions import mcnemar_harm_p
from benchgate.suite.schema import Suite

_TO_THE_LIMIT = 0.99  # of an arm's answers: it was told to go on to the limit, or all of its answers are cut there
_GAP = 0.01
_AS_MUCH = 0.95  # of what was asked for, and one token less at most: some servers (LM Studio) end so at their limit
_HALF = 0.5
_NOTHING_TOKENS = 2  # a word, or the end of the text alone
_SOMETHING_TOKENS = 8


def same_work(evidence: Evidence, suite: Suite) -> GuardResult:
    """Answers of one arm that ended early, said nothing, or were half as long on the whole."""
    for place in places(suite):
        pairs = [_Rows.of(pair, place) for pair in paired_load(evidence, place.name)]
        for told, remedy in _found(pairs, suite.gate.alpha):
            return tripped("same-work", f"stage {place.name}: {told}", remedy, (SPEED,))
    return held("same-work", "for the same requests both arms wrote about as much, as far as a guard can tell")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Every request that both arms answered in one block: tokens of the answers, and which went to their limit."""

    tokens: tuple[IntArray, IntArray]
    to_limit: tuple[BoolArray, BoolArray]

    @classmethod
    def of(cls, pair: tuple[LoadObservation, LoadObservation], place: Place) -> _Rows:
        rows = same_rows(*pair)
        both = np.logical_and(*(succeeded(o.requests)[at] for o, at in zip(pair, rows, strict=True)))
        kept = [at[both] for at in rows]
        theirs, ours = (_of_one(o, at, place.output_tokens) for o, at in zip(pair, kept, strict=True))
        return cls((theirs[0], ours[0]), (theirs[1], ours[1]))


def _of_one(execution: LoadObservation, rows: IntArray, asked: int | None) -> tuple[IntArray, BoolArray]:
    """Tokens, and which answers went to their limit.

    A server that says "length" of a shorter answer than was asked for did not go there; one that only miscounts its
    tokens has sent as many pieces. One token less is as much.
    """
    columns = execution.requests
    tokens = columns.output_tokens[rows]
    ended: BoolArray = columns.finish_reason.are(("length",))[rows]
    if asked is None:
        return tokens, ended
    counted = columns.token_source.are((TokenSource.USAGE,))[rows]
    written = np.maximum(tokens, np.diff(columns.chunk_start)[rows])
    return tokens, ended & (~counted | (written >= max(asked - 1, _AS_MUCH * asked)))


def _found(pairs: list[_Rows], alpha: float) -> Iterator[tuple[str, str]]:
    """What there is to say of a stage, the plainest first, and what to do about it."""
    theirs, ours = (_joined([rows.tokens[side] for rows in pairs]) for side in (0, 1))
    n = len(theirs)
    if n == 0:
        return
    if ours.sum() < _HALF * theirs.sum():
        ratio = f"{ours.sum() / theirs.sum():.2f} times as long as the baseline's"
        yield f"on the same requests the candidate's answers are {ratio} (bound {_HALF:g})", _SHORTER
    silent = [_silent(one, other) for one, other in _ways(theirs, ours)]
    if _differ(silent, n, alpha) and silent[1] > silent[0]:
        what = f"{silent[1]} of {n} answers of the candidate end at once where the baseline writes on"
        yield f"{what}, {silent[0]} the reverse (bound {_GAP:.0%})", _SHORTER
    to_limit = [_joined([rows.to_limit[side] for rows in pairs]).astype(bool) for side in (0, 1)]
    counts = [int(one.sum()) for one in to_limit]
    early = [int((~one & other).sum()) for one, other in _ways(*to_limit)]
    if max(counts) >= _TO_THE_LIMIT * n and _differ(early, n, alpha):
        what = (
            f"{counts[0]} of {n} answers of the baseline, and {counts[1]} of the candidate, go on to the length asked"
        )
        yield f"{what} for (bound {_GAP:.0%})", _ALIKE


def _silent(one: IntArray, other: IntArray) -> int:
    """In how many requests this arm says next to nothing, and the other does not."""
    return int(np.count_nonzero((one <= _NOTHING_TOKENS) & (other >= _SOMETHING_TOKENS)))


def _ways(theirs: IntArray, ours: IntArray) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
    """(one, other) for the baseline as the one, and for the candidate."""
    return (theirs, ours), (ours, theirs)


def _differ(counts: list[int], n: int, alpha: float) -> bool:
    """Whether the arms differ in it by more than a point, and beyond chance: an exact McNemar test of both sides."""
    more, fewer = max(counts), min(counts)
    return more - fewer > _GAP * n and 2 * mcnemar_harm_p(more, fewer) <= alpha


def _joined(parts: list[IntArray] | list[BoolArray]) -> IntArray:
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)


_SHORTER = "see why its answers end so early (template, stop words, a broken model); its speed cannot be judged before"
_ALIKE = (
    "see whether both servers are told, and able, to go on past the end of a text (`ignore_eos`), and have the same "
    "context; or let answers end by themselves: `ignore_eos: false`"
)
