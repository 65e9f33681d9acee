"""Opening, creating and upgrading a store, and what is refused on the way."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
import sys
import traceback
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event, text

import benchgate
from benchgate.errors import StoreError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.records import OPTIONAL_COLUMNS, RequestColumns
from benchgate.model.run import LOAD_ENDED, LoadEnd, MetricRow, RunStatus
from benchgate.model.verdict import Outcome
from benchgate.store import migrate
from benchgate.store.database import Address, Database
from benchgate.store.locks import upgrade_lock
from benchgate.store.repository import Store
from benchgate.store.tables import metadata
from tests.fakes import quick_store
from tests.fakes.full_disk import files_no_larger_than
from tests.shells.store_samples import (
    PLAN,
    assert_same_requests,
    frozen_run,
    make_load,
    make_noise,
    make_quality,
    make_requests,
    make_run,
    make_shadow,
    make_telemetry,
    write_run,
)

pytest_plugins = ["tests.shells.store_databases"]

FIXTURES = Path(__file__).parents[1] / "fixtures"
FROZEN = FIXTURES / "store-0001.sqlite"
FROZEN_END = LoadEnd(5, 20, "decided")
SECRET = "s3cr3t/pass"
ENCODED = "s3cr3t%2Fpass"


@pytest.fixture(autouse=True)
def stores_are_as_users_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "upgrade", quick_store.in_earnest)
    monkeypatch.setattr("benchgate.store.database._SQLITE_PRAGMAS", quick_store.KEPT_PRAGMAS)


def execute(address: str, *statements: str) -> None:
    database = Database.connect(Address.parse(address))
    with database.writing() as connection:
        for statement in statements:
            connection.execute(text(statement))
    database.close()


@pytest.fixture
def next_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Pretends to be the next benchgate, whose schema has one table more."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrate.migrations_dir(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "0009_more.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        "revision, down_revision = '0009', '0008'\n"
        "def upgrade():\n    op.create_table('more', sa.Column('x', sa.Integer(), primary_key=True))\n"
    )
    monkeypatch.setattr(migrate, "migrations_dir", lambda: folder)
    monkeypatch.setattr(migrate, "HEAD", "0009")
    return "0009"


def test_head_is_the_one_newest_migration() -> None:
    assert ScriptDirectory(str(migrate.migrations_dir())).get_heads() == [migrate.HEAD]


def test_migrations_never_import_benchgate() -> None:
    for script in (migrate.migrations_dir() / "versions").glob("*.py"):
        source = script.read_text()
        assert "import benchgate" not in source, script
        assert "from benchgate" not in source, script


def test_migrated_schema_is_the_one_the_tables_declare(store_address: str) -> None:
    migrate.upgrade(store_address)
    database = Database.connect(Address.parse(store_address))
    partitions = ("observation_rest", "telemetry_rest")
    options = {
        "compare_type": True,
        "version_table": "benchgate_schema",
        "include_name": lambda name, kind, _: kind != "table" or name not in partitions,
    }
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
    database.close()


def test_sqlite_keeps_every_promise_of_its_connection(tmp_path: Path) -> None:
    address = str(tmp_path / "a.db")
    migrate.upgrade(address)
    database = Database.connect(Address.parse(address))
    with database.reading() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys", "trusted_schema")
        }
        strict = connection.exec_driver_sql("SELECT name FROM pragma_table_list WHERE strict").scalars().all()
    database.close()
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL
        "busy_timeout": 10_000,
        "foreign_keys": 1,
        "trusted_schema": 0,
    }
    assert set(strict) == set(metadata.tables)


def test_folder_of_a_new_store_is_created(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "benchgate.db"
    with Store.open(f"sqlite:///{path}") as store:
        assert store.runs() == []
    assert path.is_file()


def test_store_that_is_not_there_is_not_created_for_reading(tmp_path: Path) -> None:
    path = tmp_path / "nope" / "benchgate.db"
    with pytest.raises(UsageError, match="no benchgate store"):
        Store.open(str(path), create=False)
    assert not path.parent.exists()


def test_database_without_a_store_is_not_created_for_reading(store_address: str) -> None:
    execute(store_address)
    with pytest.raises(UsageError, match="no benchgate store"):
        Store.open(store_address, create=False)


def test_database_of_somebody_else_is_left_alone(store_address: str) -> None:
    execute(store_address, "CREATE TABLE run (id TEXT)")
    with pytest.raises(StoreError, match="holds other tables"):
        Store.open(store_address)


def test_upgrade_says_what_it_did_and_then_does_nothing(store_address: str) -> None:
    assert migrate.upgrade(store_address) == migrate.Upgrade(None, migrate.HEAD, None)
    assert migrate.upgrade(store_address) == migrate.Upgrade(migrate.HEAD, migrate.HEAD, None)


def test_newer_store_is_refused_with_the_version_it_needs(store_address: str) -> None:
    migrate.upgrade(store_address)
    execute(
        store_address,
        "UPDATE benchgate_schema SET version_num = '0999'",
        "UPDATE store_info SET value = '9.8.7' WHERE key = 'tool_version'",
    )
    for refused in (Store.open, migrate.upgrade):
        with pytest.raises(StoreError, match=r"schema 0999, made by benchgate 9\.8\.7.*install benchgate 9\.8\.7"):
            refused(store_address)


def test_store_says_which_benchgate_made_it(store_address: str) -> None:
    migrate.upgrade(store_address)
    database = Database.connect(Address.parse(store_address))
    with database.reading() as connection:
        assert connection.execute(text("SELECT key, value FROM store_info")).all() == [
            ("tool_version", benchgate.__version__)
        ]
    database.close()


def test_older_sqlite_store_with_runs_is_copied_then_upgraded(next_schema: str, tmp_path: Path) -> None:
    path = tmp_path / "benchgate.db"
    for _ in range(2):  # the second time an earlier copy is in the way
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        shutil.copy(FROZEN, path)
        path.chmod(0o600)  # as of a store with texts of users
        with Store.open(str(path)) as store:
            assert store.evidence(frozen_run().id).shadow == make_shadow()
    first, second = (path.with_name(f"benchgate.db.schema-0001.backup{end}") for end in ("", ".2"))
    for copy in (first, second):
        assert copy.stat().st_mode & 0o777 == 0o600
        with sqlite3.connect(copy) as connection:
            assert connection.execute("SELECT version_num FROM benchgate_schema").fetchone() == ("0001",)
            assert connection.execute("SELECT label FROM run").fetchone() == ("frozen",)
        connection.close()
    assert migrate.upgrade(str(path)).after == next_schema


def test_store_is_not_upgraded_where_its_copy_does_not_fit_on_the_disk(next_schema: str, tmp_path: Path) -> None:
    path = tmp_path / "benchgate.db"
    shutil.copy(FROZEN, path)
    with files_no_larger_than(path.stat().st_size // 2), pytest.raises(StoreError):
        Store.open(str(path))
    assert not list(tmp_path.glob("*.backup*"))
    with Store.open(str(path)) as store:
        assert store.evidence(frozen_run().id).shadow == make_shadow()


def test_older_sqlite_store_without_runs_needs_no_copy(next_schema: str, tmp_path: Path) -> None:
    path = tmp_path / "benchgate.db"
    migrate.upgrade(str(path))
    execute(str(path), "DROP TABLE more", "UPDATE benchgate_schema SET version_num = '0008'")
    assert migrate.upgrade(str(path)) == migrate.Upgrade("0008", next_schema, None)
    assert not list(tmp_path.glob("*.backup*"))


def test_older_postgres_store_is_upgraded_only_when_asked(next_schema: str, postgres_address: str) -> None:
    migrate.upgrade(postgres_address)
    execute(postgres_address, "DROP TABLE more", "UPDATE benchgate_schema SET version_num = '0008'")
    with pytest.raises(StoreError, match="benchgate store upgrade"):
        Store.open(postgres_address)
    assert migrate.upgrade(postgres_address) == migrate.Upgrade("0008", next_schema, None)
    Store.open(postgres_address).close()


def test_migration_that_fails_leaves_the_store_as_it_was(
    next_schema: str, store_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = migrate.migrations_dir() / "versions" / "0009_more.py"
    broken.write_text(broken.read_text() + "    op.execute('NOT SQL')\n")
    with pytest.raises(StoreError):
        migrate.upgrade(store_address)
    monkeypatch.setattr(migrate, "HEAD", "0008")
    broken.unlink()
    assert migrate.upgrade(store_address).before is None


def test_metrics_of_an_older_store_get_the_names_of_the_suite(store_address: str) -> None:
    with Store.open(store_address) as store:
        run = write_run(store)
        names = ("ttft", "output_throughput_per_accelerator", "capacity_in_flight", "error_rate")
        rows = [MetricRow(Arm.CANDIDATE, name, None, "c4", None, 0.1, 5) for name in names]
        store.save_metrics(run.id, rows)
    older = {"ttft": "ttft_s", "output_throughput_per_accelerator": "output_tokens_per_accelerator_per_s",
             "error_rate": "error_ratio"}  # fmt: skip
    renamed = (f"UPDATE metric SET name = '{old}' WHERE name = '{new}'" for new, old in older.items())
    execute(store_address, *renamed, "UPDATE benchgate_schema SET version_num = '0007'")
    assert migrate.upgrade(store_address).before == "0007"
    with Store.open(store_address) as store:
        assert store.metrics(run.id) == rows


def test_two_upgrades_never_run_at_once(store_address: str) -> None:
    one, two = (Database.connect(Address.parse(store_address)) for _ in range(2))
    with (
        upgrade_lock(one),
        pytest.raises(StoreError, match="locked by another upgrade"),
        upgrade_lock(two, wait_s=0),
    ):
        pass
    with upgrade_lock(two, wait_s=0):
        pass
    one.close()
    two.close()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "is empty"),
        ("sqlite://", "in memory"),
        (":memory:", "in memory"),
        ("postgrsql://localhost/db", "did you mean postgresql"),
        ("mysql://localhost/db", "cannot be kept in 'mysql'"),
        (f"postgresql://user:{SECRET}:x@localhost:port/db", "cannot be understood"),
    ],
)
def test_address_that_means_no_store_is_refused_without_its_password(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        Store.open(address)
    assert "s3cr3t" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://user:{ENCODED}@127.0.0.1:1/db",
        f"postgres://user@127.0.0.1:1/db?password={ENCODED}",
        f"postgresql+psycopg://user@127.0.0.1:1/db?sslpassword={ENCODED}&sslmode={ENCODED}",
    ],
)
def test_server_that_cannot_be_reached_is_named_without_its_password(address: str) -> None:
    with pytest.raises(StoreError) as refused:
        Store.open(address)
    assert "postgresql://user@127.0.0.1:1/db" in str(refused.value)
    assert "s3cr3t" not in str(refused.value)


def test_missing_postgres_driver_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install .+\[postgres\]'"):
        Store.open("postgresql://localhost/db")


def test_ctrl_c_stays_one_where_the_roll_back_fails_too(tmp_path: Path) -> None:
    database = Database.connect(Address.parse(str(tmp_path / "b.db")))

    @event.listens_for(database.engine, "rollback")
    def _gone(_: object) -> None:
        raise sqlite3.OperationalError("the server closed the connection")

    with pytest.raises(KeyboardInterrupt), database.writing():
        raise KeyboardInterrupt
    with pytest.raises(StoreError, match="the server closed the connection"), database.writing():
        raise ValueError
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:  # that one is over: what fails from here on fails by itself
        with pytest.raises(StoreError, match="the server closed the connection"), database.writing():
            raise ValueError from None
    database.close()


def test_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, but long enough to be read as a header of one " * 20)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"notes\.txt: file is not a database; it is some other file"):
        Store.open(str(path))
    assert path.read_bytes() == before


def test_folder_as_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        Store.open(str(tmp_path))


def test_file_as_the_folder_of_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        Store.open(str(tmp_path / "file" / "benchgate.db"))


def test_writer_that_waits_too_long_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "benchgate.db"
    with Store.open(str(path)) as store, sqlite3.connect(path, isolation_level=None) as other:
        monkeypatch.setattr("benchgate.store.database._SQLITE_PRAGMAS", ("busy_timeout=1",))
        other.execute("BEGIN IMMEDIATE")
        with Store.open(str(path)) as impatient, pytest.raises(StoreError, match="another process is writing"):
            impatient.begin_run(make_run(), PLAN)
        assert store.runs() == []  # readers wait for no writer
    other.close()


@pytest.mark.parametrize("schema", ["0001", "0002", "0003"])
def test_frozen_store_of_an_earlier_schema_opens_and_reads(schema: str, tmp_path: Path) -> None:
    """Each file was made by `write_frozen_store` below when its schema was the newest, and stays as it is for good."""
    shutil.copy(FIXTURES / f"store-{schema}.sqlite", tmp_path / "old.db")
    with Store.open(str(tmp_path / "old.db"), create=False) as store:
        evidence = store.evidence(store.resolve("frozen"))
        assert evidence.run == dataclasses.replace(
            frozen_run(), status=RunStatus.COMPLETE, finished_at="2026-11-20T13:00:00Z"
        )
        whole = make_requests()
        assert_same_requests(evidence.load[0].requests, whole if schema == "0003" else without_later_columns(whole))
        assert evidence.quality == (make_quality(Arm.CANDIDATE),)
        assert evidence.shadow == make_shadow()
        assert evidence.telemetry == ((make_telemetry(),) if schema == "0003" else ())
        assert evidence.noise is None
        assert store.plan(evidence.run.id) == PLAN
        assert [verdict.outcome for verdict in store.verdicts(evidence.run.id)] == [Outcome.WARN]


def without_later_columns(requests: RequestColumns) -> RequestColumns:
    """What neither of the first two schemas' versions knew of a request, and so did not store."""
    known = {name: column for name, column in requests.to_columns().items() if name not in OPTIONAL_COLUMNS}
    return RequestColumns.from_columns(known)


def write_frozen_store(path: Path) -> None:
    """Made the files up to `store-0004.sqlite`, earlier ones with what was known then; a later schema gets its own."""
    with Store.open(str(path)) as store:
        writer = store.begin_run(frozen_run(), PLAN)
        writer.add(make_load())
        writer.add(make_telemetry())
        writer.add(make_quality(Arm.CANDIDATE))
        writer.add(make_shadow())
        writer.event(LOAD_ENDED, dataclasses.asdict(FROZEN_END))
        writer.finish(RunStatus.COMPLETE, "2026-11-20T13:00:00Z")
        store.save_noise_profile(make_noise(frozen_run()))
        store.save_verdict(frozen_run().id, {"outcome": "WARN"})
        store.save_verdict(frozen_run().id, {"outcome": "BLOCK", "policy_replaced": True})
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.executescript("PRAGMA journal_mode=DELETE; PRAGMA page_size=1024; VACUUM; PRAGMA journal_mode=WAL;")
    connection.close()
