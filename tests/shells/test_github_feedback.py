"""Comments, check runs and statuses of one verdict on GitHub: ours alone, never green for an older run."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from benchgate.errors import PublishError
from benchgate.integrations.github import GitHubApi
from benchgate.integrations.github_feedback import (
    CheckState,
    Message,
    Overtaken,
    publish_check,
    publish_comment,
    publish_commit_status,
    publish_deployment_status,
)
from benchgate.model.verdict import Outcome
from tests.fakes.github_api import BOT, Asked, FakeGitHub
from tests.fakes.messages import message

MARK = "<!-- benchgate:chat:awq -->"


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as server:
        yield server


def comment_on(github: FakeGitHub, said: Message) -> str:
    with GitHubApi(github.environment, sleep=lambda wait_s: None) as api:
        return publish_comment(api, 7, said)


def bodies(github: FakeGitHub) -> list[str]:
    return [one["body"] for one in github.comments[7]]


def test_one_comment_is_updated_over_five_runs_and_left_alone_when_it_says_the_same(github: FakeGitHub) -> None:
    for i in range(130):
        github.comment(f"{i}", "somebody")
    comment_on(github, message(said="run 0"))
    for i in range(1, 5):
        assert comment_on(github, message(said=f"run {i}")).endswith("updated")
    assert len(github.comments[7]) == 131
    assert bodies(github)[130] == f"{MARK}\n<!-- benchgate-says:success:run-1 -->\n## PASS: awq\n\nrun 4\n"
    github.asked.clear()
    assert comment_on(github, message(said="run 4")).endswith("is up to date")
    assert github.changes() == []


@pytest.mark.parametrize("good", [Outcome.PASS, Outcome.WARN])
@pytest.mark.parametrize("bad", [Outcome.BLOCK, Outcome.INCONCLUSIVE, Outcome.INVALID])
def test_good_news_that_turns_bad_is_a_new_comment_and_the_old_one_leads_to_it(
    github: FakeGitHub, good: Outcome, bad: Outcome
) -> None:
    comment_on(github, message(good))
    assert comment_on(github, message(bad)).startswith("new comment")
    old, new = github.comments[7]
    assert old["body"].startswith("<!-- benchgate-superseded:chat:awq -->\n## " + good)
    assert new["html_url"] in old["body"]
    assert f"## {bad}" in new["body"]
    comment_on(github, message(bad, said="again"))
    comment_on(github, message(good, said="mended"))
    assert len(github.comments[7]) == 2
    assert f"## {good}: awq\n\nmended" in bodies(github)[1]


def test_an_old_green_is_not_told_over_a_newer_comment(github: FakeGitHub) -> None:
    comment_on(github, message(Outcome.BLOCK, run_id="run-2"))
    before = bodies(github)
    with pytest.raises(Overtaken, match="run run-2 was measured after run run-1"):
        comment_on(github, message(run_id="run-1"))
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
        told = [jobs.submit(comment_on, github, said) for said in (message(), second)]
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
        assert comment_on(github, message()).endswith("of another job stays in its place")
        theirs, ours = bodies(github)
    assert theirs.startswith(MARK) and ours.startswith("<!-- benchgate-superseded:chat:awq -->")


NO_VERDICT = replace(message(None), state=CheckState.ERROR)
OLD_RED = message(Outcome.BLOCK, run_id="run-0")


@pytest.mark.parametrize("after", [[NO_VERDICT, NO_VERDICT], [NO_VERDICT, OLD_RED]])
@pytest.mark.parametrize("before", [[message()], [message(), message(Outcome.BLOCK, run_id="run-2")]])
def test_a_comment_without_a_run_is_not_made_green_by_a_run_that_was_there_before_it(
    github: FakeGitHub, before: list[Message], after: list[Message]
) -> None:
    for said in (*before, *after):
        comment_on(github, said)
    red = bodies(github)
    with pytest.raises(Overtaken):
        comment_on(github, message())
    assert bodies(github) == red
    comment_on(github, message(run_id="run-3"))
    assert sum("benchgate-says:success" in body for body in bodies(github)) == 1


def test_a_comment_of_somebody_else_with_our_mark_is_not_ours(github: FakeGitHub) -> None:
    for login in ("mallory", "github-actions", "other-app[bot]"):
        github.comment(f"{MARK}\n<!-- benchgate-says:success -->\n## PASS", login)
    before = bodies(github)
    comment_on(github, message(Outcome.BLOCK))
    assert bodies(github)[:3] == before
    assert len(github.comments[7]) == 4


def test_a_mark_anywhere_but_at_the_beginning_is_not_ours(github: FakeGitHub) -> None:
    github.comment(f"somebody said {MARK}")
    comment_on(github, message())
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
        comment_on(github, said)
    assert len(github.comments[7]) == 6
    assert bodies(github)[4].startswith("<!-- benchgate:chat:--%3E -->\n")
    assert bodies(github)[5].startswith("<!-- benchgate:chat:awq:eu -->\n")


def test_a_job_that_was_killed_between_new_and_old_is_tidied_up_by_the_next(github: FakeGitHub) -> None:
    for light in ("success", "failure"):
        github.comment(f"{MARK}\n<!-- benchgate-says:{light}:run-0 -->\n## old", BOT)
    comment_on(github, message(Outcome.BLOCK))
    first, second = bodies(github)
    assert first.startswith("<!-- benchgate-superseded:")
    assert second.startswith(MARK)


def test_a_text_that_is_too_long_is_said_shorter(github: FakeGitHub) -> None:
    long = replace(message(), text=lambda budget: "漢" * (70_000 if budget > 30_000 else budget // 3))
    comment_on(github, long)
    assert len(bodies(github)[0]) == len(f"{MARK}\n<!-- benchgate-says:success:run-1 -->\n") + 10_000
    hopeless = replace(message(said="other"), text=lambda budget: "x" * 70_000)
    with pytest.raises(PublishError, match="body is too long"):
        comment_on(github, hopeless)


def test_a_pull_request_that_is_not_there_is_told(github: FakeGitHub) -> None:
    with (
        GitHubApi(github.environment) as api,
        pytest.raises(PublishError, match=r"the comment on pull request 8: GitHub says Not Found; there is no /repos/"),
    ):
        publish_comment(api, 8, message())


SHA = "c0ffee" * 6 + "c0de"
NAME = "benchgate/chat/awq"


def publish(github: FakeGitHub, said: Message) -> str:
    with GitHubApi(github.environment, sleep=lambda wait_s: None) as api:
        return publish_check(api, SHA, said)


@pytest.mark.parametrize(
    ("outcome", "conclusion"),
    [
        (Outcome.PASS, "success"),
        (Outcome.WARN, "success"),
        (Outcome.BLOCK, "failure"),
        (Outcome.INCONCLUSIVE, "failure"),
        (Outcome.INVALID, "failure"),
    ],
)
def test_a_check_run_is_in_progress_first_and_then_what_the_verdict_is(
    github: FakeGitHub, outcome: Outcome, conclusion: str
) -> None:
    publish(github, message(outcome))
    assert github.changes() == ["POST /repos/acme/models/check-runs", "PATCH /repos/acme/models/check-runs/1000"]
    begun = next(one for one in github.asked if one.method == "POST" and one.path != "/graphql").body or {}
    assert "conclusion" not in begun
    (check,) = github.checks
    told = {key: check[key] for key in ("name", "head_sha", "status", "conclusion", "external_id", "details_url")}
    assert told == {
        "name": NAME,
        "head_sha": SHA,
        "status": "completed",
        "conclusion": conclusion,
        "external_id": "run-1",
        "details_url": "https://ci.test/1",
    }
    assert check["output"]["title"] == f"{outcome}: TTFT rose"


def test_a_stale_green_check_is_taken_back_before_anything_is_measured(github: FakeGitHub) -> None:
    publish(github, message())
    publish(github, message(None))
    assert [(one["status"], one["conclusion"]) for one in github.checks] == [
        ("completed", "success"),
        ("in_progress", None),
    ]
    publish(github, message(Outcome.BLOCK, run_id="run-2"))
    assert [one["conclusion"] for one in github.checks] == ["success", "failure"]  # the newest one counts
    assert github.checks[-1]["external_id"] == "run-2"


def test_annotations_go_in_fifties_and_the_last_ones_conclude(github: FakeGitHub) -> None:
    publish(github, message(Outcome.BLOCK, notes=120))
    (check,) = github.checks
    assert [one["title"] for one in check["annotations"]] == [f"check {i}" for i in range(120)]
    sizes = [len((one.body or {})["output"]["annotations"]) for one in github.asked if one.method == "PATCH"]
    assert sizes == [50, 50, 20]
    assert check["annotations"][4] == {
        "path": "suites/chat.yaml",
        "start_line": 5,
        "end_line": 5,
        "annotation_level": "failure",
        "title": "check 4",
        "message": "TTFT rose",
    }


@pytest.mark.parametrize("how", [{"done": True}, {"done": True, "status": 502}, {}, {"status": 500}])
def test_a_lost_answer_makes_no_second_check_and_no_annotation_twice(github: FakeGitHub, how: dict[str, Any]) -> None:
    github.trouble("POST", "/check-runs", **how)
    github.trouble("PATCH", "/check-runs/", **how)
    publish(github, message(Outcome.BLOCK, notes=60))
    (check,) = github.checks
    assert [one["title"] for one in check["annotations"]] == [f"check {i}" for i in range(60)]
    assert check["conclusion"] == "failure"


def test_a_job_that_was_killed_midway_goes_on_where_it_was(github: FakeGitHub) -> None:
    github.trouble("PATCH", "/check-runs/", status=401, times=0)
    publish(github, message(None))
    github.checks[0] |= {"external_id": "run-1", "output": {"annotations_count": 50}, "annotations": [{}] * 50}
    publish(github, message(Outcome.BLOCK, notes=60))
    assert len(github.checks) == 1
    assert [one["title"] for one in github.checks[0]["annotations"][50:]] == [f"check {i}" for i in range(50, 60)]


def test_what_another_run_left_in_progress_is_not_gone_on_with(github: FakeGitHub) -> None:
    github.check(NAME, SHA, status="in_progress", external_id="run-0")
    publish(github, message(Outcome.PASS))
    assert [one["status"] for one in github.checks] == ["in_progress", "completed"]


def test_a_check_of_another_app_or_another_name_is_let_be(github: FakeGitHub) -> None:
    github.check(NAME, SHA, status="in_progress", app={"slug": "other"})
    github.check("benchgate/chat/int8", SHA, status="in_progress")
    publish(github, message())
    assert [one["status"] for one in github.checks] == ["in_progress", "in_progress", "completed"]


def test_a_job_without_the_permission_is_told_which(github: FakeGitHub) -> None:
    github.trouble("POST", "/check-runs", status=403, message="Resource not accessible by integration")
    with pytest.raises(PublishError, match=r"the check run: .*add `permissions: checks: write` to the job"):
        publish(github, message())


TELLERS: dict[str, Callable[[GitHubApi, Message], str]] = {
    "check run": lambda api, said: publish_check(api, SHA, said),
    "commit": lambda api, said: publish_commit_status(api, SHA, said),
    "deployment": lambda api, said: publish_deployment_status(api, 5, said),
}


def tell(github: FakeGitHub, where: str, *said: Message) -> list[object]:
    """What stands there after these were told, oldest first."""
    for one in said:
        with GitHubApi(github.environment, sleep=lambda wait_s: None) as api:
            TELLERS[where](api, one)
    return standing(github, where)


def standing(github: FakeGitHub, where: str) -> list[object]:
    if where == "check run":
        return [one["conclusion"] for one in github.checks]
    return [one["state"] for one in (github.statuses[SHA] if where == "commit" else github.deployments[5])][::-1]


@pytest.mark.parametrize("where", TELLERS)
def test_an_old_green_is_not_told_over_what_is_newer_and_an_old_red_is(github: FakeGitHub, where: str) -> None:
    newer, older = message(Outcome.BLOCK, run_id="run-2"), message(run_id="run-1")
    assert tell(github, where, newer) == ["failure"]
    with pytest.raises(Overtaken, match="run run-2 was measured after run run-1 and was posted"):
        tell(github, where, older)
    assert standing(github, where) == ["failure"]
    tell(github, where, message(run_id="run-3"))
    assert tell(github, where, message(Outcome.BLOCK, run_id="run-1"))[-1] == "failure"


@pytest.mark.parametrize("where", TELLERS)
def test_a_run_that_was_told_before_measuring_began_again_makes_nothing_green(github: FakeGitHub, where: str) -> None:
    before = tell(github, where, message(), message(), message(None))
    with pytest.raises(Overtaken, match="after run run-1 was posted, a new measurement began"):
        tell(github, where, message())
    assert standing(github, where) == before
    assert tell(github, where, message(run_id="run-2"))[-1] == "success"


@pytest.mark.parametrize("where", TELLERS)
def test_a_green_is_taken_back_where_a_newer_run_was_told_at_the_same_time(
    github: FakeGitHub, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, newer = github.answer, message(Outcome.BLOCK, run_id="run-2")

    def meanwhile(asked: Asked) -> Any:
        if asked.method == "POST" and asked.path != "/graphql":
            monkeypatch.setattr(github, "answer", answer)
            tell(github, where, newer)  # between the older one's look and what it says
        return answer(asked)

    monkeypatch.setattr(github, "answer", meanwhile)
    with pytest.raises(Overtaken):
        tell(github, where, message(run_id="run-1"))
    left = standing(github, where)
    assert left == ["failure", "failure"] if where == "check run" else left[-1] == "error"
    assert tell(github, where, message(run_id="run-2"))[-1] == "success"


def test_a_conclusion_that_another_job_made_is_not_taken_for_ours(
    github: FakeGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = github.answer

    def lost(asked: Asked) -> Any:
        if asked.method == "PATCH":
            monkeypatch.setattr(github, "answer", answer)
            github.checks[0] |= {"status": "completed", "conclusion": "success"}
            return 502, {}, {}
        return answer(asked)

    monkeypatch.setattr(github, "answer", lost)
    publish(github, message(Outcome.BLOCK))
    assert github.checks[0]["conclusion"] == "failure"


STATES = [
    (None, "pending", "in_progress"),
    (Outcome.PASS, "success", "success"),
    (Outcome.WARN, "success", "success"),
    (Outcome.BLOCK, "failure", "failure"),
    (Outcome.INCONCLUSIVE, "failure", "failure"),
    (Outcome.INVALID, "error", "error"),
]


@pytest.mark.parametrize(("outcome", "state", "of_deployment"), STATES)
def test_statuses_of_commit_and_deployment_say_the_verdict(
    github: FakeGitHub, outcome: Outcome | None, state: str, of_deployment: str
) -> None:
    said = message(outcome, said="x" * 300)
    with GitHubApi(github.environment) as api:
        publish_commit_status(api, SHA, said)
        publish_deployment_status(api, 5, said)
    (status,), (deployed,) = github.statuses[SHA], github.deployments[5]
    assert (status["state"], status["context"], status["target_url"]) == (state, NAME, "https://ci.test/1")
    assert deployed["state"] == of_deployment
    assert deployed["auto_inactive"] is False
    assert len(status["description"]) == len(deployed["description"]) == 140


@pytest.mark.parametrize("part", ["/statuses/", "/deployments/5/statuses"])
def test_a_status_whose_answer_was_lost_is_not_added_twice(github: FakeGitHub, part: str) -> None:
    github.trouble("POST", part, done=True)
    with GitHubApi(github.environment, sleep=lambda wait_s: None) as api:
        publish_commit_status(api, SHA, message())
        publish_deployment_status(api, 5, message())
    assert (len(github.statuses[SHA]), len(github.deployments[5])) == (1, 1)


def test_a_deployment_that_is_not_there_is_told(github: FakeGitHub) -> None:
    with GitHubApi(github.environment) as api, pytest.raises(PublishError, match=r"deployment 6: .*deployments: write"):
        publish_deployment_status(api, 6, message())
