"""Which way both arms can tell the probabilities of a fixed text, found by asking each for a few of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchgate.errors import TargetError
from benchgate.model.records import ProbabilitySource
from benchgate.plan.items import Piece, draw_cuts, draw_positions
from benchgate.quality.asking import Asker
from benchgate.quality.logprobs import next_token, text_positions, vocabulary_tokens
from benchgate.suite.schema import Divergence

_STRONGEST_FIRST: tuple[ProbabilitySource, ...] = ("n_probs", "echo", "cut")
_LARGEST_WHOLE = 4096
"""Vocabularies of more tokens are not listed whole: one answer would be megabytes."""
_PROBED = 2  # positions
_FEWEST = 2  # tokens that must be listed
_MOST_MASS = 1.01  # of one listing, each probability rounded


@dataclass(frozen=True, slots=True)
class Chosen:
    """The way taken, None when none works on both arms, and why stronger ones were passed over."""

    way: ProbabilitySource | None
    top: int
    whole: bool
    passed_over: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What an arm said at one position: the token that stands there with its ln p, as far as the way tells it."""

    place: int
    token: str | None
    ln: float | None
    top: Mapping[str, float]


async def choose_way(baseline: Asker, candidate: Asker, settings: Divergence, piece: Piece) -> Chosen:
    """The way that the suite names, or the strongest that both arms show to work on a real piece."""
    wanted = _STRONGEST_FIRST if settings.way == "auto" else (settings.way,)
    probe = replace(piece, positions=_PROBED)
    passed_over: list[str] = []
    for way in wanted:
        faults = await asyncio.gather(*(_fault(one, way, probe, settings.top) for one in (baseline, candidate)))
        told = [f"{arm}: {f}" for arm, f in zip(("baseline", "candidate"), faults, strict=True) if f is not None]
        if not told:
            whole = await _vocabulary(baseline, candidate) if way == "n_probs" else None
            return Chosen(way, whole or settings.top, whole is not None, tuple(passed_over))
        passed_over.append(f"{way}: {'; '.join(told)}")
    return Chosen(None, settings.top, False, tuple(passed_over))


async def read_piece(asker: Asker, way: ProbabilitySource, piece: Piece, top: int, seed: int) -> tuple[int, list[Seen]]:
    """How many tokens (`cut`: characters) an arm makes of a piece, and what it says at the drawn positions, in order.

    Raises TargetError with the reason when it says nothing that can be trusted.
    """
    if way == "cut":
        cuts = draw_cuts(piece, seed)
        seen = [Seen(cut, None, None, await _rivals(asker, piece.text[:cut], top)) for cut in cuts]
        return len(piece.text), _sound(seen, top)
    counts: list[int] = []

    def choose(tokens: int) -> Sequence[int]:
        counts.append(tokens)
        return draw_positions(piece, tokens, seed)

    found = await text_positions(asker, way, piece.text, top=top, choose=choose)
    seen = [Seen(one.place, one.token, one.logprob, _most(one.top, top)) for one in found]
    return counts[0], _sound(seen, top)


async def _fault(asker: Asker, way: ProbabilitySource, probe: Piece, top: int) -> str | None:
    """Why a way does not work on an arm; None when it does."""
    try:
        _, seen = await read_piece(asker, way, probe, top, seed=0)
    except TargetError as exc:
        return str(exc)
    if not seen:
        return f"{probe.name} is too short to look at"
    if all(len(set(one.top.values())) == 1 for one in seen):
        return "it lists every token as equally probable, so its probabilities are not a model's"
    return None


def _sound(seen: list[Seen], top: int) -> list[Seen]:
    """TargetError where a listing cannot be a model's, or is less than half of what was asked.

    What an arm leaves out cannot be held against it, and probabilities that add up to more than one are near anything.
    """
    for one in seen:
        if len(one.top) < max(_FEWEST, top / 2):
            least = max(_FEWEST, len(one.top))
            raise TargetError(f"it lists {len(one.top)} tokens of {top} asked for; write `divergence.top: {least}`")
        beside = [one.ln] if one.ln is not None and one.token not in one.top else []
        mass = math.fsum(map(math.exp, [*one.top.values(), *beside]))
        if mass > _MOST_MASS:
            raise TargetError(f"the probabilities that it lists at place {one.place} add up to {mass:.3g}")
    return seen


async def _vocabulary(baseline: Asker, candidate: Asker) -> int | None:
    """How many tokens the vocabulary has, where both arms tell the same number and it is small enough to be listed."""
    counts = {await vocabulary_tokens(asker) for asker in (baseline, candidate)}
    count = counts.pop()
    return count if not counts and count is not None and count <= _LARGEST_WHOLE else None


async def _rivals(asker: Asker, beginning: str, top: int) -> Mapping[str, float]:
    return _most(await next_token(asker, beginning, top=top), top)


def _most(listed: Mapping[str, float], top: int) -> Mapping[str, float]:
    """The `top` most probable: some servers add the token that stands in the text, which need not be one of them."""
    ordered = sorted(listed.items(), key=lambda entry: (-entry[1], entry[0]))
    return dict(ordered[:top])
