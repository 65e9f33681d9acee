"""`benchgate action history`: real git, a real repository that jobs push to at once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchgate import credentials
from benchgate.cli import action
from benchgate.pipeline.judge import decide_stored
from benchgate.store.repository import Store
from tests.e2e.command import here
from tests.fakes.action_steps import FakeBenchgate, write_program
from tests.fakes.promotable import begun

BRANCH = "benchgate-history"
RUNS = [f"0190b2c4-7d1e-7a3b-9c5f-00000000000{digit}" for digit in range(3)]

# Pushes of the first try wait until both jobs have looked at the branch, so that one of them must come too late.
MEETING = """#!/usr/bin/env bash
touch "$TEST_MEETING/$TEST_JOB"
until [[ $(ls "$TEST_MEETING" | wc -l) -ge 2 ]]; do sleep 0.02; done
"""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr(action, "push_history", partial(action.push_history, wait_s=0))


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """An empty repository, as a server keeps it."""
    git(tmp_path, "init", "--quiet", "--bare", "remote.git")
    return tmp_path / "remote.git"


def git(folder: Path, *arguments: str) -> str:
    """Run git in `folder`, without the machine's own settings; return its output."""
    command = ["git", *arguments]
    env = variables_of(folder)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


def variables_of(home: Path) -> dict[str, str]:
    """Return the variables of a job that git reads."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}


def history(
    job: Path, remote: Path | str, *arguments: str, benchgate: action.Program | None = None, **more: str
) -> int:
    """Run the step in the folder of a job; return its status."""
    job.mkdir(exist_ok=True)
    inputs = {"INPUT_HISTORY_BRANCH": BRANCH, "INPUT_HISTORY_REMOTE": str(remote), "RUNNER_TEMP": str(job)}
    return action.main(["history", *arguments], {**variables_of(job), **inputs, **more}, benchgate or not_called)


def not_called(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Stand for a benchgate that has nothing to do."""
    raise AssertionError(f"benchgate was called: {arguments}")


def bundle(folder: Path, run_id: str, text: str = "{}") -> str:
    """Write a file that is named as a bundle is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{run_id}.json").write_text(text, encoding="utf-8")
    return str(folder / f"{run_id}.json")


def files_of(remote: Path) -> list[str]:
    """Return the files of the branch."""
    return git(remote, "ls-tree", "-r", "--name-only", BRANCH).split()


def test_two_jobs_that_push_at_once_both_keep_their_run(
    tmp_path: Path, remote: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert history(tmp_path / "before", remote, "push", bundle(tmp_path / "before", RUNS[2])) == 0
    write_program(tmp_path / "hooks/pre-push", MEETING)
    (tmp_path / "meeting").mkdir()

    def push(number: int) -> int:
        job = tmp_path / f"job{number}"
        file = bundle(job, RUNS[number])
        (job / ".gitconfig").write_text(f"[core]\n\thooksPath = {tmp_path / 'hooks'}\n", encoding="utf-8")
        return history(job, remote, "push", file, TEST_MEETING=str(tmp_path / "meeting"), TEST_JOB=str(number))

    with ThreadPoolExecutor(2) as jobs:
        assert list(jobs.map(push, (0, 1))) == [0, 0]
    assert capfd.readouterr().out.count("Try 1 of") == 1  # one came too late, and tried again
    assert files_of(remote) == [f"runs/{run}.json" for run in RUNS]
    assert git(remote, "rev-list", "--count", BRANCH).strip() == "3"  # nobody wrote over anybody


def test_a_verdict_that_one_job_knew_of_a_run_stays_when_another_pushes_that_run(tmp_path: Path, remote: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    address = str(job / "store.db")
    with Store.open(address) as store:
        run_id = begun(store)
        assert here(job, "store", "export", run_id, "--to", "measured", "--store", address).returncode == 0
        decide_stored(store, run_id)
    assert here(job, "store", "export", run_id, "--to", "judged", "--store", address).returncode == 0
    measured, judged = job / "measured" / f"{run_id}.json", job / "judged" / f"{run_id}.json"
    assert measured.read_bytes() != judged.read_bytes()

    def real(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        return here(job, *arguments).returncode

    for file in (judged, measured):  # the later job knows less
        assert history(job, remote, "push", str(file), benchgate=real) == 0
    assert git(remote, "show", f"{BRANCH}:runs/{run_id}.json").encode() == judged.read_bytes()


@pytest.mark.parametrize("folders", [[""], ["benchgate-evidence", "benchgate-promoted"]], ids=["one artifact", "two"])
def test_a_run_is_kept_whether_it_was_promoted_or_not(tmp_path: Path, remote: Path, folders: list[str]) -> None:
    """download-artifact gives two artifacts a folder each, and one alone none."""
    for folder in folders:
        bundle(tmp_path / "kept" / folder, RUNS[0])
        (tmp_path / "kept" / folder / "statement.intoto.json").touch()
    assert history(tmp_path, remote, "push", str(tmp_path / "kept")) == 0
    assert files_of(remote) == [f"runs/{RUNS[0]}.json"]


def test_runs_of_the_branch_are_imported_into_the_store_of_the_job(tmp_path: Path, remote: Path) -> None:
    job, benchgate = tmp_path / "job", FakeBenchgate()
    assert history(job, remote, "push", bundle(job, RUNS[0])) == 0
    variables = {"BENCHGATE_STORE": "of-the-job.db", "INPUT_STORE": "history.db", "GITHUB_TOKEN": "ghs_secret"}
    assert history(job, remote, "fetch", benchgate=benchgate, **variables) == 0
    ((*words, folder),) = benchgate.calls
    assert (words, Path(folder).name) == (["store", "import"], "runs")
    assert benchgate.environment["BENCHGATE_STORE"] == "history.db"
    assert "GITHUB_TOKEN" not in benchgate.environment


def test_a_branch_that_is_not_there_yet_is_an_empty_history(
    tmp_path: Path, remote: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(tmp_path / "job", remote, "fetch") == 0
    assert "no run yet" in capsys.readouterr().out


def test_a_repository_that_does_not_answer_is_not_an_empty_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(tmp_path / "job", tmp_path / "nowhere.git", "fetch") == 13
    assert capsys.readouterr().out.startswith("::error title=benchgate::The branch")


def test_runs_of_the_branch_that_were_changed_stop_the_job(tmp_path: Path, remote: Path) -> None:
    job = tmp_path / "job"
    assert history(job, remote, "push", bundle(job, RUNS[0])) == 0
    assert history(job, remote, "fetch", benchgate=FakeBenchgate(fails="store")) == 13


def test_a_bundle_that_contradicts_the_branch_is_not_pushed(tmp_path: Path, remote: Path) -> None:
    job = tmp_path / "job"
    assert history(job, remote, "push", bundle(job, RUNS[0])) == 0
    changed = bundle(job / "other", RUNS[0], "{1}")
    assert history(job, remote, "push", changed, benchgate=FakeBenchgate(fails="store")) == 13
    assert git(remote, "show", f"{BRANCH}:runs/{RUNS[0]}.json") == "{}"


def test_a_link_on_the_branch_is_not_written_through(tmp_path: Path, remote: Path) -> None:
    job, outside = tmp_path / "job", tmp_path / "outside"
    outside.mkdir()
    git(tmp_path, "clone", "--quiet", str(remote), "hostile")
    (tmp_path / "hostile/runs").symlink_to(outside)
    git(tmp_path / "hostile", "add", "--all")
    git(tmp_path / "hostile", "-c", "user.name=x", "-c", "user.email=x@invalid", "commit", "--quiet", "-m", "x")
    git(tmp_path / "hostile", "push", "--quiet", "origin", f"HEAD:refs/heads/{BRANCH}")
    assert history(job, remote, "push", bundle(job, RUNS[0])) == 13
    assert list(outside.iterdir()) == []


def test_a_push_that_is_always_refused_is_red_and_says_what_to_permit(
    tmp_path: Path, remote: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = "#!/usr/bin/env bash\nprintf '\\n::stop-commands::x\\n' >&2\nexit 1\n"
    write_program(remote / "hooks/pre-receive", hook)
    assert history(tmp_path / "job", remote, "push", bundle(tmp_path / "job", RUNS[0])) == 13
    printed = capsys.readouterr()
    assert "contents: write" in printed.out
    assert not any(line.startswith("::") for line in printed.err.splitlines())


@pytest.mark.parametrize("name", ["0199", "../../x", "statement.intoto"])
def test_a_file_that_is_not_named_after_a_run_is_not_pushed(tmp_path: Path, remote: Path, name: str) -> None:
    job = tmp_path / "job/inner/folder"
    job.mkdir(parents=True)
    (job / f"{name}.json").touch()
    assert history(job, remote, "push", str(job / f"{name}.json")) == 13
    assert history(job, remote, "push", str(job)) == 13  # a folder without bundles
    assert git(remote, "for-each-ref") == ""


@pytest.mark.parametrize("branch", ["", "-x", "a b", "a\n::stop-commands::x"])
def test_a_name_that_is_no_branch_is_refused(
    tmp_path: Path, remote: Path, branch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(tmp_path / "job", remote, "fetch", INPUT_HISTORY_BRANCH=branch) == 2
    assert capsys.readouterr().out.count("::") == 2


def test_the_token_reaches_git_and_neither_a_command_line_nor_a_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_program(tmp_path / "bin/git", '#!/usr/bin/env bash\nprintf "%s\\n" "$*" "$(env)" >>"$HOME/asked"\nexit 2\n')
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    job = tmp_path / "job"
    variables: dict[str, Any] = {
        "GITHUB_SERVER_URL": "https://github.invalid",
        "GITHUB_REPOSITORY": "octo/models",
        "PATH": path,
    }
    credentials.register("ghs_secret")  # as the variables of a command that begins are
    assert history(job, "", "fetch", GITHUB_TOKEN="ghs_secret", **variables) == 13
    asked = (job / "asked").read_text(encoding="utf-8")
    assert "ls-remote --quiet --exit-code https://github.invalid/octo/models.git" in asked
    assert "GIT_CONFIG_KEY_1=http.https://github.invalid/.extraheader" in asked
    assert "eC1hY2Nlc3MtdG9rZW46Z2hzX3NlY3JldA==" in asked  # x-access-token:ghs_secret in base64
    printed = capfd.readouterr()
    assert "ghs_secret" not in asked + printed.out + printed.err
    assert [line for line in printed.out.splitlines() if "eC1hY2Nlc3" in line] == [
        "::add-mask::eC1hY2Nlc3MtdG9rZW46Z2hzX3NlY3JldA=="
    ]
