"""A full disk leaves no part of a result behind, and says which file it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate import system
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from tests.e2e.command import here
from tests.fakes.full_disk import files_no_larger_than
from tests.fakes.scripted_server import ScriptedServer
from tests.shells.load_helpers import WHOLE

LOAD = ("--model", "scripted", "--engine", "openai", "--concurrency", "1", "--requests", "1", "--workers", "1")


@pytest.mark.parametrize("words", [("init", "suite.yaml"), ("init", "suite.yaml", "--drill", "affinity")])
def test_suite_that_does_not_fit_is_not_begun(tmp_path: Path, words: tuple[str, ...]) -> None:
    with files_no_larger_than(100):
        done = here(tmp_path, *words)
    assert done.returncode == 2
    assert "suite.yaml cannot be written: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_result_of_a_load_that_does_not_fit_is_printed_and_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_atomic(path: Path, data: bytes) -> None:
        with files_no_larger_than(100):  # the disk is full when the load is over
            system.write_atomic(path, data)

    monkeypatch.setattr("benchgate.cli.load.write_atomic", write_atomic)
    with ScriptedServer(lambda received: [WHOLE]) as server:
        done = here(tmp_path, "load", server.url, *LOAD, "--json", "result.json")
    assert done.returncode == 13, done.stderr
    assert "result.json could not be written: File too large" in done.stderr
    assert "ttft" in done.stdout.lower()
    assert list(tmp_path.iterdir()) == []


def test_capture_that_does_not_fit_leaves_whole_files_only(tmp_path: Path) -> None:
    with serve_sim(sim_settings(ttft_s=0.005, itl_s=0.002)) as sim, files_no_larger_than(1_000):
        done = here(tmp_path, "capture", sim.url, "--output", "out")
    assert done.returncode == 13, done.stderr
    assert "could not be written: File too large" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir() if path.suffix not in (".http", ".txt")] == []
