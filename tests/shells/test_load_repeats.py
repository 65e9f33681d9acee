"""Which answers had come before: what is asked of their bytes, and what is not."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from benchgate.load.decode.body import RawBody
from benchgate.load.http.exchange import Response
from benchgate.load.http.parser import Head
from benchgate.load.results import NO_NAME, duplicate_responses, read_class
from benchgate.load.shards import stage_shard
from benchgate.load.spool import Spool, SpoolEntry
from benchgate.model.records import IntArray, RequestColumns, RequestRecord
from tests.shells.load_helpers import closed, limits, target_at

MS = 1_000_000


class Came(NamedTuple):
    """An answer: under which id, which bytes, how long after the request its first and its last output, in ms."""

    name: int
    body: int
    first_ms: int
    last_ms: int


@dataclass
class Bodies:
    """Of each row; remembers which were asked for."""

    of_rows: IntArray
    asked: list[int] | None = None

    def __call__(self, rows: IntArray) -> IntArray:
        assert self.asked is None
        self.asked = rows.tolist()
        return self.of_rows[rows]


def record(row: int, came: Came) -> RequestRecord:
    return RequestRecord(
        index=row,
        intended_ns=row * MS,
        sent_ns=row * MS,
        chunk_ns=tuple((row + at) * MS for at in (came.first_ms, came.last_ms)),
        end_ns=(row + came.last_ms) * MS,
        input_tokens=1,
        output_tokens=2,
        token_source=None,
        finish_reason="stop",
        http_status=200,
        error=None,
        error_detail=None,
    )


def again(*answers: Came) -> tuple[list[int], list[int] | None]:
    """The rows that came again, and those of which the bytes were read."""
    columns = RequestColumns.pack([record(row, came) for row, came in enumerate(answers)])
    bodies = Bodies(np.array([came.body for came in answers], dtype=np.int64))
    names = np.array([came.name for came in answers], dtype=np.int64)
    return list(duplicate_responses(columns, names, bodies)), bodies.asked


def copies(*answers: Came) -> list[int]:
    return again(*answers)[0]


def test_a_copy_is_one_by_its_name_its_bytes_and_its_haste() -> None:
    one, other = Came(7, 1, 300, 1000), Came(8, 2, 300, 1200)
    assert copies(one, other, Came(7, 1, 1, 2), Came(8, 2, 249, 250), Came(7, 1, 100, 240)) == [2, 4]


def test_answer_that_only_waited_less_than_the_first_is_no_copy() -> None:
    """The first one met a cold server, or a queue."""
    assert copies(Came(7, 1, 2000, 2040), *[Came(7, 1, 60, 100)] * 5) == []


def test_answers_of_a_few_tokens_that_differ_much_in_their_waiting_are_no_copies() -> None:
    waits_ms = (190, 20, 40, 22, 45, 21)
    assert copies(*[Came(7 + at % 2, at % 2, wait, wait + 2) for at, wait in enumerate(waits_ms)]) == []


def test_a_first_answer_that_was_cached_already_hides_no_copies() -> None:
    firsts = [Came(name, name, 1, 2) if name == 7 else Came(name, name, 300, 1000) for name in range(7, 17)]
    assert copies(*firsts, *[one._replace(first_ms=1, last_ms=2) for one in firsts]) == list(range(11, 20))


def test_answer_that_is_all_there_at_once_is_held_against_the_time_of_the_first() -> None:
    assert copies(Came(7, 1, 300, 300), Came(7, 1, 1, 1), Came(7, 1, 250, 250)) == [1]


def test_what_came_first_is_no_copy_of_what_came_later_and_slower() -> None:
    assert copies(Came(7, 1, 1, 2), Came(7, 1, 300, 1000)) == []


def test_another_answer_under_the_same_name_is_no_copy_however_quick() -> None:
    assert copies(Came(7, 1, 300, 1000), Came(7, 2, 1, 2), Came(7, 1, 300, 900)) == []


def test_each_answer_is_held_against_the_first_with_its_bytes() -> None:
    assert copies(Came(7, 2, 20, 30), Came(7, 1, 300, 1000), Came(7, 1, 1, 2), Came(7, 2, 20, 30)) == [2]


@pytest.mark.parametrize(
    "answers",
    [
        (),
        (Came(7, 1, 2, 5),),
        (Came(7, 1, 300, 1000), Came(8, 1, 1, 2), Came(9, 1, 1, 2)),
        (Came(7, 1, 300, 1000), Came(7, 1, 300, 900), Came(7, 1, 300, 400)),
        (Came(NO_NAME, 1, 300, 1000), Came(NO_NAME, 1, 1, 2)),
    ],
    ids=["none", "one", "names of their own", "at the same pace", "without a name"],
)
def test_bytes_are_read_again_only_where_a_name_came_again_in_haste(answers: Sequence[Came]) -> None:
    assert again(*answers) == ([], None)


def test_only_the_rows_of_names_under_suspicion_are_read_again() -> None:
    slow, quick = Came(7, 1, 300, 1000), Came(7, 1, 1, 2)
    _, read = again(slow, slow._replace(name=8), quick, slow._replace(name=8), quick._replace(name=9))
    assert read == [0, 2]


def test_answers_that_the_client_left_before_any_output_are_no_copies(tmp_path: Path) -> None:
    said = b'data: {"id":"same","choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    with Spool(tmp_path / "answers") as spool:
        for number, took_ns in enumerate((900 * MS, MS)):
            body = RawBody(said, array("q", [took_ns, len(said)]))
            response = Response(0, took_ns, Head("HTTP/1.1", 200, {}), body, left=True)
            spool.append(SpoolEntry(number, 0, 0, response))
    shard = stage_shard(target_at("http://127.0.0.1:1"), closed(2), limits=limits())
    read = read_class(shard.parts[0], tmp_path / "answers", shard.target)
    assert (len(read.requests), len(read.left)) == (0, 2)
