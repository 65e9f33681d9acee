"""What a policy may ask of evals: each metric where it means something, and nothing that could never be answered."""

from __future__ import annotations

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.checks import Check
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite

SUITE = """\
suite: evals
deployments:
  one: {url: "http://one", model: m}
  two: {url: "http://two", model: m}
baseline: one
candidate: two
quality:
  tasks: [add.yaml, sort.yaml]
  QUALITY
gate:
  checks:
    - CHECK
"""


AND_ALL = "\n    - {metric: accuracy, margin: 9 points}"


def suite_with(check: str, quality: str = "repeat_baseline: true") -> Suite:
    return parse_suite(SUITE.replace("CHECK", check).replace("QUALITY", quality), "s.yaml")


@pytest.mark.parametrize(
    ("check", "required"),
    [
        ("{metric: accuracy, margin: 2 points}", True),
        ("{metric: score, margin: 0.5 points}", True),
        ("{metric: score, margin: 250 points}", True),  # of a score that goes to 100
        ("{metric: flips, margin: 5 points}\n    - {metric: accuracy, margin: 5 points}", False),
        (  # of a group what it consists of is not known here
            f"{{metric: accuracy, task: add/one, margin: 5 points}}{AND_ALL}",
            True,
        ),
        (f"{{metric: flips, task: each, margin: 5 points, required: true}}{AND_ALL}", True),
        (  # a task that may only warn is looked at too
            "{metric: accuracy, task: add, margin: 5 points}\n"
            "    - {metric: score, task: sort, margin: 5 points, required: false}",
            True,
        ),
    ],
)
def test_a_policy_may_say_and_only_flips_are_not_required_unless_said(check: str, required: bool) -> None:
    suite = suite_with(check)
    assert suite.gate.checks[0].required is required
    assert Suite.from_stored(suite.to_stored()) == suite


@pytest.mark.parametrize(
    ("check", "quality", "says"),
    [
        (
            f"{{metric: flips, margin: 5 points, required: true}}{AND_ALL}",
            "endpoint: chat",
            "set `quality.repeat_baseline: true`",
        ),
        ("{metric: flips, max: 5%}", "repeat_baseline: true", "flips has no upper bound; use `margin`"),
        ("{metric: score, min: 5%}", "endpoint: chat", "score has no lower bound; use `margin`"),
        ("{metric: accuracy, margin: 120 points}", "endpoint: chat", '"120 points" is not a usable margin'),
        ("{metric: score, margin: 5%}", "endpoint: chat", "the margin of score is a difference"),
        (
            "{metric: accuracy, task: math/algebra, margin: 5 points}",
            "endpoint: chat",
            'no task of `quality` is named "ma',
        ),
        ("{metric: score, task: ad, margin: 5 points}", "endpoint: chat", "did you mean `add`?"),
        ("{metric: accuracy, min: 50%}", "stop_early: true", "ends the evals when a required check"),
        ("{metric: accuracy, margin: 5 points, required: false}", "stop_early: true", "and there is none; add"),
    ],
)
def test_what_could_never_be_answered_is_refused(check: str, quality: str, says: str) -> None:
    with pytest.raises(SuiteError) as caught:
        suite_with(check, quality)
    (problem,) = caught.value.problems
    assert says in str(problem)


@pytest.mark.parametrize(
    ("check", "unjudged"),
    [
        ("{metric: accuracy, task: add, margin: 5 points}", ["sort"]),
        ("{metric: accuracy, task: add/one, margin: 5 points}", ["add", "sort"]),
        ("{metric: flips, margin: 5 points, required: true}", ["add", "sort"]),  # they tell no loss from a gain
    ],
)
def test_where_evals_are_judged_no_task_may_be_lost_unjudged(check: str, unjudged: list[str]) -> None:
    with pytest.raises(SuiteError) as caught:
        suite_with(check)
    for problem, task in zip(caught.value.problems, unjudged, strict=True):
        assert f'"{task}" could regress unjudged' in str(problem)
        assert f"add {{metric: accuracy, task: {task}, margin" in str(problem)


def test_a_band_that_nothing_lies_in_is_refused() -> None:
    entry = "{task: add.yaml, expect: {min: 90%, max: 10%}}"
    text = SUITE.replace("CHECK", "{metric: accuracy, margin: 5 points}").replace("  QUALITY\n", "")
    sound = parse_suite(text.replace("add.yaml", entry.replace("90%", "9%")), "s.yaml")
    assert sound.quality is not None and sound.quality.tasks[0].expect is not None
    with pytest.raises(SuiteError, match=r"nothing lies between a `min` of 90.0 % and a `max` of 10.0 %"):
        parse_suite(text.replace("add.yaml", entry), "s.yaml")


def test_scores_are_judged_each_apart_so_naming_one_of_them_judges_it_twice() -> None:
    both = "{metric: score, margin: 5 points}\n    - {metric: score, task: add, margin: 3 points}"
    with pytest.raises(SuiteError, match='the margin of score of "add" is already judged by'):
        suite_with(both)


def test_a_check_of_an_unknown_metric_says_nothing_of_what_it_requires() -> None:
    assert Check.model_validate({"metric": "accuracy", "margin": "1 points"}).required is True
