"""What is told of a run that nothing, or its spool alone, keeps any more: no verdict rests on what was lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest

from benchgate.errors import Command, EvidenceError, NothingKept
from benchgate.model.run import RunStatus
from benchgate.store.repository import Store
from tests.fakes.full_disk import files_no_larger_than
from tests.shells.store_samples import (
    DONE_AT,
    PLAN,
    assert_same_requests,
    make_run,
)
from tests.shells.test_store_away import LARGE, full, measure

pytest_plugins = ["tests.shells.store_databases"]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "benchgate.db")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "spool.jsonl"


def test_when_neither_store_nor_spool_takes_more_the_run_ends_with_what_was_kept(address: str, spool: Path) -> None:
    with Store.open(address) as store:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool)
        with full(store):
            measure(writer, 0, large=True)  # in the spool alone
            with files_no_larger_than(spool.stat().st_size + 1_000), pytest.raises(NothingKept, match="neither"):
                measure(writer, 1, large=True)
            writer.finish(RunStatus.PARTIAL, DONE_AT)
            kept, fault = writer.evidence(), writer.fault
            writer.close()
        assert (len(kept.load), kept.run.status) == (1, RunStatus.PARTIAL)
        assert_same_requests(kept.load[0].requests, LARGE)
        assert fault is not None
        assert "neither the store nor the spool" in fault.message
        assert [one.command for one in fault.remedies] == [Command.IMPORT]
        found = store.recover(spool)
        assert (found.added, found.status, found.is_over) == (1, RunStatus.PARTIAL, False)
        assert len(store.evidence(run.id).load) == 1


def test_what_was_lost_stays_told_when_the_store_has_all_that_was_kept(address: str, spool: Path) -> None:
    with Store.open(address) as store:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool)
        with full(store):
            measure(writer, 0, large=True)
            with files_no_larger_than(spool.stat().st_size + 1_000), pytest.raises(NothingKept):
                measure(writer, 1, large=True)
        writer.finish(RunStatus.PARTIAL, DONE_AT)
        writer.close()
        assert "neither the store nor the spool" in str(writer.fault)
        assert "store import" not in str(writer.fault)
        assert (len(store.evidence(run.id).load), store.run(run.id).status) == (1, RunStatus.PARTIAL)


def test_what_the_store_alone_had_is_not_taken_for_measured_when_that_is_away(
    postgres_address: str, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool ended at a row that only the database took, and is no whole run."""
    with Store.open(postgres_address) as store, psycopg.connect(postgres_address) as other:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool)
        measure(writer, 0)
        with files_no_larger_than(spool.stat().st_size + 10):
            measure(writer, 1)
        other.execute("LOCK TABLE observation, run IN ACCESS EXCLUSIVE MODE")
        monkeypatch.setattr("benchgate.store.database.BUSY_TIMEOUT_MS", 1)
        with pytest.raises(NothingKept):
            measure(writer, 2)
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        kept, fault = writer.evidence(), writer.fault
        writer.close()
        other.rollback()
        assert (len(kept.load), kept.run.status) == (1, RunStatus.PARTIAL)
        assert "neither the store nor the spool" in str(fault)
        assert store.recover(spool).added == 0
        assert (len(store.evidence(run.id).load), store.run(run.id).status) == (2, RunStatus.PARTIAL)


def test_end_that_is_kept_nowhere_makes_no_whole_run(postgres_address: str, spool: Path) -> None:
    with Store.open(postgres_address) as store, psycopg.connect(postgres_address) as other:
        writer = store.begin_run(run := make_run(), PLAN, spool=spool)
        measure(writer, 0)
        other.execute("LOCK TABLE run IN ACCESS EXCLUSIVE MODE")
        with files_no_larger_than(spool.stat().st_size + 10), pytest.MonkeyPatch.context() as patch:
            patch.setattr("benchgate.store.database.BUSY_TIMEOUT_MS", 1)
            writer.finish(RunStatus.COMPLETE, DONE_AT)
            assert writer.evidence().run.status is RunStatus.PARTIAL
        assert "neither the store nor the spool" in str(writer.fault)
        other.rollback()
        writer.close()
        assert store.recover(spool).status is RunStatus.PARTIAL
        assert len(store.evidence(run.id).load) == 1


def test_damaged_spool_gives_no_evidence_and_so_no_verdict(address: str, spool: Path) -> None:
    with Store.open(address) as store:
        writer = store.begin_run(make_run(), PLAN, spool=spool)
        with full(store):
            measure(writer, 0, large=True)
            measure(writer, 1)
            lines = spool.read_bytes().splitlines(keepends=True)
            with spool.open("r+b") as handle:
                handle.seek(len(lines[0]) + 100)
                handle.write(b"?")
            with pytest.raises(EvidenceError, match="the spool is damaged"):
                writer.evidence()
        writer.close()


def test_only_a_run_that_is_partial_may_be_without_a_seal(address: str, spool: Path) -> None:
    """A run that may go on has no hash; one that says it is complete always has, or it was tampered with."""
    with Store.open(address) as store:
        writer = store.begin_run(run := make_run(), PLAN)
        measure(writer)
        writer.suspend()
        assert store.evidence(run.id).run.status is RunStatus.PARTIAL
    with sqlite3.connect(address) as connection:
        connection.execute("DROP TRIGGER run_no_update")
        connection.execute("UPDATE run SET status = 'complete', finished_at = ?", (DONE_AT,))
    connection.close()
    with Store.open(address) as store, pytest.raises(EvidenceError, match="not what it was when it finished"):
        store.evidence(run.id)
