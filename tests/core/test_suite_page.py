"""Every key has a description and stands in the example, and the shipped suites load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchgate.suite.loader import parse_suite
from benchgate.suite.messages import sections, slots_of

ROOT = Path(__file__).parents[2]


def test_every_key_has_a_description() -> None:
    missing = [
        f"{place}.{name}"
        for place, model in sections()
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert missing == []


def test_one_example_is_small_and_the_other_has_every_key() -> None:
    small = (ROOT / "docs/reference/suite-smallest.yaml").read_text(encoding="utf-8")
    assert len(small.splitlines()) == 15
    whole = (ROOT / "docs/reference/suite-every-key.yaml").read_text(encoding="utf-8")
    missing = [key for _, model in sections() for key in slots_of(model) if not re.search(rf"\b{key}:", whole)]
    assert missing == []


@pytest.mark.parametrize("path", sorted((ROOT / "suites").glob("*.yaml")), ids=lambda path: path.name)
def test_suite_that_ships_loads(path: Path) -> None:
    parse_suite(path.read_text(encoding="utf-8"), path.name)
