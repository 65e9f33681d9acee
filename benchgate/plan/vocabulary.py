"""Synthetic texts: random words or letters, different for each prompt so that no prefix cache answers."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

# Short, common English words: each is one token in common byte-pair vocabularies, with its leading space.
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
    """Pieces of synthetic texts, one token each, and the separator between them."""

    pieces: tuple[str, ...]
    between: str


VOCABULARIES: Mapping[str, Vocabulary] = MappingProxyType(
    {"words": Vocabulary(_WORDS, " "), "letters": Vocabulary(tuple(string.ascii_lowercase), "")}
)
"""Vocabularies by kind of text, for unknown tokenizers."""
_CHUNK_TOKENS = 512


def random_text(vocabulary: Vocabulary, tokens: int, generator: np.random.Generator) -> str:
    """Return a random text of `tokens` pieces."""
    pieces = vocabulary.pieces
    # Same draws as `generator.choice`, nine times as fast: a long trace has millions of words.
    return vocabulary.between.join([pieces[at] for at in generator.integers(0, len(pieces), size=tokens).tolist()])


def keyed_text(vocabulary: Vocabulary, tokens: int, key: str) -> str:
    """Return a text of `tokens` pieces determined by `key`.

    It uses a hash, because a generator per text would delay a running stage. The pieces are almost equally likely: of
    2**32 values a few more fall to some of them.
    """
    drawn = np.frombuffer(hashlib.shake_128(key.encode()).digest(4 * tokens), dtype="<u4")
    pieces = vocabulary.pieces
    return vocabulary.between.join([pieces[at] for at in (drawn % len(pieces)).tolist()])


def stable_text(vocabulary: Vocabulary, tokens: int, key: Sequence[int]) -> str:
    """Return the first `tokens` pieces of an endless text determined by `key`: a shorter one begins a longer one."""
    whole = []
    for chunk in range(0, tokens, _CHUNK_TOKENS):
        generator = np.random.default_rng([*key, chunk // _CHUNK_TOKENS])
        drawn = generator.integers(0, len(vocabulary.pieces), size=_CHUNK_TOKENS).tolist()
        whole += [vocabulary.pieces[at] for at in drawn[: tokens - chunk]]
    return vocabulary.between.join(whole)
