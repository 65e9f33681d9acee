"""What an eval process asks between one word to go on and the next."""

from __future__ import annotations

from benchgate.plan.evals import PlannedTask
from benchgate.quality.spool import Job
from benchgate.targets.address import Route


def job(*lengths: int, chunk: int | None) -> Job:
    row: dict[str, object] = {"id": "r"}
    tasks = tuple(PlannedTask(f"t{n}", {}, (row,) * length) for n, length in enumerate(lengths))
    return Job(
        url="", socket=None, route=Route(), model="m", endpoint="chat", headers={}, extra={}, leave_out=[],
        max_tokens_field="max_tokens", concurrency=2, max_tokens=1, connect_s=1, total_s=1, tasks=tasks, chunk=chunk,
    )  # fmt: skip


def sizes(found: Job) -> list[list[int]]:
    return [[len(places) for _, places in parts] for parts in found.rounds()]


def test_without_rounds_all_is_asked_at_once() -> None:
    assert sizes(job(3, 5, chunk=None)) == [[3, 5]]


def test_the_first_rounds_are_small_and_the_later_ones_grow() -> None:
    assert sizes(job(50, chunk=2)) == [[2], [2], [2], [2], [2], [2], [4], [8], [16], [10]]


def test_a_shorter_task_is_through_before_a_longer_one() -> None:
    assert sizes(job(3, 7, chunk=2)) == [[2, 2], [1, 2], [2], [1]]


def test_every_row_is_asked_once_and_in_order() -> None:
    asked = [place for parts in job(123, chunk=10).rounds() for _, places in parts for place in places]
    assert asked == list(range(123))
