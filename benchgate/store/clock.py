"""What time it is for a store: by the server's clock on Postgres, by this machine's on SQLite.

Several machines write to one store, each by its own clock. What says that it is of a later time than this cannot have
been made by a clock that was right: it is not taken. What got in while the store's own clock was wrong is nobody's
newest until its time has come: else it would stand before everything that is measured and concluded later.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, text

from benchgate.errors import EvidenceError

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


def require_by_now(connection: Connection, run_id: str, told: Iterable[tuple[str, str | None]]) -> None:
    """Raise EvidenceError where something of a run is of a time to come: told as what it is and its instant."""
    last, what = max(((at, what) for what, at in told if at is not None), default=("", ""))
    if last > (known := latest(connection)):
        raise EvidenceError(
            f"run {run_id}: its {what} is of {last}, and by the store's clock none can be later than {known}; set the "
            "clock of the machine that recorded it"
        )
