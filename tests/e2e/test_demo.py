"""What `benchgate demo` says and ends with, given what it measured; CI runs all of it for real on every push."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.cli import run
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import Decision
from benchgate.pipeline.suite_file import SuiteFile
from tests.e2e.command import here
from tests.e2e.test_conclude import decision

pytestmark = pytest.mark.beside  # what it measured is given


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The candidates that were measured, each of which is blocked."""
    candidates: list[str | None] = []

    def blocked(file: SuiteFile, *_: object) -> Decision:
        assert file.path.name == "demo.yaml"
        candidates.append(file.suite.candidate)
        return decision(Outcome.BLOCK)

    monkeypatch.setattr(run, "_measure", blocked)
    return candidates


def test_a_demo_whose_verdicts_are_the_expected_ones_is_a_success(tmp_path: Path, asked: list[str | None]) -> None:
    result = here(tmp_path, "demo", "--candidate", "q2_k", "--candidate", "padded", "--out", "shown")
    assert (result.returncode, asked) == (0, ["q2_k", "padded"])
    assert result.stdout.splitlines()[-2:] == [
        "q2_k     BLOCK        exit 10  shown/report-q2_k.html",
        "padded   BLOCK        exit 10  shown/report-padded.html",
    ]
    assert "BLOCK" in (tmp_path / "shown/report-padded.html").read_text(encoding="utf-8")


def test_a_demo_is_repeated_without_the_label_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[str | None] = []

    def measure(_: SuiteFile, arguments: run.RunArguments) -> Decision:
        labels.append(arguments.label)
        return decision(Outcome.BLOCK)

    monkeypatch.setattr(run, "_measure", measure)
    for _ in range(2):
        assert here(tmp_path, "demo", "--candidate", "q2_k").returncode == 0
    given = [label for label in labels if label is not None]
    assert (len(labels), len(given)) == (2, len(set(given)))


def test_a_demo_with_another_verdict_is_none_and_says_what_was_expected(
    tmp_path: Path, asked: list[str | None]
) -> None:
    result = here(tmp_path, "demo")
    assert (result.returncode, asked) == (12, ["q8_0", "q2_k", "padded"])
    assert "q8_0 PASS or WARN, q2_k BLOCK, padded BLOCK" in result.stderr


def test_a_demo_whose_reports_could_not_be_written_is_no_success(tmp_path: Path, asked: list[str | None]) -> None:
    (tmp_path / "report-q2_k.html").mkdir()
    result = here(tmp_path, "demo", "--candidate", "q2_k", "--out", ".")
    assert (result.returncode, asked) == (13, ["q2_k"])
    assert "q2_k     BLOCK        exit 13  report-q2_k.html" in result.stdout
