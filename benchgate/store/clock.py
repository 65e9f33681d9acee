"""What time it is for a store: by the server's clock on Postgres, by this machine's on SQLite.

Several machines write to one store, each by its own clock. What says that it is of a later time than this cannot have
been made by a clock that was right.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

AHEAD_S = 300
"""How far ahead of the store's a clock may be: more than clocks that are set by a network ever are."""

_LATEST = {
    "sqlite": "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', :ahead || ' seconds')",
    "postgresql": """SELECT to_char(
        clock_timestamp() AT TIME ZONE 'UTC' + make_interval(secs => :ahead), 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')""",
}


def latest(connection: Connection) -> str:
    """The latest instant (RFC 3339 UTC, milliseconds) that a record made by now can be of."""
    return str(connection.scalar(text(_LATEST[connection.dialect.name]), {"ahead": AHEAD_S}))
