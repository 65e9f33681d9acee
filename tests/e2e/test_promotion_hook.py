"""What follows a promotion, as a job asks for it: a hook, once it is recorded and never else."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from benchgate.pipeline.judge import decide_stored
from benchgate.store.repository import Store
from tests.e2e.command import STORE, here
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
    assert (before.returncode, len(ran(tmp_path))) == (13, 1) and "add --repeat to run it now" in before.stderr
    again = here(tmp_path, *asked, "--repeat")
    assert (again.returncode, len(ran(tmp_path))) == (0, 2), again.stderr
    assert f"model org/chat at {COMMIT}, by the suite" in again.stdout


def test_hook_never_runs_for_a_run_that_is_refused_and_is_told_of_an_override(tmp_path: Path) -> None:
    _, blocked = runs(tmp_path)
    command = hook(tmp_path)
    for more, code in ((("--repeat",), 10), (("--require-pinned",), 12)):
        assert here(tmp_path, "promote", blocked, "--run-hook", command, *more).returncode == code
    assert ran(tmp_path) == []
    forced = here(tmp_path, "promote", blocked, "--run-hook", command, "--override", "the old one is on fire")
    assert forced.returncode == 0, forced.stderr
    assert ran(tmp_path) == ["overridden BLOCK false "]
    assert "its identity is not pinned" in forced.stdout


def test_hook_that_fails_leaves_the_promotion_recorded_and_ends_with_13(tmp_path: Path) -> None:
    passed, _ = runs(tmp_path)
    failed = here(tmp_path, "promote", passed, "--run-hook", hook(tmp_path, "exit 3"))
    assert failed.returncode == 13 and "promoted" in failed.stdout
    for words in ("is recorded, but", "the hook ended with status 3", "with --repeat"):
        assert words in failed.stderr
    assert here(tmp_path, "promote", passed, "--run-hook", hook(tmp_path), "--repeat").returncode == 0
    with Store.open(str(tmp_path / STORE)) as store:
        assert [one.run_id for one in store.promotions()] == [passed]  # by the first of two commands


MLFLOW = """\
import pathlib
from types import SimpleNamespace

class MlflowClient:
    def __getattr__(self, name):
        def call(*arguments):
            with pathlib.Path(__file__).with_name("calls").open("a") as file:
                print(name, *arguments, file=file)
            return SimpleNamespace(version=VERSION)
        return call
"""


@pytest.mark.parametrize(("behind", "code"), [("7", 0), ("6", 13)])
def test_hook_for_mlflow_tags_a_version_then_moves_the_alias_and_reads_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str, code: int
) -> None:
    passed, _ = runs(tmp_path)
    (tmp_path / "mlflow.py").write_text(MLFLOW.replace("VERSION", behind))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = Path(__file__).parents[2] / "examples" / "mlflow" / "set_alias.py"
    asked = ("promote", passed, "--run-hook", shlex.join([sys.executable, str(script), "chat", "7", "champion"]))
    done = here(tmp_path, *asked)
    assert done.returncode == code, done.stderr
    *tags, moved, read = (tmp_path / "calls").read_text().splitlines()
    told = dict(line.removeprefix("set_model_version_tag chat 7 ").split(" ", 1) for line in tags)
    assert (told["benchgate.run_id"], told["benchgate.verdict"]) == (passed, "PASS")
    assert (told["benchgate.deed"], told["benchgate.revision"]) == ("promoted", COMMIT)
    assert len(told["benchgate.report_sha256"]) == 64
    assert (moved, read) == (
        "set_registered_model_alias chat champion 7", "get_model_version_by_alias chat champion",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--run-hook", "no-such-program-here"], "not found"),
        (["--run-hook", "sh", "--hook-timeout", "soon"], "--hook-timeout"),
        (["--withdraw", "x", "--run-hook", "sh"], "--run-hook is of a promotion"),
        (["--withdraw", "x", "--hook-timeout", "1m"], "--hook-timeout is of a promotion"),
        (["--hook-timeout", "1m"], "add --run-hook CMD"),
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
