"""Several candidates of one suite: a run, a verdict and a report each, and the worst of the exit codes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchgate.cli import run
from benchgate.cli.output import OutputOptions, conclude_each
from benchgate.errors import ExitCode, UsageError
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import Decision
from benchgate.pipeline.suite_file import SuiteFile
from benchgate.suite.loader import parse_suite
from benchgate.suite.rules.suite import each_candidate, with_arms
from tests.e2e.command import here
from tests.e2e.test_conclude import decision

pytestmark = pytest.mark.beside  # its client may be late, by a lot: what is asked of it is no time


SUITE = """
suite: several
deployments:
  f16: {embedded: {weights: f16}}
  q8_0: {embedded: {weights: q8_0}}
  q3_k: {embedded: {weights: q3_k}}
  q2_k: {embedded: {weights: q2_k}}
baseline: f16
candidates: [q8_0, q3_k, q2_k]
load: {workload: {input: 8 tokens, output: 8 tokens}, blocks: 2, sweep: [{stage: c1, concurrency: 1, requests: 2}]}
gate: {allow_underpowered: true, checks: [{metric: error_rate, max: 20%}]}
"""
OUTCOMES = {"q8_0": Outcome.PASS, "q3_k": Outcome.INCONCLUSIVE, "q2_k": Outcome.BLOCK}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "several.yaml").write_text(SUITE)
    return tmp_path


def judged(monkeypatch: pytest.MonkeyPatch, outcomes: Mapping[str, Outcome]) -> list[tuple[str | None, str | None]]:
    """Measuring is replaced: each candidate has its verdict at once. What was asked for: candidate and label."""
    asked: list[tuple[str | None, str | None]] = []

    def measure(file: SuiteFile, arguments: run.RunArguments) -> Decision:
        candidate = file.suite.candidate
        asked.append((candidate, arguments.label))
        if candidate not in outcomes:
            raise UsageError(f"{candidate} cannot be measured")
        return decision(outcomes[candidate])

    monkeypatch.setattr(run, "_measure", measure)
    monkeypatch.setattr("benchgate.pipeline.preflight.require_ready", lambda *_, **__: None)
    return asked


def outputs(path: Path) -> dict[str, str]:
    """What GitHub takes of the file: a later line wins."""
    return dict(line.partition("=")[::2] for line in path.read_text().splitlines())


def test_each_candidate_is_judged_by_itself_and_the_worst_code_is_the_commands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = judged(monkeypatch, OUTCOMES)
    result = here(folder, "run", "several.yaml", "--report", "out/r.html", "--label", "friday")
    assert result.returncode == ExitCode.BLOCK, result.stderr
    assert asked == [("q8_0", "friday-q8_0"), ("q3_k", "friday-q3_k"), ("q2_k", "friday-q2_k")]
    told = [line.split()[:4] for line in result.stdout.splitlines()[-3:]]
    assert told == [
        ["q8_0", "PASS", "exit", "0"],
        ["q3_k", "INCONCLUSIVE", "exit", "11"],
        ["q2_k", "BLOCK", "exit", "10"],
    ]
    pages = ["r-q2_k.html", "r-q3_k.html", "r-q8_0.html"]
    left = sorted(path.name for path in (folder / "out").iterdir())
    assert left == sorted([*pages, *(f"{page}.intoto.json" for page in pages)])


def test_json_of_several_is_one_array_in_the_suites_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, OUTCOMES)
    result = here(folder, "run", "several.yaml", "--format", "json")
    said = json.loads(result.stdout)
    assert [one["outcome"] for one in said] == ["PASS", "INCONCLUSIVE", "BLOCK"]
    assert [one["exit_code"] for one in said] == [0, 11, 10]


def test_one_of_them_can_be_picked_and_is_then_a_run_like_any_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = judged(monkeypatch, OUTCOMES)
    result = here(folder, "run", "several.yaml", "--candidate", "q3_k", "--label", "friday", "--format", "json")
    assert (asked, result.returncode) == ([("q3_k", "friday")], 11)
    assert json.loads(result.stdout)["outcome"] == "INCONCLUSIVE"


def test_what_was_judged_before_one_could_not_be_measured_is_still_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, {"q8_0": Outcome.PASS})
    result = here(folder, "run", "several.yaml", "--format", "json")
    assert (result.returncode, "q3_k cannot be measured" in result.stderr) == (2, True)
    assert [one["outcome"] for one in json.loads(result.stdout)] == ["PASS"]


def test_a_job_of_github_actions_does_not_take_one_candidates_pass_for_another_that_has_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))

    def measure(name: str) -> Decision:
        if name == "q3_k":
            raise UsageError("q3_k cannot be measured")
        return decision(Outcome.PASS)

    with pytest.raises(UsageError):
        conclude_each(["q8_0", "q3_k"], measure, OutputOptions(publish=True))
    assert "verdict=pass" in (tmp_path / "output").read_text()
    told = outputs(tmp_path / "output")
    assert told.pop("verdict") == "error"
    assert told and set(told.values()) == {""}


@pytest.mark.parametrize(
    ("outcomes", "code", "verdict"),
    [
        ((Outcome.BLOCK, Outcome.INVALID, Outcome.PASS), 10, "block"),
        ((Outcome.INCONCLUSIVE, Outcome.INVALID, Outcome.PASS), 12, "invalid"),
        ((Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.WARN), 11, "inconclusive"),
        ((Outcome.WARN, Outcome.PASS, Outcome.PASS), 0, "warn"),
        ((Outcome.PASS, Outcome.PASS, Outcome.PASS), 0, "pass"),
    ],
)
def test_a_job_of_github_actions_hears_of_the_worst_last(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcomes: tuple[Outcome, ...],
    code: int,
    verdict: str,
) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    found = dict(zip(OUTCOMES, outcomes, strict=True))
    ended = conclude_each([*OUTCOMES], lambda name: decision(found[name]), OutputOptions(publish=True))
    told = outputs(tmp_path / "output")
    assert (int(ended), told["verdict"], told["exit-code"]) == (code, verdict, str(code))
    assert (tmp_path / "summary.md").read_text().count(f"{outcomes[0]}") >= 1


def test_a_suite_of_several_comes_to_suites_of_one_that_store_no_trace_of_the_others() -> None:
    suite = parse_suite(SUITE, "several.yaml")
    one = parse_suite(SUITE.replace("candidates: [q8_0, q3_k, q2_k]", "candidate: q3_k"), "one.yaml")
    assert [each.candidate for each in each_candidate(suite)] == ["q8_0", "q3_k", "q2_k"]
    assert each_candidate(suite)[1].to_stored() == one.to_stored()
    assert each_candidate(one) == (one,)
    assert with_arms(suite, None, "q2_k").to_stored() == each_candidate(suite)[2].to_stored()


def test_a_suite_of_one_candidate_stores_what_it_always_did() -> None:
    stored = parse_suite(SUITE.replace("candidates: [q8_0, q3_k, q2_k]", "candidate: q8_0"), "s").to_stored()
    assert "candidates" not in stored
    assert stored["candidate"] == "q8_0"


@pytest.mark.parametrize(
    ("said", "place", "message"),
    [
        ("candidates: [q8_0, q5_0]", "candidates[1]", 'no deployment is named "q5_0"'),
        ("candidates: [q8_0]\ncandidate: q2_k", "candidate", "keep one of the two"),
        ("candidates: [q8_0, q8_0]", "candidates", "is listed twice"),
        ("candidates: []", "candidates", "expected"),
    ],
)
def test_a_mistake_among_several_is_named_at_its_place(tmp_path: Path, said: str, place: str, message: str) -> None:
    (tmp_path / "s.yaml").write_text(SUITE.replace("candidates: [q8_0, q3_k, q2_k]", said))
    result = here(tmp_path, "plan", "s.yaml")
    assert result.returncode == 2
    assert f": {place}: " in result.stderr and message in result.stderr, result.stderr


def test_plan_covers_every_candidate(folder: Path) -> None:
    plan = here(folder, "plan", "several.yaml")
    assert plan.stdout.splitlines()[-1].startswith("runs     3 runs, one for each of q8_0, q3_k, q2_k"), plan.stdout
    each = json.loads(here(folder, "plan", "several.yaml", "--format", "json").stdout)
    assert [one["candidate"] for one in each] == ["q8_0", "q3_k", "q2_k"]
    assert len({one["plan_sha256"] for one in each}) == 1
