"""The report's script in a real browser: sorting, filtering, naming points, copying."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.pages import IN_A_BROWSER

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest_plugins = ["tests.e2e.opened_report"]
pytestmark = IN_A_BROWSER


def _shown_checks(page: Page) -> list[str]:
    return [one.get_attribute("id") or "" for one in page.locator("table.checks > tbody:visible").all()]


def test_checks_are_filtered_by_outcome_and_a_link_brings_them_back(fresh: Page) -> None:
    every = _shown_checks(fresh)
    chips = fresh.get_by_role("group", name="Show checks by outcome")
    labels = ["All 9", "BLOCK 1", "INVALID 1", "INCONCLUSIVE 1", "WARN 1", "WAIVED 1", "PASS 4"]
    assert chips.get_by_role("button").all_inner_texts() == labels
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
    shares = [
        float(used.split("\N{MULTIPLICATION SIGN}")[0])
        for used in failing.locator("svg.strip title").all_text_contents()
    ]
    assert used.get_attribute("aria-sort") == "ascending" and shares == sorted(shares)
    assert shares[0] < 1 < shares[-1]
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


def test_pointing_at_a_mark_tells_the_row_it_stands_for(fresh: Page) -> None:
    assert fresh.locator("svg.chart title").count() == 0  # or a browser would tell it twice
    mark = fresh.locator("svg.chart [data-label]").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    tip = fresh.locator(".tip")
    assert tip.inner_text() == mark.get_attribute("data-label") != ""
    fresh.keyboard.press("Escape")
    assert not tip.is_visible()


def test_a_command_is_copied(fresh: Page) -> None:
    fresh.locator(".controls:has(+ pre.command) button").first.click()
    assert fresh.evaluate("navigator.clipboard.readText()") == fresh.locator("pre.command").first.text_content()
