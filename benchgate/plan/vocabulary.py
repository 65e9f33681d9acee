"""What requests ask: synthetic prompts, each different, so that no prefix cache answers for the engine."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

# Short, common English words: each is one token in the byte-pair vocabularies in use, with its leading space.
# fmt: off
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "government", "number",
    "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind",
    "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end",
    "member", "law", "car", "city", "community", "name", "president", "team", "minute", "idea",
    "kid", "body", "information", "back", "parent", "face", "others", "level", "office", "door",
    "health", "person", "art", "war", "history", "party", "result", "change", "morning", "reason",
    "research", "girl", "guy", "moment", "air", "teacher", "force", "education",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The pieces that made-up texts consist of, one token each, and what stands between them."""

    pieces: tuple[str, ...]
    between: str


VOCABULARIES: Mapping[str, Vocabulary] = MappingProxyType(
    {"words": Vocabulary(_WORDS, " "), "letters": Vocabulary(tuple(string.ascii_lowercase), "")}
)
"""What texts of each kind are made of where no tokenizer says more."""


def prompt_text(kind: Literal["words", "letters"], tokens: int, generator: np.random.Generator) -> str:
    """A random text of about `tokens` tokens: that many words, or for byte-level models that many letters."""
    return drawn_text(VOCABULARIES[kind], tokens, generator)


def drawn_text(vocabulary: Vocabulary, tokens: int, generator: np.random.Generator) -> str:
    """A random text of `tokens` pieces."""
    pieces = vocabulary.pieces
    # What `generator.choice` draws, nine times as fast: the prompts of a long trace are millions of words.
    return vocabulary.between.join([pieces[at] for at in generator.integers(0, len(pieces), size=tokens).tolist()])


def keyed_text(vocabulary: Vocabulary, tokens: int, key: str) -> str:
    """A text of `tokens` pieces that follows from `key` alone.

    From a hash: where texts are made while a stage runs, a generator for each would hold up what arrives. The pieces
    are as good as equally likely: of 2**32 values a few more fall to some of them.
    """
    drawn = np.frombuffer(hashlib.shake_128(key.encode()).digest(4 * tokens), dtype="<u4")
    pieces = vocabulary.pieces
    return vocabulary.between.join([pieces[at] for at in (drawn % len(pieces)).tolist()])


def stable_text(vocabulary: Vocabulary, tokens: int, key: Sequence[int]) -> str:
    """The first `tokens` pieces of an endless text that follows from `key` alone: a shorter one begins a longer one."""
    whole = []
    for chunk in range(0, tokens, _CHUNK_TOKENS):
        generator = np.random.default_rng([*key, chunk // _CHUNK_TOKENS])
        drawn = generator.integers(0, len(vocabulary.pieces), size=_CHUNK_TOKENS).tolist()
        whole += [vocabulary.pieces[at] for at in drawn[: tokens - chunk]]
    return vocabulary.between.join(whole)


_CHUNK_TOKENS = 512
