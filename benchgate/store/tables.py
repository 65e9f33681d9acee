"""Tables for SQLite and Postgres, with the meaning of their columns; their history is in `migrations/`.

Results never change: triggers made by the migrations refuse UPDATE and DELETE on plan, observation, telemetry, event,
verdict, check, promotion, import, client profile and noise profile rows, every change of a finished run, and new
observations and telemetry in it. Raw records alone may go, each after its tombstone (`store gc`). JSON is canonical
ASCII text, instants are RFC 3339 UTC text and enums are their values, so both databases keep, compare and order them
alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import REAL as SQLITE_REAL
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    Table,
    Text,
    select,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from benchgate.model.run import MEASURED_BY, ONLY_PART
from benchgate.store.raw_records import RawBytes

# STRICT tables of SQLite know INTEGER, REAL, TEXT and BLOB alone; Postgres' own REAL would be float4, its INTEGER
# int4, and the order of its texts would depend on the server's locale.
TEXT = Text().with_variant(Text(collation="C"), "postgresql")
INTEGER = BigInteger().with_variant(Integer(), "sqlite")
DOUBLE: Double[float] = Double().with_variant(SQLITE_REAL(), "sqlite")

metadata = MetaData()


def _table(name: str, *items: SchemaItem, rowid: bool = True) -> Table:
    return Table(name, metadata, *items, sqlite_strict=True, sqlite_with_rowid=rowid)


def _columns(kind: TypeEngine[Any], *names: str, nullable: bool = False) -> tuple[Column[Any], ...]:
    return tuple(Column(name, kind, nullable=nullable) for name in names)


def _key(*names: str) -> tuple[Column[Any], ...]:
    """Return the columns of a primary key: `run_id` refers to a run, and names that end in `seq` are numbers."""
    run = {"run_id": [ForeignKey("run.id")]}
    return tuple(
        Column(name, INTEGER, primary_key=True, autoincrement=False)
        if name.endswith("seq")
        else Column(name, TEXT, *run.get(name, ()), primary_key=True)
        for name in names
    )


def _packed() -> tuple[Column[Any], ...]:
    """Return the columns of raw records: `data` holds columns as `codec` says, and `sha256` is over `data`."""
    return (
        *_columns(TEXT, "meta", "codec", "sha256"),
        Column("n_rows", INTEGER, nullable=False),
        Column("data", RawBytes, nullable=False),
    )


# Facts about the store itself: key `tool_version` is the benchgate that last upgraded it.
store_info = _table("store_info", *_key("key"), *_columns(TEXT, "value"), rowid=False)

# Plans, once per distinct plan. `sha256` is over the plan's canonical JSON, `data` is that JSON under zlib.
plan = _table("plan", *_key("sha256"), Column("data", LargeBinary, nullable=False))

# One execution of a suite. Only status, finished_at and evidence_sha256 change, until the run finishes:
# `evidence_sha256` covers every observation in order. An interrupted run that may be resumed is partial without it.
run = _table(
    "run",
    *_key("id"),
    *_columns(TEXT, "suite_name", "suite", "suite_sha256", "measurement_sha256"),
    Column("plan_sha256", TEXT, ForeignKey("plan.sha256"), nullable=False),
    Column("seed", INTEGER, nullable=False),
    Column("tool_version", TEXT, nullable=False),
    Column("label", TEXT),
    *_columns(TEXT, "status", "started_at"),
    Column("finished_at", TEXT),
    Column("environment", TEXT, nullable=False),
    Column("evidence_sha256", TEXT),
    Index("run_by_time", "started_at", "id", "label", "suite_name"),  # a trend reads the index alone
    Index("run_by_label", "label"),
)

# The deployments of a run, as the run saw them. May be replaced until the run finishes.
arm = _table("arm", *_key("run_id", "role"), *_columns(TEXT, "deployment", "fingerprint"), rowid=False)

# Raw observations in order of `seq`, one row per stage, task, shadow comparison or target fault. With rowids: a blob in
# the key's own tree would slow every look-up.
observation = _table(
    "observation",
    *_key("run_id", "seq"),
    Column("kind", TEXT, nullable=False),
    *_columns(TEXT, "arm", "stage", "task", nullable=True),
    *_columns(INTEGER, "block", "position", nullable=True),
    *_packed(),
)

# Telemetry of servers and accelerators, one row per stage of one arm in one block. It shares the `seq` of the
# observations and is stored like them. `data` holds the samples.
telemetry = _table(
    "telemetry",
    *_key("run_id", "seq"),
    *_columns(TEXT, "arm", "stage"),
    *_columns(INTEGER, "block", "position"),
    *_packed(),
)

# The journal of a run, in one order (`seq`) with the observations.
event = _table("event", *_key("run_id", "seq"), *_columns(TEXT, "kind", "data"))

# Numbers derived from observations, for trends; replaced whenever they are computed again. `lower` and `upper` are the
# 95% interval, where there is one.
metric = _table(
    "metric",
    *_key("run_id", "seq"),
    *_columns(TEXT, "arm", "name"),
    *_columns(TEXT, "statistic", "stage", "task", nullable=True),
    Column("value", DOUBLE, nullable=False),
    Column("n", INTEGER, nullable=False),
    *_columns(DOUBLE, "lower", "upper", nullable=True),
    Index(
        "metric_by_name", "name", "arm", "statistic", "stage", "task", "run_id", "seq", "value", "n", "lower", "upper"
    ),  # a trend reads the index alone
    rowid=False,
)

# Verdicts on a run, oldest first. `compared_run_id` is the other run when two runs were compared,
# `decided_at` when it was stored first (NULL: before schema 0005). `sha256` is over `document`, and with `decided_at`
# over the rest of the row too. `own`: 1 where it judges the run against its own baseline, by the policy it was measured
# under.
verdict = _table(
    "verdict",
    *_key("run_id", "seq"),
    Column("compared_run_id", TEXT, ForeignKey("run.id")),
    *_columns(TEXT, "outcome", "document", "sha256"),
    Column("decided_at", TEXT),
    Column("own", INTEGER, nullable=False, server_default="0"),
    Index("verdict_by_own", "own", "run_id", "decided_at", "seq", "outcome"),
)

# The checks of a verdict as rows, for queries over many runs; the document is authoritative. `policy` is the rule of
# the check, as JSON.
check_result = _table(
    "check_result",
    Column("run_id", TEXT, primary_key=True),
    *_key("verdict_seq", "seq"),
    *_columns(TEXT, "check_id", "outcome"),
    Column("required", INTEGER, nullable=False),
    *_columns(DOUBLE, "baseline", "candidate", "harm", "lower", "upper", nullable=True),
    Column("n", INTEGER),
    Column("policy", TEXT),
    ForeignKeyConstraint(["run_id", "verdict_seq"], ["verdict.run_id", "verdict.seq"]),
    Index("check_result_by_check", "check_id", "run_id"),
    rowid=False,
)

# Promotions and withdrawals, with their grounds in `document`; `sha256` is over it. `in_series`: 1 where
# the run was valid and of a protected ref, so later candidates are compared with it.
promotion = _table(
    "promotion",
    *_key("id"),
    Column("run_id", TEXT, ForeignKey("run.id"), nullable=False),
    *_columns(TEXT, "promoted_at", "suite_name"),
    Column("in_series", INTEGER, nullable=False),
    *_columns(TEXT, "document", "sha256"),
    Index("promotion_by_time", "suite_name", "promoted_at", "id"),
    Index("promotion_by_run", "run_id"),
    rowid=False,
)

# Imports of other tools' files: the source file, and what was imported of it.
imported = _table(
    "imported",
    *_key("id"),
    Column("run_id", TEXT, ForeignKey("run.id"), nullable=False),
    *_columns(TEXT, "imported_at", "source", "source_sha256", "document", "sha256"),
    Index("imported_by_source", "source_sha256"),
    rowid=False,
)

# Tombstones of removed raw records: `sealed` are the columns that the run's hash covers (JSON), `sha256` is over the
# removed bytes. `of_table` is "observation" or "telemetry", whose `seq` it has.
tombstone = _table(
    "tombstone",
    *_key("run_id", "seq"),
    *_columns(TEXT, "of_table", "sealed", "sha256"),
    Column("n_bytes", INTEGER, nullable=False),
    *_columns(TEXT, "removed_at", "reason"),
    rowid=False,
)

# Limits of the load generator on a machine, measured by `doctor --client`; the newest of a fingerprint counts.
# `fingerprint` is over the machine's facts in `document`; `sha256` is over `document`.
client_profile = _table(
    "client_profile", *_key("fingerprint", "measured_at"), *_columns(TEXT, "document", "sha256"), rowid=False
)

# Differences of a deployment from itself, found by the calibration `run_id`; the newest of a key counts.
# `key_sha256` is over the facts that must agree, which are in `document`; `sha256` is over `document`.
noise_profile = _table(
    "noise_profile",
    *_key("run_id"),
    *_columns(TEXT, "key_sha256", "measured_at", "document", "sha256"),
    Index("noise_profile_by_key", "key_sha256", "measured_at"),
    rowid=False,
)


def measured_here() -> ColumnElement[bool]:
    """Return the condition that benchgate measured a run: files of other tools have metrics alone."""
    return ~run.c.environment.contains(f'"{MEASURED_BY}":', autoescape=True)  # the text is canonical JSON


def calibrates() -> ColumnElement[bool]:
    """Return the condition that both arms of a run are one deployment, measured for its noise."""
    # The text is canonical JSON, with `candidate` next at the top; fields of requests may have any name.
    return run.c.suite.contains('"calibration":true,"candidate":"', autoescape=True)


def judges_whole_suite() -> ColumnElement[bool]:
    """Return the condition that a run measured here is no calibration, no quick look and no run of one part."""
    return ~calibrates() & ~run.c.environment.contains(f'"{ONLY_PART}":', autoescape=True)


def of_suite(query: Select[Any], suite: str | None) -> Select[Any]:
    """Restrict a query of runs to those of a suite; None means every suite."""
    return query if suite is None else query.where(run.c.suite_name == suite)


def arms_of(run_ids: Sequence[str] | Select[str]) -> Select[*tuple[Any, ...]]:
    """Select the arms of some runs (their ids, or a query for them), always in the same order."""
    return select(arm).where(arm.c.run_id.in_(run_ids)).order_by(arm.c.run_id, arm.c.role)
