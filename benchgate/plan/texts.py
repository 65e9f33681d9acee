"""Fixed texts for divergence: their pieces, and the positions compared in each, equal for both sides.

Only the second half of a piece counts: with little context every model is unsure, whatever its weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ROOM = 16
"""Characters of a piece per position; its second half then usually has two tokens or more for each."""
_OF_PIECES, _OF_PLACES = 3, 4  # random streams


@dataclass(frozen=True, slots=True)
class FixedText:
    """Row of a text file."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a fixed text read in one request, and the number of positions compared in it."""

    text_id: str
    number: int  # of the piece in its text
    text: str
    positions: int

    @property
    def name(self) -> str:
        """Return the name for messages."""
        return f"text {self.text_id}, piece {self.number + 1}"


def positions_available(texts: Sequence[FixedText], window: int) -> int:
    """Return the number of positions that texts have room for."""
    return sum(len(part) // _ROOM for text in texts for part in _parts(text, window))


def planned_pieces(texts: Sequence[FixedText], window: int, positions: int, seed: int) -> tuple[Piece, ...]:
    """Distribute positions over all pieces as evenly as their room allows; pieces without one are left out.

    The seed decides which pieces get one more, or one at all if there are more pieces than positions. There are fewer
    positions if the texts have no room (`room_of`).
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


def draw_positions(piece: Piece, tokens: int, seed: int) -> tuple[int, ...]:
    """Draw the compared tokens of a piece of `tokens` tokens, ascending, from its second half without repetition.

    There are fewer than the piece's positions if its second half has fewer tokens. The first token, which has no
    context, is never one.
    """
    return _drawn(range(max(1, tokens // 2), tokens), piece, seed)


def draw_cuts(piece: Piece, seed: int) -> tuple[int, ...]:
    """Draw the character positions at which a piece is cut off, ascending, at word ends of its second half.

    A tokenizer splits a text that ends there like the whole. If there are too few word ends, any position is used.
    """
    text = piece.text
    half = range(max(1, len(text) // 2), len(text))
    ends = [place for place in half if text[place].isspace() and not text[place - 1].isspace()]
    return _drawn(ends if len(ends) >= piece.positions else half, piece, seed)


def piece_to_json(piece: Piece) -> dict[str, object]:
    """Serialise a piece as plain JSON values, by the digest of its text, which may be private."""
    digest = hashlib.sha256(piece.text.encode("utf-8", "surrogatepass")).hexdigest()
    return {"text_id": piece.text_id, "number": piece.number, "text_sha256": digest, "positions": piece.positions}


def _parts(text: FixedText, window: int) -> list[str]:
    """Split a text into pieces of `window` characters; the rest is one more."""
    return [text.text[start : start + window] for start in range(0, len(text.text), window)]


def _drawn(places: Sequence[int], piece: Piece, seed: int) -> tuple[int, ...]:
    piece_seed = int.from_bytes(hashlib.sha256(piece.name.encode("utf-8", "surrogatepass")).digest()[:8])
    generator = np.random.default_rng([seed, _OF_PLACES, piece_seed])
    count = min(piece.positions, len(places))
    return tuple(sorted(generator.choice(np.array(places), size=count, replace=False).tolist()))
