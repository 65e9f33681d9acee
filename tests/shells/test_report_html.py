from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from html.parser import HTMLParser

import pytest
from jinja2 import Environment

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.verdict import Outcome, Verdict
from benchgate.report import html
from benchgate.report.html import page_of
from benchgate.report.view import report_view
from tests.fakes import evidence as fake
from tests.fakes import hostile
from tests.fakes.drills import drill
from tests.fakes.measured import measured
from tests.fakes.rendered import render_html
from tests.golden import assert_golden

VOID = {"meta", "br", "img", "input", "base", "link", "hr"}


class Page(HTMLParser):
    """Elements in document order with the names of their attributes, attribute values, and the text between."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[tuple[str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.texts_in: dict[str, list[str]] = {}
        self.comments: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.values += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.values += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open:
            self.texts_in.setdefault(self.open[-1], []).append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def test_a_blocked_run_renders_as_it_did() -> None:
    assert_golden("report-block.html", render_html(fake.evidence(), fake.verdict()))


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_verdict_comes_first_with_its_word_its_mark_and_its_reason(outcome: Outcome) -> None:
    verdict = fake.verdict(outcome)
    page = Page(render_html(fake.evidence(), verdict))
    marks = {"PASS": "●", "WARN": "▲", "BLOCK": "■", "INCONCLUSIVE": "◆", "INVALID": "✕"}
    assert "".join(page.texts_in["h1"]) == outcome.value
    reason = verdict.reason.replace("\N{NO-BREAK SPACE}", " ")
    text = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert text.index(marks[outcome]) < text.index(reason) < text.index("Comparability")


@pytest.mark.usefixtures("no_figures")
def test_failing_checks_stand_before_passed_ones_each_with_an_anchor() -> None:
    source = render_html(fake.evidence(), fake.verdict())
    anchors = re.findall(r'<tbody id="(check-[^"]+)"', source)
    assert anchors == [
        "check-ttft-p50-c4",
        "check-output-throughput-c1",
        "check-accuracy",
        "check-goodput-c1",
        "check-shadow-excess",
    ]
    assert all(f'href="#{anchor}"' in source for anchor in anchors)


@pytest.mark.usefixtures("no_figures")
def test_checks_with_the_same_id_get_anchors_of_their_own() -> None:
    checks = tuple(fake.check("same id") for _ in range(3))
    source = render_html(fake.evidence(), replace(fake.verdict(), checks=checks))
    assert re.findall(r'<tbody id="([^"]+)"', source) == ["check-same-id", "check-same-id_2", "check-same-id_3"]


def test_the_file_asks_nobody_for_anything_and_runs_its_own_script_alone() -> None:
    page = Page(render_html(fake.evidence(), fake.verdict()))
    assert {tag for tag, _ in page.elements}.isdisjoint({"link", "img", "iframe", "object", "base", "form"})
    assert [names for tag, names in page.elements if tag == "script" and "type" not in names] == [()]
    names = {name for name, _ in page.values}
    assert names.isdisjoint({"src", "srcset", "style", "xlink:href", "action"})
    assert not [name for name in names if name.startswith("on")]
    assert all(value.startswith("#") for name, value in page.values if name == "href")


@pytest.mark.usefixtures("no_figures")
def test_the_content_policy_allows_this_style_and_this_script_and_nothing_else() -> None:
    source = render_html(fake.evidence(), fake.verdict())
    (style,) = re.findall(r"<style>(.*?)</style>", source, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.DOTALL)
    by_hash = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in (style, script)]
    (policy,) = re.findall(r'Policy" content="([^"]+)"', source)
    assert policy.split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{by_hash[0]}'",
        f"script-src 'sha256-{by_hash[1]}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_the_script_stays_a_few_kilobytes() -> None:
    assert 1_000 < len(html.page_environment().get_template("report.js").render().encode()) < 10_000


def test_the_same_inputs_give_the_same_bytes() -> None:
    assert render_html(fake.evidence(), fake.verdict()) == render_html(fake.evidence(), fake.verdict())


def page_without_charts(text: str) -> str:
    return page_of(hostile.without_charts(report_view(hostile.evidence(text), hostile.verdict(text))))


def structure(text: str) -> Sequence[tuple[str, tuple[str, ...]]]:
    return Page(page_without_charts(text)).elements


@functools.cache
def benign_structure() -> Sequence[tuple[str, tuple[str, ...]]]:
    return structure(hostile.BENIGN)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("text", hostile.JOINED, ids=range(len(hostile.JOINED)))
def test_hostile_text_never_becomes_an_element_or_an_attribute(text: str) -> None:
    source = page_without_charts(text)
    assert Page(source).elements == benign_structure()
    assert_harmless(source)


def assert_harmless(source: str) -> None:
    """Nothing in it that a reader does not see or that leads away; and nothing that cannot be written to a file."""
    page = Page(source)
    assert page.comments == []
    assert all(value.startswith("#") for name, value in page.values if name == "href")
    assert source.encode()  # no lone surrogate is left
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]", source)


@functools.cache
def benign_page() -> Sequence[tuple[str, tuple[str, ...]]]:
    return Page(page_of(hostile.poisoned(hostile.view(), hostile.BENIGN))).elements


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("text", hostile.JOINED, ids=range(len(hostile.JOINED)))
def test_hostile_text_stays_text_wherever_a_report_has_any(text: str) -> None:
    source = page_of(hostile.poisoned(hostile.view(), text))
    assert Page(source).elements == benign_page()
    assert_harmless(source)


def test_the_corpus_has_texts_of_every_kind_and_a_report_with_every_part() -> None:
    assert len(set(hostile.TEXTS)) == len(hostile.TEXTS) >= 60
    lacking = {field.name for field in fields(hostile.view()) if not getattr(hostile.view(), field.name)}
    assert lacking == set()
    assert {section.anchor for section in hostile.view().sections} == {
        "load", "client", "distributions", "attainment", "blocks", "servers", "capacity", "cost", "quality",
        "divergence", "shadow", "history", "noise",
    }  # fmt: skip


@pytest.mark.usefixtures("no_figures")
def test_hostile_text_is_shown_and_not_dropped() -> None:
    page = Page(render_html(hostile.evidence("<b>&amp;"), hostile.verdict("<b>&amp;")))
    assert "".join(page.texts_in["p"]).count("<b>&amp;") >= 2  # the suite's name and the reason
    assert "<b>&amp;" in page.texts_in["pre"]
    everywhere = Page(page_of(hostile.poisoned(hostile.view(), "<b>&amp;")))
    assert everywhere.text.count("<b>&amp;") > 200


@pytest.mark.usefixtures("no_figures")
def test_the_hostile_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    escaping = html.page_environment

    def unescaped() -> Environment:
        return escaping().overlay(autoescape=False)

    benign, _ = benign_structure(), benign_page()
    monkeypatch.setattr(html, "page_environment", unescaped)
    with pytest.raises(AssertionError):
        assert structure("<i>oops</i>") == benign
    with pytest.raises(AssertionError):
        assert Page(page_of(hostile.poisoned(hostile.view(), "<i>oops</i>"))).elements == benign_page()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("drop", ["load", "quality", "shadow"])
def test_a_run_without_one_part_renders_the_others_and_says_what_it_does_not_know(drop: str) -> None:
    evidence = fake.evidence()
    suite = {**evidence.run.suite, drop: None}
    evidence = replace(
        evidence,
        run=replace(evidence.run, suite=suite),
        load=() if drop == "load" else evidence.load,
        quality=() if drop == "quality" else evidence.quality,
        shadow=None if drop == "shadow" else evidence.shadow,
    )
    page = Page(render_html(evidence, fake.verdict()))
    headings = page.texts_in["h2"]
    titles = {"load": "Latency and throughput", "quality": "Accuracy", "shadow": "Shadow traffic"}
    assert set(titles.values()) - set(headings) == {titles[drop]}
    says = {"load": "No load was measured", "quality": "No task was run", "shadow": "No shadow traffic"}
    assert says[drop] in page.text


@pytest.mark.usefixtures("no_figures")
def test_a_target_that_was_never_there_still_gives_a_report() -> None:
    verdict = replace(fake.verdict(Outcome.INVALID), checks=())
    page = Page(render_html(fake.faults_only(), verdict))
    assert "candidate q4 was unreachable at the start: connection refused" in page.text
    assert "No check could be evaluated." in page.text
    assert "No load was measured" in page.text
    assert "partial" in page.texts_in["dd"]


@pytest.mark.usefixtures("no_figures")
def test_infinite_and_missing_numbers_are_words_and_never_nan() -> None:
    unbounded = replace(
        fake.check("unbounded", Outcome.BLOCK),
        candidate=float("inf"),
        harm=float("inf"),
        lower=-float("inf"),
        upper=float("inf"),
    )
    verdict = Verdict(Outcome.BLOCK, "unbounded", (unbounded, fake.check("none", Outcome.INVALID)), (), 0.05)
    evidence = replace(fake.evidence(), load=fake.load(failing_arm=Arm.CANDIDATE))
    page = Page(render_html(evidence, verdict))
    assert "+∞" in page.text
    assert "not measured" in page.text
    assert "nan" not in re.findall(r"[a-z]+", page.text.lower())


@pytest.mark.usefixtures("no_figures")
def test_two_stored_runs_are_compared_candidate_with_candidate() -> None:
    candidate, reference = fake.evidence("run-b"), fake.evidence("run-a")
    page = Page(render_html(candidate, fake.verdict(Outcome.PASS), against=reference))
    assert "of run run-a" in page.text
    assert "benchgate compare run-a run-b" in page.text
    assert "different runs and were not interleaved" in page.text
    assert "Shadow traffic" not in page.texts_in["h2"]


@pytest.mark.usefixtures("no_figures")
def test_one_deployment_alone_is_compared_with_nothing() -> None:
    alone = drill({"metric": "error_rate", "max": "5%"})
    evidence = measured(alone)
    page = Page(render_html(evidence, judge(alone, evidence)))
    assert "Validity" in page.texts_in["h2"]
    assert {"difference", "baseline", "candidate"}.isdisjoint(page.texts_in["th"])
    assert {"value", "interval", "allowed"} <= set(page.texts_in["th"])
    assert "one keeps to its bounds" in page.text
    assert "promoted" not in page.text


def test_the_quality_part_has_its_plot_its_tables_and_how_it_was_asked() -> None:
    page = Page(render_html(fake.evidence(), fake.verdict()))
    at = page.text.index("Scores, items paired by id")
    assert page.text.index("left is worse") < at < page.text.index("Flipped answers")
    assert "Answers by task" in page.texts_in["h3"]
    assert "Harness settings" in page.texts_in["summary"]
