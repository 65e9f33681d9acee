"""Who promotes and from where: a protected ref is the host's word, and no pull request has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import PublishError, UsageError
from benchgate.integrations.ci import github_context, origin_of, unprotected_because
from benchgate.model.history import PromotionOrigin

GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_ACTOR": "anna",
    "GITHUB_EVENT_NAME": "push",
    "GITHUB_HEAD_REF": "",
    "GITHUB_REF": "refs/heads/main",
    "GITHUB_REF_PROTECTED": "true",
    "GITHUB_SHA": "c0ffee",
}
GITLAB = {
    "GITLAB_CI": "true",
    "GITLAB_USER_LOGIN": "anna",
    "CI_PIPELINE_SOURCE": "push",
    "CI_COMMIT_REF_NAME": "main",
    "CI_COMMIT_REF_PROTECTED": "true",
    "CI_COMMIT_SHA": "c0ffee",
}
PULL_REQUESTS = (
    {**GITHUB, "GITHUB_EVENT_NAME": "pull_request", "GITHUB_REF": "refs/pull/7/merge"},
    {**GITHUB, "GITHUB_EVENT_NAME": "pull_request_target"},  # runs on the protected branch, for anybody's change
    {**GITHUB, "GITHUB_EVENT_NAME": "workflow_run"},  # so may this, and a comment
    {**GITHUB, "GITHUB_EVENT_NAME": "issue_comment"},
    {**GITHUB, "GITHUB_EVENT_NAME": ""},
    {**GITHUB, "GITHUB_HEAD_REF": "feature"},
    {**GITHUB, "GITHUB_REF": "refs/pull/7/head"},
    {**GITHUB, "GITHUB_REF_PROTECTED": "false"},
    {**GITHUB, "GITHUB_REF_PROTECTED": ""},
    {name: value for name, value in GITHUB.items() if name != "GITHUB_REF_PROTECTED"},
    {name: value for name, value in GITHUB.items() if name != "GITHUB_REF"},
    {**GITLAB, "CI_PIPELINE_SOURCE": "merge_request_event"},
    {**GITLAB, "CI_PIPELINE_SOURCE": "external_pull_request_event"},
    {**GITLAB, "CI_MERGE_REQUEST_IID": "7"},
    {**GITLAB, "CI_EXTERNAL_PULL_REQUEST_IID": "7"},
    {**GITLAB, "CI_COMMIT_REF_PROTECTED": "false"},
    {**GITLAB, "CI_COMMIT_REF_NAME": ""},
)


def test_hosts_say_who_where_and_whether_it_is_protected() -> None:
    github, gitlab = "GitHub Actions for anna", "GitLab for anna"
    assert origin_of(GITHUB) == PromotionOrigin("anna", "refs/heads/main", "c0ffee", protected=True, ci=github)
    assert origin_of(GITLAB) == PromotionOrigin("anna", "main", "c0ffee", protected=True, ci=gitlab)
    assert not origin_of(GITHUB, protected=False).protected


def test_who_the_job_is_of_stays_in_the_record_whomever_the_command_line_names() -> None:
    found = origin_of(GITHUB, by="ben", commit="beef")
    assert (found.by, found.commit, found.ci) == ("ben", "beef", "GitHub Actions for anna")
    assert origin_of({**GITHUB, "GITHUB_ACTOR": ""}, by="ben").ci == "GitHub Actions"


@pytest.mark.parametrize("environment", PULL_REQUESTS)
def test_nothing_else_is_protected_whatever_the_command_line_says(environment: dict[str, str]) -> None:
    assert not origin_of(environment).protected
    with pytest.raises(UsageError, match=r"--protected: .*leave --protected out") as refused:
        origin_of(environment, protected=True)
    assert unprotected_because(environment) in str(refused.value)


REASONS: tuple[tuple[dict[str, str], str], ...] = (
    ({**GITHUB, "GITHUB_EVENT_NAME": "pull_request_target"}, "started by pull_request_target, which anybody can"),
    ({**GITHUB, "GITHUB_EVENT_NAME": ""}, "an event without a name"),
    ({**GITHUB, "GITHUB_HEAD_REF": "feature"}, "for a change that is not merged"),
    ({**GITHUB, "GITHUB_EVENT_NAME": "merge_group"}, "for a change that is not merged"),
    ({**GITHUB, "GITHUB_REF_PROTECTED": "false"}, "does not say that refs/heads/main is protected"),
    ({**GITLAB, "CI_MERGE_REQUEST_IID": "7"}, "for a change that is not merged"),
    ({**GITLAB, "CI_COMMIT_REF_PROTECTED": "false"}, "GitLab does not say that main is protected"),
    (GITHUB, "--not-protected was given"),
    ({}, "--ref REF --protected"),
)


@pytest.mark.parametrize(("environment", "says"), REASONS)
def test_reason_why_a_ref_is_not_protected_is_the_true_one(environment: dict[str, str], says: str) -> None:
    assert says in unprotected_because(environment)


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"JENKINS_URL": "https://ci/", "CI": "true"}, "Jenkins"),
        ({"TF_BUILD": "True"}, "Azure Pipelines"),
        ({"BUILDKITE": "true", "BUILDKITE_PULL_REQUEST": "false"}, "Buildkite"),
        ({"CI": "true"}, "a CI that is not known"),
    ],
)
def test_ci_that_says_nothing_of_its_refs_is_recorded(environment: dict[str, str], name: str) -> None:
    found = origin_of(environment, by="anna", ref="main", protected=True)
    assert found == PromotionOrigin("anna", "main", protected=True, ci=f"{name}, which does not report protected refs")


@pytest.mark.parametrize(
    "environment",
    [{"JENKINS_URL": "https://ci/", "CHANGE_ID": "7"}, {"BUILDKITE": "true", "BUILDKITE_PULL_REQUEST": "7"}],
)
def test_job_of_another_ci_for_an_unmerged_change_is_of_no_protected_ref(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="for a change that is not merged"):
        origin_of(environment, by="anna", ref="main", protected=True)
    assert not origin_of(environment, by="anna", ref="main").protected


def test_a_job_promotes_from_its_own_ref_alone() -> None:
    assert origin_of(GITHUB, ref="main") == origin_of(GITHUB, ref="refs/heads/main") == origin_of(GITHUB)
    for environment in (GITHUB, GITLAB):
        with pytest.raises(UsageError, match="leave --ref out"):
            origin_of(environment, ref="release/1")


def test_outside_of_ci_people_say_it_themselves() -> None:
    assert origin_of({}, user="anna") == origin_of({"CI": "false"}, user="anna") == PromotionOrigin("anna")
    assert origin_of({}, by="ben", user="anna", ref="main", protected=True) == PromotionOrigin(
        "ben", "main", protected=True
    )
    with pytest.raises(UsageError, match="--by"):
        origin_of({})
    with pytest.raises(UsageError, match="add --ref"):
        origin_of({}, by="anna", protected=True)
    with pytest.raises(UsageError, match="not merged"):
        origin_of({}, by="anna", ref="refs/pull/7/head", protected=True)


@pytest.mark.parametrize("given", [{"by": ""}, {"by": " "}, {"by": "anna", "ref": ""}, {"by": "anna", "commit": ""}])
def test_an_option_from_a_variable_that_is_not_set_is_refused_and_not_guessed(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"--{list(given)[-1]} is empty"):
        origin_of({"CIRCLECI": "true"}, user="circleci", **given)


def test_user_of_a_runner_is_nobody() -> None:
    with pytest.raises(UsageError, match="it is not known who"):
        origin_of({**GITHUB, "GITHUB_ACTOR": ""}, user="runner")


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
    ("name", "event", "ref", "sha", "pull", "is_pull_request"),
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
    tmp_path: Path, name: str, event: dict[str, Any], ref: str, sha: str | None, pull: int | None, is_pull_request: bool
) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    found = github_context({**JOB, "GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": str(file), "GITHUB_REF": ref})
    assert (found.sha, found.pull, found.is_pull_request) == (sha, pull, is_pull_request)
    assert found.details_url == "https://github.test/acme/models/actions/runs/42"


def test_pull_request_named_by_a_comment_counts_as_a_fork_s(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps({"issue": {"number": 7, "pull_request": {}}}))
    found = github_context({**JOB, "GITHUB_EVENT_NAME": "issue_comment", "GITHUB_EVENT_PATH": str(file)})
    with pytest.raises(UsageError, match="whose authors may have made up the run"):
        found.require_own_repository()


def test_what_is_said_comes_before_the_event_and_an_event_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text("[" * 100_000)
    environment = {**JOB, "GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": str(file)}
    unknown = github_context(environment)
    assert (unknown.sha, unknown.pull) == (None, None)
    with pytest.raises(PublishError, match="'pull_request' does not name the commit that was judged; add --sha"):
        unknown.require_sha()
    said = github_context(environment, sha=HEAD, pull=3, details_url="https://ci.test/9")
    assert (said.require_sha(), said.pull, said.details_url) == (HEAD, 3, "https://ci.test/9")


@pytest.mark.parametrize("sha", ["main", "abc123", "A" * 40, HEAD + "\n", "--help"])
def test_a_commit_is_its_whole_id(sha: str) -> None:
    with pytest.raises(UsageError, match=r"--sha .*expected a whole commit id"):
        github_context({}, sha=sha)


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "https://", "https://a b", "https://x/)[x](y", "https://u:p@x/"]
)
def test_a_link_is_an_address_that_nothing_can_break_out_of(url: str) -> None:
    with pytest.raises(UsageError, match="--details-url"):
        github_context({}, details_url=url)


@pytest.mark.parametrize(
    ("name", "event", "foreign_repository"),
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
    tmp_path: Path, name: str, event: dict[str, Any], foreign_repository: str | None
) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    found = github_context({**JOB, "GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": str(file)}, sha=HEAD, pull=7)
    assert found.foreign_repository == foreign_repository
    if foreign_repository is not None:
        with pytest.raises(UsageError, match="may have made up the run, so nothing is published of it"):
            found.require_own_repository()
