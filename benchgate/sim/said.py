"""Prompts that ask for a given text, so that answers can be right and wrong in a stated share."""

from __future__ import annotations

from hashlib import blake2b

from benchgate.sim.words import word

_ASKS = "say: "


def told_to_say(prompt: str, key: int, right_ratio: float | None) -> tuple[str, ...] | None:
    """The answer, token by token, to a prompt whose last line is `say: TEXT`; None where none is asked for.

    In this share of such prompts, drawn from the key, it is the text. In the others its last word is another: an answer
    of the same length, that ends as a right one does.
    """
    line = prompt.rpartition("\n")[2]
    words = line.removeprefix(_ASKS).split()
    if right_ratio is None or not line.startswith(_ASKS) or not words:
        return None
    if not _drawn(key) < right_ratio:
        words[-1] = next(other for index in range(2) if (other := word(key, index).strip()) != words[-1])
    return (words[0], *(f" {one}" for one in words[1:]))


def _drawn(key: int) -> float:
    """Evenly from 0 to 1. Keys of two seeds are each other's checksums but for constant bits; what is drawn is not."""
    return int.from_bytes(blake2b(key.to_bytes(4, "big"), digest_size=4).digest(), "big") / 2**32
