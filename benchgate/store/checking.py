"""Is a store what it should be? Every hash, every link between tables, every number, in one state of the database.

Nothing is written. What cannot even be read as rows (a damaged file) is the one finding there is then: the rest of such
a store says nothing.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, Table, select

from benchgate.errors import EvidenceError
from benchgate.model.run import RunStatus
from benchgate.store import codec, rows, tables, tombstones
from benchgate.store.check_links import database_findings, link_findings
from benchgate.store.check_results import document_findings, findings_to_come, metric_findings, verdict_findings
from benchgate.store.check_sound import sound_findings
from benchgate.store.engine import Database
from benchgate.store.finding import ByRun, Finding, stream
from benchgate.store.sealing import is_over

_BLOBS_AT_ONCE = 4  # each may be of a stage of a million requests


@dataclass(frozen=True, slots=True)
class Checked:
    """What was looked at, by kind and number, and everything that is wrong with it, in that order."""

    looked_at: Mapping[str, int]
    findings: tuple[Finding, ...]


def check_store(database: Database, *, figures: bool = False) -> Checked:
    """Looks at the whole store, as it is when the look begins. Raises StoreError where it cannot be read at all.

    `figures`: every number that is kept of a run is made of its records again, which takes longer than all the rest.
    """
    looked: Counter[str] = Counter()
    with database.reading() as connection:
        findings = list(database_findings(connection))
        if not findings:
            findings = [
                *link_findings(connection),
                *_plan_findings(connection, looked),
                *run_findings(connection, looked),
                *verdict_findings(connection, looked),
                *metric_findings(connection, looked),
                *document_findings(connection, looked),
                *findings_to_come(connection),
            ]
            findings += sound_findings(connection, {finding.run_id for finding in findings})
            if figures:
                from benchgate.store.check_figures import figure_findings

                findings += figure_findings(connection, {finding.run_id for finding in findings}, looked)
    return Checked(dict(looked), tuple(findings))


def run_findings(connection: Connection, looked: Counter[str], run_id: str | None = None) -> Iterator[Finding]:
    """What is wrong with runs, or with one: their raw records, what stands for removed ones, and the hash over all."""
    arms, stones = (ByRun(_of(connection, table, run_id)) for table in (tables.arm, tables.tombstone))
    events = ByRun(_of(connection, tables.event, run_id))
    raw = {table.name: ByRun(_of(connection, table, run_id)) for table, _ in tombstones.RAW}
    wanted = select(tables.run).order_by(tables.run.c.id)
    for run in stream(connection, wanted if run_id is None else wanted.where(tables.run.c.id == run_id)):
        looked["runs"] += 1
        left: list[tuple[str, rows.Row]] = []
        for name, found in raw.items():
            for row in found.of(run["id"]):
                looked[f"{name} rows"] += 1
                yield from _blob_findings(run["id"], name, row)
                left.append((name, {column: value for column, value in row.items() if column != "data"}))
        buried = list(stones.of(run["id"]))
        looked["tombstones"] += len(buried)
        journal = list(events.of(run["id"]))
        yield from _state_findings(run, buried)
        yield from _place_findings(run["id"], left, buried, journal)
        yield from _hash_findings(run, list(arms.of(run["id"])), left, buried, journal)


def _of(connection: Connection, table: Table, run_id: str | None) -> Iterator[rows.Row]:
    """A table's rows run by run, in the order of their keys."""
    wanted: Select[*tuple[Any, ...]] = select(table).order_by(*table.primary_key.columns)
    of_run = wanted if run_id is None else wanted.where(table.c.run_id == run_id)
    return stream(connection, of_run, at_once=_BLOBS_AT_ONCE if "codec" in table.c else None)


def _blob_findings(run_id: str, table: str, row: rows.Row) -> Iterator[Finding]:
    place = f"{table} {row['seq']}"
    if row["codec"] != codec.CODEC:
        yield Finding(run_id, place, f"it is written as {row['codec']!r}, and this benchgate reads {codec.CODEC!r}")
    if (found := codec.digest(row["data"])) != row["sha256"]:
        yield Finding(run_id, place, f"its bytes hash to {found}, not to {row['sha256']} as written")


def _state_findings(run: rows.Row, stones: list[rows.Row]) -> Iterator[Finding]:
    """Whether status, end and hash of a run can stand together."""
    if run["status"] not in set(RunStatus):
        yield Finding(run["id"], "run", f"its status is {run['status']!r}; expected one of {', '.join(RunStatus)}")
    elif run["status"] == RunStatus.RUNNING.value and run["evidence_sha256"] is not None:
        yield Finding(run["id"], "run", "it is running, and has the hash of a finished run")
    elif run["status"] == RunStatus.COMPLETE.value and run["evidence_sha256"] is None:
        yield Finding(run["id"], "run", "it is complete, and no hash covers its evidence")
    elif is_over(run) and run["finished_at"] is None:
        yield Finding(run["id"], "run", f"it is {run['status']}, and does not say when it ended")
    elif run["status"] == RunStatus.RUNNING.value and run["finished_at"] is not None:
        yield Finding(run["id"], "run", f"it is running, and says that it ended at {run['finished_at']}")
    if stones and not is_over(run):
        yield Finding(run["id"], "tombstones", "records of it were removed, and it may go on")


def _place_findings(
    run_id: str, left: list[tuple[str, rows.Row]], stones: list[rows.Row], events: list[rows.Row]
) -> Iterator[Finding]:
    """Rows of several tables that have one place in the order of the run: two processes wrote to it."""
    told = [*((name, row["seq"]) for name, row in left), *(("event", row["seq"]) for row in events)]
    places = {*told, *((stone["of_table"], stone["seq"]) for stone in stones)}
    for seq, times in sorted(Counter(seq for _, seq in places).items()):
        if times > 1:
            yield Finding(run_id, f"place {seq}", f"{times} rows have it, so two processes wrote to this run")


def _hash_findings(
    run: rows.Row,
    arms: list[rows.Row],
    left: list[tuple[str, rows.Row]],
    stones: list[rows.Row],
    events: list[rows.Row],
) -> Iterator[Finding]:
    """Whether a finished run is what it was, by its raw rows and by what stands for those that were removed."""
    both = {(name, row["seq"]) for name, row in left} & {(stone["of_table"], stone["seq"]) for stone in stones}
    for name, seq in sorted(both):
        yield Finding(run["id"], f"{name} {seq}", "it is there, and so is a tombstone that says it was removed")
    if run["evidence_sha256"] is None or both:
        return
    try:
        found = tombstones.evidence_sha256(run, arms, left, stones, events)
    except (EvidenceError, ValueError, TypeError) as error:
        yield Finding(run["id"], "tombstones", str(error))
        return
    if found != run["evidence_sha256"]:
        yield Finding(run["id"], "run", f"its evidence hashes to {found}, not to {run['evidence_sha256']} as it ended")


def _plan_findings(connection: Connection, looked: Counter[str]) -> Iterator[Finding]:
    for row in stream(connection, select(tables.plan).order_by(tables.plan.c.sha256), at_once=_BLOBS_AT_ONCE):
        looked["plans"] += 1
        place = f"plan {row['sha256'][:12]}"
        try:
            found = codec.digest(zlib.decompress(row["data"]))
        except zlib.error as error:
            yield Finding(None, place, f"it cannot be unpacked: {error}")
            continue
        if found != row["sha256"]:
            yield Finding(None, place, f"it hashes to {found}, not to {row['sha256']}")
