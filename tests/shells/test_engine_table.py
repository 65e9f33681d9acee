"""Every claim of docs/engines.yaml has its evidence: a command, a transcript that is replayed, or a file and commit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchgate.targets.dialect import DIALECTS
from scripts.engine_table import COLUMNS, ROOT, Entry, entries, level_of
from tests.shells.test_captures import REPLAYED

ENTRIES = entries()
_SOURCE = re.compile(r"[\w.-]+/[\w.-]+/[^@ ]+@[0-9a-f]{40}")


def test_every_dialect_has_an_entry_and_every_entry_a_dialect() -> None:
    assert {entry.dialect for entry in ENTRIES} == DIALECTS.keys()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.engine)
def test_sources_name_repository_path_and_commit_and_are_used(entry: Entry) -> None:
    used = {name.strip() for cell in entry.cells.values() for name in cell.get("source", "").split(",") if name}
    assert used == entry.sources.keys()
    assert all(_SOURCE.fullmatch(source) for source in entry.sources.values())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.engine)
def test_evidence_exists(entry: Entry) -> None:
    for column in entry.cells:
        cell = entry.cells[column]
        assert level_of(cell) in ("run", "transcript", "source", "no")
        if "none" in cell:
            assert cell.get("source") or cell.get("run"), column
        if "transcript" in cell:
            folders = REPLAYED.get(column, set())
            assert cell["transcript"] in folders, f"no test replays {column} of {cell['transcript']}"
        if "run" in cell:
            paths = [word for word in cell["run"].split() if "/" in word]
            assert paths and all(Path(ROOT, path).exists() for path in paths), cell["run"]


def test_every_transcript_stands_in_the_table() -> None:
    shown = {cell["transcript"] for entry in ENTRIES for cell in entry.cells.values() if "transcript" in cell}
    variants = {folder for folder in REPLAYED["load"] if any(folder.startswith(f"{one}-") for one in shown)}
    assert set().union(*REPLAYED.values()) - variants == shown
    assert COLUMNS.keys() >= {column for entry in ENTRIES for column in entry.cells}
