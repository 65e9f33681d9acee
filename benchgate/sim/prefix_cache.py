"""A prefix cache in blocks, as vLLM keeps one: what earlier prompts and answers began with need not be read again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


def block_names(words: Sequence[str], block_tokens: int, salt: str) -> tuple[int, ...]:
    """A name for every whole block of so many words, which stands for the block and for all that comes before it.

    `salt` keeps apart what must not share, such as adapters. Names hold within one process.
    """
    names, name = [], hash(salt)
    for end in range(block_tokens, len(words) + 1, block_tokens):
        name = hash((name, *words[end - block_tokens : end]))
        names.append(name)
    return tuple(names)


class PrefixCache:
    """Room for so many blocks; the one that was not used for longest goes first. No room: nothing is ever found."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self._room = blocks
        self._block_tokens = block_tokens
        self._kept: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def in_use(self) -> bool:
        """Whether there is a cache at all."""
        return self._room > 0

    def find(self, blocks: Sequence[int], input_tokens: int) -> int:
        """Tokens of the prompt that need not be read. At least one is left to read: the answer begins from it."""
        found = 0
        for name in blocks[: max(0, input_tokens - 1) // self._block_tokens]:
            if name not in self._kept:
                break
            self._kept.move_to_end(name)
            found += 1
        return found * self._block_tokens

    def keep(self, blocks: Sequence[int], first: int, read_tokens: int) -> int:
        """Keep the blocks from number `first` on that lie within so many tokens; gives how many are kept by now."""
        until = min(len(blocks), read_tokens // self._block_tokens)
        for name in blocks[first:until]:
            self._kept[name] = None
            self._kept.move_to_end(name)
            if len(self._kept) > self._room:
                self._kept.popitem(last=False)
        return max(first, until)
