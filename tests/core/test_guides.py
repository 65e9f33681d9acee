"""Complete suites in the guides are valid, and the messages on the page of troubleshooting exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchgate.suite.loader import parse_suite

ROOT = Path(__file__).parents[2]
SUITES = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs" / "guides").glob("*.md"))
    for number, text in enumerate(
        re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize("text", SUITES)
def test_suite_of_a_guide_is_valid(text: str) -> None:
    parse_suite(text, "guide.yaml")


def test_messages_of_troubleshooting_are_those_of_the_package() -> None:
    modules = (ROOT / "benchgate").rglob("*.py")
    nodes = (node for path in modules for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    known = "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    headings = " ".join(re.findall(r"^### (.*)$", page, re.MULTILINE))
    parts = [part.strip(" ;,:") for quoted in re.findall(r"`([^`]+)`", headings) for part in quoted.split("…")]
    assert len(parts) > 30
    assert [part for part in parts if part not in known] == []
