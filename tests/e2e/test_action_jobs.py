"""What the later jobs of the reusable workflows ask of benchgate, and whether it knows what they ask."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import typer.main

from benchgate.cli.app import app
from tests.e2e.ci_scripts import (
    ROOT,
    StepResult,
    put_scripts,
    read_yaml,
    run_lines,
    run_script,
    step_named,
    write_program,
)

pytestmark = pytest.mark.beside

GATE = read_yaml(ROOT / ".github/workflows/gate.yml")
# What the steps set in a call of the workflow with nothing but a suite.
SETS = {
    "ci-publish": {"SUITE": "suite.yaml", "CHECK_RUN": "true", "STRICT": "false"},
    "ci-promote": {"REPORT": "evidence/benchgate-report.html", "STRICT": "false", "REQUIRE_PINNED": "false"},
}
# Keeps what it is asked for, each argument with a sign after it that none can hold, and ends as the test says.
RECORDS = """#!/usr/bin/env bash
printf '%s\\037' "$@" >>asked
echo >>asked
echo "$BENCHGATE_STORE" >>stores
[[ $1 != "$FAILS" ]]
"""


def ask(
    scratch: Path, script: str, *arguments: str, fails: str = "nothing", **env: str
) -> tuple[StepResult, list[list[str]]]:
    """Run a script with the variables that its step sets; the step, and the calls of benchgate in it."""
    put_scripts(scratch / "benchgate-action")
    write_program(scratch / "benchgate-action/.venv/bin/benchgate", RECORDS)
    done = run_script(scratch, script, *arguments, **{**SETS[script], "FAILS": fails, **env})
    asked = scratch / "asked"
    lines = asked.read_text(encoding="utf-8").splitlines() if asked.exists() else []
    return done, [line.split("\x1f")[:-1] for line in lines]


def known(arguments: list[str]) -> bool:
    """Whether the command line takes these arguments; it raises for those that it does not."""
    command, words = typer.main.get_command(app), list(arguments)
    while commands := getattr(command, "commands", None):
        command = commands[words.pop(0)]
    command.make_context(str(command.name), words)
    return True


def put_bundle(folder: Path) -> None:
    """The run's bundle where the job downloads it to."""
    (folder / "evidence").mkdir(parents=True)
    (folder / "evidence/0199.json").touch()


def test_before_measuring_the_check_is_set_in_progress(tmp_path: Path) -> None:
    done, calls = ask(tmp_path, "ci-publish", "begin", CANDIDATE="q4")
    assert done.green, done.printed
    assert calls == [["publish", "--check-run", "--begin=suite.yaml", "--candidate=q4"]]
    assert known(calls[0])


def test_a_verdict_is_judged_again_from_its_bundle_and_told(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").touch()
    put_bundle(tmp_path)
    done, calls = ask(tmp_path, "ci-publish", RUN_ID="0199", COMMENT="true", STRICT="true", WAIVERS="w.yaml")
    assert done.green, done.printed
    assert calls == [
        ["store", "import", "evidence/0199.json"],
        ["publish", "--comment", "--check-run", "--strict", "--suite=suite.yaml", "--waivers=w.yaml", "--", "0199"],
    ]
    assert all(known(call) for call in calls)


@pytest.mark.parametrize("run_id", ["", "0199"], ids=["no run", "no bundle of it"])
def test_a_gate_without_a_verdict_is_told_as_that(tmp_path: Path, run_id: str) -> None:
    done, calls = ask(tmp_path, "ci-publish", RUN_ID=run_id, CANDIDATE="q4", STRICT="true")
    assert done.green, done.printed
    assert calls == [["publish", "--check-run", "--no-verdict=suite.yaml", "--candidate=q4"]]
    assert known(calls[0])


def test_a_promotion_is_judged_again_recorded_and_handed_on(tmp_path: Path) -> None:
    report = "evidence/chat-report.html"
    done, calls = ask(
        tmp_path, "ci-promote", RUN_ID="0199", REPORT=report, STRICT="true", WAIVERS="w.yaml", REQUIRE_PINNED="true"
    )
    assert done.green, done.printed
    assert calls == [
        ["store", "import", "evidence/0199.json"],
        ["promote", f"--report={report}", "--strict", "--waivers=w.yaml", "--require-pinned", "--", "0199"],
        ["store", "export", "--to=promoted", "--", "0199"],
    ]
    assert all(known(call) for call in calls)


@pytest.mark.parametrize("script", ["ci-publish", "ci-promote"])
def test_a_run_is_judged_again_beside_no_store_that_the_checkout_has(tmp_path: Path, script: str) -> None:
    put_bundle(tmp_path)
    assert ask(tmp_path, script, RUN_ID="0199")[0].green
    assert set((tmp_path / "stores").read_text().split()) == {f"{tmp_path}/benchgate/benchgate.db"}
    put_bundle(tmp_path / "given")
    assert ask(tmp_path / "given", script, RUN_ID="0199", BENCHGATE_STORE_INPUT="postgresql://db/runs")[0].green
    assert set((tmp_path / "given/stores").read_text().split()) == {"postgresql://db/runs"}


def test_what_the_checkout_has_is_not_handed_on_as_promoted(tmp_path: Path) -> None:
    (tmp_path / "promoted").mkdir()
    (tmp_path / "promoted/0190b2c4-7d1e-7a3b-9c5f-000000000000.json").touch()
    assert ask(tmp_path, "ci-promote", RUN_ID="0199")[0].green
    assert not (tmp_path / "promoted").exists()


@pytest.mark.parametrize("asked", ["publish", "promote"])
def test_what_could_not_be_told_or_promoted_is_red(tmp_path: Path, asked: str) -> None:
    put_bundle(tmp_path)
    done, calls = ask(tmp_path, f"ci-{asked}", RUN_ID="0199", fails=asked)
    assert not done.green
    assert calls[-1][0] == asked  # and nothing was handed on after it


@pytest.mark.parametrize("script", ["ci-publish", "ci-promote"])
def test_a_bundle_that_is_not_what_the_gate_left_is_neither_told_nor_promoted(tmp_path: Path, script: str) -> None:
    put_bundle(tmp_path)
    done, calls = ask(tmp_path, script, RUN_ID="0199", fails="store")
    assert (done.green, [call[0] for call in calls]) == (False, ["store"])


@pytest.mark.parametrize(
    ("job", "handed"),
    [
        (
            "publish",
            {
                "GITHUB_TOKEN": "${{ github.token }}",
                "BENCHGATE_STORE_INPUT": "${{ secrets.store }}",
                "RUN_ID": "${{ needs.gate.outputs.run-id }}",
                "SUITE": "${{ inputs.suite }}",
                "CANDIDATE": "${{ inputs.candidate }}",
                "COMMENT": "${{ inputs.comment && github.event_name == 'pull_request' }}",
                "CHECK_RUN": "${{ inputs.check-run }}",
                "STRICT": "${{ inputs.strict }}",
                "WAIVERS": "${{ inputs.waivers }}",
            },
        ),
        (
            "promote",
            {
                "BENCHGATE_STORE_INPUT": "${{ secrets.store }}",
                "RUN_ID": "${{ needs.gate.outputs.run-id }}",
                "REPORT": "evidence/${{ inputs.name }}-report.html",
                "STRICT": "${{ inputs.strict }}",
                "WAIVERS": "${{ inputs.waivers }}",
                "REQUIRE_PINNED": "${{ inputs.require-pinned }}",
            },
        ),
    ],
)
def test_the_steps_hand_their_scripts_the_inputs_of_the_workflow(job: str, handed: dict[str, str]) -> None:
    step = step_named(GATE["jobs"][job], job)
    assert (step["run"], step["env"]) == (f"./benchgate-action/scripts/ci-{job}", handed)


def test_the_branch_is_read_where_there_is_one() -> None:
    for job in ("publish", "promote"):
        assert "inputs.history-branch != ''" in step_named(GATE["jobs"][job], "history")["if"]


@pytest.mark.parametrize("job", ["publish", "promote"])
def test_later_jobs_take_the_very_evidence_that_the_gate_left_and_nothing_else_of_its_name(job: str) -> None:
    assert GATE["jobs"]["gate"]["outputs"]["evidence-id"] == "${{ steps.evidence.outputs.artifact-id }}"
    assert step_named(GATE["jobs"]["gate"], "evidence")["with"]["path"] == "${{ runner.temp }}/benchgate-evidence"
    step = step_named(GATE["jobs"][job], "evidence")
    assert step["with"] == {"artifact-ids": "${{ needs.gate.outputs.evidence-id }}", "path": "evidence"}
    # without an id everything would be downloaded
    assert step["if"] == "${{ needs.gate.outputs.evidence-id != '' }}"


RUN = "0190b2c4-7d1e-7a3b-9c5f-000000000000.json"


@pytest.mark.parametrize(
    "kept", [[RUN], [f"benchgate-evidence/{RUN}", f"benchgate-promoted/{RUN}"]], ids=["one artifact", "two"]
)
def test_a_run_is_kept_where_it_was_promoted_and_where_it_was_not(tmp_path: Path, kept: list[str]) -> None:
    """download-artifact gives two artifacts of a pattern a folder each, and one alone none."""
    write_program(tmp_path / "benchgate-action/scripts/ci-history", '#!/usr/bin/env bash\nprintf "%s\\n" "$@" >asked\n')
    for file in kept:
        for path in (tmp_path / "kept" / file, (tmp_path / "kept" / file).with_name("statement.intoto.json")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    keep = read_yaml(ROOT / ".github/workflows/history.yml")["jobs"]["keep"]
    assert run_lines(tmp_path, step_named(keep, "push")["run"], {}).green
    assert (tmp_path / "asked").read_text(encoding="utf-8").split() == ["push", *(f"kept/{file}" for file in kept)]


def test_a_statement_is_taken_apart_for_the_signer_and_its_own_file_is_a_subject(tmp_path: Path) -> None:
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "report.html", "digest": {"sha256": "a" * 64}},
            {"name": "candidate/q4", "digest": {"gitCommit": "b" * 40}},
        ],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {"result": "FAILED", "failedTests": ["ttft-p50@c4"]},
    }
    data = json.dumps(statement).encode()
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence/statement.intoto.json").write_bytes(data)
    put_scripts(tmp_path / "benchgate-action")
    attest = read_yaml(ROOT / ".github/workflows/attest.yml")["jobs"]["attest"]
    done = run_lines(tmp_path, step_named(attest, "parts")["run"], {})
    assert done.green, done.printed
    assert done.outputs["predicate-type"] == statement["predicateType"]
    assert json.loads((tmp_path / done.outputs["predicate"]).read_text()) == statement["predicate"]
    assert (tmp_path / done.outputs["subjects"]).read_text(encoding="utf-8").splitlines() == [
        f"{hashlib.sha256(data).hexdigest()}  statement.intoto.json",
        f"{'a' * 64}  report.html",
    ]


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("predicateType", "https://slsa.dev/provenance/v1"),
        ("subject", [{"name": "a\nb", "digest": {"sha256": "a" * 64}}]),
    ],
)
def test_another_kind_of_statement_is_not_signed(tmp_path: Path, change: str, value: object) -> None:
    kind = "https://in-toto.io/attestation/test-result/v0.1"
    statement = {"subject": [], "predicateType": kind, "predicate": {}} | {change: value}
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence/statement.intoto.json").write_text(json.dumps(statement), encoding="utf-8")
    put_scripts(tmp_path / "benchgate-action")
    attest = read_yaml(ROOT / ".github/workflows/attest.yml")["jobs"]["attest"]
    done = run_lines(tmp_path, step_named(attest, "parts")["run"], {})
    assert (done.green, done.outputs) == (False, {})
