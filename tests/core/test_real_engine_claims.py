"""The parts of scripts/real_engines that need no engine: what hashes imply, and that a claim can fail."""

from __future__ import annotations

import pytest

from scripts.real_engines.claims import Notebook
from scripts.real_engines.prefix_claims import ROWS_A_BLOCK, implied_ratio


def row(tokens: int, *hash_ids: int) -> dict[str, object]:
    return {"input_length": tokens, "hash_ids": list(hash_ids)}


def test_only_blocks_behind_one_another_are_found_again() -> None:
    rows = [
        row(1100, 1, 2, 90),  # nothing is there yet
        row(600, 1, 91),  # 512 found
        row(1100, 2, 1, 92),  # the same blocks in another order: nothing
        row(1100, 1, 2, 93),  # 1,024 found
    ]
    assert implied_ratio(rows) == pytest.approx((512 + 1024) / 3900)


def test_each_stretch_of_rows_begins_with_an_empty_cache() -> None:
    rows = [row(600, 1, 100 + number) for number in range(2 * ROWS_A_BLOCK)]
    assert implied_ratio(rows) == pytest.approx(512 * (ROWS_A_BLOCK - 1) / (600 * ROWS_A_BLOCK))


def test_a_failed_claim_and_no_claim_at_all_are_told_by_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert Notebook().conclude() == 1
    book = Notebook()
    book.claim("two is two", True, "2")
    assert book.conclude() == 0
    book.claim("two is three", False, "2")
    assert book.conclude() == 1
    assert "two is three" in capsys.readouterr().out.splitlines()[-1]
