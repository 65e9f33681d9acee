"""How large a store is, and of what: rows and bytes by table, runs by suite and status, and what could go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, LargeBinary, Table, Text, func, literal, select, text
from sqlalchemy.exc import OperationalError

from benchgate.store import tables
from benchgate.store.check_links import unused_plans
from benchgate.store.engine import Database
from benchgate.store.migrate import HEAD
from benchgate.store.retention import Expendable, Policy, expendable


@dataclass(frozen=True, slots=True)
class TableSize:
    """One table: its rows, and the bytes it takes with its indexes; of its contents alone where SQLite cannot tell."""

    name: str
    n_rows: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """A store in numbers. `runs` counts by (suite, status); `removed` are runs whose raw records are gone.

    `expendable` are those whose raw records may go: finished, not promoted, not the newest of their suite.
    """

    address: str
    schema: str
    tool_version: str | None
    server: str
    n_bytes: int
    tables: tuple[TableSize, ...]
    runs: Mapping[tuple[str, str], int]
    removed: int
    unused_plans: int
    expendable: tuple[Expendable, ...]


def sizes_of(database: Database, now: str) -> Sizes:
    """Looks at a store of this schema, at the instant `now` (RFC 3339 UTC)."""
    with database.reading() as connection:
        info, run = tables.store_info.c, tables.run.c
        counted = select(run.suite_name, run.status, func.count()).group_by(run.suite_name, run.status)
        stones = tables.tombstone.c
        return Sizes(
            address=database.address.shown,
            schema=HEAD,
            tool_version=connection.scalar(select(info.value).where(info.key == "tool_version")),
            server=_server(connection),
            n_bytes=_n_bytes(connection),
            tables=tuple(_table_sizes(connection)),
            runs={(suite, status): n for suite, status, n in sorted(tuple(row) for row in connection.execute(counted))},
            removed=int(connection.scalar(select(func.count(stones.run_id.distinct()))) or 0),
            unused_plans=unused_plans(connection),
            expendable=tuple(expendable(connection, Policy(), now)),
        )


def _server(connection: Connection) -> str:
    if connection.dialect.name == "sqlite":
        return f"SQLite {connection.scalar(text('SELECT sqlite_version()'))}"
    return f"Postgres {connection.scalar(text('SHOW server_version'))}"


def _n_bytes(connection: Connection) -> int:
    """Of the whole file without its log, or of all tables with their indexes."""
    if connection.dialect.name == "sqlite":
        pages, size = (connection.scalar(text(f"PRAGMA {name}")) for name in ("page_count", "page_size"))
        return int(pages or 0) * int(size or 0)
    return sum(_postgres_bytes(connection, table.name) for table in tables.metadata.sorted_tables)


def _table_sizes(connection: Connection) -> list[TableSize]:
    every = tables.metadata.sorted_tables
    told = _bytes_by_table(connection, [table.name for table in every])
    n_bytes = told or {table.name: _content_bytes(connection, table) for table in every}
    n_rows = [int(connection.scalar(select(func.count()).select_from(table)) or 0) for table in every]
    return [TableSize(table.name, n, n_bytes[table.name]) for table, n in zip(every, n_rows, strict=True)]


def _bytes_by_table(connection: Connection, names: list[str]) -> dict[str, int]:
    if connection.dialect.name != "sqlite":
        return {name: _postgres_bytes(connection, name) for name in names}
    of_table = (
        "SELECT m.tbl_name, SUM(d.pgsize) FROM dbstat d JOIN sqlite_master m ON m.name = d.name "
        "WHERE d.aggregate = 1 GROUP BY m.tbl_name"
    )
    try:
        found = {name: int(size) for name, size in connection.execute(text(of_table))}
        return {name: found.get(name, 0) for name in names}
    except OperationalError:  # not every SQLite is built with dbstat
        return {}


def _content_bytes(connection: Connection, table: Table) -> int:
    """Of all values: texts and blobs as long as they are, numbers as 8 bytes."""
    long = [column for column in table.columns if isinstance(column.type, Text | LargeBinary)]
    each = sum(
        (func.coalesce(func.length(column), 0) for column in long), literal(8 * (len(table.columns) - len(long)))
    )
    return int(connection.scalar(select(func.sum(each)).select_from(table)) or 0)


def _postgres_bytes(connection: Connection, name: str) -> int:
    return int(connection.scalar(text("SELECT pg_total_relation_size(CAST(:name AS regclass))"), {"name": name}) or 0)
