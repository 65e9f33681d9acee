"""Distributions, SLOs met, paired blocks and the numbers of a report: what they show of a run, and what they do not."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import ClientUse, Evidence
from benchgate.model.verdict import Outcome, Verdict
from benchgate.report.charts import Figure
from benchgate.report.comparability import client_care, sides
from benchgate.report.document import document_json, verdict_document
from benchgate.report.section import Charts, Section, walk
from benchgate.report.sections.capacity import CapacityPoint, capacity_figure
from benchgate.report.sections.latency import Distribution, distribution_figures, distributions
from benchgate.report.sections.paired import PairedCheck, paired_checks, paired_figures
from benchgate.report.sections.stages import executions_of, stage_rows
from benchgate.report.table import ShareBar, Table
from benchgate.report.text import render_text
from benchgate.report.view import ReportView, report_view
from benchgate.suite.schema import ClientBounds, Suite
from tests.fakes import evidence as fake
from tests.fakes import hostile
from tests.fakes.measured import Effect, SuiteText, measured
from tests.fakes.rendered import render_html

DASH = "\N{EN DASH}"


@functools.cache
def usual() -> ReportView:
    return report_view(fake.evidence(), fake.verdict())


def texts(figure: Figure) -> set[str]:
    return {element.text or "" for element in ElementTree.fromstring(figure.svg).iter("text")}


def section(view: ReportView, anchor: str) -> Section:
    found = view.section(anchor)
    assert found is not None
    return found


def ttft_at_c4(evidence: Evidence) -> Distribution:
    both = sides(evidence, None)
    rows = stage_rows(both, Suite.from_stored(evidence.run.suite))
    return distributions([row for row in rows if row.stage == "c4"], executions_of(both))[0]


def test_the_stage_that_fails_is_drawn_and_the_table_has_the_quantiles_of_all() -> None:
    shown, _, table = section(usual(), "distributions").parts
    assert isinstance(shown, Charts) and isinstance(table, Table)
    assert [figure.anchor for figure in shown.figures] == ["figure-ecdf-ttft-c4", "figure-ecdf-tpot-c4"]
    assert [row[:3] for row in table.rows[1::2]] == [
        (stage, "candidate", latency) for stage in ("c4", "c1") for latency in ("TTFT", "TPOT", "ITL")
    ]


def test_a_curve_ends_below_the_top_by_what_failed_and_says_so() -> None:
    ttft = ttft_at_c4(fake.evidence())
    ends = {side.role: (side.curve.n, side.curve.never, side.curve.shares[-1]) for side in ttft.sides}
    assert ends == {Arm.BASELINE: (96, 0, 1.0), Arm.CANDIDATE: (96, 2, 94 / 96)}
    (figure,) = distribution_figures([ttft])
    assert figure.anchor == "figure-ecdf-ttft-c4"
    assert "ends below 100 %: candidate 2." in figure.caption
    assert "Vertical line: SLO 50 ms." in figure.caption
    assert {"baseline", "candidate", "SLO"} <= texts(figure)
    (table,) = section(usual(), "distributions").tables
    row = dict(zip((column.title for column in table.columns), table.rows[1], strict=True))
    assert (row["arm"], row["n"], row["failed"], row["max"]) == ("candidate", "96", "2", "∞")


def test_a_curve_has_a_mark_with_its_words_at_every_quantile_that_came() -> None:
    (figure,) = distribution_figures([ttft_at_c4(fake.evidence())])
    told = [title.text for title in ElementTree.fromstring(figure.svg).iter("title")]
    assert [one for one in told if one and one.startswith("candidate")] == [
        "candidate: 5 % within 47.0 ms",
        "candidate: 25 % within 49.0 ms",
        "candidate: 50 % within 51.0 ms",
        "candidate: 75 % within 53.0 ms",
        "candidate: 95 % within 55.0 ms",
    ]
    assert told[6] == "baseline: max 40.0 ms"


def test_a_level_of_the_capacity_search_says_its_goodput_and_its_limits() -> None:
    points = [CapacityPoint(Arm.CANDIDATE, level, 0.9, 0.85, 0.94, None) for level in (2.0, 4.0)]
    figure = capacity_figure(points, "requests per second", 0.95, ("told",), Table("Levels", (), ()))
    assert figure is not None
    told = [title.text for title in ElementTree.fromstring(figure.svg).iter("title")]
    assert told == [f"candidate at {level}: 90.0 % (85.0 % to 94.0 %)" for level in (2, 4)]


def test_a_run_without_load_has_none_of_its_parts() -> None:
    view = report_view(replace(fake.evidence(), load=()), fake.verdict())
    of_load = {"load", "distributions", "attainment", "blocks", "servers", "cost"}
    assert not of_load & {one.anchor for one in view.sections}


def test_where_every_request_failed_there_is_no_curve_of_that_side() -> None:
    evidence = replace(fake.evidence(), load=fake.load(failing_arm=Arm.CANDIDATE))
    (figure,) = distribution_figures([ttft_at_c4(evidence)])
    assert "ends below 100 %: candidate 96." in figure.caption
    assert "candidate ∞" in figure.title


def test_what_was_missed_is_told_by_the_bound_that_was_missed() -> None:
    """c4 of the candidate: first tokens after 47 to 55 ms against 50, tokens 11 ms apart against 12, two failures."""
    (table,) = section(usual(), "attainment").tables
    assert [column.title for column in table.columns][-3:] == ["failed", "past TTFT", "past TPOT"]
    stage, arm, met, _, _, good, *missed = table.rows[3]
    assert (stage, arm, met, good) == ("c4", "candidate", "43.8 %", "42 of 96")
    assert missed == ["2 (2.08 %)", "52 (54.2 %)", "0"]
    assert table.bars[3] == ShareBar(43.75, 95.0)
    assert table.rows[0][2] == "100 %"
    assert table.starts == {2}


def test_a_share_that_misses_its_target_is_not_rounded_up_to_it() -> None:
    suite = SuiteText([{"metric": "goodput", "margin": "5 points"}], blocks=2, requests=1250).suite()
    evidence = measured(suite, Effect(failed=63))  # 94.96 % of 95 %
    view = report_view(evidence, judge(suite, evidence))
    for anchor in ("attainment", "load"):
        tables = [part for part in walk(section(view, anchor).parts) if isinstance(part, Table)]
        cells = [cell for table in tables for row in table.rows if "candidate" in row for cell in row]
        assert "94.96 %" in {cell.partition(" (")[0] for cell in cells}
        assert "95.0 %" not in " ".join(cells)


def test_without_an_slo_nothing_is_said_of_one() -> None:
    evidence = fake.evidence()
    free = replace(evidence, run=replace(evidence.run, suite={**evidence.run.suite, "slo": None}))
    assert report_view(free, fake.verdict()).section("attainment") is None


def test_a_stage_that_was_never_measured_met_nothing_and_missed_nothing() -> None:
    view = report_view(replace(fake.evidence(), load=fake.load(stages=("c1",))), fake.verdict())
    (table,) = section(view, "attainment").tables
    assert (table.rows[2][2], table.bars[2].width, set(table.rows[2][6:])) == ("not measured", None, {DASH})


def paired(evidence: Evidence, verdict: Verdict) -> list[PairedCheck]:
    return paired_checks(evidence, verdict, Suite.from_stored(evidence.run.suite))


def test_paired_blocks_show_the_change_in_each_with_the_checks_own_mean_and_margin() -> None:
    failing, throughput = checks = paired(fake.evidence(), fake.verdict())
    assert (failing.title, len(failing.changes), failing.worse_is_up) == ("TTFT p50 at c4", fake.BLOCKS, True)
    assert failing.margins == pytest.approx((10.0,))
    assert failing.mean == pytest.approx(math.expm1(0.348) * 100)
    assert throughput.margins == pytest.approx((-10.0,))
    assert not throughput.worse_is_up
    figures = paired_figures(checks)
    assert [figure.anchor for figure in figures] == ["figure-blocks-ttft-p50-c4", "figure-blocks-output-throughput-c1"]
    assert {"no change", "margin", "mean"} <= texts(figures[0])
    assert "Higher is worse." in figures[0].caption
    assert "Lower is worse." in figures[1].caption
    assert [row[0] for row in figures[0].table.rows] == ["block 1", "block 2", "block 3", "block 4", "mean", "margin"]


def judged(checks: list[dict[str, object]], candidate: Effect) -> tuple[Evidence, Verdict]:
    suite = SuiteText(checks).suite()
    evidence = measured(suite, candidate)
    return evidence, judge(suite, evidence)


def test_a_block_without_a_value_is_named_and_a_share_is_in_points() -> None:
    checks: list[dict[str, object]] = [
        {"metric": "ttft", "margin": "10%"},
        {"metric": "error_rate", "margin": "5 points"},
        {"metric": "output_length", "margin": "10%"},
    ]
    by_id = {one.id: one for one in paired(*judged(checks, Effect(failed=60, failed_block=2)))}
    assert by_id["ttft-p50@c4"].changes[2] is None
    assert by_id["error_rate@c4"].changes[2] == pytest.approx(100.0)
    figures = {figure.anchor: figure for figure in paired_figures(list(by_id.values()))}
    assert "Not drawn, because the candidate's requests failed: 3." in figures["figure-blocks-ttft-p50-c4"].caption
    assert "change, points" in texts(figures["figure-blocks-error-rate-c4"])
    assert "output_length@c4" not in by_id  # in that block no request was answered by both


def test_an_slo_that_is_missed_where_no_check_looks_is_a_limit_of_the_report() -> None:
    (unjudged,) = [line for line in usual().provenance.limits if "goodput" in line]
    assert unjudged == "No check judges goodput at c4: 43.8 % of the requests met the SLO, target 95 %."  # 42 of 96
    verdict = fake.verdict()
    judged = replace(verdict.checks[0], id="goodput@c4", metric="goodput", stage="c4")
    looked_at = report_view(fake.evidence(), replace(verdict, checks=(*verdict.checks, judged)))
    assert not [line for line in looked_at.provenance.limits if "goodput" in line]


BUSY = ClientUse(cpu_s=2.0, wall_s=1.0, workers=1)


def strained(evidence: Evidence, block: int) -> Evidence:
    load = tuple(replace(o, client=BUSY) if o.block == block else o for o in evidence.load)
    return replace(evidence, load=load)


def test_blocks_keep_their_numbers_where_one_was_left_out() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    evidence = strained(measured(suite), 1)
    (figure,) = paired_figures(paired(evidence, judge(suite, evidence)))
    rows = {row[0]: row[1] for row in figure.table.rows}
    assert [*rows] == [*(f"block {i}" for i in range(1, 9)), "mean", "margin"]
    assert rows["block 2"] == "excluded: the load generator was the bottleneck"
    assert rows["block 3"].endswith("%")
    assert "Excluded: block 2 (" in figure.caption
    assert "block 3: " in figure.svg and "block 2: " not in figure.svg


def test_a_client_that_may_be_later_than_usual_is_told_on_every_page() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    evidence = measured(suite)
    assert client_care(suite, evidence) == ()
    for bounds, told in (
        ({"send_lag_p99": "100ms"}, "send lag p99 100 ms (usual 5 ms)"),
        ({"achieved": "90%", "cpu": "60%"}, "achieved 90 % (usual 99 %)"),
    ):
        client = ClientBounds.model_validate(bounds)
        wider = suite.model_copy(update={"gate": suite.gate.model_copy(update={"client": client})})
        seen = replace(evidence, run=replace(evidence.run, suite=wider.to_stored()))
        view = report_view(seen, judge(wider, seen))
        assert not view.fairness.fair and view.fairness.cautions[-1].endswith(f": {told}")
        (line,) = client_care(wider, strained(seen, 1))
        assert line.endswith(f"{told}; excluded all the same: 1 of 8 blocks of stage c4")
        assert f"  caution: {line}\n" in render_text(judge(wider, seen), seen.run, cautions=(line,))
        (beside,) = client_care(wider, seen, strained(seen, 1))
        assert beside.endswith(f"{told}; excluded all the same: 1 of 8 blocks of stage c4 of the reference run")
        assert client_care(wider, replace(seen, load=())) == ()


def test_a_change_that_may_go_either_way_has_a_margin_on_both_sides() -> None:
    found = paired(*judged([{"metric": "output_length", "margin": "10%"}], Effect(tokens=11)))
    (figure,) = paired_figures(found)
    assert "Either way is a change." in figure.caption
    assert [element.text for element in ElementTree.fromstring(figure.svg).iter("text")].count("margin") == 2


def test_a_margin_far_beyond_every_point_is_told_and_does_not_flatten_them() -> None:
    (figure,) = paired_figures(paired(*judged([{"metric": "ttft", "margin": "90%"}], Effect())))
    assert figure.title.endswith("margin +90 %")
    assert "The margin lies outside the plot." in figure.caption
    assert "margin" not in texts(figure)


def test_two_stored_runs_have_no_paired_blocks() -> None:
    view = report_view(fake.evidence("run-b"), fake.verdict(Outcome.PASS), against=fake.evidence("run-a"))
    assert view.section("blocks") is None


def test_the_cost_has_an_interval_and_the_change_of_what_a_good_token_costs() -> None:
    (cost,) = section(usual(), "cost").tables
    shown = [dict(zip((c.title for c in cost.columns), row, strict=True)) for row in cost.rows]
    assert shown[0]["$ per 1M output tokens"] == "$6.83"  # 2 / (3600 * 192 / 2.361) * 1e6
    candidate = shown[3]
    assert re.fullmatch(r"\$[\d.]+ to \$[\d.]+", candidate["95 % interval"])
    assert candidate["good tokens vs. baseline"].startswith("+")


@pytest.mark.usefixtures("no_figures")
def test_a_run_without_prices_says_that_there_is_none() -> None:
    evidence = fake.evidence()
    free = {arm: replace(one, price_usd_per_hour=None) for arm, one in evidence.run.arms.items()}
    source = render_html(replace(evidence, run=replace(evidence.run, arms=free)), fake.verdict())
    assert "The cost is unknown" in source


@pytest.mark.usefixtures("no_figures")
def test_the_numbers_come_out_of_the_page_with_the_hash_that_it_shows(tmp_path: Path) -> None:
    view = usual()
    (tmp_path / "report.html").write_text(render_html(fake.evidence(), fake.verdict()), encoding="utf-8")
    told = subprocess.run(["bash", "-c", view.numbers.extract_command], cwd=tmp_path, capture_output=True, check=True)
    assert told.stdout.decode().split()[0] == view.numbers.sha256
    taken = (tmp_path / "numbers.json").read_bytes()
    assert hashlib.sha256(taken).hexdigest() == view.numbers.sha256
    document: dict[str, Any] = json.loads(taken)
    assert document["schema"] == "benchgate.numbers/1"
    assert document["verdict"] == json.loads(document_json(verdict_document(fake.run(), fake.verdict())))
    blocks = _rows(document["blocks"])
    assert len(blocks) == 2 * 2 * fake.BLOCKS
    worst = next(b for b in blocks if (b["stage"], b["arm"], b["block"]) == ("c4", "candidate", 3))
    assert (worst["scheduled"], worst["succeeded"]) == (24, 22)
    of_tasks = [m for m in document["metrics"][fake.run().id] if m["name"] == "accuracy"]
    accuracy = {(m["arm"], m["task"]): m["value"] for m in of_tasks}
    assert (accuracy["baseline", "tiny_add"], accuracy["candidate", "tiny_add"]) == (38 / 40, 36 / 40)


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_a_report_of_the_usual_size_is_a_small_file() -> None:
    assert len(render_html(fake.evidence(), fake.verdict()).encode()) <= 300_000


def test_failed_blocks_are_infinite_in_the_numbers_and_missing_ones_null() -> None:
    evidence = replace(fake.evidence(), load=fake.load(failing_arm=Arm.CANDIDATE))
    document = json.loads(report_view(evidence, fake.verdict()).numbers.text)
    failed = next(b for b in _rows(document["blocks"]) if b["arm"] == "candidate")
    assert (failed["ttft_p50_s"], failed["output_tokens_per_s"], failed["good"]) == ("inf", 0.0, 0)


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--<script>", "&lt;", "\u2028]]>"])
def test_no_text_ends_the_element_that_the_numbers_stand_in(text: str) -> None:
    numbers = report_view(hostile.evidence(text), hostile.verdict(text)).numbers
    assert not set("<>&\u2028\n") & set(numbers.text)
    assert json.loads(numbers.text)["verdict"]["reason"] == text


def test_reproducing_is_told_for_the_page_the_check_and_the_measurement() -> None:
    lines = [command.line for command in usual().provenance.more]
    run = fake.run().id
    assert lines == [
        f"benchgate report {run} --out report.html",
        f"benchgate gate {run} --explain ttft-p50@c4",
        "benchgate run SUITE",
    ]
    assert "benchgate 0.1.0" in usual().provenance.more[-1].purpose


def test_two_stored_runs_have_the_numbers_of_both_by_their_ids() -> None:
    view = report_view(fake.evidence("run-b"), fake.verdict(Outcome.PASS), against=fake.evidence("run-a"))
    document = json.loads(view.numbers.text)
    assert {run: len(rows) > 50 for run, rows in document["metrics"].items()} == {"run-a": True, "run-b": True}
    assert set(document["blocks"]["arm"]) == {"baseline", "candidate"}
