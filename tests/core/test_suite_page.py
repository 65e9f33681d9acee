"""The examples of docs/reference/suite.md load, and every key has a description."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchgate.suite.loader import parse_suite
from benchgate.suite.messages import sections, slots_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/suite.md").read_text(encoding="utf-8")


def test_every_key_has_a_description() -> None:
    missing = [
        f"{place}.{name}"
        for place, model in sections()
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert missing == []


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
def test_example_of_the_suite_page_loads(text: str) -> None:
    parse_suite(text, "docs/reference/suite.md")


def test_one_example_is_small_and_the_other_has_every_key() -> None:
    small = (ROOT / "docs/reference/suite-smallest.yaml").read_text(encoding="utf-8")
    assert len(small.splitlines()) == 15
    whole = (ROOT / "docs/reference/suite-every-key.yaml").read_text(encoding="utf-8")
    missing = [key for _, model in sections() for key in slots_of(model) if not re.search(rf"\b{key}:", whole)]
    assert missing == []


@pytest.mark.parametrize("path", sorted((ROOT / "suites").glob("*.yaml")), ids=lambda path: path.name)
def test_suite_that_ships_loads(path: Path) -> None:
    parse_suite(path.read_text(encoding="utf-8"), path.name)


GUIDES = [ROOT / "docs/guides" / name for name in ("load.md", "servers.md")]


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if guide.exists()], ids=lambda guide: guide.name)
def test_complete_suites_of_a_guide_load(guide: Path) -> None:
    for text in re.findall(r"^```yaml\n(.*?)^```", guide.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        parse_suite(text, guide.name)
