"""The history site in a real browser, from files: readable on a telephone, filters where there is JavaScript."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchgate.site.build import build
from benchgate.site.names import suite_folder
from benchgate.store.repository import Store
from tests.fakes.site_runs import add, promote

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSER = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine; scripts/test installs it where it may"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER)
        yield launched
        launched.close()


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


def opened(browser: Browser, file: Path, *, javascript: bool, scheme: str = "light") -> Page:
    """A page on a telephone, which asked for nothing else and had nothing to complain of."""
    page = browser.new_page(
        viewport={"width": 360, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
        java_script_enabled=javascript,
    )
    asked: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url))
    page.on("console", lambda message: asked.append(message.text))
    page.goto(file.as_uri())
    assert asked == [file.as_uri()]
    return page


def shown(page: Page) -> list[str]:
    """The labels of the runs that are listed."""
    names = page.locator("tr[data-outcome]:visible th a").all_inner_texts()
    return [name[:9] for name in names]


def test_without_javascript_everything_is_listed_and_nothing_dead_is_shown(browser: Browser, site: Path) -> None:
    page = opened(browser, site / "index.html", javascript=False)
    assert shown(page) == ["unbroken-", "second", "first"]
    assert page.locator("input, select, button").count() == 0
    page.get_by_role("link", name="first").last.click()
    assert page.get_by_role("heading", level=1).inner_text().endswith("PASS")


def test_runs_are_filtered_by_words_outcome_and_promotion(browser: Browser, site: Path) -> None:
    page = opened(browser, site / "index.html", javascript=True)
    page.get_by_label("verdict").select_option("BLOCK")
    assert shown(page) == ["second"] and page.get_by_text("1 of 3 runs").is_visible()
    assert not page.locator("section.suite", has_text="unbroken").is_visible()
    page.get_by_label("verdict").select_option("")
    page.get_by_label("promoted").select_option("promoted")
    assert shown(page) == ["first"]
    page.get_by_label("promoted").select_option("")
    page.get_by_label("label, id or candidate").fill("SECO")
    assert shown(page) == ["second"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_no_page_scrolls_sideways(browser: Browser, site: Path, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for file in (site / "index.html", site / suite_folder("made-up") / "index.html"):
        page = opened(browser, file, javascript=True, scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
