"""What the report says of fixed texts: no lower bound without its sign, nothing that was not measured as a number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.model.records import DivergenceItem, DivergenceObservation
from benchgate.model.run import Evidence
from benchgate.report import display
from benchgate.report.section import Section
from benchgate.report.sections.divergence import divergence_section
from tests.fakes import evidence as fakes
from tests.fakes.rendered import render_html, render_markdown

pytestmark = pytest.mark.usefixtures("no_figures")

COLUMNS = (
    "compared with the baseline", "positions", "mean KLD", "standard error", "p99", "p99.9", "max",
    "same top token", "perplexity", "ln ratio",
)  # fmt: skip


def observed(count: int = 200, *, bound: bool = False, floor: bool = False, told: bool = True) -> DivergenceObservation:
    items = tuple(
        DivergenceItem(
            text_id=f"t{number // 10}",
            piece=0,
            position=number,
            kld=0.001 * (number + 1),
            same_top1=number % 10 != 0,
            bound=bound,
            shared=20,
            baseline_ln=-1.0 if told else None,
            candidate_ln=-1.1 if told else None,
            floor_kld=1e-5 if floor else None,
            floor_same_top1=True if floor else None,
        )
        for number in range(count)
    )
    return DivergenceObservation(items, count, None, "echo" if told else "cut", 20, not bound, ("n_probs: no",))


def evidence(seen: DivergenceObservation | None) -> Evidence:
    return replace(fakes.evidence(), divergence=seen)


def section(seen: DivergenceObservation) -> Section:
    found = divergence_section(evidence(seen))
    assert found is not None
    return found


def cells(seen: DivergenceObservation, row: int = 0) -> dict[str, str]:
    found = section(seen).tables[0]
    assert tuple(column.title for column in found.columns) == COLUMNS
    return dict(zip(COLUMNS, found.rows[row], strict=True))


def test_exact_divergences_are_given_with_their_tail_and_spread() -> None:
    row = cells(observed())
    assert row["mean KLD"] == "0.101" and row["max"] == "0.2" and row["p99"] == "0.198"
    assert row["p99.9"] == display.NOT_APPLICABLE  # 200 positions have none
    assert row["same top token"] == "90.0 %"
    assert row["perplexity"] == "2.72 → 3.00" and row["ln ratio"].startswith("0.1 ± ")


def test_every_figure_that_a_lower_bound_went_into_says_so() -> None:
    seen = observed(bound=True)
    row = cells(seen)
    assert [row[name][:2] for name in ("mean KLD", "p99", "max")] == ["≥ "] * 3
    assert "≥" not in row["same top token"] + row["perplexity"]
    assert any("lower bound" in line for line in section(seen).sentences)
    assert not any("lower bound" in line for line in section(observed()).sentences)


def test_what_the_way_does_not_tell_is_a_dash_and_said() -> None:
    seen = observed(bound=True, told=False)
    assert cells(seen)["perplexity"] == display.NOT_APPLICABLE
    assert any("the perplexity, is unknown" in line for line in section(seen).sentences)


def test_baseline_asked_again_has_a_row_of_its_own() -> None:
    row = cells(observed(floor=True), row=1)
    assert (row["compared with the baseline"], row["mean KLD"]) == ("baseline, repeated", "1e\N{MINUS SIGN}05")
    assert len(section(observed()).tables[0].rows) == 1


def test_reading_that_failed_shows_why_and_no_figures() -> None:
    fault = "no way to the probabilities of a text <b>works</b> on both arms"
    seen = evidence(replace(observed(0), expected_n=12, fault=fault, way=None))
    verdict = fakes.verdict()
    page, summary = render_html(seen, verdict), render_markdown(seen, verdict)
    assert "&lt;b&gt;works&lt;/b&gt;" in page and "<b>works" not in page
    assert "no way to the probabilities of a text" in summary
    assert 'id="divergence"' not in render_html(evidence(None), verdict)
