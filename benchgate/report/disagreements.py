"""The worst disagreements of a shadow comparison: side by side where texts were kept, else told without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.model.records import AnswerAgreement, JudgeVerdict, PairFacts, ShadowItem
from benchgate.report import show
from benchgate.report.tables import Column, Table

_SHOWN = 10
_CHARACTERS = 600
_BEFORE = 200  # characters before the first difference, where that is far in
_COLUMNS = (
    "prompt",
    "slice",
    "in common",
    "first differs at word",
    "characters, baseline",
    "characters, candidate",
    "judge",
)


@dataclass(frozen=True, slots=True)
class Marked:
    """A text in two parts: as far as it is the other answer's too, and from where it is not. Both may be cut."""

    same: str
    other: str


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt where the baseline agreed with itself and the candidate did not; texts are cut."""

    prompt_id: str
    prompt: str
    baseline: Marked
    candidate: Marked
    note: str


def examples(differing: Sequence[ShadowItem]) -> tuple[Example, ...]:
    """The worst first; only of prompts whose texts were kept."""
    return tuple(one for item in _worst_first(differing) if (one := _example(item)) is not None)[:_SHOWN]


def worst(differing: Sequence[ShadowItem]) -> Table | None:
    """The same without texts: which prompts, and where their answers part. None where nothing is known of them."""
    known = [item for item in _worst_first(differing) if item.with_primary is not None][:_SHOWN]
    if not known:
        return None
    columns = tuple(Column(title, numeric=title.startswith(("first", "characters"))) for title in _COLUMNS)
    return Table("Largest disagreements, and where they part", columns, tuple(_cells(item) for item in known))


def _worst_first(differing: Sequence[ShadowItem]) -> list[ShadowItem]:
    """What a judge finds worse, then what has least in common, then what parts earliest."""
    return sorted(
        differing, key=lambda item: (item.judged is not JudgeVerdict.LOSS, *_badness(item.with_primary), item.prompt_id)
    )


def _badness(pair: PairFacts | None) -> tuple[int, float, float]:
    if pair is None:
        return 0, 0.0, 0.0
    similarity = 0.0 if pair.similarity is None else pair.similarity
    return -list(AnswerAgreement).index(pair.label), similarity, float("inf") if pair.at_word is None else pair.at_word


def _cells(item: ShadowItem) -> tuple[str, ...]:
    pair, theirs, ours = item.with_primary, item.primary_facts, item.candidate_facts
    at_word = None if pair is None else pair.at_word
    return (
        item.prompt_id,
        item.stratum or show.NOT_APPLICABLE,
        show.NOT_APPLICABLE if pair is None else pair.label.value,
        show.NOT_APPLICABLE if at_word is None else show.count(at_word + 1),
        show.NOT_APPLICABLE if theirs is None else show.count(theirs.characters),
        show.NOT_APPLICABLE if ours is None else show.count(ours.characters),
        show.NOT_APPLICABLE if item.judged is None else item.judged.value,
    )


def _example(item: ShadowItem) -> Example | None:
    if item.prompt_text is None or item.primary_text is None or item.candidate_text is None:
        return None
    at = _first_difference(item.primary_text, item.candidate_text)
    pair = item.with_primary
    told = [] if pair is None else [pair.label.value]
    told += [] if item.judged is None else [f"judge: {item.judged.value}"]
    return Example(
        item.prompt_id,
        _cut(item.prompt_text),
        _marked(item.primary_text, at),
        _marked(item.candidate_text, at),
        ", ".join(told),
    )


def _first_difference(one: str, other: str) -> int:
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def _marked(text: str, at: int) -> Marked:
    skipped = max(0, at - _BEFORE)
    return Marked(f"{'… ' if skipped else ''}{text[skipped:at]}", _cut(text[at:]))


def _cut(text: str) -> str:
    if len(text) <= _CHARACTERS:
        return text
    return f"{text[:_CHARACTERS]}… ({len(text) - _CHARACTERS:,} more characters)"
