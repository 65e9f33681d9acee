"""Which checks of evals a policy comes to: one for each task where it says so, and none is lost in an average."""

from __future__ import annotations

import pytest

from benchgate.gate.comparison import compare
from benchgate.gate.evidence.items import units_of
from benchgate.gate.policy import concrete_checks, judged_units, scales_of
from benchgate.model.run import Evidence
from benchgate.suite.schema import Suite
from benchgate.suite.stages import Stage
from tests.fakes.drills import drill
from tests.fakes.evals import Answers, Line, evidence_of, suite_of
from tests.fakes.measured import measured

EXACT = Answers([1.0] * 5)
GRADED = Answers([0.5] * 5, harness={"scale": "continuous"})
ACCURACY: Line = {"metric": "accuracy", "margin": "5 points"}
SCORE: Line = {"metric": "score", "margin": "5 points"}


def ids(checks: list[Line], **tasks: Answers) -> list[str]:
    suite = suite_of(checks, list(tasks) or ["t"])
    return [spec.id for spec in concrete_checks(suite, evidence_of(suite, {name: (a, a) for name, a in tasks.items()}))]


@pytest.mark.parametrize(
    ("checks", "names"),
    [
        ([ACCURACY], ["accuracy"]),
        ([{**ACCURACY, "task": "each"}], ["accuracy@a", "accuracy@b", "accuracy@s"]),
        ([{**ACCURACY, "task": "b"}], ["accuracy@b"]),
        ([SCORE], ["score@a", "score@b", "score@s"]),
        ([{**SCORE, "task": "each"}, ACCURACY], ["score@s", "accuracy"]),
        ([{**SCORE, "task": "s"}, {**ACCURACY, "task": "each"}], ["score@s", "accuracy@a", "accuracy@b"]),
        ([{"metric": "flips", "margin": "5 points", "task": "each"}], ["flips@a", "flips@b", "flips@s"]),
        ([{"metric": "shadow_excess", "margin": "5 points"}], ["shadow_excess"]),
    ],
)
def test_every_task_has_a_check_of_its_own_where_each_is_judged(checks: list[Line], names: list[str]) -> None:
    assert ids(checks, a=EXACT, b=EXACT, s=GRADED) == names


@pytest.mark.parametrize(
    ("line", "name"), [({**ACCURACY, "task": "each"}, "accuracy@each"), (SCORE, "score"), (ACCURACY, "accuracy")]
)
def test_a_check_of_tasks_that_were_never_run_is_still_there(line: Line, name: str) -> None:
    assert ids([line]) == [name]


@pytest.mark.parametrize(("baseline", "candidate"), [(EXACT, GRADED), (GRADED, EXACT), (GRADED, GRADED)])
def test_a_task_is_scored_by_degrees_where_either_arm_says_so(baseline: Answers, candidate: Answers) -> None:
    suite = suite_of([SCORE, ACCURACY], ["t", "u"])

    def of(again: Answers) -> Evidence:
        return evidence_of(suite, {"t": (baseline, candidate), "u": (EXACT, EXACT)}, {"u": again})

    assert scales_of(of(EXACT)) == scales_of(of(GRADED)) == {"t": True, "u": False}  # a second asking is no measure
    of_accuracy = next(spec for spec in concrete_checks(suite, of(EXACT)) if spec.check.metric == "accuracy")
    assert judged_units(of_accuracy, suite, compare(of(EXACT))) == {"u": ("u",)}


def test_a_group_is_scored_by_degrees_where_one_of_its_tasks_is() -> None:
    suite = suite_of([ACCURACY, SCORE], ["g", "u"])
    evidence = evidence_of(suite, {"g/a": (GRADED, GRADED), "g/b": (EXACT, EXACT), "u": (EXACT, EXACT)})
    of_accuracy = next(spec for spec in concrete_checks(suite, evidence) if spec.check.metric == "accuracy")
    assert judged_units(of_accuracy, suite, compare(evidence)) == {"u": ("u",)}


@pytest.mark.parametrize("tasks", [("g/a", "g/b"), ("g/b", "g/a")])
def test_a_group_of_both_kinds_is_judged_in_whatever_order_its_tasks_come(tasks: tuple[str, str]) -> None:
    suite = suite_of([ACCURACY, SCORE], ["g", "s", "u"])
    answers = {"g/a": GRADED, "g/b": EXACT, "s": GRADED, "u": EXACT}
    evidence = evidence_of(suite, {name: (answers[name], answers[name]) for name in (*tasks, "s", "u")})
    judged = {spec.id: dict(judged_units(spec, suite, compare(evidence))) for spec in concrete_checks(suite, evidence)}
    assert judged == {"accuracy": {"u": ("u",)}, "score@g": {"g": tasks}, "score@s": {"s": ("s",)}}


def test_a_group_is_all_of_its_tasks_and_a_second_asking_is_none() -> None:
    suite = suite_of([ACCURACY], ["g", "t"])
    tasks = {name: (EXACT, EXACT) for name in ("g/a", "t", "g/b", "g/c")}
    comparison = compare(evidence_of(suite, tasks, {"t": EXACT, "only again": EXACT}))
    assert units_of(suite, comparison) == {"g": ("g/a", "g/b", "g/c"), "t": ("t",)}
    named = {name: (name,) for name in tasks}
    assert units_of(suite.model_copy(update={"quality": None}), comparison) == named
    assert units_of(suite_of([ACCURACY], ["another"]), comparison) == named


def test_a_knee_is_looked_for_in_closed_loops_alone() -> None:
    suite: Suite = drill({"metric": "knee", "min": 2})
    assert suite.load is not None
    opened = Stage.model_validate({"stage": "open", "rate": "5/s", "requests": 60})
    load = suite.load.model_copy(update={"sweep": (*suite.load.sweep, opened)})
    (spec,) = concrete_checks(suite.model_copy(update={"load": load}), measured(suite))
    assert spec.levels == (("short", 1), ("long", 2))
