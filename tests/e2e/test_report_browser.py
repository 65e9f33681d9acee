"""The report in a real browser, from a file, with JavaScript off: everything readable, nothing fetched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchgate.model.verdict import Outcome
from benchgate.report.html import render_html
from tests.fakes import evidence as fake

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
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a blocked candidate."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(fake.evidence(), fake.verdict(Outcome.BLOCK)), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser, report: Path) -> Iterator[Page]:
    """The report opened from its file at the width of a telephone."""
    opened = browser.new_page(
        viewport={"width": 360, "height": 800}, color_scheme=request.param, java_script_enabled=False
    )
    asked: list[str] = []
    complaints: list[str] = []
    opened.on("request", lambda sent: asked.append(sent.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.goto(report.as_uri())
    assert asked == [report.as_uri()]
    assert complaints == []
    yield opened
    opened.close()


def test_the_verdict_is_in_the_first_screen(page: Page) -> None:
    heading = page.get_by_role("heading", level=1)
    box = heading.bounding_box()
    assert "BLOCK" in heading.inner_text()
    assert box is not None and box["y"] + box["height"] < 800


def test_nothing_scrolls_sideways_but_what_is_meant_to(page: Page) -> None:
    box = page.locator("main").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360


def test_every_check_is_visible_with_its_reason(page: Page) -> None:
    for check in fake.verdict(Outcome.BLOCK).checks:
        assert page.get_by_text(check.reason).first.is_visible()


def test_charts_are_drawn_and_have_their_numbers_beside_them(page: Page) -> None:
    figures = page.locator("figure:has(svg)")
    assert figures.count() >= 2
    for i in range(figures.count()):
        box = figures.nth(i).locator("svg").first.bounding_box()
        assert box is not None and box["width"] > 100 and box["height"] > 50
        assert figures.nth(i).locator("table").count() == 1
