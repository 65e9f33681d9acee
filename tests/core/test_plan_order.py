"""The order in which evals are asked: as rows stand, or drawn from the seed where an eval may end early."""

from __future__ import annotations

from dataclasses import replace

from benchgate.plan.items import PlannedTask
from benchgate.plan.schedule import Plan, make_plan
from benchgate.suite.schema import Suite

ROWS = tuple({"id": f"row-{number}", "q": number} for number in range(40))
TASK = PlannedTask("add", {}, ROWS)
NAMED = PlannedTask("gsm8k", {}, tuple({"q": row["q"]} for row in ROWS), ids=tuple(f"gsm8k-{n}" for n in range(40)))


def plan(*tasks: PlannedTask, stop_early: bool = True, seed: int = 3, limit: int | None = None) -> Plan:
    suite = Suite.model_validate(
        {
            "suite": "s",
            "seed": seed,
            "deployments": {"a": {"embedded": {}}, "b": {"embedded": {"weights": "q8_0"}}},
            "baseline": "a",
            "candidate": "b",
            "quality": {"tasks": ["add.yaml", "gsm8k"], "stop_early": stop_early, "limit": limit},
            "gate": {"checks": [{"metric": "accuracy", "margin": "5 points"}]},
        }
    )
    return make_plan(suite, tasks)


def order(planned: Plan, task: int = 0) -> list[object]:
    return [row["q"] for row in planned.tasks[task].rows]


def test_rows_that_may_not_all_be_asked_are_in_an_order_that_is_drawn_from_the_seed() -> None:
    drawn = order(plan(TASK))
    assert drawn != sorted(drawn, key=str) and sorted(map(str, drawn)) == sorted(str(row["q"]) for row in ROWS)
    assert drawn == order(plan(TASK)) != order(plan(TASK, seed=4))


def test_each_task_has_an_order_of_its_own() -> None:
    both = plan(TASK, replace(TASK, name="reverse"))
    assert order(both, 0) != order(both, 1)


def test_without_an_early_end_rows_are_asked_as_they_stand() -> None:
    assert order(plan(TASK, stop_early=False)) == [row["q"] for row in ROWS]


def test_a_limit_takes_the_first_rows_and_then_draws_their_order() -> None:
    assert sorted(map(str, order(plan(TASK, limit=10)))) == sorted(str(n) for n in range(10))


def test_ids_that_stand_beside_the_rows_go_with_them() -> None:
    [task] = plan(NAMED).tasks
    assert task.ids is not None
    assert list(task.ids) == [f"gsm8k-{row['q']}" for row in task.rows] != list(NAMED.ids or ())
