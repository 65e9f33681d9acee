"""Runs that another tool measured: numbers without records, from a file that is known by its hash."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from sqlalchemy import insert, select, text

from benchgate.model.run import MetricRow, Run, RunStatus
from benchgate.store import results, rows, tables
from benchgate.store.engine import Database
from benchgate.store.resolve import require_label
from benchgate.store.sealing import begin_run, seal_run


def save_import(
    database: Database,
    run: Run,
    plan: bytes,
    metrics: Sequence[MetricRow],
    note: Mapping[str, object],
    *,
    source: str,
    imported_at: str,
) -> str:
    """Adds a complete run with these numbers and no records; all of it or nothing. The id of the run.

    The run begins when it was measured, `imported_at` is now (both RFC 3339 UTC). `note` is what was taken and what was
    not; its `sha256` is that of the file, by which an import is known: where the store has it, nothing is added, and
    the id is that of the run it became then.
    """
    sha256 = str(note["sha256"])
    imported = tables.imported
    with database.writing() as connection:
        if connection.dialect.name != "sqlite":  # there a writing transaction is alone anyway
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:file, 0))"), {"file": sha256})
        known = connection.scalar(select(imported.c.run_id).where(imported.c.source_sha256 == sha256).limit(1))
        if known is not None:
            return str(known)
        require_label(connection, run.label)
        arms = [rows.arm_row(run.id, arm, deployment) for arm, deployment in run.arms.items()]
        begin_run(connection, rows.run_row(run), arms, zlib.compress(plan))
        seal_run(connection, run.id, {"status": RunStatus.COMPLETE.value, "finished_at": run.started_at})
        results.save_metrics(connection, run.id, metrics)
        document = rows.to_json(note, "what was imported")
        told = {
            "id": run.id,
            "run_id": run.id,
            "imported_at": imported_at,
            "source": source,
            "source_sha256": sha256,
            "document": document,
            "sha256": rows.text_sha256(document),
        }
        connection.execute(insert(imported), told)
    return run.id
