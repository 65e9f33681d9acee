"""Runs out of a store, as files: whole ones to take in elsewhere, or what they say for other programs to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from sqlalchemy import select

from benchgate.errors import UsageError
from benchgate.exchange import export_parquet, export_records
from benchgate.exchange.bundle_files import SUFFIX, export_bundle
from benchgate.exchange.export_openmetrics import open_metrics
from benchgate.exchange.export_tables import CHECK_COLUMNS, METRIC_COLUMNS, check_table, metric_table, to_csv
from benchgate.exchange.in_the_way import begins, is_records_of, require_ours
from benchgate.exchange.whole_file import whole_file
from benchgate.model.run import Evidence
from benchgate.store import rows, tables
from benchgate.store.engine import Database, fetch
from benchgate.store.evidence import Known, read_evidence, rows_of
from benchgate.store.soundness import require_id
from benchgate.store.tombstones import require_raw


class Form(StrEnum):
    """What the files of an export are."""

    BUNDLE = "bundle"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    OPENMETRICS = "openmetrics"


def all_runs(database: Database, suite: str | None) -> list[str]:
    """The ids of the runs of a suite, or of all, oldest first."""
    run = tables.run.c
    wanted = select(run.id).order_by(run.started_at, run.id)
    with database.reading() as connection:
        return list(connection.scalars(wanted if suite is None else wanted.where(run.suite_name == suite)))


def export(
    database: Database, run_ids: Sequence[str], to: Path, form: Form, *, raw_csv: bool = False
) -> Iterator[Path]:
    """Writes the runs to a file or a folder, and tells each file when it is there.

    Raises UsageError for a file where several are written or one that is in the way and was not written by an export,
    EvidenceError for a run that is damaged or whose raw records are gone where they are asked for, StoreError where a
    file cannot be written.
    """
    for run_id in run_ids:
        require_id(run_id, "a run's id")
    match form:
        case Form.BUNDLE | Form.JSONL:
            write, suffix = (export_bundle, SUFFIX) if form is Form.BUNDLE else (_write_jsonl, ".jsonl")
            one = _only_file(to, suffix, len(run_ids))
            for run_id in run_ids:
                file = one or to / f"{run_id}{suffix}"
                write(database, run_id, file)
                yield file
        case Form.CSV:
            yield from _tables(database, run_ids, _folder(to, form), form, raw_csv=raw_csv)
        case Form.PARQUET:
            yield from _tables(database, run_ids, _folder(to, form), form)
            for run_id in run_ids:
                yield from export_parquet.write_records(to, _evidence(database, run_id))
        case Form.OPENMETRICS:
            yield _write_open_metrics(database, run_ids, to)


def _only_file(to: Path, suffix: str, runs: int) -> Path | None:
    """The file that was named; None for a folder."""
    if to.is_file() and to.suffix != suffix:
        raise UsageError(f"{to} is a file, and its name does not end in {suffix}; name a folder, or a file *{suffix}")
    if to.is_dir() or to.suffix != suffix:
        return None
    if runs > 1:
        raise UsageError(f"{to} is one file and {runs} runs are to be written; name a folder")
    return to


def _folder(to: Path, form: Form) -> Path:
    if to.is_file() or to.suffix == f".{form}":
        raise UsageError(f"{to} is one file and {form} writes several; name a folder")
    return to


def _evidence(database: Database, run_id: str) -> Evidence:
    """What was observed in a run, without what the store knows beside it."""
    with database.reading() as connection:
        require_raw(connection, run_id)
        (run,) = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
        found = rows_of(connection, run)
    return read_evidence(found, Known())


def _write_jsonl(database: Database, run_id: str, file: Path) -> None:
    require_ours(file, f"what an export wrote of the records of run {run_id}", is_records_of(run_id))
    evidence = _evidence(database, run_id)
    with whole_file(file) as out:
        out.writelines(f"{rows.to_json(record, 'a record')}\n".encode() for record in export_records.records(evidence))


def _write_open_metrics(database: Database, run_ids: Sequence[str], to: Path) -> Path:
    file = to / "metrics.txt" if to.is_dir() or not (to.suffix or to.is_file()) else to
    require_ours(file, "what an export wrote as OpenMetrics", begins("# TYPE benchgate_", "# EOF"))
    with database.reading() as connection:
        told = open_metrics(connection, run_ids)
    with whole_file(file) as out:
        out.write(told.encode())
    return file


def _tables(
    database: Database, run_ids: Sequence[str], folder: Path, form: Form, *, raw_csv: bool = False
) -> Iterator[Path]:
    for name, columns, read in (("metrics", METRIC_COLUMNS, metric_table), ("checks", CHECK_COLUMNS, check_table)):
        file = folder / f"{name}.{form}"
        with database.reading() as connection:
            found = read(connection, run_ids)
            if form is Form.PARQUET:
                export_parquet.write_table(file, columns, found)
            else:
                require_ours(file, f"what an export wrote as {file.name}", begins('"run_id","suite","label",'))
                text = to_csv(columns, found, raw=raw_csv)
                with whole_file(file) as out:
                    out.write(text.encode("utf-8", "backslashreplace"))
        yield file
