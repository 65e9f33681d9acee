"""What is told beside a mistake: other mistakes that it must not hide, and a remedy that helps."""

from __future__ import annotations

import pytest

from tests.core.test_suite_problems import SUITE, problems_of


def test_names_in_a_check_are_looked_up_although_the_check_is_wrong_elsewhere() -> None:
    text = SUITE.replace("stage: c4, margin: 5%", "stage: c5, margin: 5").replace(
        "task: add,", "task: ad, requird: true,"
    )
    assert [line.split(" ")[1] for line in problems_of(text)] == [
        "gate.checks[0].stage:",
        "gate.checks[0].margin:",
        "gate.checks[2].task:",
        "gate.checks[2].requird:",
    ]


@pytest.mark.parametrize(("bound", "told"), [("1.5", "write it with its unit"), ("true", "expected a bound")])
def test_a_bound_without_its_unit_is_not_told_to_be_quoted(bound: str, told: str) -> None:
    (problem,) = problems_of(SUITE.replace("max: 1%", f"max: {bound}"))
    assert told in problem
    assert "quotes" not in problem


def test_a_number_where_a_name_stands_is_told_to_be_quoted() -> None:
    (problem,) = problems_of(SUITE.replace("suite: chat", "suite: 7"))
    assert problem.endswith("put it in quotes")
