from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from benchgate.escape import markdown_code, markdown_prose
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Verdict
from benchgate.report import markdown
from benchgate.report.markdown import COMMENT_BYTES, SUMMARY_BYTES, markdown_of
from benchgate.report.view import ReportView
from tests.fakes import evidence as fake
from tests.fakes import hostile
from tests.fakes.rendered import render_markdown
from tests.golden import assert_golden

LIVE_ON_GITHUB = re.compile(r"(?i)@[a-z0-9]|#\d|gh-\d|://|www\.[a-z]|mailto:[a-z]|:[a-z+_-]+:|:\+1:")

WHOLE = 10_000_000
DASH = "\N{EN DASH}"
GRAVE = "\N{MODIFIER LETTER GRAVE ACCENT}"


class Summary:
    """What a Markdown reader makes of it: the kinds of tokens in order, and the text outside code."""

    def __init__(self, source: str) -> None:
        parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
        self.kinds: list[str] = []
        self.prose = ""
        for token in parser.parse(source):
            if token.type == "inline":
                for child in token.children or []:
                    self.kinds.append(child.type)
                    self.prose += child.content if child.type == "text" else " "
            else:
                self.kinds.append(token.type)


def test_a_blocked_run_renders_as_it_did() -> None:
    assert_golden("report-block.md", render_markdown(fake.evidence(), fake.verdict()))


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_verdict_is_the_first_heading(outcome: Outcome) -> None:
    first, _, _ = render_markdown(fake.evidence(), fake.verdict(outcome)).partition("\n")
    assert first.startswith("## ")
    assert f" {outcome.value}: " in first


def hostile_summary(text: str) -> str:
    return render_markdown(hostile.evidence(text), hostile.verdict(text), budget_bytes=WHOLE)


@functools.cache
def benign_kinds() -> Sequence[str]:
    return Summary(hostile_summary(hostile.BENIGN)).kinds


def poisoned_summary(text: str) -> str:
    return markdown_of(hostile.poisoned(hostile.view(), text), WHOLE)


@functools.cache
def benign_everywhere() -> Sequence[str]:
    return Summary(poisoned_summary(hostile.BENIGN)).kinds


def comparable(kinds: Sequence[str]) -> Sequence[str]:
    """Neighbouring texts are one text: an entity ends a token without being structure."""
    return [kind for i, kind in enumerate(kinds) if kind != "text" or i == 0 or kinds[i - 1] != "text"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=[pytest.mark.slow] if at % 5 else [], id=str(at))
        for at, text in enumerate(hostile.TEXTS)
    ],
)
def test_hostile_text_never_becomes_markdown(text: str) -> None:
    for source, benign in ((hostile_summary(text), benign_kinds()), (poisoned_summary(text), benign_everywhere())):
        summary = Summary(source)
        assert comparable(summary.kinds) == comparable(benign)
        assert not LIVE_ON_GITHUB.search(summary.prose)
        assert not [line for line in source.split("\n") if line.lstrip().startswith("::")]
        assert source.encode()


@pytest.mark.parametrize("text", ["**bold** <b>", "a | b", "# heading", "[a](https://b.example)"])
def test_the_hostile_test_can_fail(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raw(value: str, limit: int = 400) -> str:
        return value

    benign = comparable(benign_kinds())
    monkeypatch.setattr(markdown, "markdown_prose", raw)
    assert comparable(Summary(hostile_summary(text)).kinds) != benign


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("@octocat", "@\u200boctocat"),
        ("&#64;team", "&amp;#\u200b64;team".replace("&amp;", "&#38;")),
        ("fixes #12", "fixes #\u200b12"),
        (":octocat: :+1:", ":\u200boctocat: :\u200b+1:"),
        ("ends in :x", "ends in :x\u200b"),
        ("at 03:04:05", "at 03:04:05"),
        ("https://x.example", "https:\u200b//x.example"),
        ("a|b", "a&#124;b"),
        ("12. item", "&#49;2. item"),
        ("12) item", "&#49;2) item"),
        ("12.", "&#49;2."),
        ("- item", "&#45; item"),
        ("---", "&#45;--"),
        ("+", "&#43;"),
        ("12.5 ms", "12.5 ms"),
        ("+2.1 points", "+2.1 points"),
        ("-3 %", "-3 %"),
        ("plain text, 5 % (p = 0.1)", "plain text, 5 % (p = 0.1)"),
    ],
)
def test_prose_is_interrupted_or_encoded_only_where_it_would_act(text: str, shown: str) -> None:
    assert markdown_prose(text) == shown


def test_a_code_span_ends_where_we_end_it() -> None:
    assert markdown_code("a`b``c|d") == f"`a{GRAVE}b{GRAVE}{GRAVE}c¦d`"
    assert markdown_code("") == DASH


def _cut(budget_bytes: int, evidence: Evidence | None = None, verdict: Verdict | None = None) -> str:
    return render_markdown(evidence or fake.evidence(), verdict or fake.verdict(), budget_bytes=budget_bytes)


def test_under_a_budget_sections_go_in_a_fixed_order_and_are_named() -> None:
    whole = len(_cut(60_000).encode())
    text = _cut(whole - 1)
    assert "### Cost" not in text
    assert "### Latency and throughput" in text
    assert "Omitted for length: Cost." in text
    tight = _cut(1200)
    assert len(tight.encode()) <= 1200
    assert "### Failing checks" in tight
    assert "### Passed checks" not in tight


@pytest.mark.parametrize("budget_bytes", [0, 100, 400, 700, 1000, 2000, 4000])
def test_the_verdict_survives_every_budget(budget_bytes: int) -> None:
    text = _cut(budget_bytes)
    assert text.startswith("## ■ BLOCK: `q4` against `f16`")
    assert "TTFT p50 at c4 rose by 41.6 %" in text
    assert len(text.encode()) <= max(budget_bytes, 400)


def test_a_run_of_many_checks_stays_under_the_budget() -> None:
    checks = tuple(replace(fake.check(f"c{i}", Outcome.BLOCK), reason=f"{i} {'漢' * 900}") for i in range(300))
    text = _cut(60_000, verdict=replace(fake.verdict(), checks=checks))
    assert len(text.encode()) <= 60_000
    assert "Omitted for length" in text
    assert text.count("漢") == 0 and text.count("■ BLOCK | TTFT p50 at c4 |") == 10  # the first, without their reasons
    assert "the rest of Failing checks." in text


@functools.cache
def summary_of(number: int) -> ReportView:
    return hostile.poisoned(hostile.view(), hostile.TEXTS[number])


def test_a_summary_has_what_a_report_has_but_for_its_charts_and_its_machinery() -> None:
    assert headings(markdown_of(hostile.view(), WHOLE)) == [
        "Failing checks", "Comparability", "Differences between the deployments", "Waivers", "Notes", "Passed checks",
        "Latency and throughput", "Server telemetry", "Cost", "Accuracy", "Token probabilities", "Shadow traffic",
        "Change since the last promotion", "Noise", "Capacity", "Repeat the verdict",
    ]  # fmt: skip


def headings(text: str) -> list[str]:
    return re.findall("^### (.*)$", text, re.MULTILINE)


@given(st.integers(0, len(hostile.TEXTS) - 1), st.integers(0, 120_000), st.integers(0, 120_000))
def test_any_budget_is_kept_and_what_it_cost_is_named(number: int, one: int, other: int) -> None:
    view, (small, large) = summary_of(number), sorted((one, other))
    head, whole, less, more = (markdown_of(view, budget) for budget in (0, WHOLE, small, large))
    assert len(head.encode()) < 16_000 < COMMENT_BYTES < SUMMARY_BYTES
    for text, budget in ((less, small), (more, large)):
        assert text.startswith(head)
        assert len(text.encode()) <= max(budget, len(head.encode()))
        told = text.rpartition("_Left out for length: ")[2]
        assert text == head or all(title in headings(text) or title in told for title in headings(whole))
    assert set(headings(less)) <= set(headings(more)) <= set(headings(whole))


def test_a_target_that_was_never_there_still_gives_a_summary() -> None:
    text = render_markdown(fake.faults_only(), replace(fake.verdict(Outcome.INVALID), checks=()))
    assert "candidate q4 was unreachable at the start: connection refused" in text
    assert "### Failing checks" not in text
