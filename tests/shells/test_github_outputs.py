from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.errors import ExitCode, PublishError
from benchgate.integrations.ci import SUMMARY_LIMIT_BYTES, publish_outputs, publish_summary, withdraw_outputs
from benchgate.model.verdict import Outcome
from tests.fakes import evidence as fake


def call(
    environment: dict[str, str],
    *,
    run_id: str = "run-1",
    report: Path | None = None,
    summary: str = "# s",
    statement: Path | None = None,
) -> None:
    publish_outputs(
        environment,
        verdict=fake.verdict(Outcome.BLOCK),
        run_id=run_id,
        exit_code=ExitCode.BLOCK,
        report_path=report,
        statement_path=statement,
    )
    publish_summary(environment, lambda: summary)


def outputs(path: Path) -> dict[str, str]:
    """The file as GitHub's runner reads it."""
    values: dict[str, str] = {}
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    for line in lines:
        name, heredoc, delimiter = line.partition("<<")
        if heredoc and "=" not in name:
            block: list[str] = []
            for inner in lines:
                if inner == delimiter:
                    break
                block.append(inner)
            values[name] = "\n".join(block)
        else:
            name, _, values[name] = line.partition("=")
    return values


def test_outputs_and_summary_are_appended_to_what_is_there(tmp_path: Path) -> None:
    output, summary, report = tmp_path / "output", tmp_path / "summary", tmp_path / "report.html"
    output.write_text("earlier=1\n")
    summary.write_text("earlier\n")
    report.write_bytes(b"<!doctype html>")
    call({"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}, report=report, summary="## BLOCK\n\n")
    assert outputs(output) == {
        "earlier": "1",
        "verdict": "block",
        "exit-code": "10",
        "run-id": "run-1",
        "report-path": str(report),
        "report-sha256": hashlib.sha256(b"<!doctype html>").hexdigest(),
        "checks-failed": "ttft-p50@c4",
        "summary-json": '{"checks_failed": ["ttft-p50@c4"], "exit_code": 10, "failed": 1, "passed": 4, '
        '"promotes": false, "run_id": "run-1", "verdict": "block", "warned": 0}',
    }
    assert summary.read_text() == "earlier\n## BLOCK\n"


@pytest.mark.parametrize("environment", [{}, {"GITHUB_OUTPUT": "", "GITHUB_STEP_SUMMARY": ""}])
def test_outside_github_nothing_is_written(environment: dict[str, str], tmp_path: Path) -> None:
    call(environment)
    assert list(tmp_path.iterdir()) == []


def test_no_summary_is_rendered_where_there_is_no_place_for_one(tmp_path: Path) -> None:
    environment = {"GITHUB_OUTPUT": str(tmp_path / "output")}
    publish_summary(environment, lambda: pytest.fail("the summary was rendered"))


def test_without_a_report_there_is_no_path_and_no_hash(tmp_path: Path) -> None:
    output = tmp_path / "output"
    call({"GITHUB_OUTPUT": str(output)})
    assert outputs(output).keys() == {"verdict", "exit-code", "run-id", "checks-failed", "summary-json"}


@pytest.mark.parametrize("run_id", ["a\nverdict=pass", "a b", "$(x)", "", "a\r", "::error::x", "-x"])
def test_a_run_id_that_could_be_more_than_a_name_is_refused(run_id: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with pytest.raises(PublishError, match="not fit for an output"):
        call({"GITHUB_OUTPUT": str(output)}, run_id=run_id)
    assert not output.exists()


def test_a_path_with_line_breaks_cannot_add_an_output(tmp_path: Path) -> None:
    folder = tmp_path / "x\nverdict=pass\nrun-id<<EOF"
    folder.mkdir()
    report = folder / "report.html"
    report.write_text("r")
    output = tmp_path / "output"
    call({"GITHUB_OUTPUT": str(output)}, report=report)
    assert outputs(output)["verdict"] == "block"
    assert outputs(output)["report-path"] == str(report)


def test_a_summary_past_the_limit_is_cut_at_a_line_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "summary"
    path.write_bytes(b"x" * 1000)
    call({"GITHUB_STEP_SUMMARY": str(path)}, summary="## BLOCK\n" + "漢字\n" * SUMMARY_LIMIT_BYTES)
    data = path.read_bytes()
    assert len(data) <= SUMMARY_LIMIT_BYTES
    text = data.decode()  # whole characters
    assert "## BLOCK" in text
    assert text.endswith("cut here: a job summary holds 1 MiB._\n")


def test_a_full_summary_is_an_error_and_not_a_silent_loss(tmp_path: Path) -> None:
    path = tmp_path / "summary"
    path.write_bytes(b"x" * SUMMARY_LIMIT_BYTES)
    with pytest.raises(PublishError, match="does not fit"):
        call({"GITHUB_STEP_SUMMARY": str(path)})
    assert path.stat().st_size == SUMMARY_LIMIT_BYTES


def test_a_file_that_cannot_be_written_or_read_is_a_publish_error(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="the verdict itself stands"):
        call({"GITHUB_OUTPUT": str(tmp_path)})
    with pytest.raises(PublishError, match=r"report\.html"):
        call({"GITHUB_OUTPUT": str(tmp_path / "o")}, report=tmp_path / "report.html")
    with pytest.raises(PublishError, match="nothing is measured"):
        withdraw_outputs({"GITHUB_OUTPUT": str(tmp_path)})


def test_what_was_said_is_withdrawn_whole(tmp_path: Path) -> None:
    output, report = tmp_path / "output", tmp_path / "report.html"
    report.write_text("r")
    call({"GITHUB_OUTPUT": str(output)}, report=report, statement=tmp_path / "report.html.intoto.json")
    told = outputs(output)
    withdraw_outputs({"GITHUB_OUTPUT": str(output)})
    assert outputs(output) == {**dict.fromkeys(told, ""), "verdict": "error"}


def test_names_of_checks_are_cut_to_what_no_shell_obeys(tmp_path: Path) -> None:
    output, blocked = tmp_path / "output", fake.verdict(Outcome.BLOCK)
    named = replace(blocked, checks=(replace(blocked.checks[-1], id="x'; $(curl evil), `y`\n\"@c1"),))
    publish_outputs(
        {"GITHUB_OUTPUT": str(output)}, verdict=named, run_id="r", exit_code=ExitCode.BLOCK, report_path=None
    )
    told = outputs(output)
    assert told["checks-failed"] == "x_____curl_evil____y___@c1"
    assert json.loads(told["summary-json"])["checks_failed"] == [told["checks-failed"]]
