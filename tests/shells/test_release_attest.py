"""The statement of a verdict: what it says of each outcome, that no change of it goes unseen, where it is left."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.cli.options import Format
from benchgate.cli.output import OutputOptions, conclude_each, finish
from benchgate.errors import ExitCode, StoreError, UsageError
from benchgate.integrations.ci import run_url
from benchgate.model.deployment import Arm
from benchgate.model.verdict import ChecksByResult, GuardResult, Outcome, Verdict
from benchgate.pipeline.judge import Decision
from benchgate.release.attest import NotAStatement, StatedFile, read_statement, statement_of
from benchgate.report.document import OWN, verdict_document
from tests.fakes import evidence as fake


def decision(verdict: Verdict | None = None, *, store_fault: str | None = None) -> Decision:
    evidence, said = fake.evidence(), verdict or fake.verdict(Outcome.PASS)
    document = verdict_document(evidence.run, said)
    fault = None if store_fault is None else StoreError(store_fault)
    return Decision(evidence, None, said, OWN, document, fault, evidence_sha256="e1" * 32)


def document(made: Decision, code: ExitCode | None = None) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(statement_of(made, made.exit_code if code is None else code).data())
    return said


@pytest.mark.parametrize(
    ("outcome", "result", "warned", "failed"),
    [
        (Outcome.PASS, "PASSED", [], []),
        (Outcome.WARN, "WARNED", ["ttft-p50@c4"], []),
        (Outcome.BLOCK, "FAILED", [], ["ttft-p50@c4"]),
        (Outcome.INCONCLUSIVE, "FAILED", [], ["ttft-p50@c4", "comparability"]),
        (Outcome.INVALID, "FAILED", [], ["ttft-p50@c4", "comparability"]),
    ],
)
def test_only_what_ends_with_0_is_no_failure_and_every_check_is_in_one_list(
    outcome: Outcome, result: str, warned: list[str], failed: list[str]
) -> None:
    made = decision(fake.verdict(outcome))
    said = document(made)["predicate"]
    assert (said["result"], said["warnedTests"], said["failedTests"]) == (result, warned, failed)
    others = ["output_throughput@c1", "accuracy", "goodput-c1", "shadow-excess"]
    assert said["passedTests"] == others + (["ttft-p50@c4"] if outcome is Outcome.PASS else [])
    assert said["benchgate"]["exit_code"] == {"PASS": 0, "WARN": 0, "BLOCK": 10, "INCONCLUSIVE": 11}.get(outcome, 12)


def test_with_strict_a_warning_failed_as_its_exit_code_says() -> None:
    said = document(decision(fake.verdict(Outcome.WARN)).with_strict(strict=True))["predicate"]
    assert (said["result"], said["warnedTests"], said["failedTests"]) == ("FAILED", [], ["ttft-p50@c4"])
    assert (said["benchgate"]["exit_code"], said["benchgate"]["strict"]) == (10, True)


def test_verdict_that_was_not_kept_failed() -> None:
    said = document(decision(store_fault="disk full"), ExitCode.PUBLISH_FAILED)["predicate"]
    assert (said["result"], said["failedTests"], said["benchgate"]["exit_code"]) == ("FAILED", ["kept"], 13)


def test_tripped_guards_failed_by_name_and_advisory_checks_only_warn() -> None:
    verdict = fake.verdict(Outcome.INVALID)
    advisory = tuple(replace(one, required=False) for one in verdict.checks)
    guard = GuardResult("client-keeps-up", True, "it did not", "use a larger machine")
    said = document(decision(replace(verdict, checks=advisory, guards=(*verdict.guards, guard))))["predicate"]
    assert (said["warnedTests"], said["failedTests"]) == (["ttft-p50@c4"], ["client-keeps-up", "comparability"])


def test_statement_has_the_layers_of_in_toto_and_the_hashes_of_what_it_is_of() -> None:
    made = decision()
    report, suite = hashlib.sha256(b"<!doctype html>").hexdigest(), hashlib.sha256(b"suite: x").hexdigest()
    url = "https://ci.example/1"
    stated = statement_of(made, ExitCode.OK, report=StatedFile("report.html", report), suite_file_sha256=suite, url=url)
    said = json.loads(stated.data())
    assert said.keys() == {"_type", "subject", "predicateType", "predicate"}
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    printed = hashlib.sha256(made.json(made.exit_code).encode()).hexdigest()
    assert {one["name"]: one["digest"] for one in said["subject"]} == {
        "report.html": {"sha256": report},
        "benchgate/verdict": {"sha256": printed},
        "benchgate/suite": {"sha256": "5f" * 32},
        "benchgate/evidence": {"sha256": "e1" * 32},
    }
    configuration = {one["name"]: one["digest"]["sha256"] for one in said["predicate"]["configuration"]}
    assert configuration == {"suite": "5f" * 32, "suite-file": suite, "plan": "c7" * 32}  # this verdict has no policy
    assert said["predicate"]["url"] == url
    assert said["predicate"]["benchgate"]["run"]["id"] == made.evidence.run.id


@pytest.mark.parametrize(
    ("revision", "digest"),
    [("ab" * 20, {"gitCommit": "ab" * 20}), (f"sha256:{'cd' * 32}", {"sha256": "cd" * 32}), ("main", None)],
)
def test_weights_that_are_pinned_are_a_subject(revision: str, digest: dict[str, str] | None) -> None:
    made = decision()
    served = replace(fake.deployment(Arm.CANDIDATE), url="http://q4", settings={"revision": revision})
    run = replace(made.evidence.run, arms={**made.evidence.run.arms, Arm.CANDIDATE: served})
    said = document(replace(made, evidence=replace(made.evidence, run=run)))
    found = [one["digest"] for one in said["subject"] if one["name"] == "candidate/q4"]
    assert found == ([] if digest is None else [digest])


@pytest.mark.parametrize("ref", ["cd" * 20, "main", None])
def test_adapters_that_the_load_asks_for_are_weights_of_the_candidate(ref: str | None) -> None:
    made = decision()
    served = replace(fake.deployment(Arm.CANDIDATE), url="http://q4", settings={"revision": "ab" * 20})
    adapter = "tone" if ref is None else f"tone@{ref}"
    load: Any = made.evidence.run.suite["load"]
    asked = {**load, "workload": {**load["workload"], "adapter": adapter}}
    run = replace(
        made.evidence.run,
        suite={**made.evidence.run.suite, "load": asked},
        arms={**made.evidence.run.arms, Arm.CANDIDATE: served},
    )
    stated = statement_of(replace(made, evidence=replace(made.evidence, run=run)), ExitCode.OK)
    found = {one["name"]: one["digest"] for one in stated.document()["subject"] if one["name"].startswith("candidate")}
    base = {"candidate/q4": {"gitCommit": "ab" * 20}, "candidate/q4/adapter/tone": {"gitCommit": ref}}
    assert found == (base if ref == "cd" * 20 else {})
    assert stated.arms["candidate"].adapters == (adapter,)
    assert read_statement(stated.data(), "x") == stated


def test_same_decision_gives_the_same_bytes_and_they_read_back_as_they_were() -> None:
    made = decision(fake.verdict(Outcome.WARN))
    stated = statement_of(made, made.exit_code, report=StatedFile("r.html", "0" * 64), url="https://ci.example/1")
    data = stated.data()
    assert data == statement_of(made, made.exit_code, report=stated.report, url=stated.url).data()
    assert read_statement(data, "x") == stated
    assert data.isascii() and data.endswith(b"}\n")


def test_a_change_of_any_one_byte_is_found() -> None:
    data = statement_of(decision(), ExitCode.OK, report=StatedFile("r.html", "0" * 64)).data()
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ (1 << place % 7)]) + data[place + 1 :]
        with pytest.raises(NotAStatement, match="is no statement as benchgate wrote it"):
            read_statement(changed, "x")


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace(b'"outcome": "BLOCK"', b'"outcome": "PASS"'),
        lambda text: text.replace(b'"exit_code": 10', b'"exit_code": 0'),
        lambda text: text.replace(b'"result": "FAILED"', b'"result": "PASSED"'),
        lambda text: text.replace(b"\n", b"\n "),
        lambda text: text + b"\n",
        lambda text: text[:-40],
        lambda text: b"\xff" + text,
        lambda _: b"{}",
        lambda _: b"[" * 100_000,
        lambda _: b"",
    ],
)
def test_what_benchgate_did_not_write_just_so_is_refused_with_the_code_of_invalid(changed: Any) -> None:
    data = statement_of(decision(fake.verdict(Outcome.BLOCK)), ExitCode.BLOCK).data()
    with pytest.raises(NotAStatement) as refused:
        read_statement(changed(data), "x")
    assert refused.value.exit_code is ExitCode.INVALID


def test_exit_code_of_another_outcome_is_refused_even_where_every_hash_is_made_to_fit() -> None:
    forged = statement_of(decision(fake.verdict(Outcome.BLOCK)), ExitCode.OK).data()
    with pytest.raises(NotAStatement, match="BLOCK does not end with 0"):
        read_statement(forged, "x")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tests": ChecksByResult((), (), ("ttft-p50@c4",))}, "failed tests and exit code 0 contradict each other"),
        (
            {"outcome": Outcome.BLOCK, "exit_code": ExitCode.BLOCK},
            "failed tests and exit code 10 contradict each other",
        ),
        ({"arms": {}}, "expected a baseline and a candidate"),
        ({"tool_version": "1\n::error::x"}, "expected a text on one line"),
        ({"waivers_as_of": "\x1b[2J"}, "expected a text on one line"),
        ({"url": "\ud800"}, "expected a text on one line"),
    ],
)
def test_forgery_that_contradicts_itself_or_commands_a_terminal_is_refused_whatever_its_hash(
    changes: dict[str, Any], says: str
) -> None:
    forged = replace(statement_of(decision(), ExitCode.OK), **changes).data()
    with pytest.raises(NotAStatement, match=says):
        read_statement(forged, "x")


def test_warning_of_no_check_of_its_own_is_a_failed_test_with_strict() -> None:
    """As of a reference run that was not to be promoted itself."""
    verdict = replace(fake.verdict(Outcome.PASS), outcome=Outcome.WARN)
    said = document(decision(verdict).with_strict(strict=True))["predicate"]
    assert (said["result"], said["failedTests"]) == ("FAILED", ["comparability"])


def test_true_report_and_statement_of_an_earlier_run_are_gone_before_the_next_one_begins(tmp_path: Path) -> None:
    names = ("r.html", "r.html.intoto.json", "s.json", "r-q8.html", "r-q8.html.intoto.json", "s-q8.json")
    for name in names:
        (tmp_path / name).write_text("of another run")

    def crash(_: str) -> Decision:
        raise RuntimeError("a defect")

    output = OutputOptions(report=tmp_path / "r.html", statement=tmp_path / "s.json")
    assert len(list(tmp_path.iterdir())) == len(names)
    with pytest.raises(RuntimeError):
        conclude_each(("q8",), crash, output)
    assert list(tmp_path.iterdir()) == []


def test_it_stands_beside_the_report_with_the_hash_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = tmp_path / "outputs"
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    report = tmp_path / "out" / "report.html"
    code = finish(decision(), OutputOptions(report=report, suite_file_sha256="5" * 64, publish=True))
    stated = read_statement((tmp_path / "out" / "report.html.intoto.json").read_bytes(), "x")
    assert (code, stated.result, stated.suite_file_sha256) == (ExitCode.OK, "PASSED", "5" * 64)
    assert stated.report == StatedFile("report.html", hashlib.sha256(report.read_bytes()).hexdigest())
    assert f"statement: {report}.intoto.json" in capsys.readouterr().err.splitlines()
    assert f"statement-path={report}.intoto.json\n" in outputs.read_text()


def test_without_a_report_it_is_in_the_folder_of_the_run_or_where_it_was_asked_for(tmp_path: Path) -> None:
    made = decision()
    finish(made, OutputOptions(work_dir=tmp_path / "work"), show=len)
    left = tmp_path / "work" / made.evidence.run.id / "verdict.intoto.json"
    assert read_statement(left.read_bytes(), "x").report is None
    finish(made, OutputOptions(statement=tmp_path / "s.json", work_dir=tmp_path / "other"), show=len)
    assert (tmp_path / "s.json").read_bytes() == left.read_bytes()
    assert not (tmp_path / "other").exists()


def test_one_that_cannot_be_written_ends_with_13_and_the_verdict_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    code = finish(decision(), OutputOptions(Format.JSON, statement=tmp_path / "file" / "s.json"))
    said = capsys.readouterr()
    assert (code, json.loads(said.out)["outcome"]) == (ExitCode.PUBLISH_FAILED, "PASS")
    assert "the verdict stands, but the statement could not be written" in said.err


def test_each_of_several_candidates_has_its_own(tmp_path: Path) -> None:
    made = {"q8": decision(), "q2": decision(fake.verdict(Outcome.BLOCK))}
    conclude_each(tuple(made), made.__getitem__, OutputOptions(statement=tmp_path / "s.json"))
    found = {name: read_statement((tmp_path / f"s-{name}.json").read_bytes(), "x").result for name in made}
    assert found == {"q8": "PASSED", "q2": "FAILED"}


def test_a_place_that_cannot_be_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        OutputOptions.parse(write=[f"intoto={tmp_path}"])
    with pytest.raises(UsageError, match="give each a file of its own"):
        OutputOptions.parse(report=tmp_path / "x", write=[f"intoto={tmp_path}/x"])
    suite = tmp_path / "s.yaml"
    suite.write_bytes(b"suite: x")
    with pytest.raises(UsageError, match="the suite and --report both name"):
        OutputOptions(report=suite).of_run(suite, tmp_path)
    output = OutputOptions().of_run(suite, tmp_path)
    assert output.suite_file_sha256 == "c5fae45d3e67322f3c460e04c264224b772a6250a9c8df08a413316775da4475"
    assert output.publish and OutputOptions().statement_path("run") is None


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, None),
        (
            {
                "GITHUB_ACTIONS": "true",
                "GITHUB_SERVER_URL": "https://github.example",
                "GITHUB_REPOSITORY": "org/models",
                "GITHUB_RUN_ID": "42",
            },
            "https://github.example/org/models/actions/runs/42",
        ),
        ({"CI_JOB_URL": "https://gitlab.example/a/b/-/jobs/7"}, "https://gitlab.example/a/b/-/jobs/7"),
        ({"BUILD_URL": "http://jenkins.example:8080/job/gate/5/"}, "http://jenkins.example:8080/job/gate/5/"),
        (
            {
                "TF_BUILD": "True",
                "SYSTEM_COLLECTIONURI": "https://dev.azure.example/org/",
                "SYSTEM_TEAMPROJECT": "models",
                "BUILD_BUILDID": "9",
            },
            "https://dev.azure.example/org/models/_build/results?buildId=9",
        ),
        ({"BUILD_URL": "https://anna:secret@jenkins.example/"}, None),
        ({"BUILD_URL": "javascript:alert(1)"}, None),
        ({"BUILD_URL": "https://x.example/\nverdict=pass"}, None),
    ],
)
def test_page_of_the_run_is_taken_from_the_ci_and_only_in_the_form_of_an_address(
    environment: dict[str, str], url: str | None
) -> None:
    assert run_url(environment) == url
