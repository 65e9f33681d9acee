"""The generated reference pages are current, and their examples are valid."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchgate.suite.loader import parse_suite
from benchgate.suite.messages import sections, slots_of
from scripts.reference import DOCS, PAGES

ROOT = Path(__file__).parents[2]
UPDATE = "BENCHGATE_UPDATE_GOLDEN"
SUITE_PAGE = DOCS / "reference/suite.md"


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_current(name: str) -> None:
    text = PAGES[name]()
    if os.environ.get(UPDATE) == "1":
        (DOCS / name).write_text(text, encoding="utf-8", newline="\n")
    assert (DOCS / name).read_text(encoding="utf-8") == text, f"{name} is stale; run scripts/docs"


@pytest.mark.parametrize("name", PAGES)
def test_anchors_within_a_page_exist(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = set(re.findall(r'<a id="([^"]+)">', page))
    anchors |= {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) - anchors == set()


def test_every_key_has_a_description() -> None:
    missing = [
        f"{place}.{name}"
        for place, model in sections()
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert missing == []


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```", SUITE_PAGE.read_text(), re.MULTILINE | re.DOTALL))
def test_example_of_the_suite_page_loads(text: str) -> None:
    parse_suite(text, "docs/reference/suite.md")


def test_one_example_is_small_and_the_other_has_every_key() -> None:
    small = (DOCS / "reference/suite-smallest.yaml").read_text(encoding="utf-8")
    assert len(small.splitlines()) == 15
    whole = (DOCS / "reference/suite-every-key.yaml").read_text(encoding="utf-8")
    missing = [key for _, model in sections() for key in slots_of(model) if not re.search(rf"\b{key}:", whole)]
    assert missing == []


@pytest.mark.parametrize("path", sorted((ROOT / "suites").glob("*.yaml")), ids=lambda path: path.name)
def test_suite_that_ships_loads(path: Path) -> None:
    parse_suite(path.read_text(encoding="utf-8"), path.name)
