"""The comment on a pull request is one, ours, and new only when somebody must hear of it."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from benchgate.errors import PublishError
from benchgate.integrations.github_api import GitHubApi
from benchgate.integrations.github_comment import publish_comment
from benchgate.integrations.message import Message, Overtaken
from benchgate.model.verdict import Outcome
from tests.fakes.github_api import BOT, Asked, FakeGitHub
from tests.fakes.messages import message

MARK = "<!-- benchgate:chat:awq -->"


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as server:
        yield server


def publish(github: FakeGitHub, said: Message) -> str:
    with GitHubApi(github.environment, sleep=lambda wait_s: None) as api:
        return publish_comment(api, 7, said)


def bodies(github: FakeGitHub) -> list[str]:
    return [one["body"] for one in github.comments[7]]


def test_one_comment_is_updated_over_five_runs_and_left_alone_when_it_says_the_same(github: FakeGitHub) -> None:
    for i in range(130):
        github.comment(f"{i}", "somebody")
    publish(github, message(said="run 0"))
    for i in range(1, 5):
        assert publish(github, message(said=f"run {i}")).endswith("updated")
    assert len(github.comments[7]) == 131
    assert bodies(github)[130] == f"{MARK}\n<!-- benchgate-says:success:run-1 -->\n## PASS: awq\n\nrun 4\n"
    github.asked.clear()
    assert publish(github, message(said="run 4")).endswith("says it already")
    assert github.changes() == []


@pytest.mark.parametrize("good", [Outcome.PASS, Outcome.WARN])
@pytest.mark.parametrize("bad", [Outcome.BLOCK, Outcome.INCONCLUSIVE, Outcome.INVALID])
def test_good_news_that_turns_bad_is_a_new_comment_and_the_old_one_leads_to_it(
    github: FakeGitHub, good: Outcome, bad: Outcome
) -> None:
    publish(github, message(good))
    assert publish(github, message(bad)).startswith("new comment")
    old, new = github.comments[7]
    assert old["body"].startswith("<!-- benchgate-superseded:chat:awq -->\n## " + good)
    assert new["html_url"] in old["body"]
    assert f"## {bad}" in new["body"]
    publish(github, message(bad, said="again"))
    publish(github, message(good, said="mended"))
    assert len(github.comments[7]) == 2
    assert f"## {good}: awq\n\nmended" in bodies(github)[1]


def test_an_old_green_is_not_told_over_a_newer_comment(github: FakeGitHub) -> None:
    publish(github, message(Outcome.BLOCK, run_id="run-2"))
    before = bodies(github)
    with pytest.raises(Overtaken, match="run run-2 was measured after run run-1"):
        publish(github, message(run_id="run-1"))
    assert bodies(github) == before


class TwoAtOnce(FakeGitHub):
    """Tells nobody what is there until two have asked, so that neither sees what the other makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self._both, self._first = threading.Barrier(2), itertools.count()

    def answer(self, asked: Asked) -> tuple[int, object, dict[str, str]] | None:
        answer = copy.deepcopy(super().answer(asked))  # as it is now, and not as it will be when it is sent
        if asked.method == "GET" and next(self._first) < 2:
            self._both.wait(30)
        return answer


@pytest.mark.parametrize(
    "second", [message(), message(Outcome.BLOCK, run_id="run-2"), message(run_id="run-2")], ids=["same", "bad", "good"]
)
def test_of_two_first_comments_at_the_same_moment_that_of_the_newest_run_stays_alone(second: Message) -> None:
    with TwoAtOnce() as github, ThreadPoolExecutor(2) as jobs:
        told = [jobs.submit(publish, github, said) for said in (message(), second)]
        wrong = [job.exception() for job in told]
        assert wrong[1] is None and (wrong[0] is None or isinstance(wrong[0], Overtaken))
        marked = [body for body in bodies(github) if body.startswith(MARK)]
        (kept,) = marked
        assert f":{second.run_id} -->" in kept and second.text(100) in kept
        assert len(bodies(github)) == 2
        (link,) = [one["html_url"] for one in github.comments[7] if one["body"] == kept]
        assert all(link in body for body in bodies(github) if body != kept)


class Forestalling(FakeGitHub):
    """Somebody else's job is a moment earlier."""

    def answer(self, asked: Asked) -> tuple[int, object, dict[str, str]] | None:
        if asked.method == "POST" and asked.path.endswith("/comments"):
            self.comment(f"{MARK}\n<!-- benchgate-says:success:run-1 -->\n## PASS")
        return super().answer(asked)


def test_of_one_run_that_is_told_twice_at_once_the_oldest_comment_stays() -> None:
    with Forestalling() as github:
        assert publish(github, message()).endswith("of another job stays in its place")
        theirs, ours = bodies(github)
    assert theirs.startswith(MARK) and ours.startswith("<!-- benchgate-superseded:chat:awq -->")


def test_a_comment_of_somebody_else_with_our_mark_is_not_ours(github: FakeGitHub) -> None:
    for login in ("mallory", "github-actions", "other-app[bot]"):
        github.comment(f"{MARK}\n<!-- benchgate-says:success -->\n## PASS", login)
    before = bodies(github)
    publish(github, message(Outcome.BLOCK))
    assert bodies(github)[:3] == before
    assert len(github.comments[7]) == 4


def test_a_mark_anywhere_but_at_the_beginning_is_not_ours(github: FakeGitHub) -> None:
    github.comment(f"somebody said {MARK}")
    publish(github, message())
    assert len(github.comments[7]) == 2


def test_suites_and_candidates_have_comments_of_their_own(github: FakeGitHub) -> None:
    named = [
        message(),
        message(candidate="int8"),
        message(suite="code"),
        message(suite="chat:awq", candidate="x"),
        message(candidate="-->"),
        message(key="eu"),
    ]
    for said in (*named, *named):
        publish(github, said)
    assert len(github.comments[7]) == 6
    assert bodies(github)[4].startswith("<!-- benchgate:chat:--%3E -->\n")
    assert bodies(github)[5].startswith("<!-- benchgate:chat:awq:eu -->\n")


def test_a_job_that_was_killed_between_new_and_old_is_tidied_up_by_the_next(github: FakeGitHub) -> None:
    for light in ("success", "failure"):
        github.comment(f"{MARK}\n<!-- benchgate-says:{light}:run-0 -->\n## old", BOT)
    publish(github, message(Outcome.BLOCK))
    first, second = bodies(github)
    assert first.startswith("<!-- benchgate-superseded:")
    assert second.startswith(MARK)


def test_a_text_that_is_too_long_is_said_shorter(github: FakeGitHub) -> None:
    long = replace(message(), text=lambda budget: "漢" * (70_000 if budget > 30_000 else budget // 3))
    publish(github, long)
    assert len(bodies(github)[0]) == len(f"{MARK}\n<!-- benchgate-says:success:run-1 -->\n") + 10_000
    hopeless = replace(message(said="other"), text=lambda budget: "x" * 70_000)
    with pytest.raises(PublishError, match="body is too long"):
        publish(github, hopeless)


def test_a_pull_request_that_is_not_there_is_told(github: FakeGitHub) -> None:
    with (
        GitHubApi(github.environment) as api,
        pytest.raises(PublishError, match=r"the comment on pull request 8: GitHub says Not Found; there is no /repos/"),
    ):
        publish_comment(api, 8, message())
