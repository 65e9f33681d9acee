"""Commit, pull request and link are those of the event, or unknown: never those of something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import PublishError, UsageError
from benchgate.integrations.github_place import place_of

HEAD, MERGE = "a" * 40, "b" * 40
JOB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.test",
    "GITHUB_REPOSITORY": "acme/models",
    "GITHUB_RUN_ID": "42",
    "GITHUB_SHA": MERGE,
}
PULL = {"number": 7, "head": {"sha": HEAD, "repo": {"full_name": "acme/models"}}}


def asked_by(*own: int, upstream: int | None = None) -> dict[str, Any]:
    """The event of a workflow that pull requests set off: of this repository, and of one that it was forked from."""
    bases = [(number, 1) for number in own] + ([(upstream, 2)] if upstream is not None else [])
    pulls = [{"number": number, "base": {"repo": {"id": repository}}} for number, repository in bases]
    run = {"head_sha": HEAD, "event": "pull_request", "pull_requests": pulls}
    return {"workflow_run": run, "repository": {"id": 1}}


@pytest.mark.parametrize(
    ("name", "event", "ref", "sha", "pull", "of_a_pull"),
    [
        ("pull_request", {"pull_request": PULL}, "refs/pull/7/merge", HEAD, 7, True),
        ("pull_request", {}, "refs/pull/7/merge", None, 7, True),
        ("push", {}, "refs/heads/main", MERGE, None, False),
        ("workflow_dispatch", {}, "refs/heads/main", MERGE, None, False),
        ("merge_group", {"merge_group": {"head_sha": HEAD}}, "refs/heads/gh-readonly-queue/x", HEAD, None, False),
        (
            "workflow_run",
            asked_by(9, upstream=8),
            "refs/heads/main",
            HEAD,
            9,
            True,
        ),
        (
            "workflow_run",
            asked_by(9, 8),
            "refs/heads/main",
            HEAD,
            None,
            True,
        ),
        ("workflow_run", asked_by(upstream=8), "refs/heads/main", HEAD, None, True),
        ("deployment_status", {"workflow_run": {"head_sha": HEAD}}, "refs/heads/main", MERGE, None, False),
        ("workflow_run", {"workflow_run": {"event": "push"}}, "refs/heads/main", None, None, False),
        ("issue_comment", {"issue": {"number": 7, "pull_request": {}}}, "refs/heads/main", None, 7, False),
        ("issue_comment", {"issue": {"number": 7}}, "refs/heads/main", None, None, False),
        ("pull_request", {"pull_request": {"number": True, "head": {"sha": "main"}}}, "", None, None, True),
        ("", {}, "", MERGE, None, True),
    ],
)
def test_the_event_says_commit_and_pull_request(
    tmp_path: Path, name: str, event: dict[str, Any], ref: str, sha: str | None, pull: int | None, of_a_pull: bool
) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    found = place_of({**JOB, "GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": str(file), "GITHUB_REF": ref})
    assert (found.sha, found.pull, found.of_a_pull) == (sha, pull, of_a_pull)
    assert found.details_url == "https://github.test/acme/models/actions/runs/42"


def test_what_is_said_comes_before_the_event_and_an_event_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text("[" * 100_000)
    environment = {**JOB, "GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": str(file)}
    unknown = place_of(environment)
    assert (unknown.sha, unknown.pull) == (None, None)
    with pytest.raises(PublishError, match="'pull_request' does not say which commit was judged; add --sha"):
        unknown.require_sha()
    said = place_of(environment, sha=HEAD, pull=3, details_url="https://ci.test/9")
    assert (said.require_sha(), said.pull, said.details_url) == (HEAD, 3, "https://ci.test/9")


@pytest.mark.parametrize("sha", ["main", "abc123", "A" * 40, HEAD + "\n", "--help"])
def test_a_commit_is_its_whole_id(sha: str) -> None:
    with pytest.raises(UsageError, match=r"--sha .*expected a whole commit id"):
        place_of({}, sha=sha)


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "https://", "https://a b", "https://x/)[x](y", "https://u:p@x/"]
)
def test_a_link_is_an_address_that_nothing_can_break_out_of(url: str) -> None:
    with pytest.raises(UsageError, match="--details-url"):
        place_of({}, details_url=url)


@pytest.mark.parametrize(
    ("name", "event", "stranger"),
    [
        ("push", {}, None),
        ("pull_request", {"pull_request": PULL}, None),
        ("pull_request", {"pull_request": {"head": {"repo": {"full_name": "Acme/Models"}}}}, None),
        ("pull_request", {"pull_request": {"head": {"repo": {"full_name": "mallory/models"}}}}, "mallory/models"),
        (
            "pull_request_target",
            {"pull_request": {"head": {"repo": None}}},
            "a repository that the event does not name",
        ),
        ("pull_request", {}, "a repository that the event does not name"),
        ("workflow_run", {"workflow_run": {"head_repository": {"full_name": "mallory/x\n"}}}, r"mallory/x\n"),
        ("workflow_run", {"workflow_run": {"head_repository": {"full_name": "acme/models"}}}, None),
    ],
)
def test_whose_change_it_is_must_be_known(
    tmp_path: Path, name: str, event: dict[str, Any], stranger: str | None
) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    found = place_of({**JOB, "GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": str(file)}, sha=HEAD, pull=7)
    assert found.stranger == stranger
    if stranger is not None:
        with pytest.raises(UsageError, match="may have made up the run, so nothing is published of it"):
            found.require_own()
