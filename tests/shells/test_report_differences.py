"""What differed between the two sides, in every form of the report: what nobody declared first, and said to be so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchgate.model.verdict import Difference, Outcome, Verdict
from benchgate.report.document import document_json, verdict_document
from benchgate.report.text import render_text
from benchgate.report.view import report_view
from tests.fakes import evidence as fake
from tests.fakes.rendered import render_html, render_markdown

pytestmark = pytest.mark.usefixtures("no_figures")

DIFFERENCES = (
    Difference("the engine's version", "1", "2", declared=False, field="engine_version"),
    Difference("the accelerators' clock, stage c4", "1,980 MHz", "1,410 MHz", declared=False),
    Difference("the slots", "4", "8", declared=True, field="slots"),
    Difference("declared: weights", "f16", "q4_0", declared=True),
)
STATUSES = ("not declared: engine_version", "observed", "declared: slots", "the change itself")


def verdict(*differences: Difference) -> Verdict:
    return replace(fake.verdict(Outcome.PASS), differences=differences)


def test_each_difference_says_whether_it_is_the_change() -> None:
    rows = report_view(fake.evidence(), verdict(*DIFFERENCES)).fairness.differences
    assert [(row.name, row.baseline, row.candidate) for row in rows] == [
        (d.what, d.baseline, d.candidate) for d in DIFFERENCES
    ]
    assert tuple(row.status for row in rows) == STATUSES


def test_the_document_has_them_as_data_and_nothing_where_nothing_differs() -> None:
    document = json.loads(document_json(verdict_document(fake.run(), verdict(*DIFFERENCES))))
    assert document["differences"][0] == {
        "what": "the engine's version",
        "baseline": "1",
        "candidate": "2",
        "declared": False,
        "field": "engine_version",
    }
    assert len(document["differences"]) == 4
    assert "differences" not in verdict_document(fake.run(), verdict())


def test_the_lines_name_a_few_and_count_the_rest() -> None:
    lines = render_text(verdict(*DIFFERENCES), fake.run()).splitlines()
    told = [line.strip() for line in lines if line.strip().startswith("differs:")]
    assert told[0] == "differs: the engine's version: 1 → 2 (not declared: engine_version)"
    assert len(told) == 4
    many = render_text(verdict(*DIFFERENCES * 3), fake.run()).splitlines()
    assert [line.strip() for line in many if "differs: 4 more, in the report" in line]
    assert "differs" not in render_text(verdict(), fake.run())


def test_the_page_and_the_summary_have_a_column_for_it_and_the_change_in_words() -> None:
    evidence = fake.evidence()
    suite = {**evidence.run.suite, "change": "4-bit <weights>"}
    changed = replace(evidence, run=replace(evidence.run, suite=suite))
    page = render_html(changed, verdict(*DIFFERENCES))
    assert "<td>not declared: engine_version</td>" in page
    assert "from the suite: <b>4-bit &lt;weights&gt;</b>" in page
    summary = render_markdown(changed, verdict(*DIFFERENCES))
    assert "### Differences between the deployments" in summary
    assert "Change: 4-bit" in summary
    assert "| the slots | 4 | 8 | declared: slots |" in summary
    plain = render_markdown(evidence, verdict())
    assert "Differences between" not in plain
    assert "not declared" not in render_html(evidence, verdict())
