"""Every way in which GitHub refuses, waits, fails or lies: nothing is lost, nothing made twice, no token told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchgate.errors import PublishError
from benchgate.integrations.github import GitHubApi, Purpose, base_url
from benchgate.integrations.github_feedback import publish_comment
from tests.fakes.github_api import TOKEN, FakeGitHub
from tests.fakes.messages import message

PURPOSE = Purpose("the test", "pull-requests: write")
COMMENTS = "/repos/acme/models/issues/7/comments"


class Waits:
    """A clock that only waiting moves, and what was waited (s)."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s, self._step_s = 1_800_000_000.0, step_s
        self.slept_s: list[float] = []

    def clock(self) -> float:
        self.now_s += self._step_s
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.slept_s.append(wait_s)
        self.now_s += wait_s


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as server:
        yield server


def api_of(github: FakeGitHub, waits: Waits | None = None, environment: dict[str, str] | None = None) -> GitHubApi:
    waits = waits or Waits()
    known = {**github.environment, **(environment or {})}
    return GitHubApi(known, clock=waits.clock, unix_time=lambda: waits.now_s, sleep=waits.sleep)


def listed(github: FakeGitHub, waits: Waits | None = None) -> list[dict[str, Any]]:
    with api_of(github, waits) as api:
        return list(api.pages(COMMENTS, PURPOSE))


def test_every_page_is_read_by_its_link(github: FakeGitHub) -> None:
    for i in range(205):
        github.comment(f"{i}", "somebody")
    assert [one["body"] for one in listed(github)] == [f"{i}" for i in range(205)]
    assert len(github.asked) == 3


def test_what_github_is_asked_says_who_asks_by_which_version(github: FakeGitHub) -> None:
    listed(github)
    headers = github.asked[0].headers
    assert headers["authorization"] == f"Bearer {TOKEN}"
    assert headers["x-github-api-version"] == "2022-11-28"
    assert headers["accept"] == "application/vnd.github+json"
    assert headers["user-agent"].startswith("benchgate/")


@pytest.mark.parametrize(
    ("how", "waited_s"),
    [
        ({"status": 429, "headers": {"Retry-After": "17"}}, 17.0),
        ({"status": 403, "headers": {"Retry-After": "9"}, "message": "secondary rate limit"}, 9.0),
        ({"status": 403, "message": "You have exceeded a secondary rate limit."}, 60.0),
        ({"status": 403, "headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000040"}}, 41.0),
        ({"status": 502}, 1.0),
        ({"status": 503, "headers": {"Retry-After": "5"}}, 5.0),
        ({}, 1.0),  # the connection is closed
    ],
    ids=["429", "secondary", "secondary-without-a-header", "primary", "502", "503", "closed"],
)
def test_limits_and_failures_are_waited_out_as_they_ask(
    github: FakeGitHub, how: dict[str, Any], waited_s: float
) -> None:
    github.comment("here", "somebody")
    github.trouble("GET", "/comments", **how)
    waits = Waits()
    assert [one["body"] for one in listed(github, waits)] == ["here"]
    assert waits.slept_s == [waited_s]


def test_a_wait_longer_than_the_time_that_is_left_is_not_begun(github: FakeGitHub) -> None:
    github.trouble("GET", "/comments", status=429, headers={"Retry-After": "3600"})
    waits = Waits()
    with pytest.raises(
        PublishError, match=r"HTTP 429; the next try would be in 3600 s, and 300 s are left; publish again"
    ):
        listed(github, waits)
    assert waits.slept_s == []


def test_a_server_that_stays_broken_is_given_up_after_five_tries(github: FakeGitHub) -> None:
    github.trouble("GET", "/comments", status=500, times=99)
    waits = Waits()
    with pytest.raises(PublishError, match=r"the test: it answers HTTP 500, 5 times"):
        listed(github, waits)
    assert (len(github.asked), waits.slept_s) == (5, [1.0, 2.0, 4.0, 8.0])


def test_a_server_too_slow_to_end_its_answer_is_given_up(github: FakeGitHub) -> None:
    with pytest.raises(PublishError, match=r"127\.0\.0\.1:\d+ could not be reached: its answer does not end"):
        listed(github, Waits(step_s=170.0))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"status": 401, "message": "Bad credentials"}, r"Bad credentials; GITHUB_TOKEN is none that it knows"),
        (
            {
                "status": 403,
                "message": "Resource not accessible by integration",
                "headers": {"X-Accepted-GitHub-Permissions": "issues=write; pull_requests=write"},
            },
            r"by integration; the token may not: add `permissions: pull-requests: write` to the job that runs "
            r"`benchgate publish` \(GitHub accepts issues=write; pull_requests=write\)\. The token of a pull request "
            r"from a fork may only read",
        ),
        (
            {"status": 404, "message": "Not Found"},
            r"there is no /repos/acme/models/issues/7/comments, or the token may",
        ),
        ({"status": 301, "headers": {"Location": "/elsewhere"}}, r"a token is never sent elsewhere"),
        ({"status": 403, "message": "Unable to create comment because issue is locked."}, r"issue is locked\.$"),
        ({"status": 403, "message": "You must authenticate via a GitHub App."}, r"; only an app's token writes check"),
        ({"status": 422, "message": "No commit found for SHA: 0"}, r"is --sha a commit of this repository\?"),
        ({"status": 422, "message": f"echo {TOKEN}\n::error::x"}, r"GitHub says echo \[redacted\] ::error::x"),
    ],
    ids=["401", "403", "404", "301", "locked", "no-app", "no-commit", "422"],
)
def test_a_refusal_is_a_sentence_that_says_what_to_do_at_once(
    github: FakeGitHub, how: dict[str, Any], told: str
) -> None:
    github.trouble("GET", "/comments", **how)
    waits = Waits()
    with pytest.raises(PublishError, match=told) as refused:
        listed(github, waits)
    assert TOKEN not in str(refused.value)
    assert (len(github.asked), waits.slept_s) == (1, [])


def test_no_page_is_asked_of_another_host(github: FakeGitHub) -> None:
    with FakeGitHub() as thief:
        for _ in range(101):
            github.comment("x", "somebody")
        github.url, own = thief.url, github.url  # what its links lead to
        with (
            pytest.raises(PublishError, match="the next page is on another origin"),
            api_of(github, environment={"GITHUB_API_URL": own}) as api,
        ):
            list(api.pages(COMMENTS, PURPOSE))
        assert thief.asked == []


@pytest.mark.parametrize("how", [{}, {"status": 502}], ids=["closed", "502"])
def test_what_was_made_although_its_answer_was_lost_is_found_and_not_made_again(
    github: FakeGitHub, how: dict[str, Any]
) -> None:
    github.trouble("POST", "/comments", done=True, **how)
    with api_of(github) as api:
        assert publish_comment(api, 7, message()).startswith("new comment https://github.test/c/")
    assert len(github.comments[7]) == 1
    assert github.changes() == ["POST /repos/acme/models/issues/7/comments"]


@pytest.mark.parametrize("how", [{}, {"status": 502}, {"status": 429}], ids=["closed", "502", "429"])
def test_what_was_not_made_is_made(github: FakeGitHub, how: dict[str, Any]) -> None:
    github.trouble("POST", "/comments", **how)
    with api_of(github) as api:
        publish_comment(api, 7, message())
    assert len(github.comments[7]) == 1


def test_an_enterprise_server_is_asked_at_its_own_addresses(github: FakeGitHub) -> None:
    for _ in range(2):
        with api_of(github, environment={"GITHUB_API_URL": f"{github.url}/api/v3/"}) as api:
            publish_comment(api, 7, message())
    paths = [one.path.partition("?")[0] for one in github.asked]
    comments = f"/api/v3{COMMENTS}"
    assert paths == [comments, comments, comments, "/api/graphql", comments, "/api/graphql"]
    assert len(github.comments[7]) == 1


@pytest.mark.parametrize(
    "address",
    [
        "http://github.test/api/v3",
        "https://me:secret@github.test",
        "ftp://github.test",
        "https://",
        "https://github.test/?a=1",
        "https://github.test:99999",
        "//github.test",
    ],
)
def test_the_token_goes_nowhere_but_over_https(address: str) -> None:
    with pytest.raises(PublishError, match="GITHUB_API_URL") as refused:
        base_url(address)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"GITHUB_TOKEN": ""}, "GITHUB_TOKEN is not set"),
        ({"GITHUB_TOKEN": "abc def\r\nX-Evil: 1"}, "GITHUB_TOKEN is no token"),
        ({"GITHUB_REPOSITORY": "acme/models/../../other"}, "GITHUB_REPOSITORY names no repository"),
        ({"GITHUB_REPOSITORY": ""}, "GITHUB_REPOSITORY names no repository"),
    ],
)
def test_what_is_missing_in_the_job_is_named(github: FakeGitHub, environment: dict[str, str], told: str) -> None:
    with pytest.raises(PublishError, match=told) as refused:
        api_of(github, environment=environment)
    assert "abc" not in str(refused.value)


def test_what_is_not_githubs_is_no_success(github: FakeGitHub) -> None:
    github.trouble("GET", "/comments", status=200, message="a page of a proxy")
    with pytest.raises(PublishError, match="is no list of GitHub's"):
        listed(github)
