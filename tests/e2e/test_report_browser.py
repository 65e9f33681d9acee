"""The report in a real browser: readable from a file without JavaScript and under Jenkins' policy, handier with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchgate.model.verdict import GuardResult, Outcome
from benchgate.report import html
from benchgate.report.figures import Figures
from benchgate.report.html import render_html
from benchgate.report.view import ReportView
from tests.e2e.pages import DESK, IN_A_BROWSER, NO_SHADOWS, OPEN_ALL, PAPER, PHONE, launched, served_by_jenkins, watched
from tests.fakes import evidence as fake
from tests.fakes import hostile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = IN_A_BROWSER
OTHERS = tuple(fake.check(f"{one}-c4", one) for one in (Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.WARN))
WAIVED = replace(fake.check("waived-c4", Outcome.BLOCK), waiver=hostile.waiver("SRV-1"))
TRIPPED = GuardResult("client-saturated", True, "the client was late", "send from more workers", ("load",))
BLOCKED = fake.verdict(Outcome.BLOCK)
VERDICT = replace(BLOCKED, checks=(*BLOCKED.checks, *OTHERS, WAIVED), guards=(*BLOCKED.guards, TRIPPED))
UNSEEN = """[...document.querySelectorAll('td, tbody th, dd, li, p, pre, figcaption')].filter((one) => {
    const box = one.getBoundingClientRect();
    return one.textContent.trim() && (box.width < 1 || box.height < 1 || !one.checkVisibility());
}).map((one) => one.textContent)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as one:
        yield one


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a blocked candidate, with every part that a report can have and checks of every outcome."""
    plain = fake.evidence()
    telemetry = tuple(hostile.window(observation, "vllm") for observation in plain.load)
    evidence = replace(plain, telemetry=telemetry, divergence=hostile.divergence("t1"), noise=hostile.noise("c4"))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(evidence, VERDICT), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(browser: Browser, report: Path) -> Iterator[Page]:
    """The report opened from its file at the width of a telephone, without JavaScript."""
    opened = browser.new_page(viewport=PHONE, java_script_enabled=False)
    yield from watched(opened, report.as_uri())


@pytest.fixture(scope="module")
def live(browser: Browser, report: Path) -> Iterator[Page]:
    """The report opened from its file on a desk, with JavaScript; what it does is undone by `fresh`."""
    opened = browser.new_page(viewport=DESK)
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.set_default_timeout(10_000)
    yield from watched(opened, report.as_uri())


@pytest.fixture
def fresh(live: Page, report: Path) -> Page:
    """The same page as if nobody had touched it."""
    live.emulate_media(media="screen", color_scheme="light")
    live.goto(report.as_uri())
    return live


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


def test_every_check_is_visible_with_its_reason(page: Page) -> None:
    for check in VERDICT.checks:
        assert page.get_by_text(check.reason).first.is_visible()


def test_charts_are_drawn_and_have_their_numbers_beside_them(page: Page) -> None:
    figures = page.locator("figure:has(svg)")
    assert figures.count() >= 2
    for i in range(figures.count()):
        box = figures.nth(i).locator("svg").first.bounding_box()
        assert box is not None and box["width"] > 100 and box["height"] > 50
        assert figures.nth(i).locator("table").count() >= 1


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


def test_a_browser_finds_no_more_in_hostile_text_than_in_harmless(live: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_figures(view: ReportView) -> Figures:
        return Figures()

    def elements(text: str) -> object:
        return live.evaluate(
            """(source) => [...new DOMParser().parseFromString(source, 'text/html').querySelectorAll('*')]
                .map((one) => [one.tagName, ...one.getAttributeNames()].join(' '))""",
            html.page_of(hostile.poisoned(hostile.view(), text)),
        )

    monkeypatch.setattr(html, "figures_of", no_figures)
    harmless = elements(hostile.BENIGN)
    assert all(elements(text) == harmless for text in hostile.JOINED)
    escaped = html.page_environment()
    monkeypatch.setattr(html, "page_environment", lambda: escaped.overlay(autoescape=False))
    assert elements("<i>oops</i>") != harmless


def _shown_checks(page: Page) -> list[str]:
    return [one.get_attribute("id") or "" for one in page.locator("table.checks > tbody:visible").all()]


def test_checks_are_filtered_by_outcome_and_a_link_brings_them_back(fresh: Page) -> None:
    every = _shown_checks(fresh)
    chips = fresh.get_by_role("group", name="Show checks by outcome")
    told = ["All 9", "BLOCK 1", "INVALID 1", "INCONCLUSIVE 1", "WARN 1", "WAIVED 1", "PASS 4"]
    assert chips.get_by_role("button").all_inner_texts() == told
    chips.get_by_role("button", name="BLOCK 1").click()
    assert _shown_checks(fresh) == ["check-ttft-p50-c4"]
    assert chips.get_by_role("status").inner_text() == "1 of 9 checks shown"
    assert chips.get_by_role("button", name="BLOCK 1").get_attribute("aria-pressed") == "true"
    fresh.evaluate("location.hash = 'check-accuracy'")
    fresh.wait_for_function("!document.getElementById('check-accuracy').hidden")
    assert _shown_checks(fresh) == every


def test_paper_shows_every_check_whatever_the_screen_does_not(fresh: Page) -> None:
    every = _shown_checks(fresh)
    fresh.get_by_role("button", name="BLOCK 1").click()
    fresh.emulate_media(media="print")
    assert _shown_checks(fresh) == every
    assert not fresh.get_by_role("button", name="BLOCK 1").is_visible()


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
            .filter((one) => !one.closest('#document > details'))
            .map((one) => [one, one.getBoundingClientRect()])
            .filter(([one, box]) => !one.checkVisibility() || box.height < 1 || box.x < 0
                || box.right > innerWidth + 0.5)
            .map(([one, box]) => `${one.outerHTML.slice(0, 90)} at ${box.x} to ${box.right}`)"""
    )
    assert told == []


def test_paper_keeps_headings_with_what_follows_and_charts_whole(paper: Page) -> None:
    keeps = paper.evaluate(
        """[[...document.querySelectorAll('h2, h3, caption, summary')].map((one) => getComputedStyle(one).breakAfter),
            [...document.querySelectorAll('svg.chart, .table tr')].map((one) => getComputedStyle(one).breakInside)]
            .map((some) => [...new Set(some)])"""
    )
    assert keeps == [["avoid"], ["avoid"]]
    inks = paper.evaluate("['body', '.note'].map((one) => getComputedStyle(document.querySelector(one)).color)")
    assert inks == ["rgb(0, 0, 0)", "rgb(89, 99, 110)"]  # and not the light grey of a dark screen


def _column(page: Page, table: str, number: int) -> list[str]:
    return page.locator(f"{table} tbody tr td:nth-child({number})").all_inner_texts()


def test_a_table_is_sorted_up_down_and_back(fresh: Page) -> None:
    table = "#load > .table table"
    head = fresh.locator(f"{table} th.number").first
    number = int(head.evaluate("(one) => one.cellIndex")) + 1
    before = _column(fresh, table, number)
    states = []
    for _ in range(3):
        head.get_by_role("button").click()
        states.append((head.get_attribute("aria-sort"), _column(fresh, table, number)))
    (up, rising), (down, falling), (none, again) = states
    assert (up, down, none) == ("ascending", "descending", None)
    assert again == before and sorted(rising) == sorted(before) and len(before) > 2
    assert rising != falling


def test_checks_are_sorted_by_a_click_and_by_the_keyboard_each_with_its_reason(fresh: Page) -> None:
    every = _shown_checks(fresh)
    table = fresh.locator("table.checks").last  # what passed
    head = table.locator("th", has_text="check").first
    titles = table.locator("tbody th a")
    before = titles.all_inner_texts()
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert titles.all_inner_texts() == sorted(before) != before
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert titles.all_inner_texts() == sorted(before, reverse=True)
    head.get_by_role("button").press("Space")
    assert head.get_attribute("aria-sort") is None
    assert _shown_checks(fresh) == every
    failing = fresh.locator("table.checks").first
    used = failing.locator("th.stripe")
    used.get_by_role("button").click()
    shares = [float(told.split()[0]) for told in failing.locator("svg.strip title").all_text_contents()]
    assert used.get_attribute("aria-sort") == "ascending" and shares == sorted(shares)
    assert shares[0] < 100 < shares[-1]
    assert failing.locator("tbody").last.get_attribute("class") == "invalid"  # of which nothing is used


AMOUNTS = (
    (["1.2 s", "900 ms", "none", "80 µs", "∞"], ["80 µs", "900 ms", "1.2 s", "∞", "none"]),
    (["+2.5 points", "\N{MINUS SIGN}3 points", "0 points"], ["\N{MINUS SIGN}3 points", "0 points", "+2.5 points"]),
    (["1,319", "not measured", "97"], ["97", "1,319", "not measured"]),
    (["$12.5", "$9.1", "≥ 0.2"], ["≥ 0.2", "$9.1", "$12.5"]),
    (["97 %", "1.2 s", "∞", "3 %", "80 ms"], ["3 %", "97 %", "80 ms", "1.2 s", "∞"]),
)


def test_numbers_are_sorted_by_size_and_what_is_none_comes_last(browser: Browser, report: Path) -> None:
    script = report.read_text(encoding="utf-8").partition("<script>")[2].partition("</script>")[0]
    page = browser.new_page()
    for cells, rising in AMOUNTS:
        rows = "".join(f"<tr><td>{cell}</td></tr>" for cell in cells)
        table = f'<table><thead><tr><th class="number">n</th></tr></thead><tbody>{rows}</tbody></table>'
        page.set_content(f'<div class="scroll">{table}</div><script>{script}</script>')
        page.get_by_role("button", name="n", exact=True).click()
        assert _column(page, "table", 1) == rising
    page.close()


def test_a_series_is_hidden_and_shown_again(fresh: Page) -> None:
    figure = fresh.locator("figure:has(svg.chart)").first
    drawn = figure.locator("[stroke='#7d8796']:visible, [fill='#7d8796']:visible")
    before = drawn.count()
    press = figure.get_by_role("button", name="baseline", exact=True)
    press.click()
    assert (before > 0, drawn.count(), press.get_attribute("aria-pressed")) == (True, 0, "false")
    press.click()
    assert (drawn.count(), press.get_attribute("aria-pressed")) == (before, "true")


def test_without_a_script_a_mark_has_its_words_as_its_title(page: Page) -> None:
    for anchor in ("figure-ttft-p50", "figure-ecdf-ttft-c4", "figure-timeline-ttft", "figure-quality"):
        marks = page.locator(f"#{anchor} svg.chart path > title")
        assert marks.count() >= 3, anchor
        assert all(any(letter.isdigit() for letter in told) for told in marks.all_text_contents())


def test_pointing_at_a_mark_tells_the_row_it_stands_for(fresh: Page) -> None:
    assert fresh.locator("svg.chart title").count() == 0  # or a browser would tell it twice
    mark = fresh.locator("svg.chart [data-told]").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    tip = fresh.locator(".tip")
    assert tip.inner_text() == mark.get_attribute("data-told") != ""
    fresh.keyboard.press("Escape")
    assert not tip.is_visible()


def test_the_command_and_the_data_are_copied(fresh: Page) -> None:
    fresh.locator(".controls:has(+ pre.command) button").first.click()
    assert fresh.evaluate("navigator.clipboard.readText()") == fresh.locator("pre.command").first.text_content()
    fresh.evaluate(OPEN_ALL)
    press = fresh.locator(".controls:has(+ #verdict-json) button")
    press.click()
    fresh.get_by_role("button", name="Copied").last.wait_for()
    assert json.loads(fresh.evaluate("navigator.clipboard.readText()"))["outcome"] == "BLOCK"
