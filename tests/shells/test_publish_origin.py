"""Who promotes and from where: a protected ref is the host's word, and no pull request has it."""

from __future__ import annotations

import pytest

from benchgate.errors import UsageError
from benchgate.model.promotion import Origin
from benchgate.publish.origin import origin_of

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
    assert origin_of(GITHUB) == Origin("anna", "refs/heads/main", "c0ffee", protected=True)
    assert origin_of(GITLAB) == Origin("anna", "main", "c0ffee", protected=True)
    assert origin_of(GITHUB, by="ben", commit="beef") == Origin("ben", "refs/heads/main", "beef", protected=True)
    assert not origin_of(GITHUB, protected=False).protected


@pytest.mark.parametrize("environment", PULL_REQUESTS)
def test_nothing_else_is_protected_whatever_the_command_line_says(environment: dict[str, str]) -> None:
    assert not origin_of(environment).protected
    with pytest.raises(UsageError, match="does not say that"):
        origin_of(environment, protected=True)


def test_a_job_promotes_from_its_own_ref_alone() -> None:
    assert origin_of(GITHUB, ref="main") == origin_of(GITHUB, ref="refs/heads/main") == origin_of(GITHUB)
    for environment in (GITHUB, GITLAB):
        with pytest.raises(UsageError, match="leave --ref out"):
            origin_of(environment, ref="release/1")


def test_outside_of_ci_people_say_it_themselves() -> None:
    assert origin_of({}, user="anna") == Origin("anna")
    assert origin_of({}, by="ben", user="anna", ref="main", protected=True) == Origin("ben", "main", protected=True)
    with pytest.raises(UsageError, match="--by"):
        origin_of({})
    with pytest.raises(UsageError, match="add --ref"):
        origin_of({}, by="anna", protected=True)
    with pytest.raises(UsageError, match="not merged"):
        origin_of({}, by="anna", ref="refs/pull/7/head", protected=True)


def test_user_of_a_runner_is_nobody() -> None:
    with pytest.raises(UsageError, match="nobody says who"):
        origin_of({**GITHUB, "GITHUB_ACTOR": ""}, user="runner")
