"""`benchgate promote` as a job and a person use it: what it exits with and says, and what other commands make of it."""

from __future__ import annotations

import json
import re
import shlex
from itertools import count
from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.pipeline.judge import decide_stored, write_report
from benchgate.store.repository import Store
from tests.e2e.command import STORE, here
from tests.fakes.promotable import BLOCKED, begun, days_ago

pytestmark = pytest.mark.beside

JOB = {
    "GITLAB_CI": "true",
    "GITLAB_USER_LOGIN": "anna",
    "CI_PIPELINE_SOURCE": "push",
    "CI_COMMIT_REF_NAME": "main",
    "CI_COMMIT_REF_PROTECTED": "true",
    "CI_COMMIT_SHA": "c0ffee",
}


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI_MERGE_REQUEST_IID", "CI_EXTERNAL_PULL_REQUEST_IID", "JENKINS_URL", "CHANGE_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)


def runs(folder: Path) -> tuple[str, str, str]:
    """A store with two runs that pass and one that is blocked, each judged."""
    (folder / STORE).parent.mkdir()
    with Store.open(str(folder / STORE)) as store:
        found = begun(store, day=days_ago(4)), begun(store, day=days_ago(3)), begun(store, BLOCKED, day=days_ago(2))
        for run_id in found:
            decide_stored(store, run_id)
            store.save_metrics(run_id, [MetricRow(Arm.CANDIDATE, "goodput", None, "c4", None, 0.5, 1)])
    return found


def test_a_job_promotes_what_passed_and_takes_it_back(tmp_path: Path) -> None:
    first, second, blocked = runs(tmp_path)
    assert here(tmp_path, "gate", first, "--report", "report.html").returncode == 0
    done = here(tmp_path, "promote", first, "--report", "report.html", "--format", "json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["run_id"], said["in_series"], said["new"], said["deed"]) == (first, True, True, "promoted")
    assert (said["origin"]["by"], said["origin"]["commit"]) == ("anna", "c0ffee")
    shortened = here(tmp_path, "promote", second[:20])
    assert (shortened.returncode, "is no whole id" in shortened.stderr) == (2, True)
    assert "in the baseline series" in here(tmp_path, "promote", second).stdout
    assert (
        "it was recorded before, as below; nothing changed" in here(tmp_path, "promote", second, "--by", "ben").stdout
    )
    alone = here(tmp_path, "compare", "@promoted", second)
    assert (alone.returncode, f"@promoted means run {second}" in alone.stderr) == (2, True)
    against = here(tmp_path, "compare", "@promoted", blocked, "--format", "json")
    assert json.loads(against.stdout)["against"]["id"] == second
    taken = here(tmp_path, "promote", "@promoted", "--withdraw", "it leaks")
    assert taken.returncode == 0 and "withdrawn" in taken.stdout and "reason: it leaks" in taken.stdout
    compared = here(tmp_path, "compare", "@promoted", blocked, "--format", "json")
    assert json.loads(compared.stdout)["against"]["id"] == first
    trend = here(tmp_path, "trend", "goodput").stdout
    assert (trend.count("(promoted, in the baseline series)"), trend.count("(withdrawn)")) == (1, 1)
    started_over = here(tmp_path, "promote", second)
    assert started_over.returncode == 13 and "was withdrawn; --repeat" in started_over.stderr
    assert here(tmp_path, "promote", second, "--repeat").returncode == 0


def test_refusal_ends_with_the_code_of_the_verdict_and_an_override_is_told(tmp_path: Path) -> None:
    _, _, blocked = runs(tmp_path)
    refused = here(tmp_path, "promote", blocked)
    assert (refused.returncode, refused.stdout) == (10, "") and "is not promoted: it is BLOCK" in refused.stderr
    forced = here(tmp_path, "promote", blocked, "--override", "the old one is on fire")
    assert forced.returncode == 0, forced.stderr
    assert "overridden" in forced.stdout and "not in the baseline series: its verdict was overridden" in forced.stdout
    assert "reason: the old one is on fire" in forced.stdout
    assert "(overridden)" in here(tmp_path, "trend", "goodput").stdout
    assert "@promoted means nothing" in here(tmp_path, "compare", "@promoted", blocked).stderr


def test_merge_request_promotes_nothing_into_the_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, _ = runs(tmp_path)
    monkeypatch.setenv("CI_MERGE_REQUEST_IID", "7")
    assert here(tmp_path, "promote", first, "--protected").returncode == 2
    done = here(tmp_path, "promote", first, "--by", "ben")
    assert done.returncode == 0, done.stderr
    assert "not in the baseline series: this job is for a change that is not merged" in done.stdout
    assert "by ben at " in done.stdout and "in GitLab for anna" in done.stdout


def test_run_of_more_than_a_month_ago_is_promoted_by_nobody_who_does_not_say_so(tmp_path: Path) -> None:
    (tmp_path / STORE).parent.mkdir()
    with Store.open(str(tmp_path / STORE)) as store:
        run_id = begun(store, day=days_ago(40))
        decide_stored(store, run_id)
    refused = here(tmp_path, "promote", run_id)
    assert refused.returncode == 12 and "days ago, more than 30.0 days; measure it again" in refused.stderr
    assert "in the baseline series" in here(tmp_path, "promote", run_id, "--max-age", "90d").stdout


DOCS = Path(__file__).parents[2] / "docs" / "guides" / "release.md"


def test_every_example_of_the_docs_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is what somebody types at a workstation. What `benchgate run` would measure is made up."""
    monkeypatch.delenv("GITLAB_CI")
    days = count(9, -1)
    (tmp_path / STORE).parent.mkdir()
    promotions, _, _ = DOCS.read_text(encoding="utf-8").partition("\n## Waivers\n")
    blocks = re.findall(r"```sh\n(.*?)```", promotions, re.DOTALL)
    lines = [shlex.split(line, comments=True)[1:] for block in blocks for line in block.splitlines()]
    assert {line[0] for line in lines} == {"run", "promote", "compare", "trend", "report"}
    for line in lines:
        if line[0] != "run":
            done = here(tmp_path, *line)
            assert done.returncode == 0, (line, done.stderr)
            continue
        label, page = line[line.index("--label") + 1], line[line.index("--report") + 1]
        with Store.open(str(tmp_path / STORE)) as store:
            run_id = begun(store, day=days_ago(next(days)), label=label)
            decision = decide_stored(store, run_id)
            store.save_metrics(run_id, [MetricRow(Arm.CANDIDATE, "output_throughput", None, "c4", None, 9.5, 1)])
        write_report(decision, tmp_path / page)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["@latest"], "name it by its id or label"),
        (["@promoted"], "name it by its id or label"),
        (["abcd", "--withdraw", "x", "--override", "y"], "--override is of a promotion"),
        (["abcd", "--withdraw", "x", "--strict"], "--strict is of a promotion"),
        (["abcd", "--withdraw", "x", "--max-age", "9d"], "--max-age is of a promotion"),
        (["abcd", "--max-age", "30"], "--max-age: "),
        (["abcd", "--as-of", "2026-01-01"], "no run is called 'abcd'"),
    ],
)
def test_mistakes_end_with_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / STORE).parent.mkdir()
    Store.open(str(tmp_path / STORE)).close()
    refused = here(tmp_path, "promote", *arguments)
    assert refused.returncode == 2 and says in refused.stderr
