"""`trend` of a cost: whose price is doubted, and what is asked for that no run has, from the command over a store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import BenchgateError, EvidenceError
from benchgate.pipeline.judge import decide_stored
from benchgate.store.repository import Store
from tests.fakes import evidence as fake
from tests.fakes import quick_command
from tests.fakes.promotable import begun, judged

OUTPUT = "usd_per_million_output_tokens"
EIGHT = {"facts": {"accelerator_names": ["NVIDIA A100"] * 8}}
LACKING = "it is paid for 1 accelerator, and its server reports 8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a run at $2 an hour, of which nobody says how it was used."""
    folder = tmp_path_factory.mktemp("costs")
    with Store.open(str(folder / "b.db")) as store:
        judged(store, day="2026-06-30")
    return folder


def trend(folder: Path, metric: str, *said: str) -> list[dict[str, Any]]:
    asked = ["trend", metric, "--store", str(folder / "b.db"), "--format", "json", *said]
    result = quick_command.told(*asked)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_a_cost_that_is_not_of_what_ran_says_so_in_every_form(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "b.db")) as store:
        decide_stored(store, begun(store, day="2026-06-01", candidate=EIGHT))
        decide_stored(store, begun(store, day="2026-06-02", candidate=EIGHT | {"accelerators": 8}))
    doubts = [point["doubt"] for point in trend(tmp_path, OUTPUT)]
    assert doubts == [f"its price is not of what ran: {LACKING}", None]
    assert [point["doubt"] for point in trend(tmp_path, "output_throughput")] == [None, None]
    asked = ["trend", OUTPUT, "--store", str(tmp_path / "b.db")]
    for form in ("text", "svg"):
        assert quick_command.told(*asked, "--format", form).stdout.count(LACKING) == 1


def test_a_run_of_no_day_is_damaged_and_no_crash() -> None:
    with pytest.raises(EvidenceError, match="the start time 'yesterday', which is invalid"):
        _ = replace(fake.run(), started_at="yesterday").day


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (("--suite", "fak"), f"no stored run has {OUTPUT} of a suite 'fak'; "),
        (("--stage", "c44"), f"no stored run has {OUTPUT} of a stage 'c44'; did you mean 'c4'?"),
        (("--task", "add"), f"{OUTPUT} has no task; leave --task out"),
    ],
)
def test_what_no_run_has_a_cost_of_is_a_slip_and_no_empty_table(
    folder: Path, said: tuple[str, str], problem: str
) -> None:
    with pytest.raises(BenchgateError) as caught:
        trend(folder, OUTPUT, *said)
    assert problem in str(caught.value)


def test_a_cost_has_its_interval_in_text(folder: Path) -> None:
    assert " to $" in quick_command.told("trend", OUTPUT, "--store", str(folder / "b.db")).stdout.splitlines()[1]


def test_costs_in_use_that_no_run_has_need_terms_beside_a_price(folder: Path) -> None:
    asked = ["trend", f"{OUTPUT}_in_use", "--store", str(folder / "b.db")]
    assert "a `price` with `price_terms` in" in quick_command.told(*asked).stderr
