"""KL divergence of the arms' next-token distributions at drawn positions of fixed texts.

Nothing is generated: texts of the arms' own could not be compared after their first different token. A repeated
baseline is read at the same time, because its answers depend on what they are batched with.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from benchgate.errors import Problem, SuiteError, TargetError
from benchgate.model.deployment import Arm
from benchgate.model.records import DivergenceItem, DivergenceObservation, ProbabilitySource
from benchgate.model.run import INTERRUPTED
from benchgate.plan.items import FixedText, Piece, draw_cuts, draw_positions, positions_available
from benchgate.quality.logprobs import misplaced_values, next_token, text_positions, vocabulary_tokens
from benchgate.stats.divergence import exact_kld, kld_lower_bound, same_top1, shared_tokens
from benchgate.suite.formats import parse_rows
from benchgate.suite.quality import Divergence
from benchgate.suite.schema import Limits
from benchgate.system import RECORDED_BYTES, read_text_file
from benchgate.targets.client import RETRY, AsyncJsonClient
from benchgate.targets.dialect import Target

_TEXT_KEYS = ("id", "text")
_GIVE_UP_AFTER = 5  # failed pieces in a row after which a deployment counts as gone

# Number of positions from which the same listing at all of them shows that the texts are not read.
_MIN_POSITIONS_TO_DIFFER = 5
_STRONGEST_FIRST: tuple[ProbabilitySource, ...] = ("n_probs", "echo", "cut")
# Tokens up to which a vocabulary is listed whole. A larger one would make answers of megabytes.
_LARGEST_VOCABULARY = 4096
_PROBE_POSITIONS = 2
_MIN_TOKENS = 2  # that must be listed
_MAX_MASS = 1.01  # of one listing, each probability rounded
_T = TypeVar("_T")


def load_texts(path: Path, settings: Divergence) -> tuple[FixedText, ...]:
    """Read a JSONL file of `{"id": …, "text": …}` rows, in file order.

    Raises SuiteError with every problem and its line: unreadable file, invalid row, duplicate `id`, empty text, unknown
    key, or too little text for the positions.
    """
    source = str(path)
    try:
        content = read_text_file(path, RECORDED_BYTES)
    except (OSError, UnicodeDecodeError) as exc:
        reason = f"the texts cannot be read ({exc}); `divergence.texts` names a JSONL file beside the suite"
        raise SuiteError([Problem(source, None, None, "", reason)]) from exc
    rows, problems = parse_rows(content, source)
    for row in rows:
        text = row.values.get("text")
        if not isinstance(text, str) or not text.strip():
            message = "`text` is missing or empty; it must be the text to read"
            problems.append(Problem(source, row.line, None, "", message))
        for key in row.values:
            if key not in _TEXT_KEYS:
                near = get_close_matches(key, _TEXT_KEYS, n=1)
                message = f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else "a row has id, text")
                problems.append(Problem(source, row.line, None, "", message))
    if problems:
        raise SuiteError(problems)
    texts = tuple(FixedText(id=str(row.values["id"]), text=str(row.values["text"])) for row in rows)
    available = positions_available(texts, settings.window)
    if available < settings.positions:
        reason = (
            f"there is room for {available} positions in these texts, one for every 16 characters, and "
            f"`divergence.positions` is {settings.positions}; give more texts or ask for fewer positions"
        )
        raise SuiteError([Problem(source, None, None, "", reason)])
    return texts


def diverge(
    targets: Mapping[Arm, Target],
    pieces: Sequence[Piece],
    settings: Divergence,
    seed: int,
    limits: Limits,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[DivergenceObservation]:
    """Yield exactly one observation: every piece read by both arms, in the order of the pieces.

    `on_progress` gets the number of pieces done. A piece that an arm cannot read has no items and is named in `fault`;
    five in a row end it. An interrupt is a fault too, with the items so far; it is raised again afterwards.
    """
    chosen = ChosenWay(None, settings.top, False, ())
    measurement = _Measurement(targets, pieces, settings, seed, limits, on_progress, chosen)
    try:
        asyncio.run(measurement.run())
    except (KeyboardInterrupt, SystemExit):
        yield measurement.observation(INTERRUPTED)
        raise
    yield measurement.observation()


@dataclass(frozen=True, slots=True)
class ChosenWay:
    """Source of probabilities that works on both arms, if any, and why stronger ones do not."""

    way: ProbabilitySource | None
    top: int
    whole: bool
    passed_over: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PositionReading:
    """Distribution of an arm at one position, with the token of the text and its ln p if the way reports them."""

    place: int
    token: str | None
    ln: float | None
    top: Mapping[str, float]


@dataclass(slots=True, eq=False)
class _Measurement:
    targets: Mapping[Arm, Target]
    pieces: Sequence[Piece]
    settings: Divergence
    seed: int
    limits: Limits
    on_progress: Callable[[int], None] | None
    chosen: ChosenWay
    items: dict[int, list[DivergenceItem]] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    failed_in_a_row: int = 0
    listings: dict[Arm, set[int]] = field(default_factory=lambda: {arm: set() for arm in Arm})

    def observation(self, fault: str | None = None) -> DivergenceObservation:
        """Return the observation so far."""
        return DivergenceObservation(
            items=tuple(item for number in sorted(self.items) for item in self.items[number]),
            expected_n=sum(piece.positions for piece in self.pieces),
            fault=fault or self._fault(),
            way=self.chosen.way,
            top=self.chosen.top,
            whole=self.chosen.whole,
            passed_over=self.chosen.passed_over,
        )

    async def run(self) -> None:
        """Choose the way, then read until every piece has its items or a deployment is gone."""
        roles = (Arm.BASELINE, Arm.CANDIDATE, *([Arm.BASELINE] if self.settings.repeat_baseline else []))
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    AsyncJsonClient(
                        self.targets[arm],
                        connect_s=self.limits.connect_s,
                        total_s=self.limits.total_s,
                        connections=self.settings.concurrency,
                        retry=RETRY,
                    )
                )
                for arm in roles
            ]
            self.chosen = await _choose_way(clients[0], clients[1], self.settings, self.pieces[0])
            if self.chosen.way is None:
                return
            queue = iter(enumerate(self.pieces))
            workers = min(self.settings.concurrency, len(self.pieces))
            await asyncio.gather(*(self._work(queue, clients, self.chosen.way) for _ in range(workers)))

    async def _work(
        self, queue: Iterator[tuple[int, Piece]], clients: Sequence[AsyncJsonClient], way: ProbabilitySource
    ) -> None:
        for number, piece in queue:
            if self.failed_in_a_row >= _GIVE_UP_AFTER:
                return
            try:
                self.items[number] = await self._read(piece, clients, way)
                self.failed_in_a_row = 0
            except TargetError as exc:
                self.faults[number] = str(exc)
                self.failed_in_a_row += 1
            if self.on_progress is not None:
                self.on_progress(len(self.items) + len(self.faults))

    async def _read(
        self, piece: Piece, clients: Sequence[AsyncJsonClient], way: ProbabilitySource
    ) -> list[DivergenceItem]:
        roles = ("baseline", "candidate", "repeated baseline")

        async def read(role: str, client: AsyncJsonClient) -> tuple[int, list[PositionReading]]:
            try:
                return await read_piece(client, way, piece, self.chosen.top, self.seed)
            except TargetError as exc:
                raise TargetError(f"{role}: {exc}") from exc

        # The first failure is raised once all have ended, so that no request goes on in the background.
        results = await asyncio.gather(*map(read, roles, clients), return_exceptions=True)
        readings = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            readings.append(result)
        (tokens, base), (cand_tokens, cand), *again = readings
        _require_same_tokens(tokens, cand_tokens, base, cand)
        if len(base) < piece.positions:
            raise TargetError(f"its second half has {len(base)} positions, and {piece.positions} are requested")
        self.listings[Arm.BASELINE].update(hash(tuple(one.top.items())) for one in base)
        self.listings[Arm.CANDIDATE].update(hash(tuple(one.top.items())) for one in cand)
        items = [
            (
                DivergenceItem(
                    text_id=piece.text_id,
                    piece=piece.number,
                    position=b.place,
                    kld=self._kld(b, c),
                    same_top1=same_top1(b.top, c.top),
                    bound=not self.chosen.whole,
                    shared=shared_tokens(b.top, c.top),
                    baseline_ln=b.ln,
                    candidate_ln=c.ln,
                )
            )
            for b, c in zip(base, cand, strict=True)
        ]
        for again_tokens, repeated in again:
            _require_same_tokens(tokens, again_tokens, base, repeated, "the repeated baseline makes")
            items = [
                replace(item, floor_kld=self._kld(b, b2), floor_same_top1=same_top1(b.top, b2.top))
                for item, b, b2 in zip(items, base, repeated, strict=True)
            ]
        return items

    def _kld(self, base: PositionReading, other: PositionReading) -> float:
        try:
            if not self.chosen.whole:
                named = all(token.startswith("#") for token in (*base.top, *other.top))  # by ids
                return kld_lower_bound(base.top, other.top, named=named)
            return exact_kld(base.top, other.top)
        except ValueError as exc:
            raise TargetError(str(exc)) from exc

    def _fault(self) -> str | None:
        if self.chosen.way is None:
            tried = "; ".join(self.chosen.passed_over) or "none was tried"
            return f"no way to the probabilities of a text works on both arms: {tried}"
        if self.faults:
            first = min(self.faults)
            count, name = f"{len(self.faults)} of {len(self.pieces)} pieces", self.pieces[first].name
            return f"{count} could not be read, first {name}: {self.faults[first]}"
        for arm, listings in self.listings.items():
            if len(listings) == 1 and sum(map(len, self.items.values())) >= _MIN_POSITIONS_TO_DIFFER:
                return f"the {arm.value} lists the same probabilities at every position, so it does not read the texts"
        return None


def _require_same_tokens(
    tokens: int,
    other_tokens: int,
    base: Sequence[PositionReading],
    other: Sequence[PositionReading],
    subject: str = "the arms make",
) -> None:
    if tokens != other_tokens or len(base) != len(other):
        counts = f"{tokens} and {other_tokens}"
        raise TargetError(f"{subject} {counts} tokens of it: their tokenizers differ, so nothing can be compared")
    for ours, theirs in zip(base, other, strict=True):
        if (ours.place, ours.token) != (theirs.place, theirs.token):
            raise TargetError(f"{subject} other tokens at place {ours.place}: their tokenizers differ")


async def _choose_way(
    baseline: AsyncJsonClient, candidate: AsyncJsonClient, settings: Divergence, piece: Piece
) -> ChosenWay:
    """Return the suite's way, or the strongest that works on both arms on a real piece."""
    ways = _STRONGEST_FIRST if settings.way == "auto" else (settings.way,)
    probe = replace(piece, positions=_PROBE_POSITIONS)
    passed_over: list[str] = []
    for way in ways:
        faults = await asyncio.gather(*(_way_fault(one, way, probe, settings.top) for one in (baseline, candidate)))
        named = [f"{arm}: {fault}" for arm, fault in zip(("baseline", "candidate"), faults, strict=True) if fault]
        if not named:
            size = None
            if way == "n_probs":  # the whole vocabulary, if both report the same and it is small enough to be listed
                sizes = [await vocabulary_tokens(client) for client in (baseline, candidate)]
                if sizes[0] == sizes[1] and sizes[0] is not None and sizes[0] <= _LARGEST_VOCABULARY:
                    size = sizes[0]
            return ChosenWay(way, size or settings.top, size is not None, tuple(passed_over))
        passed_over.append(f"{way}: {'; '.join(named)}")
    return ChosenWay(None, settings.top, False, tuple(passed_over))


async def _way_fault(client: AsyncJsonClient, way: ProbabilitySource, probe: Piece, top: int) -> str | None:
    try:
        _, readings = await read_piece(client, way, probe, top, seed=0)
    except TargetError as exc:
        return str(exc)
    if not readings:
        return f"{probe.name} is too short to look at"
    if way == "echo" and (fault := await misplaced_values(client)) is not None:
        return fault
    if all(len(set(one.top.values())) == 1 for one in readings):
        return "it lists every token as equally probable, so its probabilities are not a model's"
    return None


async def read_piece(
    client: AsyncJsonClient, way: ProbabilitySource, piece: Piece, top: int, seed: int
) -> tuple[int, list[PositionReading]]:
    """Return how many tokens (`cut`: characters) a piece has, and the readings at the drawn positions, in order.

    Raises TargetError for listings that cannot be a model's, or with less than half of the requested tokens: a token
    that an arm leaves out is not compared.
    """
    counts: list[int] = []

    def choose(tokens: int) -> Sequence[int]:
        counts.append(tokens)
        return draw_positions(piece, tokens, seed)

    if way == "cut":
        counts.append(len(piece.text))
        readings = [
            PositionReading(cut, None, None, _best(await next_token(client, piece.text[:cut], top=top), top))
            for cut in draw_cuts(piece, seed)
        ]
    else:
        positions = await text_positions(client, way, piece.text, top=top, choose=choose)
        readings = [PositionReading(one.place, one.token, one.logprob, _best(one.top, top)) for one in positions]
    for one in readings:
        if len(one.top) < max(_MIN_TOKENS, top / 2):
            least = max(_MIN_TOKENS, len(one.top))
            raise TargetError(f"it lists {len(one.top)} of {top} requested tokens; write `divergence.top: {least}`")
        unlisted = [one.ln] if one.ln is not None and one.token not in one.top else []
        mass = math.fsum(map(math.exp, [*one.top.values(), *unlisted]))
        if mass > _MAX_MASS:
            raise TargetError(f"the probabilities that it lists at place {one.place} add up to {mass:.3g}")
    return counts[0], readings


def _best(listed: Mapping[str, float], top: int) -> Mapping[str, float]:
    # Some servers add the token of the text, which need not be among the most probable.
    return dict(sorted(listed.items(), key=lambda entry: (-entry[1], entry[0]))[:top])
