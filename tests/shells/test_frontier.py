"""`benchgate frontier` over a real store: whose numbers stand in the table, and what is never called a pass."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import BenchgateError
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, MetricRow, RunStatus
from benchgate.model.verdict import GuardResult
from benchgate.site.pages import SuitePart, compared_candidates, frontier_section, suite_page
from benchgate.site.trends import Trends
from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from tests.fakes import quick_command
from tests.fakes.right_sized import candidate, write

POLICY = """
suite: policy
deployments:
  a: {engine: openai, url: http://a.example, model: m}
  b: {engine: openai, url: http://b.example, model: m}
baseline: a
candidate: b
slo: {ttft: 50ms, tpot: 12ms, target: 95%}
load: {workload: {input: 32, output: 8}, sweep: [{stage: c4, concurrency: 4, requests: 24}]}
gate: {checks: [{metric: error_rate, max: 50%}, {metric: ttft, margin: 1%, stage: c4}]}
"""
PRICES = {"q8": 1.2, "q4": 0.6, "q2": 0.2}
LATE = GuardResult("client-saturated", True, "the client was late", "use more workers", ("load", "speed"))


def at(hour: int) -> str:
    return f"2026-01-02T{hour:02d}:00:00Z"


def of_list(name: str, **said: Any) -> Evidence:
    """A candidate by a suite that says what the others cost."""
    return candidate(name, listed=PRICES, **said)


@pytest.fixture(scope="module", autouse=True)
def _lately() -> Iterator[None]:
    """A day on which the runs here are of late: an older one is told of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchgate.cli.history.today", lambda: date(2026, 1, 10))
        yield


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Seven candidates of a suite, of which two pass and have a price."""
    address = str(tmp_path_factory.mktemp("frontier") / "b.db")
    with Store.open(address) as store:
        write(store, of_list("q4", price=0.1, lost=30, started_at=at(0)), "PASS")  # not its newest
        write(store, of_list("q8", price=1.2, started_at=at(1), label="eight"), "PASS")
        write(store, of_list("q4", price=0.6, started_at=at(2)), "WARN")
        write(store, of_list("q2", price=0.2, lost=30, started_at=at(3)), "BLOCK")
        write(store, of_list("free", price=None, started_at=at(4)), "PASS")
        write(store, of_list("bad", price=0.01, started_at=at(5)), "INVALID")
        write(store, of_list("unjudged", price=0.01, started_at=at(6)), None)
        write(store, of_list("late", price=0.01, started_at=at(7)), "BLOCK", guards=(LATE,))
        write(store, of_list("q4", price=0.01, started_at=at(8)), None, status=RunStatus.PARTIAL)
        write(store, of_list("q9", price=0.01, started_at=at(0), measurement_sha256="b" * 64, label="other"), "PASS")
    return address


def asked(address: str, *said: str) -> quick_command.Told:
    result = quick_command.told("frontier", *said, "--store", address)
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
    """36 and 37 of 40 right, two tokens each; at c1, 192 tokens in 2.362 s at $0.60 an hour."""
    q4 = row(document, "q4")
    assert q4["stage"] == "c1"
    assert q4["quality_ratio"]["value"] == pytest.approx((36 / 40 + 37 / 40) / 2)
    assert q4["usd_per_million"]["value"] == pytest.approx(0.6 / 3600 * 1e6 / (192 / 2.362), rel=1e-3)
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
    assert lines[-1].startswith("The cheapest that passes is q4 (WARN): $2.05 (")
    assert "less than on the baseline" in lines[-1]
    assert "bad is not counted: the run is INVALID: its evidence is not usable." in lines
    assert "The cheapest that passes is q8 (PASS)" in asked(address, "eight").stdout


def test_table_of_the_docs_is_what_the_command_says(address: str, document: dict[str, Any]) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/cost.md").read_text(encoding="utf-8")
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
    assert "($0.1/h on 2026-01-02 and $0.6/h on 2026-01-02)" in found["rows"][1]["set_apart"]  # one of them moved


def test_csv_has_a_row_for_each_and_empty_cells_for_what_is_not_known(address: str) -> None:
    rows = list(csv.DictReader(io.StringIO(asked(address, "tiny-q4", "--format", "csv").stdout)))
    assert [one["name"] for one in rows if one["cheapest_that_passes"] == "yes"] == ["q4"]
    assert next(one for one in rows if one["name"] == "free")["usd"] == ""


def test_csv_says_of_each_row_whether_it_passes_and_what_is_to_be_known_of_it(tmp_path: Path) -> None:
    address = superseded(tmp_path)
    rows = list(csv.DictReader(io.StringIO(asked(address, "old", "eight", "--format", "csv").stdout)))
    (old,) = [one for one in rows if one["name"] == "q4"]
    assert (old["verdict"], old["passes"], old["cheapest_that_passes"]) == ("PASS", "no", "no")
    assert old["newer_run"] == "new, which is BLOCK"
    assert old["held_back"] == "the same candidate was measured again in new, which is BLOCK"
    assert [one["name"] for one in rows if one["cheapest_that_passes"] == "yes"] == ["q8"]


def superseded(folder: Path) -> str:
    """A candidate that passed for little money, and is BLOCKed by now; and one that passes."""
    address = str(folder / "b.db")
    with Store.open(address) as store:
        write(store, of_list("q4", price=0.6, started_at=at(0), label="old"), "PASS")
        write(store, of_list("q8", price=1.2, started_at=at(1), label="eight"), "PASS")
        write(store, of_list("q4", price=0.6, started_at=at(2), label="new"), "BLOCK")
    return address


def test_naming_an_older_pass_does_not_hide_that_its_candidate_is_blocked(tmp_path: Path) -> None:
    said = asked(superseded(tmp_path), "old", "eight").stdout
    assert "q4 stands here by an older run; its newest is new, which is BLOCK." in said
    assert "The cheapest that passes is q8 (PASS)" in said
    assert "PASS, held back, older" in said


@pytest.mark.slow
def test_a_picture_of_its_own_has_the_marks_and_all_the_words_below_the_table(tmp_path: Path) -> None:
    picture = tmp_path / "frontier.svg"
    asked(superseded(tmp_path), "old", "eight", "--format", "svg", "-o", str(picture))
    svg = picture.read_text(encoding="utf-8")
    assert ">q4 (held back, older)</text>" in svg
    assert ">q4 does not pass: the same candidate was measured again in new" in svg
    assert ">The cheapest that passes is q8 (PASS)" in svg


def test_candidates_are_judged_anew_by_one_policy_where_it_is_given(tmp_path: Path) -> None:
    address = str(tmp_path / "b.db")
    with Store.open(address) as store:
        for hour, (label, name) in enumerate({"first": "q8", "second": "q4"}.items()):
            write(store, of_list(name, price=PRICES[name], started_at=at(hour), label=label), "PASS")
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    said = asked(address, "first", "second", "--policy", str(policy)).stdout
    assert f"Note: judged by the policy of {policy}, without waivers; not stored." in said
    last = "Nothing is the cheapest that passes: no candidate passes by its own verdict: 2 INVALID."
    assert said.splitlines()[-1] == last
    assert "The cheapest that passes is q4 (PASS)" in asked(address, "first", "second").stdout  # it was not kept
    policy.write_text(POLICY.replace("50ms", "51ms"), encoding="utf-8")
    with pytest.raises(BenchgateError, match="the policy's `slo` differs from that of run"):
        asked(address, "first", "--policy", str(policy))


@pytest.mark.slow
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
        quick_command.told("frontier", *said, "--store", address)
    assert refused.value.exit_code == 2


def test_page_of_a_suite_shows_its_candidates_side_by_side(address: str) -> None:
    with Store.open(address) as store:
        runs = store.overview().runs
        found = compared_candidates(store, runs)
        alone = [one for one in runs if one.run.arms[Arm.CANDIDATE].name in ("q8", "free")]
        assert compared_candidates(store, alone) is None  # one of the two has no price
    shown = frontier_section(found)
    assert shown is not None
    assert frontier_section(None) is None
    assert shown.lines[-1].startswith("The cheapest that passes is q4 (WARN)")
    assert shown.lines[-2].startswith("Note: figures as stored with each run")
    part = SuitePart("tiny-q4", [], [], newest=None, in_service=None, in_series=False)
    nothing = Trends((), (), 0, 0)
    page = suite_page(part, nothing, shown).decode()
    assert '<section id="frontier">' in page
    assert "<td>not shown against f16 (baseline), q4</td>" in page
    cells = [cell for row in shown.figure.table.rows for cell in row]
    intervals = [cell for cell in cells if cell.endswith(")") and cell[0] in "$0123456789"]
    assert intervals and not any(" to " in cell for cell in intervals)  # it may stand below its value, in one piece
    assert 'id="frontier"' not in suite_page(part, nothing).decode()


@pytest.mark.slow
def test_a_chart_of_many_candidates_has_the_newest_and_the_cheapest_and_the_table_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchgate.site.pages.MOST_DRAWN_CANDIDATES", 2)
    address, names = str(tmp_path / "b.db"), ["q1", "q2", "q3", "q5"]
    prices = {name: 0.5 if name == "q1" else 1.5 for name in names}
    with Store.open(address) as store:
        for hour, name in enumerate(names):
            write(store, candidate(name, price=prices[name], listed=prices, started_at=at(hour)), "PASS")
        found = compared_candidates(store, store.overview().runs)
    shown = frontier_section(found)
    assert shown is not None
    assert shown.lines[-1].startswith("The cheapest that passes is q1 (PASS)")
    assert [name for name in names if f">{name}</text>" in shown.figure.svg] == ["q1", "q3", "q5"]
    assert "4 of 5 deployments are drawn" in shown.figure.caption
    assert {cells[0] for cells in shown.figure.table.rows} == {"f16 (baseline)", *names}


def test_a_calibration_has_no_candidate_to_compare(tmp_path: Path) -> None:
    address = str(tmp_path / "b.db")
    with Store.open(address) as store:
        found = candidate("q4")
        both = replace(found.run, suite={**found.run.suite, "calibration": True})
        run_id = write(store, replace(found, run=both, load=(), quality=()), None)
    with pytest.raises(BenchgateError, match="judges no candidate"):
        asked(address, run_id)


def test_a_table_without_a_point_draws_nothing(address: str, document: dict[str, Any]) -> None:
    told = "no deployment has both quality and cost. bad is not counted: the run is INVALID"
    with pytest.raises(BenchgateError, match=told):
        asked(address, row(document, "bad")["run"], "--format", "svg")


def test_a_price_by_the_token_is_a_price_and_a_tiny_one_is_not_nothing(tmp_path: Path) -> None:
    found = candidate("api", price=None)
    hosted = replace(found.run.arms[Arm.CANDIDATE], token_prices={"input": 0.2, "cached_input": 0.1, "output": 4e-8})
    run = replace(found.run, arms={**found.run.arms, Arm.CANDIDATE: hosted})
    address = str(tmp_path / "b.db")
    with Store.open(address) as store:
        write(store, replace(found, run=run), "PASS")
    said = asked(address).stdout
    assert "per 1M tokens: input $0.200, cached input $0.100, output $4e-08 " in said
    assert "The cheapest that passes is api (PASS): $0.800 ($0.800 to $0.800)" in said


def test_numbers_that_were_changed_in_the_store_are_made_again_of_the_records(tmp_path: Path) -> None:
    found = candidate("q4", price=1.2, label="q4")
    address = str(tmp_path / "b.db")
    with Store.open(address) as store:
        run_id = write(store, found, "PASS")
        before = json.loads(asked(address, "q4", "--format", "json").stdout)
        rows = [replace(one, value=one.value / 2) for one in store.metrics(run_id)]
        store.save_metrics(run_id, rows)
    after = json.loads(asked(address, "q4", "--format", "json").stdout)
    assert after["rows"] == before["rows"]
    assert {one["figures_from"] for one in after["rows"]} == {"records"}


@pytest.mark.parametrize("lost", ["accuracy", "goodput"])
def test_numbers_that_were_removed_from_the_store_are_made_of_the_records(tmp_path: Path, lost: str) -> None:
    """Whatever rows are left, and however cheap they say it is."""
    address = str(tmp_path / "b.db")
    with Store.open(address) as store:
        run_id = write(store, candidate("q4", label="q4"), "PASS")
        before = json.loads(asked(address, "q4", "--format", "json").stdout)
        kept = [row for row in store.metrics(run_id) if row.name != lost]
        assert len(kept) < len(store.metrics(run_id))
        store.save_metrics(run_id, [_cheaper(row) if lost == "accuracy" else row for row in kept])
    after = json.loads(asked(address, "q4", "--format", "json").stdout)
    assert after["rows"] == before["rows"]


def _cheaper(row: MetricRow) -> MetricRow:
    return replace(row, value=row.value / 100, lower=None, upper=None) if row.name.startswith("usd_") else row


def test_a_suite_without_evals_is_lined_up_by_its_records_too(tmp_path: Path) -> None:
    address = str(tmp_path / "b.db")
    with Store.open(address) as store:
        run_id = write(store, replace(candidate("q4", label="q4"), quality=()), "PASS")
        before = asked(address, "q4").stdout
        store.save_metrics(run_id, [_cheaper(row) for row in store.metrics(run_id)])
    assert "The cheapest that passes is q4 (PASS): $5.12 (" in before  # 1.5 / 0.6 times $2.05
    assert asked(address, "q4").stdout.splitlines()[-1] == before.splitlines()[-1]


def test_figures_whose_records_are_gone_are_marked_wherever_they_stand(tmp_path: Path) -> None:
    address = str(tmp_path / "b.db")
    with Store.open(address) as store:
        write(store, of_list("q4", price=0.6, label="q4", started_at=at(1)), "PASS")
        write(store, of_list("q8", price=1.2, label="q8", started_at=at(2)), "PASS")  # the newest one keeps its own
        store.remove_raw(store.expendable(Policy(), "2028-01-01T00:00:00Z"), now=at(9), reason="store gc")
    said = asked(address).stdout
    why = "the run's raw records were removed on 2026-01-02"
    assert f"q4 has stored figures, nothing here can check them: {why}." in said
    assert "The cheapest that passes is q4 (PASS, unchecked)" in said
    rows = list(csv.DictReader(io.StringIO(asked(address, "--format", "csv").stdout)))
    assert {one["name"]: one["figures_from"] for one in rows if one["role"] == "candidate"} == {
        "q4": "stored figures",
        "q8": "records",
    }
    picture = tmp_path / "frontier.svg"
    asked(address, "--format", "svg", "-o", str(picture))
    svg = picture.read_text(encoding="utf-8")
    assert ">q4 (unchecked)</text>" in svg
    assert ">q4 has stored figures, nothing here can check them: " in svg
