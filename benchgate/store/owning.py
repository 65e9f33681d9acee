"""Is a run still this process's own? Found out in the transaction of every write, by what the database has of the run.

Two that measure one run would choose, block by block, between what each of them saw. A lock keeps them apart as long as
both see it (`alive`); where they do not, whoever finds a row that it did not write stops.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select, union_all

from benchgate.errors import StoreError, TakenOver
from benchgate.store import tables
from benchgate.store.engine import fetch
from benchgate.store.locks import lock_run
from benchgate.store.sealing import STORY, is_over


def require_ours(connection: Connection, run_id: str, next_seq: int) -> None:
    """Raises TakenOver where somebody else wrote to the run, or ended it. `next_seq`: where our next row comes.

    StoreError where the database does not have the run any more.
    """
    lock_run(connection, run_id)  # else two writers of Postgres could both look before either of them writes
    run = tables.run.c
    found = fetch(connection, select(run.status, run.evidence_sha256).where(run.id == run_id))
    if not found:
        raise StoreError(f"run {run_id} is not in the store any more")
    if is_over(found[0]):
        raise TakenOver(taken_over(run_id, f"it is {found[0]['status']} in the store, which was not done here"))
    places = union_all(*(select(func.max(table.c.seq)).where(table.c.run_id == run_id) for table in STORY))
    last = max((seq for seq in connection.scalars(places) if seq is not None), default=-1)
    if last >= next_seq:
        raise TakenOver(taken_over(run_id, "the store has rows of it that were not written here"))


def taken_over(run_id: str, sign: str) -> str:
    """What to say, and to do, when a run turns out to be another's."""
    return (
        f"run {run_id} may be measured by another process too, so this one stops: {sign}; nothing that it measures "
        "from now on counts. See whether another one goes on with it; where none does, --resume does"
    )
