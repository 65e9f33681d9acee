"""Error rates of whole decisions on few seeded runs; docs/background/error-rates.md has the tables of many."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchgate.model.verdict import Outcome
from benchmarks.creep_cells import CreepCell
from benchmarks.gate_cells import LoadCell, Noise
from benchmarks.operating_characteristics import SECTIONS
from benchmarks.peer_rule import PeerCell

PAGE = (Path(__file__).parents[2] / "docs" / "background" / "error-rates.md").read_text(encoding="utf-8")


def outcomes(cell: LoadCell | PeerCell | CreepCell, gates: int) -> Counter[Outcome]:
    gate = cell.gates()
    return Counter(gate(number).outcome for number in range(gates))


def promoted(found: Counter[Outcome]) -> int:
    return found[Outcome.PASS] + found[Outcome.WARN]


@pytest.mark.parametrize(
    ("effect", "least", "most"),
    [(0.0, 20, 20), (0.5, 16, 20), (1.0, 0, 4), (2.0, 0, 0)],
    ids=["equal", "half the margin", "the margin", "twice"],
)
def test_candidate_is_promoted_as_often_as_its_effect_lets_it(effect: float, least: int, most: int) -> None:
    found = outcomes(LoadCell(Noise(0.02), effect, 0.05), 20)
    assert least <= promoted(found) <= most
    assert promoted(found) + found[Outcome.BLOCK] == 20  # at this noise nothing is left open


def test_noise_that_the_blocks_cannot_carry_leaves_it_open_and_blocks_nearly_nobody() -> None:
    found = outcomes(LoadCell(Noise(0.15), 0.0, 0.05, (5, 10)), 30)
    assert found[Outcome.INCONCLUSIVE] >= 18
    assert found[Outcome.BLOCK] <= 4


def test_one_harmed_check_of_five_blocks_and_five_equal_ones_do_not() -> None:
    noise = Noise(0.02, shared=0.5)
    assert promoted(outcomes(LoadCell(noise, 0.0, 0.05, checks=5), 5)) == 5
    assert outcomes(LoadCell(noise, 2.0, 0.05, checks=5), 5) == {Outcome.BLOCK: 5}


def test_drift_that_blocks_an_equal_candidate_measured_last_blocks_none_in_turns() -> None:
    in_turns = LoadCell(Noise(0.02, drift=0.10), 0.0, 0.05)
    one_after_the_other = LoadCell(Noise(0.02, drift=0.10, interleaved=False), 0.0, 0.05, (10,))
    assert promoted(outcomes(in_turns, 20)) == 20
    assert outcomes(one_after_the_other, 20)[Outcome.BLOCK] >= 16


@pytest.mark.parametrize(
    ("runs", "effect", "outcome", "stated"),
    [(3, 0.0, Outcome.PASS, 0.78), (5, 0.0, Outcome.PASS, 0.98), (10, 1.5, Outcome.BLOCK, 0.92)],
    ids=["no change, 3 runs", "no change, 5 runs", "15 % less, 10 runs"],
)
def test_rule_made_again_has_the_rates_that_its_own_page_states(
    runs: int, effect: float, outcome: Outcome, stated: float
) -> None:
    assert outcomes(PeerCell(runs, effect), 1500)[outcome] / 1500 == pytest.approx(stated, abs=0.03)


def test_creep_of_ten_releases_is_found_and_equal_ones_are_let_through_and_a_chosen_way_errs_towards_harm() -> None:
    assert promoted(outcomes(CreepCell(0.01, 0.0, 1), 5)) == 5
    assert outcomes(CreepCell(0.01, 2.0, 1), 5) == {Outcome.BLOCK: 5}
    assert outcomes(CreepCell(0.04, 0.0, 3), 10)[Outcome.BLOCK] >= 4  # 71 of 100; of one run a release 3


@pytest.mark.parametrize("key", [*SECTIONS, "series", "injections"])
def test_page_has_the_table_of_every_section(key: str) -> None:
    table = PAGE.partition(f"<!-- {key} -->\n")[2].partition(f"<!-- end of {key} -->")[0]
    assert table.count("\n|") >= 4
