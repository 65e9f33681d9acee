"""What `store check` is made of: one thing that is wrong, and rows read one after another, run by run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select

from benchgate.store.rows import Row

_ROWS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: of which run (None: of none), at which place of it, and what."""

    run_id: str | None
    place: str
    problem: str


def stream(connection: Connection, wanted: Select[*tuple[Any, ...]], *, at_once: int | None = None) -> Iterator[Row]:
    """The rows of a query, of which only so many are in memory."""
    with connection.execute(wanted, execution_options={"yield_per": at_once or _ROWS_AT_ONCE}) as found:
        for row in found:
            yield row._asdict()


class ByRun:
    """Rows in order of `run_id`, given out run by run, so that several tables are read beside each other."""

    def __init__(self, found: Iterator[Row]) -> None:
        self._found = found
        self._next = next(found, None)

    def of(self, run_id: str) -> Iterator[Row]:
        """The rows of this run; to be read to their end before those of the next. Rows of no run are passed over."""
        while self._next is not None and self._next["run_id"] <= run_id:
            row, self._next = self._next, next(self._found, None)
            if row["run_id"] == run_id:
                yield row
