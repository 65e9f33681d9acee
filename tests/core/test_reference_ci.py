"""The generated parts of the pages on CI, releases and documents are current; the pages' examples are valid."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchgate.suite.loader import parse_suite
from scripts.reference_ci import DOCS, ROOT, current_pages, with_part


@pytest.mark.parametrize("path", current_pages(), ids=lambda path: path.name)
def test_generated_parts_are_current(path: Path) -> None:
    """Run with BENCHGATE_UPDATE_GOLDEN=1 to write them."""
    current = current_pages()[path]
    if os.environ.get("BENCHGATE_UPDATE_GOLDEN") == "1":
        path.write_text(current, encoding="utf-8", newline="\n")
    assert path.read_text(encoding="utf-8") == current


def test_a_page_without_the_part_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no lines <!-- x -->"):
        with_part("# Page\n", "x", "text")


def test_every_schema_of_the_package_is_on_the_page_of_documents() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "benchgate").rglob("*.py")]
    schemas = {name for text in texts for name in re.findall(r'"(benchgate\.[a-z-]+/[0-9]+)"', text)}
    page = (DOCS / "reference/documents.md").read_text(encoding="utf-8")
    assert len(schemas) > 5
    assert {name for name in schemas if f"| `{name}` |" not in page} == set()


def test_the_suite_of_the_tutorial_is_valid_and_its_tasks_are_shipped() -> None:
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    suite = parse_suite(example, "docs/tutorial.md")
    assert (suite.baseline, suite.candidate) == ("f16", "q2_k")
    tasks = re.findall(r"suites/tasks/\w+\.yaml", example)
    assert tasks and all((ROOT / task).is_file() for task in tasks)
