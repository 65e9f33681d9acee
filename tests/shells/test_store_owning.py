"""One process measures a run: however another one comes by it, whoever finds the other's rows stops."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, text

from benchgate.errors import EvidenceError, StoreError, TakenOver
from benchgate.model.deployment import Arm
from benchgate.model.run import ALL_STORED, SESSION_BEGUN, Resumption, RunStatus
from benchgate.store import tables
from benchgate.store.database import Address
from benchgate.store.repository import RunWriter, Store
from benchgate.store.rows import pending_spool
from tests.shells.store_samples import DONE_AT, NASTY, PLAN, make_load, make_run, make_shadow

pytest_plugins = ["tests.shells.store_databases"]

WENT_ON = Resumption("2026-11-20T12:30:00Z", 42, (), ())


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def spool(folder: Path, name: str = "one") -> Path:
    return folder / name / "spool.jsonl"


def taken_up(store: Store, run_id: str, folder: Path) -> RunWriter:
    """Goes on with a run whatever its lock says, as where each of two sees a lock of its own."""
    return RunWriter.reopen(store._database, run_id, spool=spool(folder, "two"))


def event_at(connection: Connection, run_id: str, seq: int, kind: str = "look") -> None:
    connection.execute(insert(tables.event), {"run_id": run_id, "seq": seq, "kind": kind, "data": "{}"})


def test_a_link_leads_to_the_locks_of_the_file_itself(address: str, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "other.db"
    link.symlink_to(address)
    with Store.open(address) as store, Store.open(str(link)) as other:
        run = make_run()
        store.begin_run(run, PLAN)
        assert other.mark_abandoned_runs() == []
        with pytest.raises(StoreError, match=f"is being measured, by process {os.getpid()}"), other.hold_run(run.id):
            pass
    assert Address.parse(str(link)).shown == str(link)


def test_a_store_with_two_names_is_refused(address: str, tmp_path: Path) -> None:
    Store.open(address).close()
    second = tmp_path / "second.db"
    second.hardlink_to(address)
    for name in (address, str(second)):
        with pytest.raises(StoreError, match=r"has 2 names \(hard links\).*remove the others"):
            Store.open(name)
    second.unlink()
    Store.open(address).close()


def test_whose_lock_was_removed_stops_and_leaves_the_run_to_who_goes_on(address: str, tmp_path: Path) -> None:
    with Store.open(address) as store, Store.open(address) as other:
        run = make_run()
        writer = store.begin_run(run, PLAN, spool=spool(tmp_path))
        writer.add(make_load())
        (lock,) = tmp_path.glob("store.db.run-*")
        lock.unlink()
        assert other.mark_abandoned_runs() == [run.id]
        with other.hold_run(run.id):
            again = other.reopen_run(run.id, spool=spool(tmp_path, "two"))
            again.resume(WENT_ON, [])
            with pytest.raises(TakenOver, match="that says who measures it was removed"):
                writer.add(make_load(Arm.CANDIDATE, position=1))
            with pytest.raises(TakenOver):
                writer.suspend()
            writer.close()
            assert lock.exists()  # it is the other's
            again.add(make_load(Arm.CANDIDATE, position=1))
            again.finish(RunStatus.COMPLETE, DONE_AT)
        assert [seen.arm for seen in store.evidence(run.id).load] == [Arm.BASELINE, Arm.CANDIDATE]


@pytest.mark.parametrize("first", [True, False])
def test_who_finds_the_rows_of_another_stops(store: Store, tmp_path: Path, first: bool) -> None:
    run = make_run()
    writer = store.begin_run(run, PLAN, spool=spool(tmp_path))
    writer.add(make_load())
    again = taken_up(store, run.id, tmp_path)
    one, other = (again, writer) if first else (writer, again)
    one.event("look", {})
    with pytest.raises(TakenOver, match="the store has rows of it that were not written here"):
        other.event("look", {})
    with pytest.raises(TakenOver, match="the store has rows of it that were not written here"):
        other.finish(RunStatus.COMPLETE, DONE_AT)
    one.finish(RunStatus.COMPLETE, DONE_AT)
    with pytest.raises(TakenOver):
        other.suspend()
    assert store.run(run.id).status is RunStatus.COMPLETE
    assert len(store.events(run.id)) == 1


def test_a_run_that_another_one_ended_is_not_written_any_more(store: Store, tmp_path: Path) -> None:
    run = make_run()
    writer = store.begin_run(run, PLAN)
    taken_up(store, run.id, tmp_path).finish(RunStatus.PARTIAL, DONE_AT)
    with pytest.raises(TakenOver, match="it is partial in the store, which was not done here"):
        writer.add(make_load())


def test_who_comes_back_from_a_store_that_was_away_finds_that_another_went_on(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchgate.store.database._SQLITE_PRAGMAS", ("busy_timeout=1",))
    with Store.open(address) as store:
        run = make_run()
        writer = store.begin_run(run, PLAN, spool=spool(tmp_path))
        holder = sqlite3.connect(address, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        writer.add(make_load())
        holder.execute("ROLLBACK")
        holder.close()
        again = taken_up(store, run.id, tmp_path)
        again.resume(WENT_ON, [])
        with pytest.raises(TakenOver, match="observation 0 of the store is not the one of the spool"):
            writer.finish(RunStatus.COMPLETE, DONE_AT)
        with pytest.raises(TakenOver, match="observation 0 of the store is not the one of the spool"):
            writer.suspend()
        writer.close()
        assert spool(tmp_path).exists()
        again.finish(RunStatus.PARTIAL, DONE_AT)
        with pytest.raises(StoreError):
            store.recover(spool(tmp_path))


def test_no_run_ends_with_two_rows_in_one_place_and_the_check_finds_them(store: Store) -> None:
    run = make_run()
    writer = store.begin_run(run, PLAN)
    writer.add(make_load())
    with store._database.writing() as connection:
        event_at(connection, run.id, 0)
    (finding,) = store.check().findings
    assert (finding.run_id, finding.place) == (run.id, "place 0")
    assert "2 rows have it, so two processes wrote to this run" in finding.problem
    with pytest.raises(EvidenceError, match="two of its rows have the place 0"):
        writer.finish(RunStatus.COMPLETE, DONE_AT)
    assert store.run(run.id).status is RunStatus.RUNNING


def test_what_a_run_makes_once_is_not_chosen_among_two(address: str) -> None:
    with Store.open(address) as store:
        run = make_run()
        writer = store.begin_run(run, PLAN)
        writer.add(make_shadow())
        writer.resume(WENT_ON, [])
        writer.add(make_shadow())
        with pytest.raises(EvidenceError, match=r"2 records of a kind that a run has once \(ShadowObservation\)"):
            store.evidence(run.id)


def test_a_spool_does_not_go_into_a_store_in_which_the_run_went_on_without_it(address: str, tmp_path: Path) -> None:
    with Store.open(address) as store, Store.open(str(tmp_path / "other.db")) as other:
        run = make_run()
        writer = store.begin_run(run, PLAN, spool=spool(tmp_path))
        for position in range(2):
            writer.add(make_load(position=position))
        kept = spool(tmp_path).with_name("kept.jsonl")
        kept.write_bytes(spool(tmp_path).read_bytes())
        other.begin_run(run, PLAN).suspend()
        with other._database.writing() as connection:
            connection.execute(text("UPDATE run SET status = 'running'"))
            event_at(connection, run.id, 5)
        with pytest.raises(EvidenceError, match="it was measured in two places"):
            other.recover(kept)
        assert other.evidence(run.id).load == ()


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([], None),
        ([(SESSION_BEGUN, {"spool": "a"})], "a"),
        ([(SESSION_BEGUN, {"spool": "a"}), ("look", {}), (ALL_STORED, {})], None),
        ([(SESSION_BEGUN, {"spool": "a"}), (ALL_STORED, {}), (SESSION_BEGUN, {"spool": "b"})], "b"),
    ],
)
def test_the_journal_tells_where_more_of_a_run_may_be(events: list[tuple[str, Any]], left: str | None) -> None:
    assert pending_spool(events) == left


def test_who_leaves_a_run_in_good_order_or_brings_its_spool_in_says_that_the_store_has_all(
    address: str, tmp_path: Path
) -> None:
    with Store.open(address) as store, Store.open(str(tmp_path / "other.db")) as other:
        run = make_run()
        writer = store.begin_run(run, PLAN, spool=spool(tmp_path))
        writer.event(SESSION_BEGUN, {"spool": str(spool(tmp_path)), "process": 1, "addresses": {}})
        writer.add(make_load())
        kept = spool(tmp_path).with_name("kept.jsonl")
        kept.write_bytes(spool(tmp_path).read_bytes())
        assert pending_spool(store.events(run.id)) == str(spool(tmp_path))
        writer.suspend()
        writer.close()
        for _ in range(2):  # the second time changes nothing
            assert other.recover(kept).status is RunStatus.PARTIAL
        for one in (store, other):
            assert [kind for kind, _ in one.events(run.id)] == [SESSION_BEGUN, ALL_STORED]
            assert pending_spool(one.events(run.id)) is None


def test_what_a_server_says_that_no_text_can_hold_does_not_spoil_the_view_of_deployments(
    postgres_address: str,
) -> None:
    run = make_run()
    with Store.open(postgres_address) as store:
        store.begin_run(run, PLAN)
        with store._database.reading() as connection:
            found = connection.execute(text("SELECT name, model, facts FROM deployment ORDER BY role")).all()
    assert NASTY in str(run.arms[Arm.BASELINE].facts["version"])
    assert [(row.name, row.model) for row in found] == [("f16", "tiny"), ("q8_0", "tiny")]
    assert all("\\ufffd" in row.facts and "DROP TABLE run" in row.facts for row in found)
