"""Is the database itself whole, are its guards in place, and does every row belong to one that is there?"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, ForeignKeyConstraint, Table, and_, func, select, text

from benchgate.store import tables
from benchgate.store.finding import Finding

GUARDED = (
    tables.plan, tables.run, tables.arm, tables.observation, tables.telemetry, tables.event, tables.verdict,
    tables.check_result, tables.promotion, tables.imported, tables.tombstone, tables.client_profile,
    tables.noise_profile,
)  # fmt: skip
"""The tables that triggers guard against changes."""

_MOST_TOLD = 20
_TRIGGERS = {
    "sqlite": "SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": (
        "SELECT DISTINCT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = current_schema() AND NOT t.tgisinternal AND t.tgenabled <> 'D'"
    ),
}


def database_findings(connection: Connection) -> Iterator[Finding]:
    """What SQLite finds wrong with its own file: pages, indexes, and values of another type than their column's."""
    if connection.dialect.name == "sqlite":
        for (problem,) in connection.execute(text(f"PRAGMA integrity_check({_MOST_TOLD})")):
            if problem != "ok":
                yield Finding(None, "the file", f"{problem}: it is damaged; go back to a copy of it")


def link_findings(connection: Connection) -> Iterator[Finding]:
    """Tables without a trigger that refuses changes, and rows that belong to a row that is not there."""
    guarded = set(connection.scalars(text(_TRIGGERS[connection.dialect.name])))
    for table in GUARDED:
        if table.name not in guarded:
            yield Finding(None, f"table {table.name}", "no trigger refuses changes of it: what it holds may be altered")
    for table in tables.metadata.sorted_tables:
        for constraint in sorted(table.foreign_key_constraints, key=lambda one: sorted(one.column_keys)):
            yield from _orphans(connection, table, constraint)
    yield from _metrics_without_arm(connection)


def _orphans(connection: Connection, table: Table, constraint: ForeignKeyConstraint) -> Iterator[Finding]:
    """Rows of a table whose row in the other one is missing. Both databases refuse them, unless told not to."""
    parent = constraint.referred_table.alias("parent")
    pairs = [(key.parent, parent.c[key.column.name]) for key in constraint.elements]
    there = select(1).where(*(theirs == ours for ours, theirs in pairs)).exists()
    named = and_(*(ours.is_not(None) for ours, _ in pairs))
    owner = table.c.id if table is tables.run else table.c.run_id
    missing = select(owner, *(ours for ours, _ in pairs)).where(named, ~there).distinct()
    for run_id, *key in connection.execute(missing.order_by(owner).limit(_MOST_TOLD)):
        parts = " ".join(str(part) for part in key)
        told = f"it has rows of {constraint.referred_table.name} {parts}, which is not there"
        yield Finding(run_id, f"table {table.name}", told)


def _metrics_without_arm(connection: Connection) -> Iterator[Finding]:
    metric, arm = tables.metric.c, tables.arm
    there = select(1).where(arm.c.run_id == metric.run_id, arm.c.role == metric.arm).exists()
    strange = select(metric.run_id, metric.arm).where(~there).distinct().limit(_MOST_TOLD)
    for run_id, role in connection.execute(strange):
        yield Finding(run_id, "table metric", f"it has numbers of the arm {role!r}, which the run does not have")


def unused_plans(connection: Connection) -> int:
    """How many plans no run has: of runs that were removed by hand. They do no harm."""
    used = select(1).where(tables.run.c.plan_sha256 == tables.plan.c.sha256).exists()
    return int(connection.scalar(select(func.count()).select_from(tables.plan).where(~used)) or 0)
