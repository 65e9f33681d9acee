"""The report in a real browser: readable from a file without JavaScript and under Jenkins' policy, handier with it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchgate.model.verdict import GuardResult, Outcome
from benchgate.report import html
from benchgate.report.figures import Figures
from benchgate.report.html import render_html
from benchgate.report.view import ReportView
from tests.fakes import evidence as fake
from tests.fakes import hostile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

BROWSER = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine; scripts/test installs it where it may"),
]
JENKINS = "sandbox allow-same-origin; default-src 'none'; img-src 'self'; style-src 'self';"
OTHERS = tuple(fake.check(f"{one}-c4", one) for one in (Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.WARN))
WAIVED = replace(fake.check("waived-c4", Outcome.BLOCK), waiver=hostile.waiver("SRV-1"))
TRIPPED = GuardResult("client-saturated", True, "the client was late", "send from more workers", ("load",))
BLOCKED = fake.verdict(Outcome.BLOCK)
VERDICT = replace(BLOCKED, checks=(*BLOCKED.checks, *OTHERS, WAIVED), guards=(*BLOCKED.guards, TRIPPED))
DESK: ViewportSize = {"width": 1280, "height": 900}
OPEN_ALL = "for (const one of document.querySelectorAll('details')) one.open = true"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a blocked candidate, with every part that a report can have and checks of every outcome."""
    plain = fake.evidence()
    telemetry = tuple(hostile.window(observation, "vllm") for observation in plain.load)
    evidence = replace(plain, telemetry=telemetry, divergence=hostile.divergence("t1"), noise=hostile.noise("c4"))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(evidence, VERDICT), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser, report: Path) -> Iterator[Page]:
    """The report opened from its file at the width of a telephone, without JavaScript."""
    opened = browser.new_page(
        viewport={"width": 360, "height": 800}, color_scheme=request.param, java_script_enabled=False
    )
    yield from _watched(opened, report.as_uri())


@pytest.fixture(scope="module")
def live(browser: Browser, report: Path) -> Iterator[Page]:
    """The report opened from its file on a desk, with JavaScript; what it does is undone by `fresh`."""
    opened = browser.new_page(viewport=DESK)
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.set_default_timeout(10_000)
    yield from _watched(opened, report.as_uri())


@pytest.fixture
def fresh(live: Page, report: Path) -> Page:
    """The same page as if nobody had touched it."""
    live.emulate_media(media="screen", color_scheme="light")
    live.goto(report.as_uri())
    return live


def _watched(opened: Page, address: str) -> Iterator[Page]:
    """A page that asks for itself alone and has nothing to complain of, when it is opened and when it was used."""
    asked: set[str] = set()
    complaints: list[str] = []
    opened.on("request", lambda sent: asked.add(sent.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(address)
    yield opened
    assert asked == {address}
    assert complaints == []
    opened.close()


def test_the_verdict_is_in_the_first_screen(page: Page) -> None:
    heading = page.get_by_role("heading", level=1)
    box = heading.bounding_box()
    assert "BLOCK" in heading.inner_text()
    assert box is not None and box["y"] + box["height"] < 800


def test_the_page_never_scrolls_sideways_on_a_telephone(page: Page) -> None:
    page.evaluate(OPEN_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = page.locator("main").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360


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
    wanted = page.evaluate("document.querySelectorAll('a, summary, details[open] [tabindex]').length")
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(wanted + 100):
        page.keyboard.press("Tab")
        at = page.evaluate(
            """[...document.querySelectorAll('a, summary, [tabindex]')].indexOf(document.activeElement)"""
        )
        if at in reached:
            break
        reached.add(at)
    assert len(reached - {-1}) >= wanted


@pytest.fixture(scope="module")
def under_jenkins(browser: Browser, report: Path) -> Iterator[Page]:
    """The report as Jenkins serves what jobs leave: no script, no style in the page, no origin of its own."""

    class Served(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Security-Policy", JENKINS)
            self.end_headers()
            self.wfile.write(report.read_bytes())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    opened = browser.new_page(viewport=DESK)
    asked: set[str] = set()
    opened.on("request", lambda sent: asked.add(sent.url))
    address = f"http://127.0.0.1:{server.server_port}/report.html"
    opened.goto(address)
    yield opened
    assert asked == {address}
    opened.close()
    server.shutdown()
    server.server_close()


def test_under_jenkins_policy_every_number_can_be_read(under_jenkins: Page, page: Page) -> None:
    assert under_jenkins.evaluate("getComputedStyle(document.querySelector('.banner')).borderTopWidth") == "0px"
    for one in (under_jenkins, page):
        one.evaluate(OPEN_ALL)
    unseen = under_jenkins.evaluate(
        """[...document.querySelectorAll('td, th, dd, li, p, pre, figcaption')].filter((one) => {
            const box = one.getBoundingClientRect();
            return one.textContent.trim() && (box.width < 1 || box.height < 1 || !one.checkVisibility());
        }).map((one) => one.textContent)"""
    )
    assert unseen == []
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
    colours = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}  # all that changes
    everything: dict[str, object] = {"resultTypes": ["violations"]}
    light = Axe().run(fresh, options=everything).response["violations"]
    fresh.emulate_media(color_scheme="dark")
    dark = Axe().run(fresh, options=everything | colours).response["violations"]
    assert [(one["id"], [node["html"][:160] for node in one["nodes"]]) for one in (*light, *dark)] == []


def test_controls_fit_a_telephone_too(fresh: Page) -> None:
    fresh.set_viewport_size({"width": 360, "height": 800})
    fresh.evaluate(OPEN_ALL)
    assert fresh.evaluate("document.documentElement.scrollWidth") <= 360
    fresh.set_viewport_size(DESK)


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


@pytest.mark.parametrize(
    ("cells", "rising"),
    [
        (["1.2 s", "900 ms", "none", "80 µs", "∞"], ["80 µs", "900 ms", "1.2 s", "∞", "none"]),
        (["+2.5 points", "\N{MINUS SIGN}3 points", "0 points"], ["\N{MINUS SIGN}3 points", "0 points", "+2.5 points"]),
        (["1,319", "not measured", "97"], ["97", "1,319", "not measured"]),
        (["$12.5", "$9.1", "≥ 0.2"], ["≥ 0.2", "$9.1", "$12.5"]),
    ],
)
def test_numbers_are_sorted_by_size_and_what_is_none_comes_last(
    fresh: Page, report: Path, cells: list[str], rising: list[str]
) -> None:
    script = report.read_text(encoding="utf-8").partition("<script>")[2].partition("</script>")[0]
    rows = "".join(f"<tr><td>{cell}</td></tr>" for cell in cells)
    fresh.evaluate(
        """([rows, script]) => {
            const table = `<table><thead><tr><th class="number">n</th></tr></thead><tbody>${rows}</tbody></table>`;
            document.body.innerHTML = `<div class="scroll">${table}</div>`;
            const run = document.createElement('script');
            run.textContent = script;
            document.body.append(run);
        }""",
        [rows, script],
    )
    fresh.get_by_role("button", name="n", exact=True).click()
    assert _column(fresh, "table", 1) == rising


def test_a_series_is_hidden_and_shown_again(fresh: Page) -> None:
    figure = fresh.locator("figure:has(svg.chart)").first
    drawn = figure.locator("[stroke='#7d8796']:visible, [fill='#7d8796']:visible")
    before = drawn.count()
    press = figure.get_by_role("button", name="baseline", exact=True)
    press.click()
    assert (before > 0, drawn.count(), press.get_attribute("aria-pressed")) == (True, 0, "false")
    press.click()
    assert (drawn.count(), press.get_attribute("aria-pressed")) == (before, "true")


def test_pointing_at_a_mark_tells_the_row_it_stands_for(fresh: Page) -> None:
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
