"""Which answers had come before: what is asked of their bytes, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchgate.load.repeats import NO_NAME, came_again
from benchgate.model.records import IntArray


class Bodies:
    """Of each row; remembers which were asked for."""

    def __init__(self, *of_rows: int) -> None:
        self.asked: list[list[int]] = []
        self._of_rows = np.array(of_rows, dtype=np.int64)

    def __call__(self, rows: IntArray) -> IntArray:
        self.asked.append(rows.tolist())
        return self._of_rows[rows]


def rows_that_came_again(names: Sequence[int], took_ns: Sequence[int], bodies: Bodies) -> list[int]:
    return list(came_again(np.array(names, dtype=np.int64), np.array(took_ns, dtype=np.int64), bodies))


def test_a_copy_is_one_by_its_name_its_bytes_and_its_haste() -> None:
    names, took_ns = (7, 8, 7, 8, 7), (1000, 1000, 249, 250, 3)
    assert rows_that_came_again(names, took_ns, Bodies(1, 2, 1, 2, 1)) == [2, 4]


def test_what_came_first_is_no_copy_of_what_came_later_and_slower() -> None:
    assert rows_that_came_again((7, 7), (3, 1000), Bodies(1, 1)) == []


def test_another_answer_under_the_same_name_is_no_copy_however_quick() -> None:
    assert rows_that_came_again((7, 7, 7), (1000, 3, 900), Bodies(1, 2, 1)) == []


def test_each_answer_is_held_against_the_first_with_its_bytes() -> None:
    """Connection 7 answered 2 before 1: the copy is of what took 1000."""
    assert rows_that_came_again((7, 7, 7), (20, 1000, 30), Bodies(2, 1, 1)) == [2]


@pytest.mark.parametrize(
    ("names", "took_ns"),
    [((), ()), ((7,), (5,)), ((7, 8, 9), (1000, 3, 3)), ((7, 7, 7), (1000, 900, 400)), ((NO_NAME, NO_NAME), (1000, 1))],
    ids=["none", "one", "names of their own", "at the same pace", "without a name"],
)
def test_bytes_are_read_again_only_where_a_name_came_again_in_haste(names: list[int], took_ns: list[int]) -> None:
    bodies = Bodies(1, 1, 1)
    assert rows_that_came_again(names, took_ns, bodies) == []
    assert bodies.asked == []


def test_only_the_rows_of_names_under_suspicion_are_read_again() -> None:
    bodies = Bodies(1, 2, 1, 2, 3)
    rows_that_came_again((7, 8, 7, 8, 9), (1000, 1000, 3, 900, 3), bodies)
    assert bodies.asked == [[0, 2]]
