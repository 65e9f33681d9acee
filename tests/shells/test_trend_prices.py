"""`trend --prices`: what stored runs would have cost, from the command line over a real store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.deciding import decide_stored
from benchgate.errors import BenchgateError, EvidenceError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.store.repository import Store
from tests.fakes import evidence as fake
from tests.fakes import quick_command
from tests.fakes.promotable import begun, judged
from tests.shells.store_samples import make_deployment, write_run

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


def trend(folder: Path, metric: str, *said: str, prices: str | None = PRICES) -> list[dict[str, Any]]:
    if prices is not None:
        (folder / "prices.yaml").write_text(prices)
        said = ("--prices", str(folder / "prices.yaml"), *said)
    asked = ["trend", metric, "--store", str(folder / "b.db"), "--format", "json", *said]
    result = quick_command.told(*asked)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
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
    in_use = trend(folder, f"{OUTPUT}_in_use")  # of the first nobody says how it was used, which is no full use
    assert [point["value"] / kept[1]["value"] for point in in_use] == pytest.approx([1.25 * 2.5])


SPOT = {"list_usd_per_hour": 2.0, "commitment": "spot", "interruption_ratio": 0.2, "overhead_ratio": 0.5,
        "utilisation_ratio": 0.5}  # fmt: skip


@pytest.mark.parametrize(
    ("terms", "full", "in_use"),
    [
        ("", 5.0, 15.0),  # $4 / 0.8 and times 1.5 / 0.5: all as the run had it
        ("price_terms: {utilisation: 100%}", 5.0, 7.5),
        ("price_terms: {overhead: 0%}", 5.0, 10.0),
        ("price_terms: {commitment: reserved}", 4.0, 12.0),  # which loses nothing to interruptions, and is used alike
        ("price_terms: {commitment: spot, interruption: 50%, overhead: 0%, utilisation: 100%}", 8.0, 8.0),
    ],
)
def test_a_run_keeps_its_own_terms_where_the_file_says_no_others(
    tmp_path: Path, terms: str, full: float, in_use: float
) -> None:
    with Store.open(str(tmp_path / "b.db")) as store:
        decide_stored(store, begun(store, day="2026-07-01", candidate={"price_usd_per_hour": 2.5, "price_terms": SPOT}))
    prices = f"prices: [{{deployment: candidate, price: $4/h, {terms}}}]\n"
    plain = trend(tmp_path, OUTPUT, prices=None)[0]["value"] / 2.5
    for metric, expected in ((OUTPUT, full), (f"{OUTPUT}_in_use", in_use)):
        (point,) = trend(tmp_path, metric, prices=prices)
        assert point["value"] / plain == pytest.approx(expected)


def test_nobody_knows_what_is_in_use_where_neither_file_nor_run_says_terms(folder: Path) -> None:
    with pytest.raises(BenchgateError, match="neither did the run, so that nobody knows how it is used, for 3 runs"):
        trend(folder, f"{OUTPUT}_in_use", prices="prices: [{deployment: candidate, price: $4/h}]\n")


def test_terms_that_are_none_reprice_no_run(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "b.db")) as store:
        decide_stored(
            store, begun(store, day="2026-07-01", candidate={"price_terms": {**SPOT, "interruption_ratio": 1.5}})
        )
    with pytest.raises(BenchgateError, match="the terms that the run keeps cannot be read, for 1 run, of candidate"):
        trend(tmp_path, OUTPUT)


@pytest.mark.parametrize("lacking", ["utilisation_ratio", "overhead_ratio"])
def test_terms_that_do_not_say_how_a_run_was_used_are_no_full_use(tmp_path: Path, lacking: str) -> None:
    terms = {key: value for key, value in SPOT.items() if key != lacking}
    with Store.open(str(tmp_path / "b.db")) as store:
        decide_stored(store, begun(store, day="2026-06-01", candidate={"price_terms": terms}))
    assert len(trend(tmp_path, OUTPUT)) == 1
    with pytest.raises(BenchgateError, match="the terms that the run keeps cannot be read, for 1 run, of candidate"):
        trend(tmp_path, f"{OUTPUT}_in_use")


EIGHT = {"facts": {"accelerator_names": ["NVIDIA A100"] * 8}}
LACKING = "it is paid for 1 accelerator, and its server tells of 8"


def test_a_cost_that_is_not_of_what_ran_says_so_in_every_form_and_is_repriced_in_none(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "b.db")) as store:
        decide_stored(store, begun(store, day="2026-06-01", candidate=EIGHT))
        decide_stored(store, begun(store, day="2026-06-02", candidate=EIGHT | {"accelerators": 8}))
    doubts = [point["doubt"] for point in trend(tmp_path, OUTPUT, prices=None)]
    assert doubts == [f"its price is not of what ran: {LACKING}", None]
    assert [point["doubt"] for point in trend(tmp_path, "output_tokens_per_s", prices=None)] == [None, None]
    asked = ["trend", OUTPUT, "--store", str(tmp_path / "b.db")]
    for form in ("text", "svg"):
        assert quick_command.told(*asked, "--format", form).stdout.count(LACKING) == 1
    for metric in (OUTPUT, GOOD):
        (left,) = trend(tmp_path, metric)
        assert (left["started_at"][:10], left["accelerators"]) == ("2026-06-02", 8)
    named = ["--prices", str(tmp_path / "prices.yaml")]
    assert f"has a price that is not of what ran ({LACKING}) for 1 run" in quick_command.told(*asked, *named).stderr


def test_a_price_of_other_accelerators_than_the_server_told_reprices_no_run(tmp_path: Path) -> None:
    ours = replace(make_deployment("new"), facts={"accelerator_names": ["NVIDIA A100"] * 2}, accelerators=2)
    suite = {"deployments": {"new": {"accelerator": "H100"}}}
    with Store.open(str(tmp_path / "b.db")) as store:
        run = write_run(store, arms={Arm.BASELINE: ours, Arm.CANDIDATE: ours}, suite=suite)
        store.save_metrics(run.id, [MetricRow(Arm.CANDIDATE, "output_tokens_per_s", None, "c4", None, 100.0, 8)])
    with pytest.raises(BenchgateError, match="has the price of accelerator H100, and its server tells of NVIDIA A100"):
        trend(tmp_path, OUTPUT, prices="prices: [{accelerator: H100, price: $4/h}]\n")
    assert len(trend(tmp_path, OUTPUT, prices="prices: [{deployment: new, price: $4/h}]\n")) == 1


def test_a_run_of_no_day_is_damaged_and_no_crash() -> None:
    with pytest.raises(EvidenceError, match="it began at 'yesterday', which is no instant"):
        _ = replace(fake.run(), started_at="yesterday").day


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (("--suite", "fak"), "no stored run has output_tokens_per_s of a suite 'fak'; "),
        (("--stage", "c44"), "no stored run has output_tokens_per_s of a stage 'c44'; did you mean 'c4'?"),
        (("--task", "add"), "output_tokens_per_s is of no task; leave --task out"),
    ],
)
def test_what_no_run_has_a_pace_of_is_a_slip_and_no_empty_table(
    folder: Path, said: tuple[str, str], problem: str
) -> None:
    with pytest.raises(BenchgateError) as caught:
        trend(folder, OUTPUT, *said)
    assert problem in str(caught.value)


def test_runs_without_a_price_on_their_day_are_told(folder: Path) -> None:
    (folder / "prices.yaml").write_text(PRICES)
    asked = ["trend", OUTPUT, "--store", str(folder / "b.db"), "--prices", str(folder / "prices.yaml")]
    told = quick_command.told(*asked).stderr
    assert "no price on their day for 1 run, of candidate: left out" in told


def test_name_that_the_file_does_not_know_is_told_with_the_nearest_of_the_file(folder: Path) -> None:
    with pytest.raises(
        BenchgateError, match=r"of candidate \(did you mean `candidat` in the file\?\), and there are no"
    ):
        trend(folder, OUTPUT, prices=PRICES.replace("candidate", "candidat"))


def test_runs_with_a_price_by_the_token_are_left_out_for_no_pace_makes_a_cost_of_it(folder: Path) -> None:
    by_token = "token_prices: {input: $0.15/M, output: $0.60/M}"
    (folder / "prices.yaml").write_text(PRICES.replace("price: $4/h", by_token))
    asked = ["trend", OUTPUT, "--store", str(folder / "b.db"), "--prices", str(folder / "prices.yaml")]
    result = quick_command.told(*asked, "--format", "json")
    assert len(json.loads(result.stdout)) == 1
    assert "has a price by the token, which no pace makes a cost of, for 1 run, of candidate: left out" in result.stderr


GOOD = "usd_per_million_good_tokens"


def test_all_runs_are_priced_on_one_day_and_each_point_says_by_what(folder: Path) -> None:
    kept = trend(folder, OUTPUT, prices=None)
    points = trend(folder, OUTPUT, "--prices-on", "2026-08-15")
    assert [new["value"] / own["value"] for new, own in zip(points, kept, strict=True)] == pytest.approx([1.25] * 3)
    assert {(one["prices_day"], one["price_usd_per_hour"], one["accelerators"]) for one in points} == {
        ("2026-08-15", 2.5, 1)
    }
    assert [one["prices_day"] for one in trend(folder, OUTPUT)] == ["2026-06-30", "2026-07-01"]
    assert not {"prices", "prices_day", "price_usd_per_hour"} & set(kept[0])
    today = trend(folder, OUTPUT, "--prices-on", "today", prices="prices: [{deployment: candidate, price: $1/h}]\n")
    assert [new["value"] / own["value"] for new, own in zip(today, kept, strict=True)] == pytest.approx([0.5] * 3)


def test_good_tokens_go_with_the_price_that_the_run_kept(folder: Path, tmp_path: Path) -> None:
    kept = trend(folder, GOOD, prices=None)
    assert len(kept) == 3
    for metric, factor in ((GOOD, 1.25), (f"{GOOD}_in_use", 1.25 * 2.5)):
        points = trend(folder, metric, "--prices-on", "2026-08-15")
        for end in ("value", "lower", "upper"):
            ratios = [new[end] / own[end] for new, own in zip(points, kept, strict=True)]
            assert ratios == pytest.approx([factor] * 3), (metric, end)
    unpaid = {"price_usd_per_hour": None, "token_prices": {"input": 1.0, "cached_input": 1.0, "output": 2.0}}
    with Store.open(str(tmp_path / "b.db")) as store:
        decide_stored(store, begun(store, day="2026-07-01", candidate=unpaid))
    with pytest.raises(BenchgateError, match="the run keeps none by the hour that its own cost goes with, for 1 run"):
        trend(tmp_path, GOOD)


def test_text_and_pictures_say_that_they_are_repriced_and_by_what(folder: Path) -> None:
    (folder / "prices.yaml").write_text(PRICES)
    asked = ["trend", OUTPUT, "--store", str(folder / "b.db")]
    new = ["--prices", str(folder / "prices.yaml")]

    def shown(*said: str) -> str:
        return quick_command.told(*asked, *said).stdout

    heading, line, *_ = shown(*new).splitlines()
    assert heading.endswith(f"{OUTPUT}, re-priced by prices.yaml, each run on its day") and line.endswith("), $4.00/h")
    assert shown(*new, "--prices-on", "2026-08-15").splitlines()[0].endswith("by prices.yaml, on 2026-08-15")
    svg = shown(*new, "--format", "svg")
    assert svg.count("re-priced by prices.yaml, each run on its day") == 2  # in the picture and in its name
    (folder / f"{'prices-of-a-long-name' * 3}.yaml").write_text(PRICES)
    long = shown(
        "--prices", str(folder / f"{'prices-of-a-long-name' * 3}.yaml"), "--prices-on", "2026-08-15", "--format", "svg"
    )
    assert long.count("re-priced by prices-o…-long-name.yaml, on 2026-08-15") == 2
    assert '"prices_day"' in shown(*new, "--format", "csv").splitlines()[0]
    assert not any("re-priced" in shown(*said) for said in ((), ("--format", "svg")))
    assert " to $" in shown().splitlines()[1]


def test_a_wrong_day_is_told_from_a_wrong_name(folder: Path) -> None:
    later = "prices: [{deployment: candidate, price: $4/h, from: 2026-11-01}]\n"
    with pytest.raises(BenchgateError) as caught:
        trend(folder, OUTPUT, prices=later)
    assert "this one begins on 2026-11-01; add one for that day, or take" in str(caught.value)
    assert "names" not in str(caught.value)
    assert len(trend(folder, OUTPUT, "--prices-on", "2026-11-01", prices=later)) == 3
    with pytest.raises(BenchgateError, match=r"has no price on 2026-10-31 for 3 runs, .* ask for another day"):
        trend(folder, OUTPUT, "--prices-on", "2026-10-31", prices=later)
    with pytest.raises(BenchgateError, match=r"no price of such a name for 3 runs, .* by the names that the suites"):
        trend(folder, OUTPUT, prices=later.replace("candidate", "other"))


def test_a_day_that_is_none_or_without_a_file_is_refused(folder: Path) -> None:
    with pytest.raises(BenchgateError, match='"soon" is not a day; write it like 2026-12-31, or today'):
        trend(folder, OUTPUT, "--prices-on", "soon")
    with pytest.raises(BenchgateError, match="add --prices"):
        trend(folder, OUTPUT, "--prices-on", "today", prices=None)


def test_costs_in_use_that_no_run_has_need_terms_beside_a_price(folder: Path) -> None:
    asked = ["trend", f"{OUTPUT}_in_use", "--store", str(folder / "b.db")]
    assert "a `price` with `price_terms`, which say how it is used, in" in quick_command.told(*asked).stderr


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
