"""Stores that take less time than a user's: nothing waits for the disk, and the way to new tables is gone once.

What the migrations told one empty database is told the next one: alembic takes some fifty milliseconds for a store, and
tests make hundreds. Only the statements are kept, in their order; whatever is not empty, and the first store of each
kind in a process, goes through the migrations themselves.
"""

from __future__ import annotations

from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event, inspect

from benchgate.store.database import _SQLITE_PRAGMAS

in_earnest = command.upgrade
KEPT_PRAGMAS = _SQLITE_PRAGMAS
HURRIED_PRAGMAS = tuple("synchronous=OFF" if one.startswith("synchronous") else one for one in KEPT_PRAGMAS)
_READS = ("SELECT", "PRAGMA")
_Statement = tuple[str, Any]  # as it goes to the driver, with its parameters
_told: dict[tuple[str, str, str], list[_Statement]] = {}


def upgrade(config: Config, revision: str) -> None:
    """Stands in for alembic's own."""
    connection: Connection = config.attributes["connection"]
    if inspect(connection).get_table_names():
        in_earnest(config, revision)
        return
    kind = (connection.dialect.name, str(config.get_main_option("script_location")), revision)
    if kind not in _told:
        _told[kind] = _written_down(connection, config, revision)
        return
    for statement, parameters in _told[kind]:
        connection.exec_driver_sql(statement, parameters)


def _written_down(connection: Connection, config: Config, revision: str) -> list[_Statement]:
    """Migrates in earnest; what changed the database."""
    seen: list[_Statement] = []

    def note(_one: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        if not statement.lstrip().startswith(_READS):
            seen.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    try:
        in_earnest(config, revision)
    finally:
        event.remove(connection, "before_cursor_execute", note)
    return seen
