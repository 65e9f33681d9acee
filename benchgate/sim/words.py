"""What answers are made of: words that follow from a key, and what one answer says token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

WORDS = (
    " river", " stone", " cloud", " light", " north", " table", " green", " bread",
    " water", " house", " field", " music", " paper", " glass", " horse", " sugar",
    " chair", " plant", " night", " earth", " ocean", " metal", " sound", " storm",
    " grain", " coast", " train", " brush", " crane", " flame", " orbit", " shelf",
    " ridge", " tower", " wheel", " amber", " basin", " cedar", " delta", " ember",
    " frost", " grove", " heron", " ivory", " jewel", " knoll", " lemon", " maple",
    " naval", " olive", " pearl", " quilt", " raven", " sable", " thorn", " umber",
    " vivid", " wheat", " yacht", " zebra", " alder", " birch", " coral", " dunes",
)  # fmt: skip
MASK = len(WORDS) - 1  # the number of words is a power of two
LAP_BITS = MASK.bit_length()

Kind = Literal["reasoning", "content", "tool"]
"""What is thought before the answer, the answer, and the arguments of a tool call."""


def start_of(key: int) -> int:
    """Where the words of a key begin."""
    return key >> 8


def stride_of(key: int) -> int:
    """From one word of a key to its next in the first lap: odd, so that every word has its turn."""
    return (key & 0x3F) | 1


def word(key: int, index: int) -> str:
    """Return the word of that index, with the space before it.

    The stride grows by 2 with every lap of 64 words, so a long answer repeats after 2,048 words and not after 64.
    """
    return WORDS[(start_of(key) + index * (stride_of(key) + (index >> LAP_BITS << 1))) & MASK]


@dataclass(frozen=True, slots=True)
class Saying:
    """What one answer says. `pieces` are the tokens after the thinking where those are not words.

    Tokens from `second_from` on belong to a second choice; None: there is one choice.
    """

    key: int
    thought_tokens: int = 0
    pieces: tuple[str, ...] | None = None
    tool: str | None = None
    second_from: int | None = None

    @property
    def plain(self) -> bool:
        """Whether every token is a word of the answer."""
        return not self.thought_tokens and self.pieces is None and self.second_from is None

    def text(self, first: int, count: int) -> str:
        """So many tokens from that index on."""
        if self.pieces is not None and first >= self.thought_tokens:
            start = first - self.thought_tokens
            return "".join(self.pieces[start : start + count])
        return "".join(word(self.key, index) for index in range(first, first + count))

    def spans(self, first: int, count: int) -> Iterator[tuple[Kind, int, int]]:
        """So many tokens from that index on, each kind by itself: its first token and how many there are."""
        thought = max(0, min(count, self.thought_tokens - first))
        if thought:
            yield "reasoning", first, thought
        if count > thought:
            yield "content" if self.tool is None else "tool", first + thought, count - thought
