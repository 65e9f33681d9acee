"""Texts that are much alike: the same template, filled in a little differently."""

from __future__ import annotations

import heapq
import zlib
from collections import Counter, defaultdict

_PIECE_BYTES = 24  # a few words
_SKETCH = 128  # of the smallest hashes: the standard error of a likeness of 0.8 is 0.035


class Likeness:
    """The texts that are kept so far, and whether another one is at least `near` like one of them."""

    def __init__(self, near: float) -> None:
        self._near = near
        self._kept: list[frozenset[int]] = []
        self._with: defaultdict[int, list[int]] = defaultdict(list)  # those of the kept that have a hash

    def is_near(self, text: str) -> bool:
        """Whether a text is near one that is kept; one that is not is kept from now on."""
        new = sketch(text)
        shared = Counter(place for piece in new for place in self._with[piece])
        least = self._near * min(len(new), _SKETCH)  # fewer in common cannot be so much of both together
        if any(n >= least and alike(new, self._kept[place]) >= self._near for place, n in shared.items()):
            return True
        for piece in new:
            self._with[piece].append(len(self._kept))
        self._kept.append(new)
        return False


def sketch(text: str) -> frozenset[int]:
    """The smallest hashes of the pieces of a text: how many two of them share tells how alike the texts are."""
    written = text.casefold().encode()
    beginnings = range(max(1, len(written) - _PIECE_BYTES + 1))
    return frozenset(heapq.nsmallest(_SKETCH, {zlib.crc32(written[at : at + _PIECE_BYTES]) for at in beginnings}))


def alike(one: frozenset[int], other: frozenset[int]) -> float:
    """About the share of pieces that two texts have in common, of those in either (Jaccard), from their sketches.

    Estimated from the smallest hashes of both (Broder 1997, "On the resemblance and containment of documents").
    """
    smallest = heapq.nsmallest(_SKETCH, one | other)
    shared = one & other
    return sum(piece in shared for piece in smallest) / len(smallest)
