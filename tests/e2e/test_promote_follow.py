"""What follows a promotion, as a job asks for it: a hook and a registry's alias, once it is recorded and never else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchgate.deciding import decide_stored
from benchgate.store.repository import Store
from tests.e2e.command import STORE, here
from tests.fakes import mlflow_server
from tests.fakes.promotable import BLOCKED, begun, days_ago

pytestmark = pytest.mark.beside

COMMIT = "5f" * 20
PINNED = {"model": "org/chat", "settings": {"revision": COMMIT}}


@pytest.fixture(autouse=True)
def workstation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITLAB_CI", "JENKINS_URL", "BUILDKITE", "CIRCLECI", "TF_BUILD", "CI"):
        monkeypatch.delenv(name, raising=False)


def runs(folder: Path) -> tuple[str, str]:
    """A store with a run that passes, of weights that are pinned, and one that is blocked; both judged."""
    (folder / STORE).parent.mkdir()
    with Store.open(str(folder / STORE)) as store:
        found = begun(store, candidate=PINNED, day=days_ago(3)), begun(store, BLOCKED, day=days_ago(2))
        for run_id in found:
            decide_stored(store, run_id)
    return found


def hook(folder: Path, text: str = "") -> str:
    """A hook that leaves a line for each time it runs, and what it read."""
    path = folder / "hook.sh"
    names = "$BENCHGATE_DEED $BENCHGATE_VERDICT $BENCHGATE_IN_SERIES $BENCHGATE_CANDIDATE_REVISION"
    path.write_text(f"#!/bin/sh\ncat > '{folder}/read.json'\necho \"{names}\" >> '{folder}/ran'\n{text}\n")
    path.chmod(0o755)
    return str(path)


def ran(folder: Path) -> list[str]:
    return (folder / "ran").read_text().splitlines() if (folder / "ran").exists() else []


def test_hook_runs_once_for_a_promotion_that_is_recorded_and_again_only_when_asked(tmp_path: Path) -> None:
    passed, _ = runs(tmp_path)
    asked = ("promote", passed, "--ref", "main", "--protected", "--run-hook", hook(tmp_path), "--require-pinned")
    done = here(tmp_path, *asked, "--format", "json")
    assert done.returncode == 0, done.stderr
    said, read = json.loads(done.stdout), json.loads((tmp_path / "read.json").read_text())
    assert said["identity"]["pin"] == "pinned" and said["grounds"]["revision"] == COMMIT
    assert (read["run_id"], read["grounds"], read["candidate"]["model"]) == (passed, said["grounds"], "org/chat")
    assert ran(tmp_path) == [f"promoted PASS true {COMMIT}"]
    before = here(tmp_path, *asked)
    assert (before.returncode, len(ran(tmp_path))) == (13, 1) and "add --again to do it now" in before.stderr
    again = here(tmp_path, *asked, "--again")
    assert (again.returncode, len(ran(tmp_path))) == (0, 2), again.stderr
    assert f"model org/chat at {COMMIT}, by the suite" in again.stdout


def test_hook_never_runs_for_a_run_that_is_refused_and_is_told_of_an_override(tmp_path: Path) -> None:
    _, blocked = runs(tmp_path)
    command = hook(tmp_path)
    for more, code in ((("--again",), 10), (("--require-pinned",), 12)):
        assert here(tmp_path, "promote", blocked, "--run-hook", command, *more).returncode == code
    assert ran(tmp_path) == []
    forced = here(tmp_path, "promote", blocked, "--run-hook", command, "--override", "the old one is on fire")
    assert forced.returncode == 0, forced.stderr
    assert ran(tmp_path) == ["overridden BLOCK false "]
    assert "its identity is not pinned" in forced.stdout


def test_what_fails_after_the_promotion_leaves_it_recorded_and_ends_with_13(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed, _ = runs(tmp_path)
    with mlflow_server.registry({"chat": {"7"}}) as registry:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.url)
        asked = ("promote", passed, "--mlflow", "models:/chat/7", "--alias", "champion")
        missing = here(tmp_path, *asked[:2], "--mlflow", "models:/chat/8", "--alias", "champion")
        assert missing.returncode == 13 and "version=8) not found" in missing.stderr
        registry.forgets = True
        failed = here(tmp_path, *asked, "--run-hook", hook(tmp_path, "exit 3"))
        assert failed.returncode == 13 and "promoted" in failed.stdout
        for words in ("is recorded and stands", "alias champion not found; and", "the hook ended with status 3"):
            assert words in failed.stderr
        registry.forgets = False
        assert here(tmp_path, *asked, "--again").returncode == 0
    assert registry.aliases == {("chat", "champion"): "7"}
    tags = registry.tags["chat", "7"]
    assert (tags["benchgate.run_id"], tags["benchgate.verdict"]) == (passed, "PASS")
    assert (tags["benchgate.deed"], tags["benchgate.revision"], len(tags["benchgate.report_sha256"])) == (
        "promoted", COMMIT, 64,
    )  # fmt: skip
    with Store.open(str(tmp_path / STORE)) as store:
        assert [one.run_id for one in store.promotions()] == [passed]  # by the second of three commands


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--run-hook", "no-such-program-here"], "there is no program"),
        (["--run-hook", "sh", "--hook-timeout", "soon"], "--hook-timeout"),
        (["--mlflow", "models:/chat/7"], "give both, or neither"),
        (["--mlflow", "models:/chat/Production", "--alias", "champion"], "expected models:/NAME/VERSION"),
        (["--mlflow", "models:/chat@candidate", "--alias", "champion", "--again"], "name it by its number"),
        (["--withdraw", "--reason", "x", "--run-hook", "sh"], "--run-hook is of a promotion"),
    ],
)
def test_mistakes_in_what_follows_end_with_2_and_record_nothing(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / STORE).parent.mkdir()
    with Store.open(str(tmp_path / STORE)) as store:
        store.close()
    refused = here(tmp_path, "promote", "some-run", *arguments)
    assert refused.returncode == 2 and says in refused.stderr
