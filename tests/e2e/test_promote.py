"""`benchgate promote` as a job and a person use it: what it exits with and says, and what other commands make of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchgate.deciding import decide_stored
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.store.repository import Store
from tests.e2e.command import STORE, here
from tests.fakes.promotable import BLOCKED, begun

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
    for name in ("CI_MERGE_REQUEST_IID", "CI_EXTERNAL_PULL_REQUEST_IID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)


def runs(folder: Path) -> tuple[str, str, str]:
    """A store with two runs that pass and one that is blocked, each judged."""
    (folder / STORE).parent.mkdir()
    with Store.open(str(folder / STORE)) as store:
        found = begun(store), begun(store, day="2026-01-02"), begun(store, BLOCKED, day="2026-01-03")
        for run_id in found:
            decide_stored(store, run_id)
            store.save_metrics(run_id, [MetricRow(Arm.CANDIDATE, "goodput_ratio", None, "c4", None, 0.5, 1)])
    return found


def test_a_job_promotes_what_passed_and_takes_it_back(tmp_path: Path) -> None:
    first, second, blocked = runs(tmp_path)
    assert here(tmp_path, "gate", first, "--report", "report.html").returncode == 0
    done = here(tmp_path, "promote", first, "--report", "report.html", "--format", "json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["run_id"], said["in_series"], said["new"], said["deed"]) == (first, True, True, "promoted")
    assert (said["origin"]["by"], said["origin"]["commit"]) == ("anna", "c0ffee")
    assert "in the baseline series" in here(tmp_path, "promote", second).stdout
    assert "it was before, and nothing was recorded" in here(tmp_path, "promote", second).stdout
    against = here(tmp_path, "gate", blocked, "--against", "@promoted", "--format", "json")
    assert json.loads(against.stdout)["against"]["id"] == second
    taken = here(tmp_path, "promote", "--withdraw", "@promoted", "--reason", "it leaks")
    assert taken.returncode == 0 and "withdrawn" in taken.stdout and "reason: it leaks" in taken.stdout
    compared = here(tmp_path, "compare", "@promoted", blocked, "--format", "json")
    assert json.loads(compared.stdout)["against"]["id"] == first
    trend = here(tmp_path, "trend", "goodput_ratio").stdout
    assert trend.count("(promoted, in the baseline series)") == 1


def test_refusal_ends_with_the_code_of_the_verdict_and_an_override_is_told(tmp_path: Path) -> None:
    _, _, blocked = runs(tmp_path)
    refused = here(tmp_path, "promote", blocked)
    assert (refused.returncode, refused.stdout) == (10, "") and "is BLOCK and is not promoted" in refused.stderr
    forced = here(tmp_path, "promote", blocked, "--override", "the old one is on fire")
    assert forced.returncode == 0, forced.stderr
    assert "overridden" in forced.stdout and "not in the baseline series: its verdict was overridden" in forced.stdout
    assert "reason: the old one is on fire" in forced.stdout
    assert "(overridden)" in here(tmp_path, "trend", "goodput_ratio").stdout
    assert "@promoted means nothing" in here(tmp_path, "compare", "@promoted", blocked).stderr


def test_merge_request_promotes_nothing_into_the_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, _ = runs(tmp_path)
    monkeypatch.setenv("CI_MERGE_REQUEST_IID", "7")
    assert here(tmp_path, "promote", first, "--protected").returncode == 2
    done = here(tmp_path, "promote", first)
    assert done.returncode == 0 and "no host said that its ref is protected" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["@latest"], "name it by its id or label"),
        (["@promoted"], "name it by its id or label"),
        (["abcd", "--withdraw"], "--withdraw takes --reason"),
        (["abcd", "--withdraw", "--reason", "x", "--override", "y"], "--withdraw takes --reason"),
        (["abcd", "--reason", "x"], "add --withdraw"),
        (["abcd", "--as-of", "2026-01-01"], "no run is called 'abcd'"),
    ],
)
def test_mistakes_end_with_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / STORE).parent.mkdir()
    Store.open(str(tmp_path / STORE)).close()
    refused = here(tmp_path, "promote", *arguments)
    assert refused.returncode == 2 and says in refused.stderr
