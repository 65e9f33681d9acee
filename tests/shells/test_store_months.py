"""Raw records by month on Postgres, and the history that is read without them on either database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, insert, select

from benchgate.errors import StoreError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, RunStatus, new_run_id
from benchgate.store import migrate, tables
from benchgate.store.database import Address, Database
from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from tests.shells.store_samples import DONE_AT, PLAN, make_load, make_run

pytest_plugins = ["tests.shells.store_databases"]

OCTOBER_MS, NOVEMBER_MS, LAST_OF_OCTOBER_MS = 1_791_000_000_000, 1_794_000_000_000, 1_793_491_199_999
RAW = ("observation", "telemetry")


def stored(store: Store, at_ms: int, number: int) -> str:
    """Store a run of this instant with one stage, and return its id."""
    run = make_run(new_run_id(at_ms, bytes([number] * 10)))
    writer = store.begin_run(run, PLAN)
    writer.add(make_load())
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    store.save_metrics(run.id, [MetricRow(Arm.CANDIDATE, "ttft", "p50", "c4", None, 0.1, 5)])
    return run.id


@pytest.fixture
def connection(postgres_address: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_address, autocommit=True) as connected:
        yield connected


def partitions(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Return the rows in each partition of the observations."""
    query = "SELECT relid::regclass::text FROM pg_partition_tree('observation') WHERE isleaf ORDER BY 1"
    names = [name for (name,) in connection.execute(query).fetchall()]
    counts = [connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchone() for name in names]
    return {name: found[0] for name, found in zip(names, counts, strict=True) if found is not None}


def test_each_month_has_a_partition_of_its_own(postgres_address: str, connection: psycopg.Connection[Any]) -> None:
    with Store.open(postgres_address) as store:
        runs = [stored(store, at, number) for number, at in enumerate((OCTOBER_MS, LAST_OF_OCTOBER_MS, NOVEMBER_MS))]
        odd = make_run("not-a-time")
        store.begin_run(odd, PLAN).add(make_load())
        assert partitions(connection) == {"observation_2026_10": 2, "observation_2026_11": 1, "observation_rest": 1}
        assert [len(store.evidence(run).load) for run in runs] == [1, 1, 1]
        sizes = {table.name: table for table in store.sizes(DONE_AT).tables}
        assert sizes["observation"].n_rows == 4 and sizes["observation"].n_bytes > 4 * 8192


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE observation_2026_10 SET meta = '{}'",
        "DELETE FROM observation_2026_10",
        "DELETE FROM observation",
        "TRUNCATE observation_2026_10",
        "TRUNCATE observation",
        "INSERT INTO observation SELECT run_id, 99, kind, arm, stage, task, block, position, meta, codec, sha256, "
        "n_rows, data FROM observation",
    ],
)
def test_a_month_refuses_changes_as_the_whole_does(
    postgres_address: str, connection: psycopg.Connection[Any], statement: str
) -> None:
    with Store.open(postgres_address) as store:
        run_id = stored(store, OCTOBER_MS, 1)
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
            connection.execute(statement.encode())
        assert len(store.evidence(run_id).load) == 1


def test_removed_records_leave_the_partition(postgres_address: str, connection: psycopg.Connection[Any]) -> None:
    with Store.open(postgres_address) as store:
        run_id, _ = stored(store, OCTOBER_MS, 1), stored(store, NOVEMBER_MS, 2)
        store.remove_raw(store.expendable(Policy(), "2028-01-01T00:00:00Z"), now=DONE_AT, reason="store gc")
        assert partitions(connection) == {"observation_2026_10": 0, "observation_2026_11": 1, "observation_rest": 0}
        assert store.removal(run_id) is not None


def test_records_of_the_schema_before_stay_readable(
    postgres_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: psycopg.Connection[Any]
) -> None:
    """The runs are copied table by table into a schema without partitions, which is then upgraded."""
    with Store.open(str(tmp_path / "a.db")) as store:
        old = stored(store, OCTOBER_MS, 1)
        evidence = store.evidence(old)
    monkeypatch.setattr(migrate, "HEAD", "0006")
    migrate.upgrade(postgres_address)
    monkeypatch.undo()
    source, target = (Database.connect(Address.parse(one)) for one in (str(tmp_path / "a.db"), postgres_address))
    with source.reading() as reading, target.writing() as writing:
        running = {"status": "running", "evidence_sha256": None, "finished_at": None}
        for table in (tables.plan, tables.run, tables.arm, tables.observation):
            for row in reading.execute(select(table)).mappings():
                writing.execute(insert(table), dict(row) | (running if table is tables.run else {}))
        end = reading.execute(select(tables.run)).mappings().one()
        writing.execute(tables.run.update().values({name: end[name] for name in running}))
    source.close()
    target.close()
    assert migrate.upgrade(postgres_address).before == "0006"
    with Store.open(postgres_address) as store:
        assert store.evidence(old).run == evidence.run and len(store.evidence(old).load) == 1
        stored(store, LAST_OF_OCTOBER_MS, 2)  # of the month that begins among the old ones
        stored(store, NOVEMBER_MS, 3)
        assert partitions(connection) == {"observation_2026_11": 1, "observation_rest": 2}
        assert [finding for finding in store.check().findings if finding.place in RAW] == []


def read_history(store: Store) -> None:
    assert len(store.trend("ttft")) == 2
    assert len(store.overview().runs) == 2
    assert len(store.runs()) == 2


def test_a_trend_on_postgres_needs_no_right_to_read_records(
    postgres_address: str, connection: psycopg.Connection[Any]
) -> None:
    with Store.open(postgres_address) as store:
        for number, at_ms in enumerate((OCTOBER_MS, NOVEMBER_MS)):
            stored(store, at_ms, number)
    (schema,) = connection.execute("SELECT current_schema()").fetchone() or ("",)
    role = f"reader_{schema}"
    connection.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}".encode())
        for table in partitions(connection).keys() | set(RAW):
            connection.execute(f"REVOKE SELECT ON {table} FROM {role}".encode())
        with Store.open(postgres_address.replace("postgres:", f"{role}:", 1), create=False) as store:
            assert len(store.trend("ttft")) == 2
            with pytest.raises(StoreError, match="permission denied"):
                store.evidence(store.runs()[0].id)
    finally:
        connection.execute(f"DROP OWNED BY {role}".encode())
        connection.execute(f"DROP ROLE {role}".encode())


def test_a_trend_on_sqlite_reads_no_record(tmp_path: Path) -> None:
    """SQLite asks for permission to read each column of each table when it prepares a statement."""
    with Store.open(str(tmp_path / "a.db")) as store:
        runs = [stored(store, at, number) for number, at in enumerate((OCTOBER_MS, NOVEMBER_MS))]
    with Store.open(str(tmp_path / "a.db")) as store:

        def permit(action: int, table: str | None, column: str | None, *_: object) -> int:
            reads = action == sqlite3.SQLITE_READ and table in RAW and column == "data"
            return sqlite3.SQLITE_DENY if reads else sqlite3.SQLITE_OK

        @event.listens_for(store._database.engine, "checkout")
        def deny(connection: Any, *_: object) -> None:
            connection.set_authorizer(permit)

        read_history(store)
        with pytest.raises(StoreError, match="prohibited"):
            store.evidence(runs[0])


def test_a_store_of_sqlite_has_no_partitions(tmp_path: Path) -> None:
    migrate.upgrade(str(tmp_path / "a.db"))
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        tables_there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables_there >= set(RAW) and not any(name.endswith("_rest") for name in tables_there)


def test_two_who_begin_a_month_together_both_begin(postgres_address: str) -> None:
    with Store.open(postgres_address):
        pass

    def begin(number: int) -> str:
        with Store.open(postgres_address) as store:
            return stored(store, OCTOBER_MS + number, number)

    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(begin, range(8)))
    with Store.open(postgres_address) as store:
        assert {run.id for run in store.runs()} == set(runs)
