"""What a command prints of a verdict, and the code it ends with, say the same, whatever fails between the two."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from benchgate.cli import interruption, output
from benchgate.cli.options import Format
from benchgate.cli.output import OutputOptions, finish
from benchgate.errors import ExitCode, PublishError, StoreError
from benchgate.model.verdict import Outcome
from benchgate.pipeline import judge
from benchgate.pipeline.judge import Decision
from benchgate.report.document import OWN, verdict_document
from benchgate.report.formats import Output
from tests.fakes import evidence as fake

pytestmark = pytest.mark.beside


REPORT = Path("report.html")


def decision(outcome: Outcome = Outcome.PASS, store_fault: str | None = None) -> Decision:
    evidence, verdict = fake.evidence(), fake.verdict(outcome)
    fault = None if store_fault is None else StoreError(store_fault)
    return Decision(evidence, None, verdict, OWN, verdict_document(evidence.run, verdict), fault)


def failing(error: BaseException) -> Callable[..., None]:
    def write(*_: object, **__: object) -> None:
        raise error

    return write


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(("strict", "code"), [(False, ExitCode.OK), (True, ExitCode.BLOCK)])
def test_a_warning_is_printed_with_the_code_it_ends_with(
    capsys: pytest.CaptureFixture[str], strict: bool, code: ExitCode
) -> None:
    assert finish(decision(Outcome.WARN), OutputOptions(Format.JSON, strict)) is code
    said = printed(capsys)
    assert (said["outcome"], said["exit_code"], said["promotes"]) == ("WARN", int(code), not strict)


@pytest.mark.parametrize(
    ("store_fault", "report_error"),
    [("disk full", None), (None, PublishError("no space")), ("disk full", PublishError())],
)
def test_a_verdict_that_was_not_kept_or_published_is_printed_with_code_13(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    store_fault: str | None,
    report_error: PublishError | None,
) -> None:
    if report_error is not None:
        monkeypatch.setattr(judge, "write_report", failing(report_error))
    report = REPORT if report_error is not None else None
    assert finish(decision(store_fault=store_fault), OutputOptions(Format.JSON, False, report=report)) == 13
    said = printed(capsys)
    assert (said["outcome"], said["exit_code"], said["promotes"]) == ("PASS", 13, False)


@pytest.mark.parametrize("form", [Format.TEXT, Format.MARKDOWN, Format.GITHUB])
def test_a_pass_that_was_not_kept_is_shown_nowhere_as_one_to_promote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: Format
) -> None:
    outputs, summary, written = tmp_path / "outputs", tmp_path / "summary", tmp_path / "verdict.md"
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    options = OutputOptions(form, files=((Output.MARKDOWN, written),), publish=True)
    assert finish(decision(store_fault="disk full"), options) is ExitCode.PUBLISH_FAILED
    for text in (capsys.readouterr().out, summary.read_text(), written.read_text()):
        assert "PASS (not promoted)" in text and "benchgate promote" not in text
        assert "exit code 13" in text and "exit code 0" not in text
    assert "verdict=error\nexit-code=13\n" in outputs.read_text()


@pytest.mark.parametrize(("error", "code"), [(RuntimeError("a defect"), 1), (KeyboardInterrupt(), 130)])
def test_a_crash_after_the_verdict_does_not_swallow_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    monkeypatch.setattr(judge, "write_report", failing(error))
    with pytest.raises(type(error)):
        finish(decision(), OutputOptions(Format.JSON, False, report=REPORT))
    said = printed(capsys)
    assert (said["outcome"], said["exit_code"], said["promotes"]) == ("PASS", code, False)


def test_a_termination_while_publishing_is_printed_with_its_own_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `main` has it: SIGTERM comes as a KeyboardInterrupt, and the process ends with 143 and not with 130."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(interruption, "_code", ExitCode.INTERRUPTED)
    monkeypatch.setattr(judge, "write_report", lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        interruption.unwind_on_termination()
        with pytest.raises(KeyboardInterrupt):
            finish(decision(), OutputOptions(Format.JSON, False, report=REPORT))
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    said = printed(capsys)
    assert (said["outcome"], said["exit_code"], said["promotes"]) == ("PASS", 143, False)


def test_verdict_whose_output_is_lost_stands_on_stderr_and_ends_with_13(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "outputs"
    monkeypatch.setenv("GITHUB_OUTPUT", str(told))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    lost = failing(PublishError("standard output is closed"))
    code = finish(decision(Outcome.PASS), OutputOptions(publish=True), show=lost)
    assert code is ExitCode.PUBLISH_FAILED
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("benchgate: PASS: ")
    assert second == "benchgate: the verdict stands, but standard output is closed"
    said = told.read_text()
    assert said.index("verdict=pass") < said.index("verdict=error")  # what is written last holds


def test_verdicts_of_several_candidates_whose_output_is_lost_stand_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "say_json_text", failing(PublishError("standard output is closed")))
    outcomes = {"q8": Outcome.PASS, "q2": Outcome.BLOCK}
    code = output.conclude_each(tuple(outcomes), lambda name: decision(outcomes[name]), OutputOptions(Format.JSON))
    assert code is ExitCode.PUBLISH_FAILED
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in told] == [
        "PASS",
        "BLOCK",
        "the verdicts stand, but standard output is closed",
    ]
