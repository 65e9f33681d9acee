"""The noise of the baseline in the report: the numbers that checks look at, and only where a profile was known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.model.noise import FalseBlocks, NoiseKey, NoiseProfile, NoiseSpread, SelfDisagreement
from benchgate.report.sections.noise import noise_section
from tests.fakes import evidence as fakes
from tests.fakes.rendered import render_html, render_markdown

pytestmark = pytest.mark.usefixtures("no_figures")

PROFILE = NoiseProfile(
    key=NoiseKey("2 x H200 <b>", "vllm", "m", "s" * 64),
    measured_at="2025-12-30T03:06:40Z",  # three days before the run ended
    run_id="calibration",
    blocks=10,
    spreads=(
        NoiseSpread("ttft", "p50", "c4", 0.04, 0.03, 10),
        NoiseSpread("goodput", None, "c4", 0.01, 0.02, 10),
        NoiseSpread("e2e", "p99", "c4", 0.5, 0.5, 10),  # no check looks at it
    ),
    disagreement=(SelfDisagreement("task", "tiny_add", 0.05, 40),),
    false_block=FalseBlocks(200, 4, 3, 0),
)


def test_without_a_profile_there_is_no_such_section() -> None:
    assert noise_section(fakes.evidence(), fakes.verdict()) is None
    assert 'id="noise"' not in render_html(fakes.evidence(), fakes.verdict())
    assert "### Noise" not in render_markdown(fakes.evidence(), fakes.verdict())


def test_table_has_the_numbers_that_checks_look_at() -> None:
    verdict = fakes.verdict()
    looked_at = replace(verdict.checks[0], metric="ttft", statistic="p50", stage="c4")
    shares = replace(looked_at, metric="goodput", statistic=None)
    section = noise_section(
        replace(fakes.evidence(), noise=PROFILE), replace(verdict, checks=(looked_at, shares, *verdict.checks[1:]))
    )
    assert section is not None
    (table,) = section.tables
    assert table.rows == (
        ("ttft p50", "c4", "4.00 % (2.92 % to 6.58 %)", "3.00 %", "10"),
        ("goodput", "c4", "1.00 points (0.729 points to 1.65 points)", "2.00 points", "10"),
    )
    assert "3 days before this run ended" in section.sentences[1]
    assert "2 of 40 items of tiny_add differed" in section.sentences[3]
    assert "blocks 4 (at most 4.52 %" in section.sentences[4]  # Clopper-Pearson, 4 of 200


def test_report_and_summary_show_it_escaped() -> None:
    seen = replace(fakes.evidence(), noise=PROFILE)
    html = render_html(seen, fakes.verdict())
    assert '<section id="noise">' in html
    assert "2 x H200 &lt;b&gt;" in html
    assert "### Noise" in render_markdown(seen, fakes.verdict())


def test_profile_of_numbers_that_no_check_looks_at_has_no_table() -> None:
    seen = replace(fakes.evidence(), noise=replace(PROFILE, spreads=(NoiseSpread("e2e", "p99", "c9", 0.5, 0.5, 10),)))
    section = noise_section(seen, fakes.verdict())
    assert section is not None
    assert not section.tables
    assert "### Noise" in render_markdown(seen, fakes.verdict())
