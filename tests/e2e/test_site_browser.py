"""The history site in a real browser, from files: readable on a telephone, filters where there is JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchgate.report.html import suite_folder
from benchgate.site.build import build
from benchgate.store.repository import Store
from tests.e2e.pages import IN_A_BROWSER, NO_SHADOWS, OPEN_ALL, PAPER, PHONE, launched, watched
from tests.fakes.site_runs import add, promote

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as one:
        yield one


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two suites: one with a promoted and a blocked run, one with a run of a long name."""
    folder = tmp_path_factory.mktemp("history")
    with Store.open(str(folder / "runs.db")) as store:
        promote(store, add(store, "2026-01-01", label="first"), "2026-01-01T02:00:00.000Z")
        add(store, "2026-01-02", label="second", blocked=True)
        add(store, "2026-01-03", label="unbroken-" * 20, suite="other")
    build(str(folder / "runs.db"), folder / "site", lambda done, of: None)
    return folder / "site"


@pytest.fixture(scope="module")
def live(browser: Browser, site: Path) -> Iterator[Page]:
    """The first page on a telephone, with JavaScript."""
    yield from watched(browser.new_page(viewport=PHONE), (site / "index.html").as_uri())


@pytest.fixture(scope="module")
def suite(browser: Browser, site: Path) -> Iterator[Page]:
    """The page of the suite with trends, likewise."""
    file = site / suite_folder("made-up") / "index.html"
    yield from watched(browser.new_page(viewport=PHONE), file.as_uri())


def shown(page: Page) -> list[str]:
    """The labels of the runs that are listed."""
    names = page.locator("tr[data-outcome]:visible th a").all_inner_texts()
    return [name[:9] for name in names]


def test_without_javascript_everything_is_listed_and_nothing_dead_is_shown(browser: Browser, site: Path) -> None:
    page = browser.new_page(viewport=PHONE, java_script_enabled=False)
    page.goto((site / "index.html").as_uri())
    assert shown(page) == ["unbroken-", "second", "first"]
    assert page.locator("input, select, button").count() == 0
    page.get_by_role("link", name="first").last.click()
    assert page.get_by_role("heading", level=1).inner_text().endswith("PASS")
    page.close()


def test_runs_are_filtered_by_words_outcome_and_promotion_and_paper_shows_all(live: Page) -> None:
    live.get_by_label("verdict").select_option("BLOCK")
    assert shown(live) == ["second"] and live.get_by_text("1 of 3 runs").is_visible()
    assert not live.locator("section.suite", has_text="unbroken").is_visible()
    live.emulate_media(media="print")
    assert shown(live) == ["unbroken-", "second", "first"] and not live.get_by_label("verdict").is_visible()
    live.emulate_media(media="screen")
    live.get_by_label("verdict").select_option("")
    live.get_by_label("promoted").select_option("promoted")
    assert shown(live) == ["first"]
    live.get_by_label("promoted").select_option("")
    live.get_by_label("label, id or candidate").fill("SECO")
    assert shown(live) == ["second"]
    live.get_by_label("label, id or candidate").fill("")


def test_paper_cuts_nothing_off(suite: Page) -> None:
    suite.set_viewport_size(PAPER)
    suite.emulate_media(media="print")
    cut = suite.evaluate(
        """[...document.querySelectorAll('td, p, li, svg')].filter((one) => {
            const box = one.getBoundingClientRect();
            return !one.checkVisibility() || box.right > innerWidth + 0.5 || (one.textContent && box.height < 1);
        }).map((one) => one.outerHTML.slice(0, 90))"""
    )
    suite.emulate_media(media="screen")
    suite.set_viewport_size(PHONE)
    assert cut == []


def test_a_chart_says_which_end_is_the_newest_and_each_point_which_run_it_is(suite: Page) -> None:
    chart = suite.locator("svg.chart").first
    assert {"← oldest", "newest →"} <= set(chart.locator("text").all_text_contents())
    told = chart.locator("title").all_text_contents()
    assert any("first, 2026-01-01 00:00 UTC, promoted: " in one for one in told)
    assert any("second, 2026-01-02 00:00 UTC, not let through: " in one for one in told)


def test_axe_finds_nothing_in_light_or_dark_and_no_page_scrolls_sideways(live: Page, suite: Page) -> None:
    from axe_playwright_python.sync_playwright import Axe

    colours = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}  # all that changes
    for page in (live, suite):
        page.evaluate(OPEN_ALL)
        page.evaluate(NO_SHADOWS)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        everything: dict[str, object] = {"resultTypes": ["violations"]}
        light = Axe().run(page, options=everything).response["violations"]
        page.emulate_media(color_scheme="dark")
        dark = Axe().run(page, options=everything | colours).response["violations"]
        assert [(one["id"], [node["html"][:160] for node in one["nodes"]]) for one in (*light, *dark)] == []
