"""Checks that no run could ever judge are mistakes of the suite, told before anything is asked."""

from __future__ import annotations

import pytest

from benchgate.errors import Problem, SuiteError
from benchgate.plan.items import PlannedTask, ShadowPrompt
from benchgate.quality.tasks.loading import impossible_checks
from benchgate.shadow.prompts import unmeasurable_checks
from tests.fakes.evals import Line, suite_of
from tests.fakes.measured import SuiteText

RIGHT = PlannedTask("add", {}, ())
DEGREES = PlannedTask("cont", {}, (), metric="chrf", scale="continuous")


def check(metric: str, task: str | None = None) -> Line:
    line: Line = {"metric": metric, "margin": "5 points"}
    return line if task is None else {**line, "task": task}


@pytest.mark.parametrize(
    ("checks", "places"),
    [
        ([check("accuracy", "add"), check("score", "cont")], []),
        ([check("accuracy", "each"), check("score")], []),
        ([check("accuracy"), check("score", "cont")], []),
        ([check("accuracy", "add"), check("accuracy", "cont")], ["gate.checks[1].metric"]),
        ([check("score", "add"), check("score", "cont")], ["gate.checks[0].metric"]),
        ([check("accuracy", "each")], ["gate.checks[0].metric"]),
        ([check("accuracy")], ["gate.checks[0].metric"]),
        ([check("score")], ["gate.checks[0].metric"]),
    ],
)
def test_a_check_of_another_kind_of_score_than_its_tasks_is_refused(checks: list[Line], places: list[str]) -> None:
    suite = suite_of(checks, ["add", "cont"])
    assert [problem.path for problem in impossible_checks(suite, (RIGHT, DEGREES))] == places


def test_a_task_of_a_group_is_known_by_its_own_scores() -> None:
    group = (PlannedTask("g/one", {}, ()), PlannedTask("g/two", {}, (), metric="f1", scale="continuous"))
    suite = suite_of([check("accuracy", "g/one"), check("accuracy", "g/two"), check("score", "g")], ["g"])
    assert [problem.path for problem in impossible_checks(suite, group)] == ["gate.checks[1].metric"]


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, True),
        ({"response_format": {"type": "text"}}, True),
        ({"response_format": {"type": "json_object"}}, False),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, False),
    ],
)
def test_a_form_that_no_prompt_asks_for_cannot_be_checked(fields: dict[str, object], refused: bool) -> None:
    suite = SuiteText([check("shadow_validity")]).suite()
    told = [problem.path for problem in unmeasurable_checks(suite, (ShadowPrompt("a", "hi", fields=fields),))]
    assert told == (["gate.checks[0].metric"] if refused else [])


def test_of_very_many_problems_of_a_file_the_first_are_shown_and_the_rest_counted() -> None:
    error = SuiteError([Problem("log.jsonl", line, None, "", "not JSON") for line in range(1, 406)])
    told = str(error).splitlines()
    assert told[-1] == "log.jsonl: and 385 more" and len(told) == 21
    assert len(error.problems) == 405
