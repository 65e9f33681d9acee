"""How sure the limits are is said of every check wherever it is shown, and what else no short report may leave out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.model.deployment import flatten_json
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Unit, Verdict
from benchgate.report import display
from benchgate.report.display import level, limits_sentence
from benchgate.report.document import verdict_document
from benchgate.report.text import render_text
from benchgate.report.view import report_view
from tests.fakes import evidence as fake
from tests.fakes.rendered import render_html, render_markdown

pytestmark = pytest.mark.usefixtures("no_figures")

AT_A_LOOK = replace(fake.check(), limits_alpha=0.00882)


def verdict_with(*checks: CheckResult) -> Verdict:
    return replace(fake.verdict(), checks=checks)


def shown(verdict: Verdict) -> tuple[str, str, str]:
    """As text, Markdown and HTML."""
    evidence = fake.evidence()
    html = render_html(evidence, verdict).replace("\N{NO-BREAK SPACE}", " ")
    return render_text(verdict, evidence.run), render_markdown(evidence, verdict), html


@pytest.mark.parametrize(
    ("alpha", "told"), [(0.05, "95 %"), (0.1, "90 %"), (0.00882, "99.12 %"), (0.0000052, "99.99948 %")]
)
def test_a_level_is_never_rounded_up_to_certainty(alpha: float, told: str) -> None:
    assert level(alpha) == told


def test_limits_of_a_look_are_told_at_its_own_level_in_every_report() -> None:
    for text in shown(verdict_with(AT_A_LOOK, fake.check("other"))):
        assert "one-sided at 95 %" not in text
        assert "at 99.12 %" in text
        assert "at the level beside them (99.12 %" in text
        assert "interim analyses) or at 95 %" in text


def test_where_all_limits_are_the_suites_own_one_sentence_says_so() -> None:
    without = replace(AT_A_LOOK, lower=None, upper=None)
    same = replace(fake.check(), limits_alpha=fake.verdict().alpha)
    for verdict in (verdict_with(fake.check()), verdict_with(without), verdict_with(same)):
        assert limits_sentence(verdict) == "Confidence bounds are one-sided at 95 %"
        for text in shown(verdict):
            assert "onfidence bounds are one-sided at 95 %" in text
            assert "99.12" not in text


def test_blocks_that_were_left_out_are_counted_in_every_report() -> None:
    verdict = verdict_with(replace(fake.check(), n=18, n_of=20))
    assert all("18 of 20 blocks" in text for text in shown(verdict))
    checks = verdict_document(fake.run(), verdict)["checks"]
    assert isinstance(checks, list)
    assert (checks[0]["n"], checks[0]["n_of"]) == (18, 20)


def test_every_report_has_the_id_that_explain_and_waive_take() -> None:
    verdict = verdict_with(fake.check("ttft-p50@c4", Outcome.BLOCK), fake.check("error_rate@c4"))
    text, markdown, html = shown(verdict)
    assert " ttft-p50@c4 " in text and " error_rate@c4 " in text
    assert "`ttft-p50@c4`" in markdown and "`error_rate@c4`" in markdown
    assert "<code>ttft-p50@c4</code>" in html and "<code>error_rate@c4</code>" in html


def test_a_replaced_policy_is_said_in_every_report() -> None:
    for text in shown(replace(fake.verdict(), policy_sha256="0" * 64)):
        assert "judged by another policy than it was measured under" in text
    for text in shown(fake.verdict()):
        assert "another policy" not in text


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"harm": 0.02, "lower": 0.01, "upper": 0.03}, "worse"),
        ({"harm": 0.001, "lower": -0.01, "upper": 0.02}, "perhaps worse"),
        ({"harm": -0.001, "lower": -0.01, "upper": 0.02}, "perhaps better"),
        ({"harm": 0.0, "lower": -0.01, "upper": 0.01}, "equal"),
        ({"harm": 0.02, "lower": 0.01, "upper": 0.03, "two_sided": True}, "higher"),
        ({"harm": -0.02, "lower": -0.03, "upper": 0.01, "two_sided": True}, "perhaps lower"),
        ({"harm": 0.02, "lower": 0.01, "upper": 0.03, "two_sided": True, "metric": "output_throughput"}, "lower"),
    ],
)
def test_the_direction_says_no_more_than_the_limits_do(changes: dict[str, object], word: str) -> None:
    assert display.direction(replace(fake.check(), **changes)) == word  # type: ignore[arg-type]  # named by each case


def test_advisory_checks_are_told_apart_where_outcomes_are_counted() -> None:
    blocked = fake.check("one", Outcome.BLOCK)
    verdict = verdict_with(blocked, replace(blocked, id="two", required=False), replace(fake.check("three")))
    assert [(t.outcome, t.count, t.advisory) for t in report_view(fake.evidence(), verdict).banner.tally] == [
        ("BLOCK", 2, 1),
        ("PASS", 1, 0),
    ]
    assert "2 checks, 1 advisory" in shown(verdict)[2]


def saying(remedy: str) -> tuple[Evidence, Verdict]:
    tripped = GuardResult("client-keeps-up", True, "it was late", remedy)
    return fake.evidence(), replace(fake.verdict(), guards=(tripped,))


def test_a_command_in_a_sentence_stands_in_quotation_marks() -> None:
    said = saying("see (`benchgate doctor`) and `benchgate run SUITE --resume --run 01a1`, `x;y`")
    told = "see (“benchgate doctor”) and “benchgate run SUITE --resume --run 01a1”, "
    assert f"{told}`x;y`" in render_html(*said)
    assert f"{told}&#96;x;y&#96;" in render_markdown(*said)


def test_words_of_the_suite_language_are_quoted_and_nothing_else_is() -> None:
    check = replace(
        fake.check("one", Outcome.INCONCLUSIVE), advice="one more look in `load.looks`, not `<b>x</b>` or `"
    )
    _, markdown, html = shown(verdict_with(check))
    assert "one more look in “load.looks”, not `&lt;b&gt;x&lt;/b&gt;` or `" in html
    assert "one more look in “load.looks”, not &#96;&#60;b&#62;x&#60;/b&#62;&#96; or &#96;" in markdown


def test_a_duration_in_a_setting_is_shown_as_it_was_written() -> None:
    assert dict(flatten_json({"decode_s": 9 * 1e-3, "n": 3, "b": True})) == {"decode_s": "0.009", "n": "3", "b": "true"}


@pytest.mark.parametrize(
    ("unit", "bound", "found", "told"),
    [
        (Unit.SECONDS, 0.5, 0.5003, "500.3 ms"),
        (Unit.RATIO, 0.95, 0.94960, "94.96 %"),
        (Unit.RATIO, 0.95, 0.9, "90.0 %"),
    ],
)
def test_value_of_an_absolute_check_is_not_rounded_onto_its_bound(
    unit: Unit, bound: float, found: float, told: str
) -> None:
    check = replace(fake.check(), scale=Scale.ABSOLUTE, unit=unit, margin=bound, candidate=found)
    for text in shown(verdict_with(check)):
        assert told in text
