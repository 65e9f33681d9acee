"""Both arms read the same fixed texts, and at drawn positions each says what it holds the next token for.

Nothing is generated: a text that the arms wrote themselves could not be compared after its first different token. A
baseline that is asked once more is asked at the same time, because what runs beside it is what makes it differ.


Which way both arms can tell the probabilities of a fixed text, found by asking each for a few of them.

Fixed texts: a JSONL file → the texts that both arms read, or every problem in it at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from benchgate.errors import Problem, SuiteError, TargetError
from benchgate.model.deployment import Arm
from benchgate.model.records import DivergenceItem, DivergenceObservation, ProbabilitySource
from benchgate.model.run import INTERRUPTED
from benchgate.plan.texts import FixedText, Piece, draw_cuts, draw_positions, positions_available
from benchgate.quality.asking import Asker, asker_of
from benchgate.quality.logprobs import next_token, text_positions, vocabulary_tokens
from benchgate.stats.divergence import exact_kld, kld_lower_bound, same_top1, shared_tokens
from benchgate.suite.formats import Row, parse_rows
from benchgate.suite.schema import Divergence, Limits
from benchgate.targets.dialect import Target
from benchgate.text_files import RECORDED_BYTES, text_of

_GIVE_UP_AFTER = 5
"""Pieces in a row that could not be read: the deployment is gone, and asking on only costs time."""
_UNCHANGING = 5
"""From so many positions on, one and the same listing at all of them shows that the texts are not read."""
_T = TypeVar("_T")


def diverge(
    targets: Mapping[Arm, Target],
    pieces: Sequence[Piece],
    settings: Divergence,
    seed: int,
    limits: Limits,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[DivergenceObservation]:
    """Exactly one observation: every piece read by both arms, in the order of the pieces.

    `on_progress` gets the number of pieces done. A piece that one arm cannot read has no items and is named in `fault`;
    five in a row end it. An interrupt is a fault too, beside the items seen until then; it is raised again once the
    observation is taken.
    """
    reading = _Reading(targets, pieces, settings, seed, limits, on_progress)
    try:
        asyncio.run(reading.run())
    except (KeyboardInterrupt, SystemExit):
        yield reading.observation(INTERRUPTED)
        raise
    yield reading.observation()


class _Reading:
    """One reading of the texts under way."""

    def __init__(
        self,
        targets: Mapping[Arm, Target],
        pieces: Sequence[Piece],
        settings: Divergence,
        seed: int,
        limits: Limits,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._targets = targets
        self._pieces = pieces
        self._settings = settings
        self._seed = seed
        self._limits = limits
        self._on_progress = on_progress
        self._chosen = Chosen(None, settings.top, False, ())
        self._items: dict[int, list[DivergenceItem]] = {}
        self._faults: dict[int, str] = {}
        self._failed_in_a_row = 0
        self._listed: dict[Arm, set[int]] = {arm: set() for arm in Arm}

    def observation(self, fault: str | None = None) -> DivergenceObservation:
        """What has come so far."""
        return DivergenceObservation(
            items=tuple(item for number in sorted(self._items) for item in self._items[number]),
            expected_n=sum(piece.positions for piece in self._pieces),
            fault=fault or self._fault(),
            way=self._chosen.way,
            top=self._chosen.top,
            whole=self._chosen.whole,
            passed_over=self._chosen.passed_over,
        )

    async def run(self) -> None:
        """Find the way, then read until every piece has its items, or a deployment is gone."""
        async with AsyncExitStack() as stack:
            roles = (Arm.BASELINE, Arm.CANDIDATE, *([Arm.BASELINE] if self._settings.repeat_baseline else []))
            askers = [
                await stack.enter_async_context(asker_of(self._targets[arm], self._limits, self._settings.concurrency))
                for arm in roles
            ]
            self._chosen = await choose_way(askers[0], askers[1], self._settings, self._pieces[0])
            if self._chosen.way is None:
                return
            queue = iter(enumerate(self._pieces))
            workers = min(self._settings.concurrency, len(self._pieces))
            await asyncio.gather(*(self._work(queue, askers, self._chosen.way) for _ in range(workers)))

    async def _work(self, queue: Iterator[tuple[int, Piece]], askers: Sequence[Asker], way: ProbabilitySource) -> None:
        for number, piece in queue:
            if self._failed_in_a_row >= _GIVE_UP_AFTER:
                return
            try:
                self._items[number] = await self._read(piece, askers, way)
                self._failed_in_a_row = 0
            except TargetError as exc:
                self._faults[number] = str(exc)
                self._failed_in_a_row += 1
            if self._on_progress is not None:
                self._on_progress(len(self._items) + len(self._faults))

    async def _read(self, piece: Piece, askers: Sequence[Asker], way: ProbabilitySource) -> list[DivergenceItem]:
        """All arms at once; raises TargetError with the arm and the reason."""
        roles = ("baseline", "candidate", "baseline, asked again")
        (tokens, base), (others, cand), *again = await _all(
            _of(role, read_piece(asker, way, piece, self._chosen.top, self._seed))
            for role, asker in zip(roles, askers, strict=False)
        )
        _same_text(tokens, others, base, cand)
        if len(base) < piece.positions:
            raise TargetError(f"its second half has {len(base)} positions, and {piece.positions} are asked for")
        self._listed[Arm.BASELINE].update(hash(tuple(one.top.items())) for one in base)
        self._listed[Arm.CANDIDATE].update(hash(tuple(one.top.items())) for one in cand)
        items = [self._item(piece, b, c) for b, c in zip(base, cand, strict=True)]
        for repeated, seen in again:
            _same_text(tokens, repeated, base, seen, "the baseline, asked again, makes")
            items = [self._with_floor(item, b, b2) for item, b, b2 in zip(items, base, seen, strict=True)]
        return items

    def _item(self, piece: Piece, base: Seen, cand: Seen) -> DivergenceItem:
        return DivergenceItem(
            text_id=piece.text_id,
            piece=piece.number,
            position=base.place,
            kld=self._kld(base, cand),
            same_top1=same_top1(base.top, cand.top),
            bound=not self._chosen.whole,
            shared=shared_tokens(base.top, cand.top),
            baseline_ln=base.ln,
            candidate_ln=cand.ln,
        )

    def _with_floor(self, item: DivergenceItem, base: Seen, again: Seen) -> DivergenceItem:
        return replace(item, floor_kld=self._kld(base, again), floor_same_top1=same_top1(base.top, again.top))

    def _kld(self, base: Seen, other: Seen) -> float:
        try:
            if not self._chosen.whole:
                named = all(token.startswith("#") for token in (*base.top, *other.top))  # by ids
                return kld_lower_bound(base.top, other.top, named=named)
            return exact_kld(base.top, other.top)
        except ValueError as exc:
            raise TargetError(str(exc)) from exc

    def _fault(self) -> str | None:
        """What makes the whole of it unusable; None when nothing does."""
        if self._chosen.way is None:
            tried = "; ".join(self._chosen.passed_over) or "none was tried"
            return f"no way to the probabilities of a text works on both arms: {tried}"
        if self._faults:
            first = min(self._faults)
            count, name = f"{len(self._faults)} of {len(self._pieces)} pieces", self._pieces[first].name
            return f"{count} could not be read, first {name}: {self._faults[first]}"
        for arm, listed in self._listed.items():
            if len(listed) == 1 and sum(map(len, self._items.values())) >= _UNCHANGING:
                return f"the {arm.value} lists the same probabilities at every position, so it does not read the texts"
        return None


async def _all(asked: Iterable[Awaitable[_T]]) -> list[_T]:
    """Every result; the first failure, once all have ended, so that none goes on behind our back."""
    results = await asyncio.gather(*asked, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def _of(role: str, asked: Awaitable[_T]) -> _T:
    """The result, or the reason with the arm that it is of."""
    try:
        return await asked
    except TargetError as exc:
        raise TargetError(f"{role}: {exc}") from exc


def _same_text(
    tokens: int, others: int, base: Sequence[Seen], cand: Sequence[Seen], who: str = "the arms make"
) -> None:
    """TargetError unless both readings made the same tokens of a piece, as far as that can be seen."""
    if tokens != others or len(base) != len(cand):
        counts = f"{tokens} and {others}"
        raise TargetError(f"{who} {counts} tokens of it: their tokenizers differ, so nothing can be compared")
    for one, other in zip(base, cand, strict=True):
        if (one.place, one.token) != (other.place, other.token):
            raise TargetError(f"{who} other tokens at place {one.place}: their tokenizers differ")


_STRONGEST_FIRST: tuple[ProbabilitySource, ...] = ("n_probs", "echo", "cut")
_LARGEST_WHOLE = 4096
"""Vocabularies of more tokens are not listed whole: one answer would be megabytes."""
_PROBED = 2  # positions
_MIN_TOKENS = 2  # tokens that must be listed
_MAX_MASS = 1.01  # of one listing, each probability rounded


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
        faults = await asyncio.gather(*(_way_fault(one, way, probe, settings.top) for one in (baseline, candidate)))
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
        seen = [Seen(cut, None, None, await _next_token_top(asker, piece.text[:cut], top)) for cut in cuts]
        return len(piece.text), _sound(seen, top)
    counts: list[int] = []

    def choose(tokens: int) -> Sequence[int]:
        counts.append(tokens)
        return draw_positions(piece, tokens, seed)

    found = await text_positions(asker, way, piece.text, top=top, choose=choose)
    seen = [Seen(one.place, one.token, one.logprob, _top(one.top, top)) for one in found]
    return counts[0], _sound(seen, top)


async def _way_fault(asker: Asker, way: ProbabilitySource, probe: Piece, top: int) -> str | None:
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
        if len(one.top) < max(_MIN_TOKENS, top / 2):
            least = max(_MIN_TOKENS, len(one.top))
            raise TargetError(f"it lists {len(one.top)} tokens of {top} asked for; write `divergence.top: {least}`")
        beside = [one.ln] if one.ln is not None and one.token not in one.top else []
        mass = math.fsum(map(math.exp, [*one.top.values(), *beside]))
        if mass > _MAX_MASS:
            raise TargetError(f"the probabilities that it lists at place {one.place} add up to {mass:.3g}")
    return seen


async def _vocabulary(baseline: Asker, candidate: Asker) -> int | None:
    """How many tokens the vocabulary has, where both arms tell the same number and it is small enough to be listed."""
    counts = {await vocabulary_tokens(asker) for asker in (baseline, candidate)}
    count = counts.pop()
    return count if not counts and count is not None and count <= _LARGEST_WHOLE else None


async def _next_token_top(asker: Asker, beginning: str, top: int) -> Mapping[str, float]:
    return _top(await next_token(asker, beginning, top=top), top)


def _top(listed: Mapping[str, float], top: int) -> Mapping[str, float]:
    """The `top` most probable: some servers add the token that stands in the text, which need not be one of them."""
    ordered = sorted(listed.items(), key=lambda entry: (-entry[1], entry[0]))
    return dict(ordered[:top])


_TEXT_KEYS = ("id", "text")


def load_texts(path: Path, settings: Divergence) -> tuple[FixedText, ...]:
    """The texts of a JSONL file of `{"id": …, "text": …}` rows, in file order.

    Raises SuiteError with every problem and its line: a file that cannot be read, a row that is not such an object, an
    `id` used twice, an empty text, an unknown key; and when there is no room in all of them for the positions wanted.
    """
    source = str(path)
    try:
        text = text_of(path, RECORDED_BYTES)
    except (OSError, UnicodeDecodeError) as exc:
        reason = f"the texts cannot be read ({exc}); `divergence.texts` names a JSONL file beside the suite"
        raise SuiteError([Problem(source, None, None, "", reason)]) from exc
    rows, problems = parse_rows(text, source)
    problems += [Problem(source, row.line, None, "", message) for row in rows for message in _row_faults(row)]
    if problems:
        raise SuiteError(problems)
    texts = tuple(FixedText(id=str(row.values["id"]), text=str(row.values["text"])) for row in rows)
    room = positions_available(texts, settings.window)
    if room < settings.positions:
        reason = (
            f"there is room for {room} positions in these texts, one for every 16 characters, and "
            f"`divergence.positions` is {settings.positions}; give more texts or ask for fewer positions"
        )
        raise SuiteError([Problem(source, None, None, "", reason)])
    return texts


def _row_faults(row: Row) -> list[str]:
    faults = []
    text = row.values.get("text")
    if not isinstance(text, str) or not text.strip():
        faults.append("`text` is missing or empty; it must be the text to read")
    for key in row.values:
        if key not in _TEXT_KEYS:
            near = get_close_matches(key, _TEXT_KEYS, n=1)
            faults.append(f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else "a row has id, text"))
    return faults
