"""What is kept of a shadow comparison's answers beside their digests: facts about each, and about each pair of them.

None of it is text that a model or a user wrote, so all of it may be stored wherever it goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NO_VERDICT = "the judge did not reply with a verdict in the form it was asked for"
UNFIT_JUDGE = "the judge does not find nonsense worse than an answer"
"""Why a verdict is missing although the judge replied; any other reason is that it did not."""


class Label(StrEnum):
    """How much two answers have in common, most first."""

    EXACT = "exact"  # character by character
    NORMALISED = "normalised"  # by the rules of the comparison: layout, order of keys, tolerances
    STRUCTURE = "same-structure"  # JSON of one shape, or calls of the same tools: other values
    SEMANTIC = "semantic"  # texts whose embeddings are near enough
    DIFFERENT = "different"


class Judged(StrEnum):
    """What a judge says of an answer beside the primary's, asked in both positions."""

    WIN = "win"  # better, both times
    LOSS = "loss"  # worse, both times
    TIE = "tie"  # as good, at least once
    INCONSISTENT = "inconsistent"  # whichever stood first (or second) was called better
    MISSING = "missing"  # the judge did not answer, or not in the form it was asked for


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """One answer. `valid`: it has the form that was asked for; None where no form was, or a call was only offered.

    `characters` counts its text alone: 0 for an answer that only calls tools, and for one that says nothing.
    """

    characters: int
    latency_ns: int  # from the send to the last byte
    refusal: bool
    tokens: int | None = None  # by the server's own count
    valid: bool | None = None


@dataclass(frozen=True, slots=True)
class PairFacts:
    """Two answers to one prompt. `differs` is what counts, by the rule that the suite chose; the rest tells why.

    `at_character` and `at_word` are where their texts first differ, counted from 0; None where they do not.
    `similarity` is the cosine of their embeddings; None where nobody asked for it, or it could not be had (then the
    item's `similarity_error` says why).
    """

    label: Label
    differs: bool
    exact: bool
    normalised: bool
    json: bool | None = None  # the same JSON value by the rules; None where neither is JSON
    calls: bool | None = None  # the same calls of tools; None where neither calls any
    structure: bool | None = None  # None where neither is JSON nor calls anything
    at_character: int | None = None
    at_word: int | None = None
    similarity: float | None = None
