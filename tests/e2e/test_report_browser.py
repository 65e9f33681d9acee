"""The report in a real browser: readable from a file without JavaScript, under Jenkins' policy, and on paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchgate.model.verdict import Outcome, Verdict
from benchgate.report import html
from benchgate.report.charts import Figure
from tests.e2e.pages import DESK, IN_A_BROWSER, NO_SHADOWS, OPEN_ALL, PAPER, PHONE, served_by_jenkins, watched
from tests.fakes import hostile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest_plugins = ["tests.e2e.opened_report"]
pytestmark = IN_A_BROWSER
UNSEEN = """[...document.querySelectorAll('td, tbody th, dd, li, p, pre, figcaption')].filter((one) => {
    const box = one.getBoundingClientRect();
    return one.textContent.trim() && (box.width < 1 || box.height < 1 || !one.checkVisibility());
}).map((one) => one.textContent)"""


def test_the_verdict_its_reason_and_what_to_do_are_in_the_first_screen_of_a_telephone(page: Page) -> None:
    assert "BLOCK" in page.get_by_role("heading", level=1).inner_text()
    for part in ("h1", ".lead", ".todo"):
        box = page.locator(f".banner {part}").bounding_box()
        assert box is not None and box["y"] + box["height"] < PHONE["height"], part


def test_the_page_never_scrolls_sideways_on_a_telephone(page: Page) -> None:
    page.evaluate(OPEN_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = page.locator("main").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360


def test_what_a_row_is_of_stays_in_sight_while_a_table_is_scrolled_on_a_telephone(page: Page) -> None:
    region = page.get_by_role("region", name="Speed")
    assert region.evaluate("(one) => one.scrollWidth > one.clientWidth")
    assert "gradient" in region.evaluate("(one) => getComputedStyle(one).backgroundImage")  # more is hidden: a shadow
    region.evaluate("(one) => { one.scrollLeft = one.scrollWidth; }")
    row = region.locator("tbody tr").first
    stage, arm, last = (row.locator("td").nth(at).bounding_box() for at in (0, 1, -1))
    frame = region.bounding_box()
    assert arm is not None and stage is not None and last is not None and frame is not None
    assert frame["x"] <= stage["x"] < arm["x"] < arm["x"] + arm["width"] <= last["x"]
    assert last["x"] + last["width"] <= frame["x"] + frame["width"] + 1


def test_every_check_is_visible_with_its_reason(page: Page, verdict: Verdict) -> None:
    for check in verdict.checks:
        assert page.get_by_text(check.reason).first.is_visible()


def test_charts_are_drawn_and_have_their_numbers_beside_them(page: Page) -> None:
    figures = page.locator("figure:has(svg)")
    assert figures.count() >= 2
    for i in range(figures.count()):
        box = figures.nth(i).locator("svg").first.bounding_box()
        assert box is not None and box["width"] > 100 and box["height"] > 50
        assert figures.nth(i).evaluate("(one) => one.closest('section').querySelector('table') !== null")


def test_without_javascript_there_is_no_control_that_does_nothing(page: Page) -> None:
    assert page.locator("button, input, select").count() == 0


def test_whatever_scrolls_or_opens_is_reached_by_the_keyboard_and_has_a_name(page: Page) -> None:
    nameless = page.evaluate(
        """[...document.querySelectorAll('*')].filter((one) => {
            const style = getComputedStyle(one);
            return [style.overflowX, style.overflowY].some((how) => how === 'auto' || how === 'scroll')
                && !(one.tabIndex === 0 && one.getAttribute('role') && one.getAttribute('aria-label'));
        }).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    page.evaluate(OPEN_ALL)
    places = "const places = [...document.querySelectorAll('a, summary, [tabindex]')];"
    deaf = page.evaluate(
        f"""() => {{ {places} return places.filter((one) => {{
            one.focus();
            return one.tabIndex !== 0 || document.activeElement !== one;
        }}).map((one) => one.outerHTML.slice(0, 80)); }}"""
    )
    assert deaf == []  # none is passed over or out of order, so it is enough to walk some of the way
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0); document.querySelector('a').focus()")
    walked = []
    for _ in range(30):
        walked.append(page.evaluate(f"() => {{ {places} return places.indexOf(document.activeElement); }}"))
        page.keyboard.press("Tab")
    assert walked == list(range(30))


@pytest.fixture(scope="module")
def under_jenkins(browser: Browser, report: Path) -> Iterator[Page]:
    with served_by_jenkins(report) as address:
        yield from watched(browser.new_page(viewport=DESK), address, silent=False)  # it is told what is forbidden


def test_every_number_can_be_read_without_a_script_and_under_jenkins_policy(under_jenkins: Page, page: Page) -> None:
    assert under_jenkins.evaluate("getComputedStyle(document.querySelector('.banner')).borderTopWidth") == "0px"
    for one in (under_jenkins, page):
        one.evaluate(OPEN_ALL)
        assert one.evaluate(UNSEEN) == []
    assert under_jenkins.locator("td").count() == page.locator("td").count() > 100
    text = under_jenkins.inner_text("body")
    assert "■ BLOCK" in text and "+41.6\N{NO-BREAK SPACE}% worse\n+36.3" in text.replace(" %", "\N{NO-BREAK SPACE}%")


def test_under_jenkins_policy_charts_have_their_size_and_their_lines(under_jenkins: Page) -> None:
    boxes = [one.bounding_box() for one in under_jenkins.locator("svg.chart").all()]
    assert boxes and all(box is not None and 200 < box["width"] < 700 for box in boxes)
    drawn = under_jenkins.evaluate(
        """[...document.querySelectorAll('svg.strip line')].map((one) => getComputedStyle(one).stroke)"""
    )
    assert drawn and "none" not in drawn


def test_axe_finds_nothing_to_object_to_in_light_or_dark(fresh: Page) -> None:
    from axe_playwright_python.sync_playwright import Axe

    fresh.evaluate(OPEN_ALL)
    fresh.evaluate(NO_SHADOWS)
    fresh.evaluate(
        """for (const one of document.querySelectorAll('figure ~ figure svg > *, figure tbody tr:nth-child(n+4)'))
            one.remove()"""
    )  # drawings are alike, and so are the rows of their numbers: one of each does
    colours = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}  # all that changes
    everything: dict[str, object] = {"resultTypes": ["violations"]}
    light = Axe().run(fresh, options=everything).response["violations"]
    fresh.emulate_media(color_scheme="dark")
    dark = Axe().run(fresh, options=everything | colours).response["violations"]
    assert [(one["id"], [node["html"][:160] for node in one["nodes"]]) for one in (*light, *dark)] == []


def test_the_answer_of_every_outcome_can_be_read_in_light_and_dark(fresh: Page) -> None:
    from axe_playwright_python.sync_playwright import Axe

    contrast = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
    fresh.evaluate("document.querySelector('main').remove()")
    Axe().run(fresh, context="h1", options=contrast)  # axe stays in the page
    for scheme in ("light", "dark"):
        fresh.emulate_media(color_scheme=scheme)
        for outcome in Outcome:
            found = fresh.evaluate(
                """async ([name, options]) => {
                    document.querySelector('.banner').className = name;
                    const {violations, passes} = await axe.run('.banner', options);
                    return [violations, passes].map((rules) => rules.flatMap((rule) => rule.nodes).length);
                }""",
                [f"banner {outcome.lower()}", contrast],
            )
            assert found[0] == 0 and found[1] > 10, (scheme, outcome)


def test_controls_fit_a_telephone_too_and_none_is_out_of_sight(fresh: Page) -> None:
    fresh.set_viewport_size(PHONE)
    fresh.evaluate(OPEN_ALL)
    assert fresh.evaluate("document.documentElement.scrollWidth") <= 360
    unseen = fresh.evaluate(
        """[...document.querySelectorAll('button')].filter((one) => {
            one.focus();
            const box = one.getBoundingClientRect();
            const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
            return document.activeElement !== one || box.height < 12 || (!one.closest('.scroll') && hit !== one);
        }).map((one) => one.outerHTML)"""
    )
    fresh.set_viewport_size(DESK)
    assert unseen == []


def test_numbers_stand_right_in_figures_of_equal_width(fresh: Page) -> None:
    looks = fresh.evaluate(
        """[...new Set([...document.querySelectorAll('td.number')].map((one) => {
            const style = getComputedStyle(one);
            return `${style.textAlign} ${style.fontVariantNumeric}`;
        }))]"""
    )
    assert looks == ["right tabular-nums"]


@pytest.mark.slow
def test_a_browser_finds_no_more_in_hostile_text_than_in_harmless(live: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def elements(text: str) -> object:
        return live.evaluate(
            """(source) => [...new DOMParser().parseFromString(source, 'text/html').querySelectorAll('*')]
                .map((one) => [one.tagName, ...one.getAttributeNames()].join(' '))""",
            html.page_of(hostile.poisoned(hostile.view(), text)),
        )

    monkeypatch.setattr(Figure, "svg", "")
    harmless = elements(hostile.BENIGN)
    assert all(elements(text) == harmless for text in hostile.JOINED)
    escaped = html.page_environment()
    monkeypatch.setattr(html, "page_environment", lambda: escaped.overlay(autoescape=False))
    assert elements("<i>oops</i>") != harmless


@pytest.fixture(scope="module")
def paper(browser: Browser, report: Path) -> Iterator[Page]:
    """The report as it is printed, by who touched nothing, likes screens dark and has no JavaScript."""
    opened = browser.new_page(viewport=PAPER, java_script_enabled=False, color_scheme="dark")
    opened.emulate_media(media="print")
    yield from watched(opened, report.as_uri())


def test_paper_shows_what_is_folded_and_cuts_nothing_off(paper: Page) -> None:
    assert paper.locator("details[open]").count() < paper.locator("details").count()
    told = paper.evaluate(
        """[...document.querySelectorAll('td, dd, li, p, figcaption, svg')]
            .map((one) => [one, one.getBoundingClientRect()])
            .filter(([one, box]) => !one.checkVisibility() || box.height < 1 || box.x < 0
                || box.right > innerWidth + 0.5)
            .map(([one, box]) => `${one.outerHTML.slice(0, 90)} at ${box.x} to ${box.right}`)"""
    )
    assert told == []


@pytest.mark.slow
def test_paper_keeps_headings_with_what_follows_and_charts_whole(paper: Page) -> None:
    keeps = paper.evaluate(
        """[[...document.querySelectorAll('h2, h3, caption, summary')].map((one) => getComputedStyle(one).breakAfter),
            [...document.querySelectorAll('svg.chart, .table tr')].map((one) => getComputedStyle(one).breakInside)]
            .map((some) => [...new Set(some)])"""
    )
    assert keeps == [["avoid"], ["avoid"]]
    inks = paper.evaluate("['body', '.note'].map((one) => getComputedStyle(document.querySelector(one)).color)")
    assert inks == ["rgb(0, 0, 0)", "rgb(89, 99, 110)"]  # and not the light grey of a dark screen


@pytest.mark.slow
def test_without_a_script_a_mark_has_its_words_as_its_title(page: Page) -> None:
    for anchor in ("figure-ecdf-ttft-c4", "figure-ecdf-tpot-c4", "figure-timeline-ttft", "figure-quality"):
        marks = page.locator(f"#{anchor} svg.chart path > title")
        assert marks.count() >= 3, anchor
        assert all(any(letter.isdigit() for letter in told) for told in marks.all_text_contents())
