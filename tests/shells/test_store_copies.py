"""A store is copied whole; what is damaged, would be written over or would show a password goes nowhere."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import insert, text
from sqlalchemy.engine import make_url

from benchgate.cli.store import print_results
from benchgate.errors import EvidenceError, UsageError
from benchgate.store import tables
from benchgate.store.bundle import bundle_sources
from benchgate.store.database import Address, Database
from benchgate.store.export import export_bundle
from benchgate.store.merge import ImportResult, copy_store, import_runs
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from benchgate.store.stored_run import remove_raw
from tests.shells.exchange_samples import (
    DECIDED_AT,
    bundle_of,
    ids_in,
    verdict,
    write_everything,
)
from tests.shells.store_samples import DONE_AT, PLAN, make_load, make_run
from tests.shells.test_store_exchange import bring, fates

pytest_plugins = ["tests.shells.store_databases", "tests.shells.store_elsewhere"]


FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_store_is_copied_whole_both_ways(store_address: str, elsewhere: str, third: str) -> None:
    runs = [write_everything(elsewhere, label=None) for _ in range(2)]
    with Store.open(elsewhere) as store:
        compared = {"outcome": "BLOCK", "against": {"id": runs[1].id}, "run": {"id": runs[0].id}}
        store.save_verdict(runs[0].id, compared, compared_run_id=runs[1].id, decided_at=DECIDED_AT[2])
        store.begin_run(killed := make_run(), PLAN).add(make_load())
    with opened(elsewhere, create=False) as database, database.writing() as connection:
        profile = {"fingerprint": "f" * 64, "measured_at": DONE_AT, "document": "{}", "sha256": "0" * 64}
        connection.execute(insert(tables.client_profile), profile)
    taken: list[ImportResult] = []
    for origin, target in ((elsewhere, store_address), (store_address, third), (elsewhere, store_address)):
        with opened(origin, create=False) as source, opened(target, create=True) as database:
            taken = list(copy_store(source, database))
        assert [one.problem for one in taken] == [None] * 3
    assert {fate for fate in fates(taken)} == {("known", 0)}
    for run in (*runs, killed):
        assert bundle_of(third, run.id) == bundle_of(store_address, run.id) == bundle_of(elsewhere, run.id)
    with opened(third, create=False) as database, database.reading() as connection:
        assert connection.execute(tables.client_profile.select()).one()._asdict() == profile
    with opened(third, create=False) as same, pytest.raises(UsageError, match="both the store to copy"):
        list(copy_store(same, same))


@pytest.mark.parametrize("fixture", sorted(FIXTURES.glob("store-*.sqlite")), ids=lambda path: path.name)
def test_run_of_every_released_schema_can_be_copied(fixture: Path, elsewhere: str, tmp_path: Path) -> None:
    old = str(shutil.copy(fixture, tmp_path / "old.db"))
    with opened(old, create=False) as source, opened(elsewhere, create=False) as database:
        taken = list(copy_store(source, database))
    assert [one.problem for one in taken] == [None] * len(ids_in(old)) and taken
    assert [bundle_of(elsewhere, run_id) for run_id in ids_in(elsewhere)] == [
        bundle_of(old, run_id) for run_id in ids_in(old)
    ]


def test_damaged_run_is_neither_exported_nor_copied(third: str, elsewhere: str, tmp_path: Path) -> None:
    good, bad = write_everything(third, label=None), write_everything(third, label=None)
    damage(third, bad.id)
    file = tmp_path / "runs" / f"{bad.id}.json"
    with opened(third, create=False) as source, opened(elsewhere, create=True) as database:
        with pytest.raises(EvidenceError, match="its evidence hashes to"):
            export_bundle(source, bad.id, file)
        taken = list(copy_store(source, database))
    assert not file.exists() and list(tmp_path.glob("runs/.*")) == []
    assert [one.problem is None for one in taken] == [True, False]
    assert ids_in(elsewhere) == [good.id]


def damage(address: str, run_id: str) -> None:
    database = Database.connect(Address.parse(address))
    with database.writing() as connection:
        if connection.dialect.name == "sqlite":
            connection.execute(text("DROP TRIGGER run_no_update"))
        else:
            connection.execute(text("ALTER TABLE run DISABLE TRIGGER USER"))
        connection.execute(text("UPDATE run SET label = 'better' WHERE id = :id"), {"id": run_id})
    database.close()


def _itself(database: Database) -> Database:
    return database


def test_file_is_written_over_only_by_what_holds_as_much(
    shared_address: str, elsewhere: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_everything(elsewhere)
    bring(elsewhere, shared_address, run.id)
    file = tmp_path / "git" / f"{run.id}.json"
    with Store.open(elsewhere) as store:
        store.save_verdict(run.id, verdict("BLOCK", run), decided_at=DECIDED_AT[2])
    with opened(elsewhere, create=False) as more, opened(shared_address, create=False) as less:
        export_bundle(less, run.id, file)
        export_bundle(more, run.id, file)
        fuller = file.read_bytes()
        with pytest.raises(EvidenceError, match="it holds a verdict that the store lacks; import it first"):
            export_bundle(less, run.id, file)
        assert file.read_bytes() == fuller
        list(import_runs(lambda: less, bundle_sources([file])))
        export_bundle(less, run.id, file)
        assert file.read_bytes() == fuller
        with more.writing() as connection:
            remove_raw(connection, run.id, removed_at="2026-12-01T00:00:00Z", reason="store gc")
        with pytest.raises(EvidenceError, match=r"the raw records, which were removed from the store.*: keep it, and"):
            export_bundle(more, run.id, file)
        for target, bared in ((more, True), (less, False)):
            (taken,) = import_runs(partial(_itself, target), bundle_sources([file]))
            assert taken.merged is not None and (taken.merged.fate, taken.merged.bared) == ("known", bared)
            print_results([taken])
            assert (f"were removed from this store and stay so: keep {file}, which" in capsys.readouterr().err) is bared
        file.write_text("notes of somebody")
        with pytest.raises(UsageError, match=r"not a bundle: .*it was not written over"):
            export_bundle(less, run.id, file)
        with pytest.raises(EvidenceError, match="cannot be read: Is a directory"):
            export_bundle(less, run.id, tmp_path)


def test_password_of_a_store_is_in_no_bundle_and_no_message(postgres_address: str, tmp_path: Path) -> None:
    secret = "canaryPASSWORD"
    address = make_url(postgres_address).set(password=secret).render_as_string(hide_password=False)
    run = write_everything(address)
    with opened(address, create=False) as database:
        export_bundle(database, run.id, tmp_path / "x.json")
        assert secret not in (tmp_path / "x.json").read_text()
    damage(address, run.id)
    with opened(address, create=False) as source, opened(str(tmp_path / "x.db"), create=True) as database:
        (taken,) = copy_store(source, database)
    assert taken.problem is not None and secret not in f"{taken}"


def test_what_is_no_bundle_by_its_name_is_refused_before_anything_is_taken_in(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, says in ((tmp_path / "missing", "there is no file or folder"), (tmp_path / "empty", "json in it")):
        with pytest.raises(UsageError, match=says):
            list(bundle_sources([path]))
