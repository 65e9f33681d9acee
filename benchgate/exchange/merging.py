"""Takes a run from elsewhere into a store: what is new is added, what is known stays, what contradicts is refused.

One transaction per run. The evidence of a run is compared row by row, so the same id with other evidence never gets in;
a run that was cut short and went on elsewhere is continued, as long as what is here is a beginning of it. Verdicts,
promotions and notes of imports are united: they are ordered by their instants wherever they are read, so that two
stores which took in each other's bundles agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from benchgate.errors import EvidenceError
from benchgate.exchange.bulk import insert_rows
from benchgate.model.run import RunStatus
from benchgate.store import rows, tables
from benchgate.store.check_rows import check_rows
from benchgate.store.engine import fetch
from benchgate.store.locks import lock_run
from benchgate.store.sealing import begin_run, is_over, take_up
from benchgate.store.whole_run import Story, WholeRun, read_story

_RUNNING = {"status": RunStatus.RUNNING.value, "finished_at": None, "evidence_sha256": None}
"""What changes of a run's row until it is over, as it is at the beginning."""
_SAME_VERDICT = ("compared_run_id", "decided_at", "document")


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of one run: `fate`, and how many verdicts, promotions and such a run that was known got.

    `waiting_for` are runs that verdicts compare it with and that the store does not have; those verdicts were left out.
    `bared`: raw records of it were removed in this store and are not taken in again, so only the other copy has them.
    """

    run_id: str
    fate: Literal["new", "continued", "known"]
    added: int
    waiting_for: tuple[str, ...]
    bared: bool = False


def merge(connection: Connection, whole: WholeRun) -> Merged:
    """Takes in a run that was found sound. EvidenceError where the store has another run of this id."""
    lock_run(connection, whole.id)
    known = fetch(connection, select(tables.run).where(tables.run.c.id == whole.id))
    fate = _fate(connection, known[0], whole) if known else "new"
    if fate == "new":
        begin_run(connection, whole.run | _RUNNING, whole.of(tables.arm), whole.plan)
        _write_evidence(connection, whole, {})
    if fate == "continued":
        there = read_story(connection, whole.id)
        take_up(connection, whole.id)
        connection.execute(delete(tables.arm).where(tables.arm.c.run_id == whole.id))
        insert_rows(connection, tables.arm, whole.of(tables.arm))
        _write_evidence(connection, whole, there)
    _write_metrics(connection, whole, replace=fate != "known")
    added, waiting_for = _add_verdicts(connection, whole)
    for table in (tables.noise_profile, tables.promotion, tables.imported):
        added += _add_documents(connection, table, whole.of(table))
    return Merged(whole.id, fate, added if fate == "known" else 0, waiting_for, _is_bared(connection, whole))


def _fate(connection: Connection, known: rows.Row, whole: WholeRun) -> Literal["continued", "known"]:
    """Whether the store has all of the run's evidence or a beginning of it. EvidenceError where it has another's."""
    if any(known[name] != value for name, value in whole.run.items() if name not in _RUNNING):
        raise _other(whole, "its suite, plan, seed or start")
    ours, theirs = read_story(connection, whole.id), whole.story
    if not _is_part(ours, theirs) and not _is_part(theirs, ours):
        raise _other(whole, "what was observed in it")
    if is_over(known) and is_over(whole.run):
        if ours != theirs or known["evidence_sha256"] != whole.run["evidence_sha256"]:
            raise _other(whole, "what was observed in it")
        return "known"
    if is_over(known) and not _is_part(theirs, ours):
        raise _other(whole, "what was observed after its end here")
    if is_over(whole.run) and not _is_part(ours, theirs):
        raise _other(whole, "what was observed here after its end there")
    further = len(theirs) > len(ours) or is_over(whole.run)
    return "continued" if further and not is_over(known) else "known"


def _is_bared(connection: Connection, whole: WholeRun) -> bool:
    """Whether the store has tombstones where this copy of the run has raw records."""
    stones = tables.tombstone.c
    removed = set(connection.scalars(select(stones.seq).where(stones.run_id == whole.id)))
    return any(row["seq"] in removed for table in (tables.observation, tables.telemetry) for row in whole.of(table))


def _is_part(story: Story, of: Story) -> bool:
    return all(of.get(seq) == told for seq, told in story.items())


def _other(whole: WholeRun, what: str) -> EvidenceError:
    return EvidenceError(
        f"run {whole.id}: the store has a run of this id that differs in {what}; nothing was taken in: "
        "look which of the two was changed, and import into another store to see both"
    )


def _write_evidence(connection: Connection, whole: WholeRun, there: Story) -> None:
    """What is not there yet of the raw rows of a running run; it ends as it did, and then tombstones can be set."""

    def add(table: Table) -> None:
        insert_rows(connection, table, [row for row in whole.of(table) if row["seq"] not in there])

    for table in (tables.observation, tables.telemetry, tables.event):
        add(table)
    end = {name: whole.run[name] for name in _RUNNING}
    connection.execute(update(tables.run).where(tables.run.c.id == whole.id).values(end))
    add(tables.tombstone)


def _write_metrics(connection: Connection, whole: WholeRun, *, replace: bool) -> None:
    """Derived numbers: those that the store has stay, unless they are of a run that has gone on since."""
    metric = tables.metric
    if replace:
        connection.execute(delete(metric).where(metric.c.run_id == whole.id))
    elif connection.scalar(select(metric.c.seq).where(metric.c.run_id == whole.id).limit(1)) is not None:
        return
    insert_rows(connection, metric, whole.of(metric))


def _add_verdicts(connection: Connection, whole: WholeRun) -> tuple[int, tuple[str, ...]]:
    """Adds the decisions that the store does not have, oldest first; how many, and which runs they still wait for."""
    verdict = tables.verdict
    known = fetch(connection, select(verdict).where(verdict.c.run_id == whole.id))
    same = {_identity(row) for row in known}
    new = [row for row in whole.of(verdict) if _identity(row) not in same]
    compared = {row["compared_run_id"] for row in new} - {None}
    there = set(connection.scalars(select(tables.run.c.id).where(tables.run.c.id.in_(compared)))) | {None}
    ready = [row for row in new if row["compared_run_id"] in there]  # oldest first, as they were read
    last = connection.scalar(select(func.max(verdict.c.seq)).where(verdict.c.run_id == whole.id))
    for seq, row in enumerate(ready, 0 if last is None else last + 1):
        connection.execute(insert(verdict), row | {"seq": seq})
        insert_rows(connection, tables.check_result, list(check_rows(whole.id, seq, json.loads(row["document"]))))
    return len(ready), tuple(sorted(compared - there))


def _identity(row: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in _SAME_VERDICT)


def _add_documents(connection: Connection, table: Table, found: Sequence[rows.Row]) -> int:
    """Adds rows by their key; how many were new. EvidenceError where the key is known and says something else."""
    (key,) = table.primary_key.columns
    new = []
    for row in found:
        known = fetch(connection, select(table).where(key == row[key.name]))
        if known and known[0] != row:
            raise EvidenceError(
                f"run {row['run_id']}: the store has another {table.name} {row[key.name]!r}; nothing was taken in"
            )
        new += [row] if not known else []
    insert_rows(connection, table, new)
    return len(new)
