"""`trend --prices`: what stored runs would have cost, from the command line over a real store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchgate.cli.app import app
from benchgate.errors import BenchgateError
from benchgate.store.repository import Store
from tests.fakes.promotable import judged

PRICES = """\
prices:
  - {deployment: candidate, price: $4/h, until: 2026-06-30}
  - deployment: candidate
    from: 2026-07-01
    until: 2026-09-30
    price: $2/h
    price_terms: {commitment: spot, interruption: 20%, overhead: 25%, utilisation: 50%}
"""
OUTPUT = "usd_per_million_output_tokens"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three runs of one pace, each at $2 an hour."""
    folder = tmp_path_factory.mktemp("prices")
    with Store.open(str(folder / "b.db")) as store:
        for day in ("2026-06-30", "2026-07-01", "2026-10-01"):
            judged(store, day=day)
    return folder


def trend(folder: Path, metric: str, *said: str, prices: str | None = PRICES) -> list[dict[str, float]]:
    if prices is not None:
        (folder / "prices.yaml").write_text(prices)
        said = ("--prices", str(folder / "prices.yaml"), *said)
    asked = ["trend", metric, "--store", str(folder / "b.db"), "--format", "json", *said]
    result = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: list[dict[str, float]] = json.loads(result.stdout)
    return found


def test_each_run_takes_the_price_of_its_day_and_keeps_its_own(folder: Path) -> None:
    kept = trend(folder, OUTPUT, prices=None)
    repriced = trend(folder, OUTPUT)
    assert [point["value"] / own["value"] for point, own in zip(repriced, kept, strict=False)] == pytest.approx(
        [2.0, 1.25]  # $4 and $2 / 0.8 where $2 were paid; the third has no price on its day
    )
    for point, own in zip(repriced, kept, strict=False):
        assert point["lower"] / own["lower"] == pytest.approx(point["value"] / own["value"])
        assert point["upper"] / own["upper"] == pytest.approx(point["value"] / own["value"])
    assert trend(folder, OUTPUT, prices=None) == kept
    in_use = trend(folder, f"{OUTPUT}_in_use")
    assert [point["value"] / own["value"] for point, own in zip(in_use, kept, strict=False)] == pytest.approx(
        [2.0, 1.25 * 2.5]
    )


def test_runs_without_a_price_on_their_day_are_told(folder: Path) -> None:
    (folder / "prices.yaml").write_text(PRICES)
    asked = ["trend", OUTPUT, "--store", str(folder / "b.db"), "--prices", str(folder / "prices.yaml")]
    told = CliRunner().invoke(app, asked).stderr
    assert "no price on their day for 1 runs, of candidate: left out" in told


def test_runs_with_a_price_by_the_token_are_left_out_for_no_pace_makes_a_cost_of_it(folder: Path) -> None:
    by_token = "token_prices: {input: $0.15/M, output: $0.60/M}"
    (folder / "prices.yaml").write_text(PRICES.replace("price: $4/h", by_token))
    asked = ["trend", OUTPUT, "--store", str(folder / "b.db"), "--prices", str(folder / "prices.yaml")]
    result = CliRunner().invoke(app, [*asked, "--format", "json"])
    assert len(json.loads(result.stdout)) == 1
    assert (
        "has a price by the token, which no pace makes a cost of, for 1 runs, of candidate: left out" in result.stderr
    )


@pytest.mark.parametrize(
    ("metric", "prices", "problem"),
    [
        ("ttft_s", PRICES, "and not of ttft_s"),
        (OUTPUT, PRICES.replace("candidate", "other"), "there are no others"),
        (OUTPUT, PRICES.replace("2026-07-01", "2026-06-30"), '3:5: prices[1]: "candidate" has another price'),
        (OUTPUT, PRICES.replace("2026-09-30", "2026-06-01"), "is before `from`"),
        (OUTPUT, PRICES.replace("2026-09-30", "soon"), "write it like 2026-12-31"),
        (OUTPUT, PRICES.replace("$4/h", "4"), "prices.yaml:2:36"),
        (OUTPUT, PRICES.replace("until: 2026-06-30", "til: 2026-06-30"), "did you mean"),
        (OUTPUT, "prices: []\n", "prices"),
        (OUTPUT, "price: 4\n", "prices"),
    ],
)
def test_prices_that_cannot_be_are_refused_by_their_place(folder: Path, metric: str, prices: str, problem: str) -> None:
    with pytest.raises(BenchgateError) as caught:
        trend(folder, metric, prices=prices)
    assert problem in str(caught.value)
    assert caught.value.exit_code == 2
