"""What `store check` looks at last: would `store export` let every run out, and another store take it in?"""

from __future__ import annotations

from collections.abc import Container, Iterator

from sqlalchemy import Connection, select

from benchgate.errors import EvidenceError
from benchgate.store import tables
from benchgate.store.finding import Finding
from benchgate.store.soundness import require_sound
from benchgate.store.whole_run import read_whole

_HERE = "here"


def sound_findings(connection: Connection, told: Container[str | None]) -> Iterator[Finding]:
    """The first thing that keeps a run from being exported, of the runs of which nothing was `told` yet."""
    for run_id in connection.scalars(select(tables.run.c.id).order_by(tables.run.c.id)).all():
        if run_id in told:
            continue
        try:
            require_sound(read_whole(connection, run_id), _HERE)
        except EvidenceError as exc:
            problem = str(exc).removeprefix(f"{_HERE}: ").removeprefix(f"run {run_id}: ")
            yield Finding(run_id, "run", f"it cannot be exported: {problem}")
