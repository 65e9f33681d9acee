"""Suites to begin with, and commands in a suite, which run only when that is allowed."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from benchgate.suite.loader import parse_suite
from tests.e2e.command import STORE, here

pytestmark = pytest.mark.beside  # its client may be late, by a lot: what is asked of it is no time


ROOT = Path(__file__).parents[2]
ACTING = f"""
suite: acting
deployments: {{s: {{sim: {{ttft: 10ms, itl: 5ms}}}}}}
baseline: s
candidate: s
load:
  workload: {{input: 8, output: 20}}
  blocks: 2
  warmup: 0
  sweep:
    - {{stage: calm, concurrency: 1, requests: 2}}
    - stage: hit
      concurrency: 1
      requests: 2
      actions: [{{at: 0s, run: ["{sys.executable}", "-c", "raise SystemExit(4)"]}}]
gate:
  checks: [{{metric: error_rate, max: 90%}}]
"""


def test_first_suite_is_written_once_and_is_valid(tmp_path: Path) -> None:
    assert here(tmp_path, "init", "mine.yaml").returncode == 0
    text = (tmp_path / "mine.yaml").read_text()
    parse_suite(text, "mine.yaml")
    again = here(tmp_path, "init", "mine.yaml")
    assert again.returncode == 2 and "is there already" in again.stderr
    assert here(tmp_path, "init").stdout == text


def test_first_suite_without_its_comment_marks_judges_evals_and_recorded_prompts() -> None:
    lines = (ROOT / "suites/templates/first.yaml").read_text().splitlines()
    keys = ("# quality:", "#   tasks:", "#   max_tokens:", "# shadow:", "# - {metric:")
    bare = [line.replace("# ", "", 1) if line.lstrip().startswith(keys) else line for line in lines]
    suite = parse_suite("\n".join(bare) + "\n", "first.yaml")
    assert suite.quality is not None and suite.shadow is not None
    assert {"accuracy", "shadow_excess"} <= {check.metric for check in suite.gate.checks}


def test_drills_are_listed_and_written_as_they_ship(tmp_path: Path) -> None:
    listed = here(tmp_path, "init", "--list").stdout
    shipped = sorted((ROOT / "suites" / "drills").glob("*.yaml"))
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [path.stem for path in shipped]
    assert here(tmp_path, "init", "--drill", "prefill").stdout == (ROOT / "suites/drills/prefill.yaml").read_text()
    unknown = here(tmp_path, "init", "--drill", "prefil")
    assert unknown.returncode == 2 and "did you mean 'prefill'?" in unknown.stderr


def test_every_drill_is_explained_in_its_readme_and_in_the_guide() -> None:
    readme = (ROOT / "suites/drills/README.md").read_text()
    page = (ROOT / "docs/guides/load.md").read_text()
    names = [path.stem for path in (ROOT / "suites/drills").glob("*.yaml")]
    assert [name for name in names if f"`{name}`" not in readme or f"`{name}`" not in page] == []


def test_suite_that_runs_commands_is_refused_unless_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "acting.yaml").write_text(ACTING)
    refused = here(tmp_path, "run", "acting.yaml")
    assert refused.returncode == 2 and "--allow-actions" in refused.stderr
    assert not (tmp_path / STORE).exists()


def test_command_that_fails_makes_its_stage_invalid_and_is_in_the_journal(tmp_path: Path) -> None:
    (tmp_path / "acting.yaml").write_text(ACTING)
    done = here(tmp_path, "run", "acting.yaml", "--allow-actions")
    assert done.returncode == 12, done.stdout
    assert "its command ended with status 4" in done.stdout and "stage hit" in done.stdout
    with sqlite3.connect(tmp_path / STORE) as store:
        events = store.execute("select json_extract(data, '$.stage') from event where kind = 'action'").fetchall()
    assert events == [("hit",), ("hit",)]
