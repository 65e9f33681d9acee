"""`--write FORMAT=FILE` and `report --format`: refused before anything is measured, and never a lost verdict."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchgate.cli.options import STORE, WORK_DIR, Format
from benchgate.cli.output import OutputOptions, conclude_each, finish
from benchgate.cli.run import RunArguments
from benchgate.errors import BenchgateError, ExitCode, PublishError, StoreError, SuiteError, UsageError
from benchgate.model.verdict import Outcome
from benchgate.pipeline import judge
from benchgate.pipeline.judge import Decision
from benchgate.release.attest import read_statement
from benchgate.report.document import OWN, verdict_document
from benchgate.report.formats import Output
from benchgate.store.repository import Store
from tests.fakes import evidence as fake
from tests.fakes import quick_command
from tests.fakes.measured import Effect
from tests.fakes.promotable import BLOCKED, CHECK, judged

SUITE = "suite: made-up\ngate:\n  checks:\n    - metric: ttft\n      margin: 10%\n"


def decision(outcome: Outcome = Outcome.PASS, store_fault: str | None = None) -> Decision:
    evidence, verdict = fake.evidence(), fake.verdict(outcome)
    fault = None if store_fault is None else StoreError(store_fault)
    return Decision(evidence, None, verdict, OWN, verdict_document(evidence.run, verdict), fault)


def _full(*_: object) -> None:
    raise PublishError("no space")


def verdict_of(junit: Path) -> str:
    case = next(ElementTree.parse(junit).getroot().iter("testcase"))
    return case[0].tag


@pytest.mark.parametrize(
    ("write", "says"),
    [
        ("junitt=a.xml", "did you mean junit?"),
        ("yaml=a.yaml", "expected one of html, json, markdown, junit"),
        ("junit", "expected FORMAT=FILE, like junit=report-junit.xml"),
        ("junit=", "expected FORMAT=FILE"),
        ("json=report.html", "--report and --write json both name report.html"),
        ("gitlab-annotations=a.json", "its address is unknown"),
        ("junit=folder", "folder is a folder"),
        ("junit=file/a.xml", "cannot be written"),
        ("junit=/dev/stdout", "a device would be replaced"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CI_JOB_URL", "GITHUB_ACTIONS", "TF_BUILD", "BUILD_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as refused:
        OutputOptions.parse(report=Path("report.html"), write=[write])
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("run SUITE --report STORE", "store"),
        ("run SUITE --waivers WAIVERS --write json=WAIVERS", "waivers"),
        ("gate --write junit=STORE", "store"),
        ("gate --policy SUITE --report SUITE", "suite"),
        ("compare @previous @latest --report STORE", "store"),
        ("report -o STORE", "store"),
        ("report --format sarif --suite SUITE -o SUITE", "suite"),
        ("trend ttft -o STORE", "store"),
        ("frontier --policy SUITE -o SUITE", "policy"),
        ("load http://127.0.0.1:1 --concurrency 1 --requests 1 --json STORE", "store"),
        ("load http://127.0.0.1:1 --concurrency 1 --requests 1 --prompts PROMPTS --json PROMPTS", "prompts"),
        ("load merge SPOOL --json STORE", "store"),
    ],
)
def test_what_a_command_reads_is_no_place_for_its_result(tmp_path: Path, words: str, name: str) -> None:
    files = {word: str(tmp_path / word.lower()) for word in ("SUITE", "STORE", "WAIVERS", "PROMPTS", "SPOOL")}
    for file in files.values():
        Path(file).write_text(SUITE)
    parts = [part.rpartition("=") for part in words.split()]
    given = [f"{before}{equals}{files.get(word, word)}" for before, equals, word in parts]
    with pytest.raises(UsageError, match=rf"the {name}\b.* name"):
        quick_command.told(*given, "--store", files["STORE"])
    assert {Path(file).read_text() for file in files.values()} == {SUITE}


def test_the_statement_beside_the_report_replaces_no_other_result(tmp_path: Path) -> None:
    report, beside = tmp_path / "r.html", tmp_path / "r.html.intoto.json"
    with pytest.raises(UsageError, match="--write json and the statement beside the report both name"):
        OutputOptions.parse(report=report, write=[f"json={beside}"])
    assert OutputOptions.parse(report=report, write=[f"intoto={beside}"]).statement == beside


def test_two_forms_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--write junit and --write sarif both name"):
        OutputOptions.parse(write=[f"junit={tmp_path}/a", f"sarif={tmp_path}/b/../a"])


def test_the_report_and_the_statement_are_formats_like_any_other(tmp_path: Path) -> None:
    html, other, intoto = (tmp_path / name for name in ("r.html", "other.html", "s.json"))
    output = OutputOptions.parse(write=[f"html={html}", f"intoto={intoto}"])
    assert (output.report, output.statement, output.files) == (html, intoto, ())
    output = OutputOptions.parse(report=html, write=[f"html={other}"])
    assert (output.report, output.files) == (html, ((Output.HTML, other),))
    with pytest.raises(UsageError, match="there is one statement"):
        OutputOptions.parse(write=[f"intoto={intoto}", f"intoto={tmp_path}/t.json"])


def test_every_format_of_standard_output_is_one_of_files_too() -> None:
    assert {form.value for form in Format} - {"text"} <= set(Output)


def test_the_suite_is_no_place_for_a_result(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE)
    with pytest.raises(UsageError, match="the suite and --write junit both name"):
        OutputOptions.parse(write=[f"junit={suite}"]).of_run(suite, tmp_path)
    assert suite.read_text() == SUITE


def test_the_command_that_resumes_a_run_judges_alike_and_writes_the_same_files(tmp_path: Path) -> None:
    files = [f"junit={tmp_path}/j.xml", f"intoto={tmp_path}/s.json"]
    output = OutputOptions.parse(report=tmp_path / "r.html", write=files, strict=True, format=Format.JSON)
    given = RunArguments("runs.db", WORK_DIR, output=output).command(Path("suite.yaml"))
    assert given == (
        f"benchgate run suite.yaml --store runs.db --report {tmp_path}/r.html --write intoto={tmp_path}/s.json "
        f"--write junit={tmp_path}/j.xml --format json --strict"
    )
    assert RunArguments(STORE, WORK_DIR).command(Path("suite.yaml")) == "benchgate run suite.yaml"


@pytest.mark.parametrize("words", ["--run nightly", "--ignore-missing-spool", "--resume"])
def test_nothing_is_resumed_by_samples(tmp_path: Path, words: str) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    samples = ("--samples", "baseline=a", "candidate=b")
    with pytest.raises(UsageError, match=f"{words.split()[0]} is of a run that sends requests"):
        quick_command.told("run", str(tmp_path / "suite.yaml"), *samples, *words.split())


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (UsageError("no such run"), True),
        (SuiteError([]), True),
        (StoreError("disk full"), False),
        (RuntimeError("a defect"), False),
        (KeyboardInterrupt(), False),
        (None, True),
    ],
)
def test_old_results_go_if_the_command_fails_unless_it_is_itself_wrong(
    tmp_path: Path, error: BaseException | None, stays: bool
) -> None:
    report, junit = tmp_path / "r.html", tmp_path / "junit.xml"
    report.write_text("of another run")
    junit.write_text("<testsuites/>")
    output = OutputOptions.parse(report=report, write=[f"junit={junit}"])
    with nullcontext() if error is None else pytest.raises(type(error)), output.cleared_on_failure():
        if error is not None:
            raise error
    assert (report.exists(), junit.exists()) == (stays, stays)


@pytest.mark.parametrize(
    "words", [("gate", "@previous"), ("compare", "nosuch", "@latest"), ("gate", "@latest", "--as-of", "2026-01-01")]
)
def test_a_mistyped_run_leaves_the_old_report_alone(tmp_path: Path, words: tuple[str, ...]) -> None:
    report, address = tmp_path / "r.html", str(tmp_path / "b.db")
    report.write_text("of another run")
    with Store.open(address) as opened:
        judged(opened, BLOCKED, checks=(CHECK,))
    with pytest.raises(UsageError):
        quick_command.told(*words, "--store", address, "--report", str(report))
    assert report.read_text() == "of another run"


def test_a_command_that_measures_removes_old_results_before_it_does(tmp_path: Path) -> None:
    report = tmp_path / "r.html"
    report.write_text("of another run")
    with pytest.raises(UsageError), OutputOptions(report=report).cleared_on_failure() as clear:
        clear()
        assert not report.exists()
        raise UsageError("the server is another one")


def test_each_candidate_has_files_of_its_own(tmp_path: Path) -> None:
    asked = OutputOptions.parse(write=[f"junit={tmp_path}/junit.xml", f"json={tmp_path}/verdict.json"])
    assert [file.name for _, file in asked.of_candidate("q8_0").files] == ["junit-q8_0.xml", "verdict-q8_0.json"]


def test_a_file_that_cannot_be_written_costs_the_promotion_and_not_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").touch()  # it was a folder when it was looked up
    files = ((Output.JUNIT, tmp_path / "gone" / "a.xml"), (Output.JSON, tmp_path / "b.json"))
    code = finish(decision(), OutputOptions(Format.JSON, files=files))
    told = capsys.readouterr()
    assert code is ExitCode.PUBLISH_FAILED
    assert json.loads(told.out)["outcome"] == "PASS"
    assert json.loads(told.out)["exit_code"] == 13
    assert "the verdict stands, but the verdict as junit could not be written" in told.err
    assert (tmp_path / "b.json").exists()


@pytest.mark.parametrize(("store_text", "others"), [(True, 0), (False, 0o044)])
def test_a_page_with_texts_of_users_is_its_owners_alone(tmp_path: Path, store_text: bool, others: int) -> None:
    made, old = decision(), os.umask(0o022)
    made.evidence.run.suite["shadow"]["store_text"] = store_text  # type: ignore[index]
    paths = [tmp_path / "a.html", tmp_path / "b.html", tmp_path / "c.xml"]
    try:
        finish(made, OutputOptions(report=paths[0], files=((Output.HTML, paths[1]), (Output.JUNIT, paths[2]))))
    finally:
        os.umask(old)
    assert [path.stat().st_mode & 0o077 for path in paths] == [others, others, 0o044]


def test_each_host_s_form_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for form in (Format.TEXT, Format.JUNIT, Format.GITHUB, Format.GITLAB):
        assert finish(decision(Outcome.BLOCK), OutputOptions(form)) is ExitCode.BLOCK
        said[form] = capsys.readouterr().out
    assert ElementTree.fromstring(said[Format.JUNIT]).tag == "testsuites"
    assert said[Format.GITLAB].endswith("# EOF\n")
    text, annotations = said[Format.GITHUB][: len(said[Format.TEXT])], said[Format.GITHUB][len(said[Format.TEXT]) :]
    assert text == said[Format.TEXT]
    assert annotations.startswith("::error title=benchgate verdict::BLOCK: ")


@pytest.mark.parametrize("report_fails", [True, False])
def test_outputs_are_red_where_store_or_report_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report_fails: bool
) -> None:
    monkeypatch.setattr(judge, "write_report", _full)
    report = tmp_path / "report.html" if report_fails else None
    made = decision(store_fault=None if report_fails else "disk full")
    output = OutputOptions(report=report, files=((Output.JUNIT, tmp_path / "a.xml"),))
    assert finish(made, output) is ExitCode.PUBLISH_FAILED
    assert verdict_of(tmp_path / "a.xml") == "error"


@pytest.mark.parametrize("fails", ["statement", "stdout", "another form", "summary"])
def test_what_was_written_green_is_red_where_something_fails_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: str
) -> None:
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "x"
    files = [(Output.JUNIT, tmp_path / "a.xml")] + ([(Output.JSON, nowhere)] if fails == "another form" else [])
    statement = nowhere if fails == "statement" else tmp_path / "s.json"
    told = tmp_path / "outputs"
    monkeypatch.setenv("GITHUB_OUTPUT", str(told))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(nowhere if fails == "summary" else tmp_path / "summary"))
    show = _full if fails == "stdout" else len
    output = OutputOptions(statement=statement, files=tuple(files), publish=True)
    code = finish(decision(), output, show=show)
    assert code is ExitCode.PUBLISH_FAILED
    assert verdict_of(tmp_path / "a.xml") == "error"
    if fails != "statement":
        assert read_statement((tmp_path / "s.json").read_bytes(), "x").tests.failed == ("kept",)
    codes = [line for line in told.read_text().splitlines() if line.startswith("exit-code=")]
    assert codes[-1] == ("exit-code=13" if fails == "another form" else "exit-code=")
    assert capsys.readouterr().err.count("the verdict stands, but") == 1


@pytest.mark.parametrize(("ends_by", "code"), [(KeyboardInterrupt, 130), (RuntimeError, 1)])
def test_what_was_written_green_is_removed_where_the_command_is_ended_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_by: type[BaseException], code: int
) -> None:
    told, summary = tmp_path / "outputs", tmp_path / "summary"
    monkeypatch.setenv("GITHUB_OUTPUT", str(told))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    output = OutputOptions(statement=tmp_path / "s.json", files=((Output.JUNIT, tmp_path / "a.xml"),), publish=True)

    def end(text: str) -> None:
        assert verdict_of(tmp_path / "a.xml") == "system-out"  # green by now
        raise ends_by

    with pytest.raises(ends_by):
        finish(decision(), output, show=end)
    assert not (tmp_path / "a.xml").exists() and not (tmp_path / "s.json").exists()
    assert [line for line in told.read_text().splitlines() if line.startswith("verdict=")][-1] == "verdict=error"
    assert summary.read_text().endswith(f"**No verdict above promotes: benchgate ended with exit code {code}.**\n")


def test_candidates_that_passed_are_red_where_their_documents_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchgate.cli.output.say_json_text", _full)
    output = OutputOptions(Format.JSON, files=((Output.JUNIT, tmp_path / "a.xml"),))
    made = {"good": decision(), "bad": decision(Outcome.BLOCK)}
    assert conclude_each(tuple(made), made.__getitem__, output) is ExitCode.PUBLISH_FAILED
    assert [verdict_of(tmp_path / f"a-{name}.xml") for name in made] == ["error", "failure"]


@pytest.mark.parametrize(("strict", "word"), [(False, "system-out"), (True, "failure")])
def test_strict_reaches_what_is_written(tmp_path: Path, strict: bool, word: str) -> None:
    output = OutputOptions(strict=strict, files=((Output.JUNIT, tmp_path / "a.xml"),))
    finish(decision(Outcome.WARN), output)
    assert verdict_of(tmp_path / "a.xml") == word


def test_what_is_written_beside_a_verdict_is_what_report_writes_of_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    store = str(tmp_path / "store.db")
    with Store.open(store) as opened:
        run_id, outcome = judged(opened, BLOCKED, checks=(CHECK,))
    assert outcome is Outcome.BLOCK
    forms = (Output.JSON, Output.JUNIT, Output.SARIF)
    link = ["--report-url", "https://ci.example/report.html", "--store", store]
    write = [word for form in forms for word in ("--write", f"{form}=now/{form}")]
    assert quick_command.told("gate", run_id, *write, *link).exit_code == 10
    for form in forms:
        assert quick_command.told("report", run_id, "--format", form, "-o", "later", *link).exit_code == 0
        assert Path("later").read_bytes() == Path(f"now/{form}").read_bytes()
    with Store.open(store) as opened:
        warned, _ = judged(opened, Effect(slowdown=1.05))
    arguments = ["report", warned, "--format", "junit", "-o", "warned.xml", "--store", store]
    for strict, tag in ([], "system-out"), (["--strict"], "failure"):
        assert quick_command.told(*arguments, *strict).exit_code == 0
        assert verdict_of(Path("warned.xml")) == tag
    Path("other.yaml").write_text(SUITE)
    with pytest.raises(BenchgateError):
        quick_command.told("report", run_id, "--format", "sarif", "--suite", "other.yaml", *link)
