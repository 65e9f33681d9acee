"""Mistakes of someone who has only the documents: told all at once, at their place, in words that fit."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, RunStatus
from benchgate.store.repository import Store
from tests.e2e.command import STORE, here
from tests.fakes.measured import SuiteText, measured

pytestmark = pytest.mark.beside


SUITE = """\
suite: mine
deployments:
  baseline: {url: "http://b:1", model: m}
  candidate: {url: "https://c:1", model: m, tls: {ca: certs/none.pem}}
load:
  workload: {input: 8, output: 8}
  workloads: {logged: {prompts: data/prompts.jsonl, output: 8}}
  sweep: [{stage: r, trace: data/trace.csv, requests: 9}, {stage: c, concurrency: 1, requests: 9, workload: logged}]
quality:
  tasks: [tasks/add.yaml]
shadow: {prompts: data/shadow.jsonl}
gate: {checks: [{metric: error_rate, max: 1%}]}
"""


def test_every_missing_file_is_told_at_once_and_where_the_suite_names_it(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    result = here(tmp_path, "plan", "s.yaml")
    assert result.returncode == 2
    told = {line.split(": ", 1)[0]: line for line in result.stderr.splitlines()}
    named = {"s.yaml:7:33": "prompts.jsonl", "s.yaml:8:29": "trace.csv", "s.yaml:10:11": "add.yaml"}
    for place, name in {**named, "s.yaml:11:19": "shadow.jsonl", "s.yaml:4:14": "none.pem"}.items():
        assert name in told[place], result.stderr


def test_missing_files_are_told_also_of_a_suite_with_other_mistakes(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE.replace("suite: mine", "sweet: mine"))
    told = here(tmp_path, "plan", "s.yaml").stderr
    assert "sweet: unknown key" in told
    assert "s.yaml:10:11: quality.tasks[0]: tasks/add.yaml: there is no such file" in told
    assert "s.yaml:8:29" in told


def test_starts_are_part_of_a_plan(tmp_path: Path) -> None:
    plan = here(tmp_path, "plan", "drills/cold-start")
    assert "starts   5 of the one deployment, from nothing to a first good completion" in plan.stdout
    assert "starts" not in here(tmp_path, "plan", "drills/prefill").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["init", "--list", "mine.yaml"], "leave out the file 'mine.yaml'"),
        (["init", "--drill", "prefill", "--list"], "leave out --drill"),
        (
            ["sim", "--set", "chunk_tokens=0"],
            "--set chunk_tokens=0:1:15: chunk_tokens: found 0; expected a whole number",
        ),
        (["sim", "--set", "jitter=100%"], "--set jitter=100%:1:9: jitter: "),
        (["sim", "--set", "affinity=prefix"], "`affinity` chooses among several replicas, and there is one"),
        (["sim", "--set", "itl"], "write a key and a value, like --set itl=20ms"),
        (["sim", "none.yaml"], "none.yaml cannot be read: No such file"),
        (["sim", "--cert", "a.pem"], "give --cert and --key, or neither"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_would_be_ignored_or_cannot_be_is_refused_by_the_name_it_was_given(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    result = here(tmp_path, *arguments)
    assert (result.returncode, says in result.stderr) == (2, True), result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one run that has a price at c1 and a score of one task."""
    evidence = measured(SuiteText([{"metric": "error_rate", "margin": "5 points"}]).suite())
    folder = tmp_path_factory.mktemp("kept")
    with Store.open(str(folder / STORE)) as store:
        plan_sha256 = hashlib.sha256(b"{}").hexdigest()
        begun = replace(evidence.run, status=RunStatus.RUNNING, finished_at=None, plan_sha256=plan_sha256)
        store.begin_run(begun, b"{}").finish(RunStatus.COMPLETE, "2026-01-01T00:00:01.000Z")
        rows = (
            MetricRow(Arm.CANDIDATE, "usd_per_million_output_tokens", None, "c1", None, 0.5, 8),
            MetricRow(Arm.CANDIDATE, "ttft", "p50", "c1", None, 0.05, 8),
            MetricRow(Arm.CANDIDATE, "accuracy", None, None, "add", 0.9, 8),
        )
        store.save_metrics(evidence.run.id, rows)
    return folder


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ("usd_per_million_output_tokens", "--stage", "nope"),
            2,
            "no stored run has usd_per_million_output_tokens of a stage 'nope'; there are c1",
        ),
        (("ttft", "--stage", "c2"), 2, "of a stage 'c2'; there are c1"),
        (("accuracy", "--task", "sort"), 2, "of a task 'sort'; there are add"),
        (("accuracy", "--stage", "c1"), 2, "accuracy has no stage; leave --stage out"),
        (("usd_per_million_good_tokens",), 0, "a `price` in the suite's deployments adds it"),
        (("goodput",), 0, "no stored run has goodput\n"),
        (("ttft", "--suite", "other"), 2, "no stored run has ttft of a suite 'other'; there are "),
        (("goodput", "--suite", "other"), 0, "no stored run of the suite 'other' has goodput"),
    ],
)
def test_a_trend_of_what_is_not_there_says_what_there_is(
    kept: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    result = here(kept, "trend", *arguments)
    assert (result.returncode, says in result.stderr) == (code, True), result.stderr
    assert ("price" in result.stderr) is (arguments[0] == "usd_per_million_good_tokens")


def test_a_trend_of_a_task_shows_its_name_and_its_share(kept: Path) -> None:
    line = here(kept, "trend", "accuracy", "--task", "add").stdout.splitlines()[1]
    assert re.search(r" add +90\.0 %$", line)
