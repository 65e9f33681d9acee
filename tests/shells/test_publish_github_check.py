"""Check runs and statuses: nothing older stays green, nothing but a PASS or WARN is green, nothing is told twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchgate.errors import PublishError
from benchgate.integrations.github_api import GitHubApi
from benchgate.integrations.github_check import publish_check
from benchgate.integrations.github_status import publish_commit_status, publish_deployment_status
from benchgate.integrations.message import Message, Overtaken
from benchgate.model.verdict import Outcome
from tests.fakes.github_api import Asked, FakeGitHub
from tests.fakes.messages import message

SHA = "c0ffee" * 6 + "c0de"
NAME = "benchgate/chat/awq"


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as server:
        yield server


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
    with pytest.raises(Overtaken, match="run run-2 was measured after run run-1 and was told of"):
        tell(github, where, older)
    assert standing(github, where) == ["failure"]
    tell(github, where, message(run_id="run-3"))
    assert tell(github, where, message(Outcome.BLOCK, run_id="run-1"))[-1] == "failure"


@pytest.mark.parametrize("where", ["check run", "commit"])
def test_a_run_that_was_told_before_measuring_began_again_makes_nothing_green(github: FakeGitHub, where: str) -> None:
    before = tell(github, where, message(), message(), message(None))
    with pytest.raises(Overtaken, match="after run run-1 was told of, measuring began once more"):
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
