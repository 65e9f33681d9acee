"""`benchgate action publish`, `promote` and `attest`: the later jobs of the reusable workflows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import quick_command
from tests.fakes.action_steps import GATE, FakeBenchgate, StepResult, run_here, step_named

RUN = "0190b2c4-7d1e-7a3b-9c5f-000000000000"
# What the steps of a call of the workflow with nothing but a suite set.
INPUTS = {
    "begin": {"SUITE": "suite.yaml", "CANDIDATE": ""},
    "publish": {
        "STORE": "",
        "RUN_ID": "",
        "SUITE": "suite.yaml",
        "CANDIDATE": "",
        "COMMENT": "false",
        "CHECK_RUN": "true",
        "FAIL_ON": "inconclusive",
        "WAIVERS": "",
    },
    "promote": {
        "STORE": "",
        "RUN_ID": "",
        "REPORT": "evidence/benchgate-report.html",
        "FAIL_ON": "inconclusive",
        "WAIVERS": "",
        "REQUIRE_PINNED": "false",
    },
}


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in the folder of a job."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_step(name: str, fails: str = "", **inputs: str) -> tuple[StepResult, FakeBenchgate]:
    """Run a step with these inputs; its result and benchgate's calls, which the command line must accept."""
    assert set(inputs) <= set(INPUTS[name])
    env = {f"INPUT_{key}": value for key, value in {**INPUTS[name], **inputs}.items()}
    benchgate = FakeBenchgate(fails=fails)
    words = ["publish", "begin"] if name == "begin" else [name]
    result = run_here(Path.cwd() / "temp", *words, benchgate=benchgate, env=env)
    for call in benchgate.calls:
        require_known(call)
    return result, benchgate


def require_known(arguments: list[str]) -> None:
    """Raise unless the command line takes these arguments."""
    command, words = quick_command.command(), list(arguments)
    while commands := getattr(command, "commands", None):
        command = commands[words.pop(0)]
    command.make_context(str(command.name), words)


def put_bundle() -> None:
    """Leave the run's bundle where the job downloads it to."""
    Path("evidence").mkdir()
    Path(f"evidence/{RUN}.json").touch()


@pytest.mark.parametrize("name", INPUTS)
def test_the_workflow_hands_each_step_its_inputs(name: str) -> None:
    step = step_named(GATE["jobs"][name], name)
    words = "publish begin" if name == "begin" else name
    assert step["run"] == f"./benchgate-action/scripts/action {words}"
    assert set(step["env"]) - {"GITHUB_TOKEN"} == {f"INPUT_{key}" for key in INPUTS[name]}
    inputs = {
        key: value for key, value in step["env"].items() if key in ("INPUT_SUITE", "INPUT_FAIL_ON", "INPUT_RUN_ID")
    }
    values = {
        "INPUT_SUITE": "inputs.suite",
        "INPUT_FAIL_ON": "inputs.fail-on",
        "INPUT_RUN_ID": "needs.gate.outputs.run-id",
    }
    assert inputs == {key: f"${{{{ {values[key]} }}}}" for key in inputs}


def test_before_measuring_the_check_is_set_in_progress() -> None:
    result, benchgate = run_step("begin", CANDIDATE="q4")
    assert result.green
    assert benchgate.calls == [["publish", "--check-run", "--begin=suite.yaml", "--candidate=q4"]]


def test_a_verdict_is_judged_again_from_its_bundle_and_published() -> None:
    Path("suite.yaml").touch()
    put_bundle()
    result, benchgate = run_step("publish", RUN_ID=RUN, COMMENT="true", FAIL_ON="warn", WAIVERS="w.yaml")
    assert result.green
    assert benchgate.calls == [
        ["store", "import", f"evidence/{RUN}.json"],
        ["publish", "--comment", "--check-run", "--suite=suite.yaml", "--strict", "--waivers=w.yaml", "--", RUN],
    ]


@pytest.mark.parametrize("run_id", ["", RUN], ids=["no run", "no bundle of it"])
def test_a_gate_without_a_verdict_is_published_as_that(run_id: str) -> None:
    result, benchgate = run_step("publish", RUN_ID=run_id, CANDIDATE="q4", FAIL_ON="warn")
    assert result.green
    assert benchgate.calls == [["publish", "--check-run", "--no-verdict=suite.yaml", "--candidate=q4"]]


def test_a_promotion_is_judged_again_recorded_and_handed_on() -> None:
    report = "evidence/chat-report.html"
    inputs = {"REPORT": report, "FAIL_ON": "warn", "WAIVERS": "w.yaml", "REQUIRE_PINNED": "true"}
    result, benchgate = run_step("promote", RUN_ID=RUN, **inputs)
    assert result.green
    assert benchgate.calls == [
        ["store", "import", f"evidence/{RUN}.json"],
        ["promote", f"--report={report}", "--strict", "--waivers=w.yaml", "--require-pinned", "--", RUN],
        ["store", "export", "--to=promoted", "--", RUN],
    ]


@pytest.mark.parametrize(
    ("waivers", "day", "option"),
    [
        ("w.yaml", "2026-01-05", ["--as-of=2026-01-05"]),
        ("w.yaml", None, []),
        ("w.yaml", "today --override=x", []),
        ("", "2026-01-05", []),
    ],
)
def test_a_promotion_approved_on_a_later_day_takes_the_waivers_as_of_the_gates_day(
    waivers: str, day: str | None, option: list[str]
) -> None:
    put_bundle()
    statement = {"predicate": {"benchgate": {"waivers_as_of": day}}}
    Path("evidence/statement.intoto.json").write_text(json.dumps(statement))
    call = run_step("promote", RUN_ID=RUN, WAIVERS=waivers)[1].calls[1]
    assert [word for word in call if word.startswith("--as-of")] == option
    Path("evidence/statement.intoto.json").write_text("[1")
    assert "--as-of" not in " ".join(run_step("promote", RUN_ID=RUN, WAIVERS=waivers)[1].calls[1])


@pytest.mark.parametrize("name", ["publish", "promote"])
def test_a_run_is_judged_again_beside_no_store_that_the_checkout_has(workspace: Path, name: str) -> None:
    put_bundle()
    assert run_step(name, RUN_ID=RUN)[1].environment["BENCHGATE_STORE"] == f"{workspace}/temp/benchgate/benchgate.db"
    _, benchgate = run_step(name, RUN_ID=RUN, STORE="postgresql://db/runs")
    assert benchgate.environment["BENCHGATE_STORE"] == "postgresql://db/runs"


@pytest.mark.parametrize("link", [False, True])
def test_files_of_the_checkout_are_not_handed_on_as_promoted(workspace: Path, link: bool) -> None:
    kept = workspace / "kept"
    kept.mkdir()
    (kept / f"{RUN}.json").touch()
    if link:
        Path("promoted").symlink_to(kept)
    else:
        kept.rename("promoted")
    assert run_step("promote", RUN_ID=RUN)[0].green
    assert not Path("promoted").exists()
    assert kept.exists() is link


@pytest.mark.parametrize("name", ["publish", "promote"])
def test_a_verdict_that_could_not_be_published_or_promoted_is_red(name: str) -> None:
    put_bundle()
    result, benchgate = run_step(name, RUN_ID=RUN, fails=name)
    assert result.status == 13
    assert benchgate.calls[-1][0] == name  # and nothing was handed on after it


@pytest.mark.parametrize("name", ["publish", "promote"])
def test_a_bundle_that_is_not_what_the_gate_left_is_neither_published_nor_promoted(name: str) -> None:
    put_bundle()
    result, benchgate = run_step(name, RUN_ID=RUN, fails="store")
    assert (result.green, [call[0] for call in benchgate.calls]) == (False, ["store"])


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("publish", {"RUN_ID": "../../x"}),
        ("publish", {"FAIL_ON": ""}),
        ("publish", {"COMMENT": ""}),
        ("publish", {"CHECK_RUN": "yes"}),
        ("publish", {"SUITE": ""}),
        ("promote", {"RUN_ID": ""}),
        ("promote", {"RUN_ID": "--override"}),
        ("promote", {"RUN_ID": RUN, "REPORT": ""}),
        ("promote", {"RUN_ID": RUN, "REQUIRE_PINNED": ""}),
        ("promote", {"RUN_ID": RUN, "FAIL_ON": "True"}),
    ],
)
def test_a_wrong_input_is_refused_before_benchgate_runs(
    name: str, inputs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    result, benchgate = run_step(name, **inputs)
    assert (result.status, benchgate.calls) == (2, [])
    assert capsys.readouterr().out.startswith("::error title=benchgate::input ")


@pytest.mark.parametrize("words", [[], ["gates"], ["gate", "x"], ["history"], ["history", "pull"], ["attest"]])
def test_an_unknown_step_is_an_error(tmp_path: Path, words: list[str]) -> None:
    assert run_here(tmp_path, *words, benchgate=FakeBenchgate(), env={}).status == 2


def attest(**change: object) -> StepResult:
    """Split a statement for the signer."""
    statement: dict[str, Any] = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "report.html", "digest": {"sha256": "a" * 64}},
            {"name": "candidate/q4", "digest": {"gitCommit": "b" * 40}},
        ],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {"result": "FAILED", "failedTests": ["ttft-p50@c4"]},
    }
    Path("evidence").mkdir()
    Path("evidence/statement.intoto.json").write_text(json.dumps(statement | change), encoding="utf-8")
    words = ("attest", "evidence/statement.intoto.json")
    return run_here(Path.cwd() / "temp", *words, benchgate=FakeBenchgate(), env={})


def test_a_statement_is_split_for_the_signer_and_its_own_file_is_a_subject() -> None:
    result = attest()
    assert result.green
    assert result.outputs["predicate-type"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert json.loads(Path(result.outputs["predicate"]).read_bytes())["result"] == "FAILED"
    assert Path(result.outputs["subjects"]).read_text(encoding="utf-8").splitlines() == [
        f"{hashlib.sha256(Path('evidence/statement.intoto.json').read_bytes()).hexdigest()}  statement.intoto.json",
        f"{'a' * 64}  report.html",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"predicateType": "https://slsa.dev/provenance/v1"},
        {"predicateType": "https://in-toto.io/attestation/test-result/v0.1\nx=1"},
        {"subject": [{"name": "a\nb", "digest": {"sha256": "a" * 64}}]},
        {"subject": [{"name": "a", "digest": {"sha256": "A" * 64}}]},
    ],
)
def test_another_kind_of_statement_is_not_signed(change: dict[str, object]) -> None:
    result = attest(**change)
    assert (result.status, result.outputs) == (2, {})


def test_the_hidden_command_hands_its_words_on() -> None:
    code, printed, _ = quick_command.answer("action", "history", "push")
    assert (code, printed) == (13, "::error title=benchgate::push needs the bundles to keep.\n")
