"""Complete suites in the guides are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchgate.suite.loader import parse_suite

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
SUITES = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in sorted(GUIDES.glob("*.md"))
    for number, text in enumerate(
        re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize("text", SUITES)
def test_suite_of_a_guide_is_valid(text: str) -> None:
    parse_suite(text, "guide.yaml")
