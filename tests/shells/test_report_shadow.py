"""The shadow part of the report: what is shown with texts, without them, and of answers that want to be markup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.model.records import AnswerAgreement, AnswerFacts, JudgeVerdict, PairFacts, ShadowItem
from benchgate.model.run import Evidence, ShadowObservation
from benchgate.report import display
from benchgate.report.section import Example, Examples, Section, walk
from benchgate.report.sections.shadow import shadow_section
from benchgate.suite.quality import Shadow
from tests.fakes import evidence as fake
from tests.fakes.rendered import render_html, render_markdown
from tests.fakes.shadow_rows import EXCESS, only
from tests.fakes.shadow_rows import verdict as shadow_verdict

pytestmark = pytest.mark.usefixtures("no_figures")

ROOT = Path(__file__).parents[2]
FACTS = AnswerFacts(characters=20, latency_ns=10**9, refusal=False, tokens=10, valid=True)
SAME = PairFacts(AnswerAgreement.EXACT, differs=False, exact=True, normalised=True)


def parting(word: int, label: AnswerAgreement = AnswerAgreement.DIFFERENT) -> PairFacts:
    return PairFacts(label, True, exact=False, normalised=False, at_character=5 * word, at_word=word)


def item(n: int, *, differs: bool = False, texts: bool = False, **changed: object) -> ShadowItem:
    one = ShadowItem(
        f"p{n:02}", "d", "a", "a", "b" if differs else "a", "stop", "stop", "stop", None,
        stratum="chat/short" if n % 2 else "chat/long",
        primary_facts=FACTS, secondary_facts=FACTS, candidate_facts=FACTS,
        with_primary=parting(n) if differs else SAME, with_secondary=parting(n) if differs else SAME, own=SAME,
    )  # fmt: skip
    if texts:
        one = replace(
            one, prompt_text=f"question {n}", primary_text="It will rain today.", candidate_text="It will snow."
        )
    return replace(one, **changed)  # type: ignore[arg-type]  # by the keyword


def test_an_empty_answer_is_not_a_call_that_failed() -> None:
    empty = item(1, candidate=None, error="candidate: empty")
    failed = item(2, candidate=None, candidate_facts=None, error="candidate: HTTP 500")
    section = shadow_section(evidence(item(0), empty, failed), 0.05)
    assert section is not None
    assert section.sentences[0] == "1 prompt had a call that failed; 1 prompt had an empty answer"


def evidence(*items: ShadowItem) -> Evidence:
    return replace(fake.evidence(), shadow=ShadowObservation(items, len(items), None))


def section(*items: ShadowItem) -> Section:
    found = shadow_section(evidence(*items), 0.05)
    assert found is not None
    return found


def examples(found: Section) -> tuple[Example, ...]:
    return tuple(one for part in walk(found.parts) if isinstance(part, Examples) for one in part.examples)


def rows(found: Section, caption: str) -> dict[str, tuple[str, ...]]:
    [table] = [table for table in found.tables if table.caption.startswith(caption)]
    return {row[0]: row[1:] for row in table.rows}


def test_excess_stands_with_its_interval_for_all_and_for_every_slice_of_the_traffic() -> None:
    found = rows(section(*(item(n, differs=n in (1, 3, 5)) for n in range(20))), "Disagreement")
    assert list(found) == ["all prompts", "chat/long", "chat/short"]
    assert found["all prompts"][:4] == ("20", "15.0 %", "0 %", "+15.0 points")
    assert found["chat/short"][:4] == ("10", "30.0 %", "0 %", "+30.0 points")
    assert found["chat/long"][3] == "0 points"
    assert all(" to " in cells[4] for cells in found.values())


def test_prompts_without_a_similarity_are_left_out_as_the_check_leaves_them_out() -> None:
    lacking = [item(n, differs=True, texts=True, similarity_error="HTTP 500") for n in (20, 21)]
    items = [*(item(n, differs=n in (1, 3), texts=True) for n in range(20)), *lacking, *map(item, range(22, 60))]
    found = section(*items)
    table = rows(found, "Disagreement")
    check = only(shadow_verdict(items, EXCESS))
    assert check.harm is not None
    assert check.n == 58
    assert table["all prompts"][:4] == ("58 of 60", "3.45 %", "0 %", display.points(check.harm))
    assert (table["chat/long"][0], table["chat/short"][0]) == ("29", "29")
    assert [example.prompt_id for example in examples(found)] == ["p01", "p03"]
    assert any(line.startswith("2 of 60 prompts left out") for line in found.sentences)


def test_labels_answers_and_verdicts_are_counted() -> None:
    broken = replace(FACTS, valid=False, refusal=True)
    found = section(
        *(item(n, judged=JudgeVerdict.TIE, judged_itself=JudgeVerdict.TIE) for n in range(8)),
        item(8, differs=True, judged=JudgeVerdict.LOSS, judged_itself=JudgeVerdict.WIN, candidate_facts=broken),
        item(9, candidate=None, candidate_facts=replace(FACTS, characters=0), with_primary=None, with_secondary=None),
    )
    assert rows(found, "Agreement")["candidate, baseline's first"][:6] == ("9", "8", "0", "0", "0", "1")
    assert rows(found, "Answers")["candidate"] == ("9", "1", "0", "1", "20", "10", "9 of 10")
    assert rows(found, "Judge's")["candidate"] == ("1", "0", "8", "0", "0", "+11.1 points")
    assert rows(found, "Judge's")["baseline's second answer"][:2] == ("0", "1")


def test_disagreements_without_texts_are_told_by_id_and_place_the_judges_losses_first() -> None:
    found = section(
        item(0), item(1, differs=True), item(2, differs=True, judged=JudgeVerdict.LOSS),
        item(3, differs=True, with_primary=parting(1, AnswerAgreement.STRUCTURE)),
        item(4, differs=True, own=parting(0)),  # where the baseline differs from itself, nothing is shown
    )  # fmt: skip
    assert examples(found) == ()
    worst = rows(found, "Largest disagreements")
    assert list(worst) == ["p02", "p01", "p03"]
    assert worst["p02"][1:] == ("different", "3", "20", "20", "loss")


def test_texts_stand_side_by_side_with_the_first_difference_marked() -> None:
    found = section(item(1, differs=True, texts=True), item(2, texts=True))
    assert not [table for table in found.tables if table.caption.startswith("Largest")]
    [example] = examples(found)
    assert (example.baseline.same, example.baseline.other) == ("It will ", "rain today.")
    assert (example.candidate.same, example.candidate.other) == ("It will ", "snow.")
    far = "same " * 200
    [long] = examples(
        section(item(1, differs=True, texts=True, primary_text=far + "a" * 999, candidate_text=far + "b"))
    )
    assert len(long.baseline.same) < 220 and long.baseline.same.startswith("… ")
    assert long.baseline.other.endswith("(399 more characters)")


def test_of_texts_that_are_stored_ten_prompts_are_shown_as_the_guide_and_the_key_say() -> None:
    found = examples(section(*(item(n, differs=True, texts=True) for n in range(12))))
    assert len(found) == 10 and all(one.prompt.startswith("question ") for one in found)
    page = (ROOT / "docs/guides/shadow.md").read_text(encoding="utf-8")
    assert "With `store_text: true` it keeps their text too, and reports show up to ten differing prompts" in page
    about = Shadow.model_fields["store_text"].description
    assert about is not None and "reports then show up to ten" in about


def test_answers_that_are_markup_stay_text_and_slices_too() -> None:
    hostile = '</pre><script>alert(1)</script><img src=x onerror="x">'
    items = [
        item(n, differs=True, texts=True, primary_text=f"a {hostile}", candidate_text=f"b {hostile}",
             prompt_text=hostile, stratum=f"{hostile}{n % 2}")
        for n in range(12)
    ]  # fmt: skip
    page = render_html(evidence(*items), fake.verdict())
    assert "<script>alert" not in page
    assert "<img src" not in page
    assert "&lt;script&gt;" in page
    assert "<script" not in render_markdown(evidence(*items), fake.verdict())


def test_without_texts_the_page_has_ids_and_no_example() -> None:
    page = render_html(evidence(item(1, differs=True), item(2)), fake.verdict())
    assert ("Largest disagreements" in page, "p01" in page, "<mark>" in page) == (True, True, False)


def test_a_share_asked_twice_is_shown_for_what_it_is() -> None:
    once: dict[str, Any] = {
        "once": True,
        "secondary": None,
        "secondary_facts": None,
        "own": None,
        "with_secondary": None,
    }
    found = section(*(item(n, differs=n == 0) if n < 4 else replace(item(n), **once) for n in range(10)))
    assert rows(found, "Disagreement")["all prompts"][:4] == ("10", "10.0 %", "0 %", "+10.0 points")
    assert rows(found, "Answers")["baseline, second"][0] == "4"
