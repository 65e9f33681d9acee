"""Raw records as Parquet files outside of the database: the same evidence, and nothing read that was not written."""

from __future__ import annotations

import errno
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # it has no types
from sqlalchemy import LargeBinary, select, text, type_coerce
from sqlalchemy.dialects import sqlite

from benchgate.errors import EvidenceError, StoreError
from benchgate.model import codec
from benchgate.model.columns import concatenate_columns
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns, TextColumn
from benchgate.model.run import ClientUse, LoadObservation, MetricRow, RunStatus
from benchgate.store import raw_records, tables
from benchgate.store.merge import copy_store
from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from benchgate.store.stored_run import most_unpacked
from benchmarks.gate_million import answered
from tests.shells.store_samples import (
    DONE_AT,
    NASTY,
    PLAN,
    assert_same_requests,
    make_load,
    make_run,
    make_shadow,
    write_run,
)

pytest_plugins = ["tests.shells.store_databases"]


@pytest.fixture(params=["folder", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the files are: a folder, or fsspec's object store in memory."""
    where = str(tmp_path / "raw") if request.param == "folder" else f"memory://raw/{tmp_path.name}"
    monkeypatch.setenv(raw_records.VARIABLE, where)
    return where


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(raw_records.VARIABLE, str(tmp_path / "raw"))
    return tmp_path / "raw"


def stored(store: Store, columns: RequestColumns | None = None, **changes: Any) -> str:
    run = make_run(**changes)
    writer = store.begin_run(run, PLAN)
    if columns is None:
        writer.add(make_load())
    else:
        writer.add(LoadObservation("c4", Arm.CANDIDATE, 0, 0, columns, 9.0, ClientUse(1.0, 9.0, 1)))
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    return run.id


def test_evidence_is_the_same_from_files(
    store: Store, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    columns = answered(5000, 6, 1.0, np.random.default_rng(1))
    outside = stored(store, columns)
    with store._database.reading() as connection:
        (row,) = connection.execute(
            select(tables.observation.c.codec, type_coerce(tables.observation.c.data, LargeBinary))
        )
    assert row[0] == raw_records.PARQUET and len(row[1]) < 100
    found = store.evidence(outside).load[0].requests
    assert_same_requests(found, columns)
    monkeypatch.delenv(raw_records.VARIABLE)
    inside = stored(store, columns)
    assert len(store.evidence(inside).load[0].requests) == 5000
    with pytest.raises(StoreError, match=f"set {raw_records.VARIABLE}"):
        store.evidence(outside)


def test_every_kind_of_record_passes_store_check(store: Store, place: str) -> None:
    run = write_run(store)
    assert store.evidence(run.id).load
    assert store.check().findings == ()


def test_texts_that_are_no_unicode_survive(store: Store, folder: Path) -> None:
    columns = concatenate_columns([answered(3, 2, 1.0, np.random.default_rng(1))])
    nasty = TextColumn.of([NASTY, None, ""])
    object.__setattr__(columns, "error_detail", nasty)
    assert list(store.evidence(stored(store, columns)).load[0].requests.error_detail) == [NASTY, None, ""]


def test_a_file_with_texts_of_users_is_its_owners_alone(store: Store, folder: Path) -> None:
    writer, old = store.begin_run(make_run(), PLAN), os.umask(0o022)
    try:
        for record in (make_load(), make_shadow()):
            writer.add(record)
    finally:
        os.umask(old)
    others = {b"Hi?" in file.read_bytes(): file.stat().st_mode & 0o044 for file in folder.rglob("*.parquet")}
    assert others == {False: 0o044, True: 0}


def test_a_file_is_a_table_with_lists_of_arrivals(store: Store, folder: Path) -> None:
    stored(store, answered(10, 4, 1.0, np.random.default_rng(1)))
    (file,) = folder.rglob("*.parquet")
    table = pq.read_table(file)
    assert table.num_rows == 10 and all(len(arrivals) == 4 for arrivals in table.column("chunk_ns").to_pylist())


def test_a_changed_or_lost_file_is_damage(store: Store, folder: Path) -> None:
    run_id = stored(store)
    (file,) = folder.rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(EvidenceError, match="hash to"):
        store.evidence(run_id)
    assert [finding.run_id for finding in store.check().findings] == [run_id]
    file.unlink()
    with pytest.raises(StoreError, match="see that they are there"):
        store.evidence(run_id)


def test_a_run_whose_file_is_lost_is_named_and_keeps_no_other_out(store: Store, folder: Path, tmp_path: Path) -> None:
    lost, whole = (stored(store, answered(20, 4, 1.0, np.random.default_rng(number))) for number in range(2))
    with store._database.reading() as connection:
        of_lost = select(tables.observation.c.sha256).where(tables.observation.c.run_id == lost)
        (name,) = connection.scalars(of_lost)
    (file,) = folder.rglob(f"{name}.parquet")
    file.unlink()
    (finding,) = store.check().findings
    assert finding.run_id == lost and f"{name}.parquet" in finding.problem
    with Store.open(str(tmp_path / "copy.db")) as copy:
        refused, imported = copy_store(store._database, copy._database)
        assert refused.merged is None and refused.problem is not None and f"{name}.parquet" in refused.problem
        assert imported.merged is not None and [run.id for run in copy.runs()] == [whole]
    stored(store)  # so that both may be removed
    gone = store.remove_raw(store.expendable(Policy(), "2028-01-01T00:00:00Z"), now=DONE_AT, reason="store gc")
    assert ([run.run_id for run in gone.runs], [run_id for run_id, _ in gone.stayed]) == ([whole], [lost])


def test_a_place_that_cannot_be_written_stores_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(raw_records.VARIABLE, str(tmp_path / "file" / "raw"))
    writer = store.begin_run(make_run(), PLAN)
    with pytest.raises(StoreError, match="raw records at"):
        writer.add(make_load())


def test_gc_removes_files_that_no_other_run_has(store: Store, folder: Path) -> None:
    shared, own = (answered(20, 4, 1.0, np.random.default_rng(seed)) for seed in (1, 2))
    old = [stored(store, shared), stored(store, own)]
    stored(store, shared)
    before = {file.name for file in folder.rglob("*.parquet")}
    gone = store.remove_raw(store.expendable(Policy(), "2028-01-01T00:00:00Z"), now=DONE_AT, reason="store gc")
    assert {run.run_id for run in gone.runs} == set(old)
    after = {file.name for file in folder.rglob("*.parquet")}
    assert len(before) == 2 and len(after) == 1 and after < before


def test_sizes_are_those_of_the_files_and_stay_in_the_tombstones(store: Store, folder: Path, tmp_path: Path) -> None:
    old = stored(store, answered(200, 4, 1.0, np.random.default_rng(1)))
    (file,) = folder.rglob("*.parquet")
    stored(store, answered(20, 4, 1.0, np.random.default_rng(2)))
    size = file.stat().st_size
    assert [one.n_bytes for one in store.contents(old)] == [size]
    (spare,) = store.sizes("2028-01-01T00:00:00Z").expendable
    with Store.open(str(tmp_path / "copy.db")) as copy:  # which has the bytes in its rows
        assert all(one.problem is None for one in copy_store(store._database, copy._database))
        assert [one.n_bytes for one in copy.contents(old)] == [size]
    (gone,) = store.remove_raw([spare], now=DONE_AT, reason="store gc").runs
    assert (removal := store.removal(old)) is not None
    assert (gone.run_id, gone.n_bytes, removal.n_bytes) == (old, size, size)


def test_gc_goes_on_behind_a_file_that_cannot_be_removed_and_names_it(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = store.begin_run(run := make_run(), PLAN)
    for block in range(2):
        columns = answered(20, 4, 1.0, np.random.default_rng(block))
        writer.add(LoadObservation("c4", Arm.CANDIDATE, block, 0, columns, 9.0, ClientUse(1.0, 9.0, 1)))
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    kept, removed = sorted(folder.rglob("*.parquet"))
    other = stored(store, answered(20, 4, 1.0, np.random.default_rng(2)))
    newest = stored(store, answered(20, 4, 1.0, np.random.default_rng(3)))
    really = LocalFileSystem.rm_file

    def refuse(files: LocalFileSystem, path: str) -> None:
        if path.endswith(kept.name):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        really(files, path)

    monkeypatch.setattr(LocalFileSystem, "rm_file", refuse)
    gone = store.remove_raw(store.expendable(Policy(), "2028-01-01T00:00:00Z"), now=DONE_AT, reason="store gc")
    assert {one.run_id for one in gone.runs} == {run.id, other}
    ((run_id, why),) = gone.stayed
    assert run_id == run.id and kept.name in why and removed.name not in why and "Permission denied" in why
    assert kept.exists() and not removed.exists() and len(list(folder.rglob("*.parquet"))) == 2
    assert len(store.evidence(newest).load) == 1 and store.check().findings == ()


@pytest.mark.parametrize("cleaned", ["origin", "copy"])
def test_gc_of_one_store_leaves_the_records_of_runs_that_another_imported(
    store: Store, folder: Path, tmp_path: Path, cleaned: str
) -> None:
    with Store.open(str(tmp_path / "origin.db")) as origin:
        for number in range(2):
            stored(origin, answered(20, 4, 1.0, np.random.default_rng(number)))
        assert [one.problem for one in copy_store(origin._database, store._database)] == [None, None]
        one, other = (origin, store) if cleaned == "origin" else (store, origin)
        assert one.remove_raw(one.expendable(Policy(), "2028-01-01T00:00:00Z"), now=DONE_AT, reason="store gc").runs
        assert [len(other.evidence(run.id).load) for run in other.runs()] == [1, 1]
        assert origin.check().findings == store.check().findings == ()


def test_gc_leaves_the_records_of_a_run_that_another_store_has_by_its_spool(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    spool, kept = tmp_path / "spool.jsonl", tmp_path / "kept.jsonl"
    with Store.open(str(tmp_path / "origin.db")) as origin:
        writer = origin.begin_run(run := make_run(), PLAN, spool=spool)
        columns = answered(20, 4, 1.0, np.random.default_rng(1))
        writer.add(LoadObservation("c4", Arm.CANDIDATE, 0, 0, columns, 9.0, ClientUse(1.0, 9.0, 1)))
        kept.write_bytes(spool.read_bytes())
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        stored(origin, answered(20, 4, 1.0, np.random.default_rng(2)))
        assert store.recover(kept).added == 1
        gone = origin.remove_raw(origin.expendable(Policy(), "2028-01-01T00:00:00Z"), now=DONE_AT, reason="store gc")
        assert [one.run_id for one in gone.runs] == [run.id]
    (seen,) = store.evidence(run.id).load
    assert_same_requests(seen.requests, columns)


@pytest.mark.parametrize("name", ["../../../etc/passwd", "file:///etc/passwd", "a" * 63, "A" * 64])
def test_a_row_cannot_name_another_file(tmp_path: Path, folder: Path, name: str) -> None:
    with Store.open(str(tmp_path / "a.db")) as store:
        stored(store)
        with store._database.writing() as connection:
            connection.execute(text("DROP TRIGGER observation_no_update"))
            mark = f"benchgate-raw-records:{name}:1".encode()
            connection.execute(text("UPDATE observation SET data = :data"), {"data": mark})
        with pytest.raises(StoreError, match="is no SHA-256"):
            store.evidence(store.runs()[0].id)


def test_a_trend_needs_no_files(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save_metrics(stored(store), [MetricRow(Arm.CANDIDATE, "ttft", "p50", "c4", None, 0.1, 5)])
    monkeypatch.delenv(raw_records.VARIABLE)
    assert store.trend("ttft") and store.overview().runs


@pytest.mark.slow
def test_a_file_that_would_fill_memory_is_refused(store: Store, folder: Path) -> None:
    table = pa.table({"index": pa.array(np.zeros(2**28, dtype=np.int8))})
    file = BytesIO()
    pq.write_table(table, file, compression="zstd")
    with pytest.raises(EvidenceError, match="more than"):
        raw_records.require_size(file.getvalue(), most_unpacked(len(file.getvalue())))
    with pytest.raises(EvidenceError, match="cannot be unpacked"):
        raw_records.require_size(b"PAR1 and nothing else", 100)


def test_a_file_that_was_written_in_part_is_written_again(place: str) -> None:
    """As by a lost machine; what is written later are the bytes of the spool, which are the same."""
    _, data = raw_records.encode(make_load().requests.to_columns())
    column = raw_records.RawBytes()
    name = column.process_bind_param(data, sqlite.dialect())
    files, path = raw_records._place(codec.digest(data))
    files.pipe_file(path, data[:100])
    assert column.process_bind_param(data, sqlite.dialect()) == name
    assert column.process_result_value(name, sqlite.dialect()) == data


def test_a_file_that_does_not_fit_leaves_nothing(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = store.begin_run(make_run(), PLAN)
    with monkeypatch.context() as patched:
        patched.setattr("benchgate.system.os.fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            writer.add(make_load())
    assert [file for file in folder.rglob("*") if file.is_file()] == []
