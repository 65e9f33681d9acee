"""A trace with hashes, shaped like Mooncake's: which prompts begin alike, and so what a prefix cache must find."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 512
ROWS_A_BLOCK = 12
GAP_MS = 500  # long enough for a prompt to be in the cache before the next one looks


def write_trace(path: Path, blocks: int) -> list[dict[str, Any]]:
    """Rows of a few tasks, each with a beginning of its own, and of questions that go on from one another."""
    chance = random.Random(3)  # a shape, not a secret
    rows, fresh = [], 1000
    for number in range(blocks * ROWS_A_BLOCK):
        task = chance.randrange(3)
        hashes = [task]
        for level in range(chance.randrange(3)):
            hashes.append(10 + 10 * task + level + 100 * chance.randrange(2))
        fresh += 1
        tokens = BLOCK_TOKENS * len(hashes) + chance.randrange(20, 200)
        row = {
            "timestamp": number * GAP_MS,
            "input_length": tokens,
            "output_length": 4,
            "hash_ids": [*hashes, fresh],
        }
        rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def implied_ratio(rows: list[dict[str, Any]]) -> float:
    """Tokens in blocks that stood in front of an earlier prompt of the same stretch, over all tokens."""
    found = looked_up = 0
    for start in range(0, len(rows), ROWS_A_BLOCK):
        seen: set[tuple[int, ...]] = set()
        for row in rows[start : start + ROWS_A_BLOCK]:
            hashes = row["hash_ids"]
            looked_up += row["input_length"]
            found += BLOCK_TOKENS * sum(beginning in seen for beginning in _beginnings(hashes[:-1]))
            seen.update(_beginnings(hashes))
    return found / looked_up


def _beginnings(hashes: list[int]) -> Iterable[tuple[int, ...]]:
    return (tuple(hashes[: n + 1]) for n in range(len(hashes)))
