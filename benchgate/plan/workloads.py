"""What requests ask: synthetic prompts, each different, so that no prefix cache answers for the engine."""

from __future__ import annotations

import string
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


def prompt_text(kind: Literal["words", "letters"], tokens: int, generator: np.random.Generator) -> str:
    """A random text of about `tokens` tokens: that many words, or for byte-level models that many letters."""
    pieces, between = (string.ascii_lowercase, "") if kind == "letters" else (_WORDS, " ")
    # What `generator.choice` draws, nine times as fast: the prompts of a long trace are millions of words.
    return between.join([pieces[at] for at in generator.integers(0, len(pieces), size=tokens).tolist()])
