"""Write the generated parts of the documentation: .venv/bin/python -m scripts.reference

A generated part stands between the lines `<!-- name -->` and `<!-- end of name -->`. tests/core/test_reference_pages.py
fails when a part is not current.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripts.ci_reference import (
    inputs_of_action,
    inputs_of_workflow,
    output_formats,
    outputs_of_action,
    verdict_example,
    waiver_keys,
    webhook_example,
)
from scripts.cli_reference import commands
from scripts.engine_table import dialect_table, engine_table, telemetry_table
from scripts.fault_reference import faults_from_outside, faults_of_servers
from scripts.pictures import PICTURES
from scripts.suite_reference import suite_example, suite_sections
from scripts.verdict_reference import (
    bandwidths,
    exit_codes,
    five_outcomes,
    guards_of_a_run,
    guards_of_evals,
    guards_of_two_runs,
    metrics_table,
    worked_blocks,
    worked_interval,
)

DOCS = Path(__file__).parents[1] / "docs"


def with_section(page: str, name: str, text: str) -> str:
    """Return the page with `text` between the marks of `name`. Raises ValueError if the marks are missing."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page has no lines {begin} and {end}")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"


def current_pages() -> dict[Path, str]:
    """Return every generated file as it must be: pages and pictures."""
    files: dict[Path, str] = {DOCS / "images" / name: draw() for name, draw in PICTURES.items()}
    for (page, name), write in SECTIONS.items():
        path = DOCS / page
        files[path] = with_section(files.get(path) or path.read_text(encoding="utf-8"), name, write())
    return files


def main() -> None:
    """Write every generated part."""
    for path, text in current_pages().items():
        path.write_text(text, encoding="utf-8", newline="\n")


SECTIONS: dict[tuple[str, str], Callable[[], str]] = {
    ("concepts.md", "blocks"): worked_blocks,
    ("concepts.md", "interval"): worked_interval,
    ("concepts.md", "outcomes"): five_outcomes,
    ("reference/verdict.md", "exit codes"): exit_codes,
    ("reference/verdict.md", "guards of a run"): guards_of_a_run,
    ("reference/verdict.md", "guards of evals"): guards_of_evals,
    ("reference/verdict.md", "guards of two runs"): guards_of_two_runs,
    ("reference/verdict.md", "bandwidths"): bandwidths,
    ("reference/metrics.md", "metrics"): metrics_table,
    ("reference/suite.md", "smallest"): lambda: suite_example("smallest"),
    ("reference/suite.md", "sections"): suite_sections,
    ("reference/suite.md", "every-key"): lambda: suite_example("every-key"),
    ("engines.md", "engines"): engine_table,
    ("engines.md", "dialects"): dialect_table,
    ("engines.md", "telemetry"): telemetry_table,
    ("reference/faults.md", "faults of servers"): faults_of_servers,
    ("reference/faults.md", "faults from outside"): faults_from_outside,
    ("reference/cli.md", "commands"): commands,
    ("guides/ci.md", "inputs of gate.yml"): inputs_of_workflow,
    ("guides/ci.md", "inputs of action.yml"): inputs_of_action,
    ("guides/ci.md", "outputs of action.yml"): outputs_of_action,
    ("guides/release.md", "keys of a waiver"): waiver_keys,
    ("reference/documents.md", "output formats"): output_formats,
    ("reference/documents.md", "verdict"): verdict_example,
    ("reference/documents.md", "webhook"): webhook_example,
}


if __name__ == "__main__":
    main()
