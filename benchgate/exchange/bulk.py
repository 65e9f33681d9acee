"""Many rows into one table: by COPY on Postgres, by one statement with many values on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert
from sqlalchemy.exc import DBAPIError

from benchgate.store.rows import Row


def insert_rows(connection: Connection, table: Table, found: Sequence[Row]) -> None:
    """Adds the rows, all with the same columns, in this order; triggers look at each of them on both databases."""
    if not found:
        return
    if connection.dialect.name == "sqlite":
        connection.execute(insert(table), list(found))
    else:
        _copy(connection, table, found)


def _copy(connection: Connection, table: Table, found: Sequence[Row]) -> None:
    """Through the driver itself: SQLAlchemy knows no COPY. Its errors become those that SQLAlchemy would raise."""
    quote = connection.dialect.identifier_preparer.quote
    names = list(found[0])
    statement = f"COPY {quote(table.name)} ({', '.join(map(quote, names))}) FROM STDIN"
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in found:
                copy.write_row([row[name] for name in names])
    except _driver_errors(connection) as exc:
        raise DBAPIError(statement, None, exc) from exc


def _driver_errors(connection: Connection) -> type[Exception]:
    """The base of what the database's driver raises."""
    errors: type[Exception] = connection.dialect.loaded_dbapi.Error
    return errors
