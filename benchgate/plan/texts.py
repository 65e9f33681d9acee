"""The texts that the requests of one level are made of: beginnings that prompts share, and what is each one's own."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchgate.plan.material import Material
from benchgate.plan.workloads import VOCABULARIES, Vocabulary, drawn_text, stable_text
from benchgate.suite.workload import Prefix, Workload

MOONCAKE_BLOCK_TOKENS = 512
_SHARED, _HASHED = 2, 3  # what tells the generators of shared texts from those of everything else
_ROUND_KEYS = 2**32  # keeps the keys of later warm-up rounds, whose blocks are negative, apart from those of blocks


@dataclass(frozen=True, slots=True)
class Texts:
    """Makes the texts of one level in one block.

    Beginnings that prompts share are the same in every block and in the warm-up, as a system prompt is the same all
    day. The pieces that the hashes of a trace stand for are the block's own: what one block has left in a cache is no
    hit in the next, and so the hits of a block are those that its rows imply.
    """

    seed: int
    block: int  # -1 and below in the rounds of the warm-up
    vocabulary: Vocabulary
    prefix: Prefix | None
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    _shared: dict[tuple[int, int], str] = field(default_factory=dict)
    _pieces: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, workload: Workload, material: Material, seed: int, block: int, block_tokens: int | None = None
    ) -> Texts:
        """Those of a workload."""
        vocabulary = vocabulary_of(workload, material)
        return cls(seed, block, vocabulary, workload.prefix, block_tokens or MOONCAKE_BLOCK_TOKENS)

    def prompt(self, tokens: int, generator: np.random.Generator) -> str:
        """A prompt of so many tokens, the beginning it shares with others among them."""
        if self.prefix is None:
            return drawn_text(self.vocabulary, tokens, generator)
        group = int(generator.integers(self.prefix.groups))
        shared = min(shared_tokens(self.prefix, tokens), tokens - 1)
        own = drawn_text(self.vocabulary, tokens - shared, generator)
        return self._joined([self._beginning(group, shared), own] if shared else [own])

    def own(self, tokens: int, generator: np.random.Generator) -> str:
        """A text that shares nothing."""
        return drawn_text(self.vocabulary, tokens, generator)

    def hashed(self, hash_ids: tuple[int, ...], tokens: int, generator: np.random.Generator) -> str:
        """A prompt whose blocks are told by hashes: equal hashes, equal texts. What they do not cover is its own."""
        left, parts = tokens, []
        for hash_id in hash_ids:
            if left <= 0:
                break
            parts.append(self._piece(hash_id, min(left, self.block_tokens)))
            left -= self.block_tokens
        if left > 0:
            parts.append(drawn_text(self.vocabulary, left, generator))
        return self._joined(parts)

    def _beginning(self, group: int, tokens: int) -> str:
        if (group, tokens) not in self._shared:
            self._shared[group, tokens] = stable_text(self.vocabulary, tokens, [self.seed, _SHARED, group])
        return self._shared[group, tokens]

    def _piece(self, hash_id: int, tokens: int) -> str:
        if tokens < self.block_tokens:
            return stable_text(self.vocabulary, tokens, self._key(hash_id))
        if hash_id not in self._pieces:
            self._pieces[hash_id] = stable_text(self.vocabulary, tokens, self._key(hash_id))
        return self._pieces[hash_id]

    def _key(self, hash_id: int) -> list[int]:
        return [self.seed, _HASHED, (self.block + 1) % _ROUND_KEYS, hash_id]

    def _joined(self, parts: list[str]) -> str:
        return self.vocabulary.between.join(parts)


def vocabulary_of(workload: Workload, material: Material) -> Vocabulary:
    """Return what the made-up texts of a workload consist of."""
    return material.vocabulary(workload.tokenizer, workload.text) or VOCABULARIES[workload.text]


def shared_tokens(prefix: Prefix, tokens: int) -> int:
    """How much of a prompt of so many tokens is the beginning it shares."""
    if prefix.prefix_tokens is not None:
        return prefix.prefix_tokens
    return round(tokens * (prefix.share_ratio or 0.0))
