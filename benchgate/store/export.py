"""Exports of runs: bundles for other stores, and JSONL, CSV, Parquet and OpenMetrics for other programs.

Names of record fields are those of docs/reference/metrics.md and carry their units. JSON has no infinity: a latency
that is infinite because the request failed is null, and `success` is false beside it. Count those: leaving them out
flatters a server that fails.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from sqlalchemy import Connection, Select, func, select

from benchgate.errors import Command, EvidenceError, Remedy, StoreError, UsageError
from benchgate.model import request_metrics
from benchgate.model.metric import TREND_UNITS
from benchgate.model.records import ABSENT, TEXT_COLUMNS, RequestColumns
from benchgate.model.run import Evidence, LoadObservation, Run
from benchgate.model.telemetry import TelemetrySample
from benchgate.store import rows, tables
from benchgate.store.bundle import SUFFIX, read_bundle, read_file, write_bundle
from benchgate.store.database import Database, fetch
from benchgate.store.evidence import RunContext, read_evidence, rows_of
from benchgate.store.integrity import is_uuid, validate_run
from benchgate.store.queries import NewestRun, newest_runs
from benchgate.store.results import require_raw
from benchgate.store.stored_run import RAW, WholeRun, read_whole
from benchgate.system import OWNER_ONLY, atomic_file, lacking

Record = dict[str, Any]
_TRUTHS = ("valid", "left", "tokenless", "ramp", "first_visible")
_LATENCIES = {
    **{f"{name}_s": of for name, of in request_metrics.REQUEST_LATENCIES.items()},
    "ttft_sent_s": request_metrics.ttft_sent_s,
    "send_lag_s": request_metrics.send_lag_s,
}
TableRow = tuple[Any, ...]
METRIC_COLUMNS = {
    "run_id": str, "suite": str, "label": str, "started_at": str, "arm": str, "metric": str, "unit": str,
    "statistic": str, "stage": str, "task": str, "value": float, "lower": float, "upper": float, "n": int,
}  # fmt: skip
CHECK_COLUMNS = {
    "run_id": str, "suite": str, "label": str, "started_at": str, "verdict": int, "compared_run_id": str,
    "decided_at": str, "run_outcome": str, "check": str, "outcome": str, "required": int, "baseline": float,
    "candidate": float, "harm": float, "lower": float, "upper": float, "n": int, "policy": str,
}  # fmt: skip
"""Names and types of the columns of each table; any value may be missing."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_AT_ONCE = 500  # runs in one query
_TEXTS = ("arm", "stage", *TEXT_COLUMNS)
_BOOLEANS = (*_TRUTHS, "success")
_LONGEST_LINE = 2**24
_NOT_REPLACED = "it was not written over: name another file, or a folder"


class FileFormat(StrEnum):
    """Formats of exported files."""

    BUNDLE = "bundle"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    OPENMETRICS = "openmetrics"


def all_runs(database: Database, suite: str | None) -> list[str]:
    """Return the ids of the runs of a suite, or of all, oldest first."""
    run = tables.run.c
    query = select(run.id).order_by(run.started_at, run.id)
    with database.reading() as connection:
        return list(connection.scalars(tables.of_suite(query, suite)))


def export(
    database: Database,
    run_ids: Sequence[str],
    to: Path,
    form: FileFormat,
    openmetrics: Callable[[Sequence[NewestRun]], str],
    *,
    raw_csv: bool = False,
) -> Iterator[Path]:
    """Write runs to a file or a folder, and yield each file when it is complete. `openmetrics` renders that format.

    Raises UsageError for one file where several are needed or an existing file that no export wrote, EvidenceError for
    a damaged run or missing raw records, StoreError where a file cannot be written.
    """
    for run_id in run_ids:
        if not is_uuid(run_id):  # it becomes a file name
            raise EvidenceError(f"a run's id is {ascii(run_id)[:60]}; expected a UUID in small letters")
    match form:
        case FileFormat.BUNDLE | FileFormat.JSONL:
            write, suffix = (export_bundle, SUFFIX) if form is FileFormat.BUNDLE else (_write_jsonl, ".jsonl")
            one = _only_file(to, suffix, len(run_ids))
            for run_id in run_ids:
                file = one or to / f"{run_id}{suffix}"
                write(database, run_id, file)
                yield file
        case FileFormat.CSV:
            yield from _tables(database, run_ids, _require_folder(to, form), form, raw_csv=raw_csv)
        case FileFormat.PARQUET:
            yield from _tables(database, run_ids, _require_folder(to, form), form)
            for run_id in run_ids:
                yield from write_records(to, _read_evidence(database, run_id))
        case FileFormat.OPENMETRICS:
            yield _write_openmetrics(database, run_ids, to, openmetrics)


def _only_file(to: Path, suffix: str, runs: int) -> Path | None:
    """Return the named file; None for a folder."""
    if to.is_file() and to.suffix != suffix:
        raise UsageError(f"{to} is a file, and its name does not end in {suffix}; name a folder, or a file *{suffix}")
    if to.is_dir() or to.suffix != suffix:
        return None
    if runs > 1:
        raise UsageError(f"{to} is one file and {runs} runs are to be written; name a folder")
    return to


def _require_folder(to: Path, form: FileFormat) -> Path:
    if to.is_file() or to.suffix == f".{form}":
        raise UsageError(f"{to} is one file and {form} writes several; name a folder")
    return to


def _read_evidence(database: Database, run_id: str) -> Evidence:
    """Read what was observed in a run, without its context in the store."""
    with database.reading() as connection:
        require_raw(connection, run_id)
        (run,) = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
        found = rows_of(connection, run)
    return read_evidence(found, RunContext())


def _write_jsonl(database: Database, run_id: str, file: Path) -> None:
    def is_ours(first: bytes) -> bool:
        try:
            record = json.loads(first)
        except (ValueError, RecursionError):
            return False
        return isinstance(record, dict) and (record.get("kind"), record.get("run_id")) == ("run", run_id)

    require_replaceable(file, f"what an export wrote of the records of run {run_id}", is_ours)
    evidence = _read_evidence(database, run_id)
    with output_file(file, evidence.run) as out:
        out.writelines(f"{rows.to_json(record, 'a record')}\n".encode() for record in records(evidence))


def _write_openmetrics(
    database: Database, run_ids: Sequence[str], to: Path, render: Callable[[Sequence[NewestRun]], str]
) -> Path:
    file = to / "metrics.txt" if to.is_dir() or not (to.suffix or to.is_file()) else to
    require_replaceable(file, "what an export wrote as OpenMetrics", starts_with("# TYPE benchgate_", "# EOF"))
    with database.reading() as connection:
        text = render(newest_runs(connection, run_ids))
    with output_file(file) as out:
        out.write(text.encode())
    return file


def _tables(
    database: Database, run_ids: Sequence[str], folder: Path, form: FileFormat, *, raw_csv: bool = False
) -> Iterator[Path]:
    for name, columns, read in (("metrics", METRIC_COLUMNS, metric_table), ("checks", CHECK_COLUMNS, check_table)):
        file = folder / f"{name}.{form}"
        with database.reading() as connection:
            found = read(connection, run_ids)
            if form is FileFormat.PARQUET:
                write_table(file, columns, found)
            else:
                require_replaceable(
                    file, f"what an export wrote as {file.name}", starts_with('"run_id","suite","label",')
                )
                text = to_csv(columns, found, raw=raw_csv)
                with output_file(file) as out:
                    out.write(text.encode("utf-8", "backslashreplace"))
        yield file


def records(evidence: Evidence) -> Iterator[Record]:
    """Yield every record of a run, the run itself first; `kind` is its kind, `run_id` its run."""
    run = evidence.run
    about_run = {
        "suite": run.suite_name,
        "label": run.label,
        "status": run.status.value,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "tool_version": run.tool_version,
        "seed": run.seed,
        "plan_sha256": run.plan_sha256,
        "measurement_sha256": run.measurement_sha256,
        "arms": {arm.value: asdict(deployment) for arm, deployment in run.arms.items()},
    }
    requests = (
        dict(zip(columns, values, strict=True))
        for seen in evidence.load
        for columns in request_columns(seen)
        for values in zip(*columns.values(), strict=True)
    )
    found: dict[str, Iterable[Record]] = {
        "run": [about_run],
        "request": requests,
        **_item_records(evidence),
        "reading": _readings(evidence),
        "start": map(asdict, evidence.starts),
        "target_fault": map(asdict, evidence.target_faults),
        "error_budget": [] if evidence.budget_spent is None else [asdict(evidence.budget_spent)],
    }
    for kind, those in found.items():
        yield from ({"kind": kind, "run_id": run.id, **record} for record in those)


def _item_records(evidence: Evidence) -> dict[str, Iterable[Record]]:
    """Return the records of eval items, of recorded prompts, and of the positions of the fixed texts, in nats.

    `repeat` above 0 is a repetition by the same arm. Prompts have texts only where the suite kept them.
    """
    items = (
        {"arm": seen.arm.value, "task": seen.task, "repeat": seen.repeat, **asdict(item)}
        for seen in evidence.quality
        for item in seen.items
    )
    prompts = map(asdict, evidence.shadow.items if evidence.shadow else ())
    positions = map(asdict, evidence.divergence.items if evidence.divergence else ())
    found: dict[str, Iterable[Record]] = {"item": items, "prompt": prompts, "position": positions}
    return {kind: map(without_infinities, those) for kind, those in found.items()}


def _readings(evidence: Evidence) -> Iterator[Record]:
    """Yield one record per sample of a server and of its replicas; unknown values are left out."""
    for window in evidence.telemetry:
        place = {"arm": window.arm.value, "stage": window.stage, "block": window.block, "position": window.position}
        for reading in window.readings:
            yield place | _reading(reading)
        for replica in window.replicas:
            of_replica = {"replica": replica.name, "role": None if replica.role is None else replica.role.value}
            yield from (place | of_replica | _reading(reading) for reading in replica.readings)


def _reading(reading: TelemetrySample) -> Record:
    values = {metric.value: value for metric, value in reading.values.items()}
    found: Record = without_infinities({"at_s": reading.at_s, "marker": reading.marker, "values": values})
    return found


def without_infinities(value: Any) -> Any:
    """Replace non-finite numbers by null and enum members by plain text."""
    if isinstance(value, dict):
        return {str(name): without_infinities(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, str) else value


def request_columns(seen: LoadObservation) -> Iterator[Mapping[str, list[Any]]]:
    """Yield the columns of an observation's requests, of one length each.

    First the measured ones, then those of the ramp (`ramp`), then those cancelled on purpose (`left`).
    """
    for requests in seen.parts:
        n = len(requests)
        if n == 0:
            continue
        place = {"arm": seen.arm.value, "stage": seen.stage, "block": seen.block, "position": seen.position}
        columns: dict[str, list[Any]] = {name: [value] * n for name, value in place.items()}
        columns |= _request_values(requests)
        was_cancelled = requests is seen.left
        columns["success"] = [None] * n if was_cancelled else request_metrics.succeeded(requests).tolist()
        for name, latency in _LATENCIES.items():
            columns[name] = [value if math.isfinite(value) else None for value in latency(requests).tolist()]
        yield columns


def _request_values(requests: RequestColumns) -> dict[str, list[Any]]:
    starts = requests.chunk_start.tolist()
    chunks = requests.chunk_ns.tolist()
    columns: dict[str, list[Any]] = {}
    for field in fields(requests):
        column = getattr(requests, field.name)
        if field.name == "chunk_ns":
            columns["chunk_ns"] = [chunks[first:last] for first, last in pairwise(starts)]
        elif not isinstance(column, np.ndarray):
            columns[field.name] = [None if word is None else str(word) for word in column]
        elif field.name != "chunk_start":
            known = [None if value == ABSENT else value for value in column.tolist()]
            columns[field.name] = [None if v is None else v == 1 for v in known] if field.name in _TRUTHS else known
    return columns


def metric_table(connection: Connection, run_ids: Sequence[str]) -> Iterator[TableRow]:
    """Return the metrics of runs with their units, and 95% confidence bounds where there are any."""
    run, metric = tables.run.c, tables.metric.c
    of_run = run.id, run.suite_name, run.label, run.started_at
    numbers = metric.value, metric.lower, metric.upper, metric.n
    query = (
        select(*of_run, metric.arm, metric.name, metric.statistic, metric.stage, metric.task, *numbers)
        .join_from(tables.metric, tables.run)
        .order_by(run.started_at, run.id, metric.seq)
    )
    place = [*METRIC_COLUMNS].index("unit")
    for row in _in_batches(connection, query, run_ids):
        yield (*row[:place], TREND_UNITS.get(row[place - 1]), *row[place:])


def check_table(connection: Connection, run_ids: Sequence[str]) -> Iterator[TableRow]:
    """Return every check of every verdict on the runs. Infinite and unmeasured numbers are missing."""
    run, verdict, check = tables.run.c, tables.verdict.c, tables.check_result.c
    of_run = run.id, run.suite_name, run.label, run.started_at
    of_verdict = verdict.seq, verdict.compared_run_id, verdict.decided_at, verdict.outcome
    numbers = check.baseline, check.candidate, check.harm, check.lower, check.upper, check.n
    query = (
        select(*of_run, *of_verdict, check.check_id, check.outcome, check.required, *numbers, check.policy)
        .select_from(tables.check_result)
        .join(tables.verdict, (verdict.run_id == check.run_id) & (verdict.seq == check.verdict_seq))
        .join(tables.run, run.id == check.run_id)
        .order_by(run.started_at, run.id, func.coalesce(verdict.decided_at, ""), verdict.seq, check.seq)
    )
    return _in_batches(connection, query, run_ids)


def _in_batches(connection: Connection, query: Select[*tuple[Any, ...]], run_ids: Sequence[str]) -> Iterator[TableRow]:
    for first in range(0, len(run_ids), _AT_ONCE):
        some = query.where(tables.run.c.id.in_(run_ids[first : first + _AT_ONCE]))
        yield from (tuple(row) for row in connection.execute(some))


def to_csv(columns: Iterable[str], found: Iterable[TableRow], *, raw: bool = False) -> str:
    """Return CSV with a header: texts in quotes, numbers bare, missing values empty.

    A spreadsheet runs a text that begins like a formula: it gets a leading ' unless `raw`. A CI log runs a line that
    begins like a command: unless `raw`, a text stays on one line.
    """
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(row if raw else [_escape_formula(value) for value in row] for row in found)
    return out.getvalue()


def _escape_formula(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    line = " ".join(value.splitlines())
    return f"'{line}" if value.startswith(_FORMULA) or line.lstrip().startswith(_FORMULA) else line


def pyarrow() -> ModuleType:
    """Import pyarrow with its Parquet writer. Raises UsageError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as exc:
        raise UsageError(lacking("Parquet needs pyarrow, which is not installed", "parquet")) from exc
    module: ModuleType = pyarrow
    return module


def write_table(file: Path, columns: Mapping[str, type], found: Iterable[Sequence[Any]]) -> None:
    """Write rows of these columns as Parquet."""
    arrow = pyarrow()
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
    schema = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    listed = list(zip(*found, strict=True)) or [()] * len(columns)
    arrays = [
        arrow.array(_whole_characters(list(column)), type=field.type)
        for column, field in zip(listed, schema, strict=True)
    ]
    _write(file, arrow.Table.from_arrays(arrays, schema=schema))


def write_records(folder: Path, evidence: Evidence) -> Iterator[Path]:
    """Write a Parquet file for each kind of record of a run, `RUN.requests.parquet` and so on, and yield each file."""
    arrow = pyarrow()
    written = {}
    parts = [
        arrow.table(
            {name: _whole_characters(column) if name in _TEXTS else column for name, column in part.items()},
            schema=_request_schema(part),
        )
        for seen in evidence.load
        for part in request_columns(seen)
    ]
    if parts:
        written["request"] = arrow.concat_tables(parts)
    for kind, found in _item_records(evidence).items():
        if listed := list(found):
            written[kind] = arrow.Table.from_pylist(_whole_characters(listed))
    for kind, table in written.items():
        file = folder / f"{evidence.run.id}.{kind}s.parquet"
        _write(file, table, evidence.run)
        yield file


def _whole_characters(value: Any) -> Any:
    """Spell out lone surrogates, which a server can send and Parquet cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_whole_characters(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _whole_characters(inner) for name, inner in value.items()}
    return value


def _request_schema(columns: Iterable[str]) -> Any:
    """Return the schema; it cannot be inferred, for a column may be missing throughout an observation."""
    arrow = pyarrow()

    def kind(name: str) -> Any:
        if name in _TEXTS:
            return arrow.string()
        if name in _BOOLEANS:
            return arrow.bool_()
        if name == "chunk_ns":
            return arrow.list_(arrow.int64())
        return arrow.float64() if name.endswith("_s") else arrow.int64()

    return arrow.schema([(name, kind(name)) for name in columns])


def _write(file: Path, table: Any, run: Run | None = None) -> None:
    require_replaceable(file, "a file of Parquet", starts_with("PAR1"))
    with output_file(file, run) as out:
        pyarrow().parquet.write_table(table, out)


# Files


def export_bundle(database: Database, run_id: str, file: Path) -> None:
    """Write the bundle of a run, replacing an older one. A file with more than the store has is not touched.

    Raises EvidenceError for a damaged run, or a file with what the store lacks; UsageError for any other file;
    StoreError where it cannot be written.
    """
    with database.reading() as connection:
        whole = read_whole(connection, run_id)
    validate_run(whole, database.address.shown)
    data = write_bundle(whole)
    if file.exists():
        found = read_file(file)
        if found == data:
            return
        try:
            old = read_bundle(found, "what it holds")
        except EvidenceError as exc:
            raise UsageError(f"{file} is there, and {exc}; {_NOT_REPLACED}") from exc
        if old.id != whole.id:
            raise UsageError(
                f"{file} is there, and it is the bundle of run {old.id}, not of {whole.id}; {_NOT_REPLACED}"
            )
        _require_nothing_lost(old, whole, file)
    with output_file(file, rows.read_run(whole.run, whole.of(tables.arm))) as out:
        out.write(data)


def _require_nothing_lost(old: WholeRun, new: WholeRun, file: Path) -> None:
    """Raise EvidenceError where the old bundle, perhaps of several stores, has what this store lacks."""
    lost = [f"records at {seq}" for seq, record in old.story.items() if new.story.get(seq) != record][:1]
    for table in (tables.verdict, tables.promotion, tables.imported, tables.noise_profile):
        there = [row | {"seq": None} for row in new.of(table)]
        lost += [f"a {table.name}" for row in old.of(table) if row | {"seq": None} not in there][:1]
    raw_removed = any(len(old.of(table)) > len(new.of(table)) for table, _ in RAW)
    if raw_removed and not lost:
        raise EvidenceError(
            f"{file}: it holds the raw records, which were removed from the store and cannot come back there: keep it, "
            "and export to another place"
        )
    if lost:
        raise EvidenceError(
            f"{file}: it holds {lost[0]} that the store lacks",
            remedies=(Remedy("import it first", Command.IMPORT, str(file)),),
        )


@contextmanager
def output_file(file: Path, run: Run | None = None) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of `file` when the block ends. Raises StoreError where it cannot.

    It holds records of `run`: its owner alone reads it where the run keeps texts.
    """
    try:
        with atomic_file(file, mode=OWNER_ONLY if run is not None and run.keeps_texts else 0o666) as out:
            yield out
    except OSError as exc:
        raise StoreError(f"{file} could not be written: {exc.strerror or exc}") from exc


def require_replaceable(file: Path, what: str, is_ours: Callable[[bytes], bool]) -> None:
    """Raise UsageError where `file` exists and its first line, by `is_ours`, is not that of `what`.

    Raises StoreError where it cannot be read.
    """
    if not file.is_file():
        return
    try:
        with file.open("rb") as found:
            first = found.readline(_LONGEST_LINE)
    except OSError as exc:
        raise StoreError(f"{file} is in the way and cannot be read: {exc.strerror or exc}") from exc
    if not is_ours(first):
        raise UsageError(f"{file} is there and is not {what}; {_NOT_REPLACED}")


def starts_with(*marks: str) -> Callable[[bytes], bool]:
    """Return a test for lines that start with one of these texts."""
    return lambda first: first.startswith(tuple(mark.encode("ascii") for mark in marks))
