"""Fixed texts cut into pieces, how many positions of each are looked at, and which: the same for both arms.

Only the second half of a piece counts: a model that has read little is unsure whatever its weights are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ROOM = 16
"""Characters of a piece to a position: its second half then has two tokens or more to draw each from, as a rule."""
_OF_PIECES, _OF_PLACES = 3, 4  # what the seed is used for; the load's streams begin with other numbers


@dataclass(frozen=True, slots=True)
class FixedText:
    """One row of a file of texts."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a fixed text that is read at once, and how many of its positions are looked at."""

    text_id: str
    number: int  # of the piece in its text
    text: str
    positions: int

    @property
    def name(self) -> str:
        """For messages."""
        return f"text {self.text_id}, piece {self.number + 1}"


def room_of(texts: Sequence[FixedText], window: int) -> int:
    """How many positions texts have room for."""
    return sum(len(part) // _ROOM for text in texts for part in _parts(text, window))


def planned_pieces(texts: Sequence[FixedText], window: int, positions: int, seed: int) -> tuple[Piece, ...]:
    """So many positions dealt out over all pieces as evenly as their room allows; pieces without one are left out.

    Which pieces get one more, or one at all where there are more pieces than positions, is drawn by the seed. Fewer
    positions come of it where there is no room for more (`room_of`).
    """
    parts = [(text.id, number, part) for text in texts for number, part in enumerate(_parts(text, window))]
    room = [len(part) // _ROOM for _, _, part in parts]
    dealt = [0] * len(parts)
    generator = np.random.default_rng([seed, _OF_PIECES])
    order = generator.permutation(len(parts)).tolist()
    left = min(positions, sum(room))
    while left:
        for place in order:
            if left and dealt[place] < room[place]:
                dealt[place] += 1
                left -= 1
    return tuple(Piece(*part, count) for part, count in zip(parts, dealt, strict=True) if count)


def drawn_places(piece: Piece, tokens: int, seed: int) -> tuple[int, ...]:
    """Which tokens of a piece of so many are looked at, ascending: of its second half, without repetition.

    Fewer than the piece's positions where its second half has fewer tokens. The first token of all is never one, for
    nothing stands before it.
    """
    half = range(max(1, tokens // 2), tokens)
    return _drawn(half, piece, seed)


def drawn_cuts(piece: Piece, seed: int) -> tuple[int, ...]:
    """Where a piece is cut off, as numbers of characters, ascending: at the ends of words of its second half.

    A tokenizer makes the same tokens of a text that ends there as of the whole. Where there are too few, anywhere.
    """
    text = piece.text
    half = range(max(1, len(text) // 2), len(text))
    ends = [place for place in half if text[place].isspace() and not text[place - 1].isspace()]
    return _drawn(ends if len(ends) >= piece.positions else half, piece, seed)


def spelled_piece(piece: Piece) -> dict[str, object]:
    """A piece as plain JSON values: by the digest of its text, which may be nobody else's to read."""
    digest = hashlib.sha256(piece.text.encode("utf-8", "surrogatepass")).hexdigest()
    return {
        "text_id": piece.text_id,
        "number": piece.number,
        "text_sha256": digest,
        "positions": piece.positions,
    }


def _parts(text: FixedText, window: int) -> list[str]:
    """A text in pieces of `window` characters; what is left at its end is one of its own."""
    return [text.text[start : start + window] for start in range(0, len(text.text), window)]


def _drawn(places: Sequence[int], piece: Piece, seed: int) -> tuple[int, ...]:
    whose = int.from_bytes(hashlib.sha256(piece.name.encode("utf-8", "surrogatepass")).digest()[:8])
    generator = np.random.default_rng([seed, _OF_PLACES, whose])
    count = min(piece.positions, len(places))
    return tuple(sorted(generator.choice(np.array(places), size=count, replace=False).tolist()))
