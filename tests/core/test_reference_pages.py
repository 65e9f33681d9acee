"""The generated parts of the documentation are current. Set BENCHGATE_UPDATE_GOLDEN=1 to write them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from scripts.reference import DOCS, current_pages

PAGES = current_pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_generated_parts_are_current(path: Path) -> None:
    if os.environ.get("BENCHGATE_UPDATE_GOLDEN") == "1":
        path.write_text(PAGES[path], encoding="utf-8", newline="\n")
    assert path.read_text(encoding="utf-8") == PAGES[path], f"{path.name} is stale; run scripts/docs"


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.relative_to(DOCS).as_posix())
def test_anchors_within_a_page_exist(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = set(re.findall(r'<a id="([^"]+)">', page))
    anchors |= {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) - anchors == set()
