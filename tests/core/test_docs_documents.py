"""The page of documents names every schema, and the tutorial's suite is valid."""

from __future__ import annotations

import re
from pathlib import Path

from benchgate.suite.loader import parse_suite

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


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
