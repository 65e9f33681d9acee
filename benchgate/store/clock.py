"""Clock of a store: the server's on Postgres, this machine's on SQLite.

Several machines write to one store, each by its own clock. A record dated later than this one allows is refused. A
record that got in while the store's own clock was wrong does not count as the newest until its time has come: otherwise
it would precede everything measured and decided later.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, text

from benchgate.errors import EvidenceError

AHEAD_S = 300  # tolerance of a clock ahead of the store's: more than clocks set by a network ever differ

_LATEST = {
    "sqlite": "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now', :ahead || ' seconds')",
    "postgresql": """SELECT to_char(
        clock_timestamp() AT TIME ZONE 'UTC' + make_interval(secs => :ahead), 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')""",
}


def latest(connection: Connection) -> str:
    """Return the latest instant (RFC 3339 UTC, milliseconds) that a record made by now can have."""
    return str(connection.scalar(text(_LATEST[connection.dialect.name]), {"ahead": AHEAD_S}))


def require_by_now(connection: Connection, run_id: str, instants: Iterable[tuple[str, str | None]]) -> None:
    """Raise EvidenceError where an instant of a run, given with its name, is in the future."""
    last, what = max(((at, what) for what, at in instants if at is not None), default=("", ""))
    if last > (known := latest(connection)):
        raise EvidenceError(
            f"run {run_id}: its {what} is of {last}, and by the store's clock none can be later than {known}; set the "
            "clock of the machine that recorded it"
        )
