"""Who promotes and from where: a protected ref is the host's word, and no pull request has it."""

from __future__ import annotations

import pytest

from benchgate.errors import UsageError
from benchgate.integrations.origin import origin_of, unprotected_because
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
    ({**GITHUB, "GITHUB_EVENT_NAME": "pull_request_target"}, "set off by pull_request_target, which anybody can"),
    ({**GITHUB, "GITHUB_EVENT_NAME": ""}, "an event without a name"),
    ({**GITHUB, "GITHUB_HEAD_REF": "feature"}, "for a change that is not merged"),
    ({**GITHUB, "GITHUB_REF_PROTECTED": "false"}, "does not say that refs/heads/main is protected"),
    ({**GITLAB, "CI_MERGE_REQUEST_IID": "7"}, "for a change that is not merged"),
    ({**GITLAB, "CI_COMMIT_REF_PROTECTED": "false"}, "GitLab does not say that main is protected"),
    (GITHUB, "--not-protected said"),
    ({}, "--ref REF --protected does"),
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
    assert found == PromotionOrigin(
        "anna", "main", protected=True, ci=f"{name}, which does not say whether a ref is protected"
    )


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


def test_user_of_a_runner_is_nobody() -> None:
    with pytest.raises(UsageError, match="nobody says who"):
        origin_of({**GITHUB, "GITHUB_ACTOR": ""}, user="runner")
