"""The history on a branch: real git, a real repository that jobs push to at once, and the installed benchgate."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchgate.pipeline.judge import decide_stored
from benchgate.store.repository import Store
from tests.e2e.ci_scripts import put_scripts, write_program
from tests.e2e.command import here
from tests.fakes.promotable import begun

pytestmark = pytest.mark.beside

BRANCH = "benchgate-history"
RUNS = [f"0190b2c4-7d1e-7a3b-9c5f-00000000000{digit}" for digit in range(3)]

# Pushes of the first try wait until both jobs have looked at the branch, so that one of them must come too late.
MEETING = """#!/usr/bin/env bash
touch "$BENCHGATE_TEST_MEETING/$BENCHGATE_TEST_JOB"
until [[ $(ls "$BENCHGATE_TEST_MEETING" | wc -l) -ge 2 ]]; do sleep 0.02; done
"""


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """An empty repository, as a server keeps it."""
    git(tmp_path, "init", "--quiet", "--bare", "remote.git")
    return tmp_path / "remote.git"


def git(folder: Path, *arguments: str) -> str:
    """What git says in `folder`, without the machine's own settings."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment(folder), capture_output=True, text=True, check=True
    )
    return done.stdout


def environment(home: Path) -> dict[str, str]:
    """What a step of the runner has, as far as git and the script look."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}


def history(
    job: Path, remote: Path | str, *arguments: str, benchgate: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run scripts/ci-history in the folder of a job, of a checkout with this benchgate."""
    job.mkdir(exist_ok=True)
    checkout = job / "benchgate-action"
    if not checkout.exists():
        put_scripts(checkout)
        (checkout / ".venv/bin").mkdir(parents=True)
        (checkout / ".venv/bin/benchgate").symlink_to(benchgate)
    told = {"BENCHGATE_HISTORY_BRANCH": BRANCH, "BENCHGATE_HISTORY_REMOTE": str(remote), "RUNNER_TEMP": str(job)}
    env = {**environment(job), **told, "BENCHGATE_HISTORY_WAIT_S": "0", **more}
    return subprocess.run(
        [str(checkout / "scripts/ci-history"), *arguments],
        cwd=job,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """A benchgate that must not be asked for anything."""
    write_program(tmp_path / "silent", "#!/usr/bin/env bash\nexit 99\n")
    return tmp_path / "silent"


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """The installed benchgate."""
    write_program(tmp_path / "real", f'#!/usr/bin/env bash\nexec {sys.executable} -m benchgate "$@"\n')
    return tmp_path / "real"


def bundle(folder: Path, run_id: str, text: str = "{}") -> str:
    """A file that is named as a bundle is."""
    folder.mkdir(exist_ok=True)
    (folder / f"{run_id}.json").write_text(text, encoding="utf-8")
    return str(folder / f"{run_id}.json")


def kept(remote: Path) -> list[str]:
    """The files of the branch."""
    return git(remote, "ls-tree", "-r", "--name-only", BRANCH).split()


def test_two_jobs_that_push_at_once_both_keep_their_run(tmp_path: Path, remote: Path, silent: Path) -> None:
    first = history(tmp_path / "before", remote, "push", bundle(tmp_path / "before", RUNS[2]), benchgate=silent)
    assert first.returncode == 0, first.stdout + first.stderr
    write_program(tmp_path / "hooks/pre-push", MEETING)
    (tmp_path / "meeting").mkdir()

    def push(number: int) -> subprocess.CompletedProcess[str]:
        job = tmp_path / f"job{number}"
        file = bundle(job, RUNS[number])
        (job / ".gitconfig").write_text(f"[core]\n\thooksPath = {tmp_path / 'hooks'}\n", encoding="utf-8")
        told = {"BENCHGATE_TEST_MEETING": str(tmp_path / "meeting"), "BENCHGATE_TEST_JOB": str(number)}
        return history(job, remote, "push", file, benchgate=silent, **told)

    with ThreadPoolExecutor(2) as jobs:
        ended = list(jobs.map(push, (0, 1)))
    assert [job.returncode for job in ended] == [0, 0], ended
    assert sum("Try 1 of" in job.stdout for job in ended) == 1  # one came too late, and tried again
    assert kept(remote) == [f"runs/{run}.json" for run in RUNS]
    assert git(remote, "rev-list", "--count", BRANCH).strip() == "3"  # nobody wrote over anybody


def test_what_one_job_knew_of_a_run_stays_when_another_pushes_that_run(
    tmp_path: Path, remote: Path, real: Path
) -> None:
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

    for file in (judged, measured):  # the later job knows less
        pushed = history(job, remote, "push", str(file), benchgate=real)
        assert pushed.returncode == 0, pushed.stdout + pushed.stderr
    assert git(remote, "show", f"{BRANCH}:runs/{run_id}.json").encode() == judged.read_bytes()


def test_runs_of_the_branch_are_taken_into_the_store_of_the_job(tmp_path: Path, remote: Path) -> None:
    write_program(tmp_path / "takes", '#!/usr/bin/env bash\nls "$3" >taken\necho "$1 $2 $BENCHGATE_STORE" >>taken\n')
    job = tmp_path / "job"
    assert history(job, remote, "push", bundle(job, RUNS[0]), benchgate=tmp_path / "takes").returncode == 0
    told = {"BENCHGATE_STORE": "of-the-job.db", "BENCHGATE_STORE_INPUT": "history.db"}
    assert history(job, remote, "fetch", benchgate=tmp_path / "takes", **told).returncode == 0
    taken = (job / "taken").read_text(encoding="utf-8").splitlines()
    assert taken == [f"{RUNS[0]}.json", "store import history.db"]


def test_a_branch_that_is_not_there_yet_is_no_history(tmp_path: Path, remote: Path, silent: Path) -> None:
    fetched = history(tmp_path / "job", remote, "fetch", benchgate=silent)
    assert (fetched.returncode, "no run yet" in fetched.stdout) == (0, True)


def test_a_repository_that_does_not_answer_is_not_an_empty_history(tmp_path: Path, silent: Path) -> None:
    fetched = history(tmp_path / "job", tmp_path / "nowhere.git", "fetch", benchgate=silent)
    assert (fetched.returncode, "::error" in fetched.stdout) == (13, True)


def test_runs_of_the_branch_that_were_changed_stop_the_job(tmp_path: Path, remote: Path) -> None:
    write_program(tmp_path / "refuses", "#!/usr/bin/env bash\nexit 13\n")
    job = tmp_path / "job"
    assert history(job, remote, "push", bundle(job, RUNS[0]), benchgate=tmp_path / "refuses").returncode == 0
    assert history(job, remote, "fetch", benchgate=tmp_path / "refuses").returncode == 13


def test_a_link_on_the_branch_is_not_written_through(tmp_path: Path, remote: Path, silent: Path) -> None:
    job, outside = tmp_path / "job", tmp_path / "outside"
    outside.mkdir()
    git(tmp_path, "clone", "--quiet", str(remote), "hostile")
    (tmp_path / "hostile/runs").symlink_to(outside)
    git(tmp_path / "hostile", "add", "--all")
    git(tmp_path / "hostile", "-c", "user.name=x", "-c", "user.email=x@invalid", "commit", "--quiet", "-m", "x")
    git(tmp_path / "hostile", "push", "--quiet", "origin", f"HEAD:refs/heads/{BRANCH}")
    pushed = history(job, remote, "push", bundle(job, RUNS[0]), benchgate=silent)
    assert (pushed.returncode, list(outside.iterdir())) == (13, [])


def test_a_push_that_never_comes_through_is_red_and_says_what_to_permit(
    tmp_path: Path, remote: Path, silent: Path
) -> None:
    write_program(remote / "hooks/pre-receive", "#!/usr/bin/env bash\nexit 1\n")
    pushed = history(tmp_path / "job", remote, "push", bundle(tmp_path / "job", RUNS[0]), benchgate=silent)
    assert (pushed.returncode, "contents: write" in pushed.stdout) == (13, True)


@pytest.mark.parametrize("name", ["0199", "../../x", "statement.intoto"])
def test_what_is_not_named_by_a_run_is_not_pushed(tmp_path: Path, remote: Path, silent: Path, name: str) -> None:
    (tmp_path / "job").mkdir()
    pushed = history(tmp_path / "job", remote, "push", f"{name}.json", benchgate=silent)
    assert pushed.returncode == 13
    assert git(remote, "for-each-ref") == ""


def test_the_token_reaches_git_and_neither_a_command_line_nor_a_log(tmp_path: Path, remote: Path, silent: Path) -> None:
    write_program(tmp_path / "bin/git", '#!/usr/bin/env bash\nprintf "%s\\n" "$*" "$(env)" >>"$HOME/asked"\nexit 2\n')
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    told = {"GITHUB_SERVER_URL": "https://github.invalid", "GITHUB_REPOSITORY": "octo/models", "PATH": path}
    job = tmp_path / "job"
    done = history(job, "", "fetch", benchgate=silent, GITHUB_TOKEN="ghs_secret", **told)
    asked = (job / "asked").read_text(encoding="utf-8")
    assert "ls-remote --quiet --exit-code https://github.invalid/octo/models.git" in asked
    assert "GIT_CONFIG_KEY_1=http.https://github.invalid/.extraheader" in asked
    assert "eC1hY2Nlc3MtdG9rZW46Z2hzX3NlY3JldA==" in asked  # x-access-token:ghs_secret in base64
    assert "ghs_secret" not in asked + done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if "eC1hY2Nlc3" in line] == [
        "::add-mask::eC1hY2Nlc3MtdG9rZW46Z2hzX3NlY3JldA=="
    ]
