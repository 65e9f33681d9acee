"""`benchgate frontier` over a real store: whose numbers stand in the table, and what is never called a pass."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from benchgate.cli.app import app
from benchgate.errors import BenchgateError
from benchgate.model.deployment import Arm
from benchgate.model.run import RunStatus
from benchgate.model.verdict import GuardResult
from benchgate.site.frontier import frontier, lined_up
from benchgate.site.pages import suite_page, suite_part
from benchgate.site.trends import Trends
from benchgate.store.repository import Store
from tests.fakes.right_sized import candidate, write

LATE = GuardResult("client-saturated", True, "the client was late", "use more workers", ("load", "speed"))


def at(hour: int) -> str:
    return f"2026-01-02T{hour:02d}:00:00Z"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Seven candidates of a suite, of which two pass and have a price."""
    address = str(tmp_path_factory.mktemp("frontier") / "b.db")
    with Store.open(address) as store:
        write(store, candidate("q4", price=0.1, lost=30, started_at=at(0)), "PASS")  # not the newest of its name
        write(store, candidate("q8", price=1.2, started_at=at(1), label="eight"), "PASS")
        write(store, candidate("q4", price=0.6, started_at=at(2)), "WARN")
        write(store, candidate("q2", price=0.2, lost=30, started_at=at(3)), "BLOCK")
        write(store, candidate("free", price=None, started_at=at(4)), "PASS")
        write(store, candidate("bad", price=0.01, started_at=at(5)), "INVALID")
        write(store, candidate("unjudged", price=0.01, started_at=at(6)), None)
        write(store, candidate("late", price=0.01, started_at=at(7)), "BLOCK", guards=(LATE,))
        write(store, candidate("q4", price=0.01, started_at=at(8)), None, status=RunStatus.PARTIAL)
        write(store, candidate("q9", price=0.01, started_at=at(0), measurement_sha256="b" * 64, label="other"), "PASS")
    return address


def asked(address: str, *said: str) -> Result:
    result = CliRunner().invoke(app, ["frontier", *said, "--store", address], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def document(address: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asked(address, "tiny-q4", "--format", "json").stdout)
    return found


def row(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in document["rows"] if one["name"] == name]
    assert isinstance(found, dict)
    return found


def test_cheapest_that_passes_is_never_one_that_its_verdict_holds_back(document: dict[str, Any]) -> None:
    assert document["cheapest_that_passes"]["name"] == "q4"
    assert document["cheapest_that_passes"]["not_shown_dearer"] == []
    passing = {one["name"] for one in document["rows"] if one["passes"]}
    assert passing == {"q8", "q4", "free"}


def test_newest_whole_run_of_each_candidate_stands_in_the_table(document: dict[str, Any]) -> None:
    names = [one["name"] for one in document["rows"]]
    assert names == ["f16 (baseline)", "q2", "q4", "q8", "bad", "free", "late", "unjudged"]
    assert row(document, "q4")["started_at"] == at(2)
    told = " ".join(document["notes"])
    assert "the newest run of q4" in told
    assert "q9 is left out" in told
    assert "their plans differ" in told


def test_quality_and_cost_are_those_of_the_best_level(document: dict[str, Any]) -> None:
    """36 and 37 of 40 right, two tokens each; at c1, 192 tokens in 2.5 s at $0.60 an hour."""
    q4 = row(document, "q4")
    assert q4["stage"] == "c1"
    assert q4["quality_ratio"]["value"] == pytest.approx((36 / 40 + 37 / 40) / 2)
    assert q4["usd_per_million"]["value"] == pytest.approx(0.6 / 3600 * 1e6 / (192 / 2.5), rel=1e-3)
    assert q4["usd_per_million"]["lower"] < q4["usd_per_million"]["value"] < q4["usd_per_million"]["upper"]
    expected = q4["usd_per_million"]["value"] / 1e6 * 2 * 80 / 73
    assert q4["usd_per_correct"]["value"] == pytest.approx(expected)
    saved = document["cheapest_that_passes"]["saving_ratio"]
    base = row(document, "f16 (baseline)")["usd_per_million"]["value"]
    assert saved["value"] == pytest.approx(1 - q4["usd_per_million"]["value"] / base)
    assert saved["lower"] < saved["value"] < saved["upper"]


@pytest.mark.parametrize(
    ("name", "figure", "says"),
    [
        ("free", "usd_per_million", "no price was stated"),
        ("bad", "usd_per_million", "the run is INVALID"),
        ("bad", "quality_ratio", "the run is INVALID"),
        ("unjudged", "usd_per_million", "the run has no verdict yet"),
        ("late", "usd_per_million", "the client was late"),
    ],
)
def test_what_does_not_count_has_a_reason_and_no_number(
    document: dict[str, Any], name: str, figure: str, says: str
) -> None:
    found = row(document, name)
    assert found[figure]["value"] is None
    assert says in found[figure]["why"]
    assert found["on_frontier"] == "not counted"


def test_text_ends_with_the_cheapest_that_passes(address: str) -> None:
    lines = asked(address).stdout.splitlines()  # the suite of @latest
    assert lines[-1].startswith("The cheapest that passes is q4 (WARN): $2.17 (")
    assert "less than the baseline beside it" in lines[-1]
    assert "bad is not counted: the run is INVALID: its evidence is not usable." in lines
    assert "The cheapest that passes is q8 (PASS)" in asked(address, "eight").stdout


def test_table_of_the_docs_is_what_the_command_says(address: str, document: dict[str, Any]) -> None:
    page = (Path(__file__).parents[2] / "docs/right-sizing.md").read_text(encoding="utf-8")
    said = asked(address, *(row(document, name)["run"] for name in ("q2", "q4", "q8"))).stdout
    assert f"```\n{said}```\n" in page


def test_nothing_that_passes_is_said_with_the_verdicts(address: str, document: dict[str, Any]) -> None:
    ids = [row(document, name)["run"] for name in ("q2", "bad", "unjudged")]
    said = asked(address, *ids).stdout.splitlines()[-1]
    assert said.startswith("Nothing is the cheapest that passes: no candidate passes by its own verdict: ")
    assert all(word in said for word in ("1 BLOCK", "1 INVALID", "1 without a verdict"))


def test_two_runs_of_one_name_are_told_apart(address: str, document: dict[str, Any]) -> None:
    with Store.open(address) as store:
        old = next(run.id for run in store.runs("tiny-q4") if run.started_at == at(0) and run.label is None)
    found = json.loads(asked(address, old, row(document, "q4")["run"], "--format", "json").stdout)
    names = {one["name"] for one in found["rows"] if one["role"] == "candidate"}
    assert names == {f"q4 ({old[:13]})", f"q4 ({row(document, 'q4')['run'][:13]})"}
    assert found["cheapest_that_passes"]["name"] == f"q4 ({old[:13]})"


def test_csv_has_a_row_for_each_and_empty_cells_for_what_is_not_known(address: str) -> None:
    rows = list(csv.DictReader(io.StringIO(asked(address, "tiny-q4", "--format", "csv").stdout)))
    assert [one["name"] for one in rows if one["cheapest_that_passes"] == "yes"] == ["q4"]
    assert next(one for one in rows if one["name"] == "free")["usd"] == ""


def test_chart_names_every_deployment_that_has_both_numbers(address: str, tmp_path: Path) -> None:
    picture = tmp_path / "frontier.svg"
    asked(address, "tiny-q4", "--format", "svg", "-o", str(picture))
    svg = picture.read_text(encoding="utf-8")
    for name in ("q2", "q4", "q8", "f16"):
        assert f">{name}</text>" in svg
    assert ">free</text>" not in svg
    assert "Quality against cost of 4 deployments" in svg
    assert "q4, WARN: quality 91.3 % (" in svg
    asked(address, "tiny-q4", "--format", "png", "-o", str(tmp_path / "frontier.png"))
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (("eight", "other"), "cannot stand in one table: their plans differ"),
        (("tiny-q5",), "no stored run is of a suite 'tiny-q5'"),
        (("eight", "eight"), "is named already"),
        (("eight", "--format", "png"), "-o FILE"),
    ],
)
def test_what_cannot_be_compared_is_refused(address: str, said: tuple[str, ...], says: str) -> None:
    with pytest.raises(BenchgateError, match=says) as refused:
        CliRunner().invoke(app, ["frontier", *said, "--store", address], catch_exceptions=False)
    assert refused.value.exit_code == 2


def test_page_of_a_suite_shows_its_candidates_side_by_side(address: str) -> None:
    with Store.open(address) as store:
        runs = store.overview().runs
        found = lined_up(store, runs)
        alone = [one for one in runs if one.run.arms[Arm.CANDIDATE].name in ("q8", "free")]
        assert lined_up(store, alone) is None  # one of the two has no price
    shown = frontier(found)
    assert shown is not None
    assert frontier(None) is None
    assert shown.lines[-1].startswith("The cheapest that passes is q4 (WARN)")
    part = suite_part("tiny-q4", [], [], newest=None, in_service=None, in_series=False)
    nothing = Trends((), (), 0, 0)
    page = suite_page(part, nothing, shown).decode()
    assert '<section id="frontier">' in page
    assert "<td>not shown against f16 (baseline), q4</td>" in page
    assert 'id="frontier"' not in suite_page(part, nothing).decode()


def test_a_calibration_has_no_candidate_to_compare(tmp_path: Path) -> None:
    address = str(tmp_path / "b.db")
    with Store.open(address) as store:
        found = candidate("q4")
        both = replace(found.run, suite={**found.run.suite, "calibration": True})
        run_id = write(store, replace(found, run=both, load=(), quality=()), None)
    with pytest.raises(BenchgateError, match="judges no candidate"):
        asked(address, run_id)


def test_a_table_without_a_point_draws_nothing(address: str, document: dict[str, Any]) -> None:
    with pytest.raises(BenchgateError, match="no deployment has both quality and cost"):
        asked(address, row(document, "bad")["run"], "--format", "svg")
