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

from benchgate.model.run import MEASURED_BY

# STRICT tables of SQLite know INTEGER, REAL, TEXT and BLOB alone; Postgres' own REAL would be float4, its INTEGER
# int4, and the order of its texts would depend on the server's locale.
TEXT = Text().with_variant(Text(collation="C"), "postgresql")
INTEGER = BigInteger().with_variant(Integer(), "sqlite")
DOUBLE: Double[float] = Double().with_variant(SQLITE_REAL(), "sqlite")

metadata = MetaData()

# Facts about the store itself: key `tool_version` is the benchgate that last upgraded it.
store_info = Table(
    "store_info",
    metadata,
    Column("key", TEXT, primary_key=True),
    Column("value", TEXT, nullable=False),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# Plans, once per distinct plan. `sha256` is over the plan's canonical JSON, `data` is that JSON under zlib.
plan = Table(
    "plan",
    metadata,
    Column("sha256", TEXT, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    sqlite_strict=True,
)

# One execution of a suite. Only status, finished_at and evidence_sha256 change, until the run finishes:
# `evidence_sha256` covers every observation in order. An interrupted run that may be resumed is partial without it.
run = Table(
    "run",
    metadata,
    Column("id", TEXT, primary_key=True),
    Column("suite_name", TEXT, nullable=False),
    Column("suite", TEXT, nullable=False),
    Column("suite_sha256", TEXT, nullable=False),
    Column("measurement_sha256", TEXT, nullable=False),
    Column("plan_sha256", TEXT, ForeignKey("plan.sha256"), nullable=False),
    Column("seed", INTEGER, nullable=False),
    Column("tool_version", TEXT, nullable=False),
    Column("label", TEXT),
    Column("status", TEXT, nullable=False),
    Column("started_at", TEXT, nullable=False),
    Column("finished_at", TEXT),
    Column("environment", TEXT, nullable=False),
    Column("evidence_sha256", TEXT),
    Index("run_by_time", "started_at", "id", "label", "suite_name"),  # a trend reads the index alone
    Index("run_by_label", "label"),
    sqlite_strict=True,
)

# The deployments of a run, as the run saw them. May be replaced until the run finishes.
arm = Table(
    "arm",
    metadata,
    Column("run_id", TEXT, ForeignKey("run.id"), primary_key=True),
    Column("role", TEXT, primary_key=True),
    Column("deployment", TEXT, nullable=False),
    Column("fingerprint", TEXT, nullable=False),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# Raw observations in order of `seq`, one row per stage, task, shadow comparison or target fault. `data` holds the
# columns as `codec` says; `sha256` is over `data`. With rowids: a blob in the key's own tree would slow every look-up.
observation = Table(
    "observation",
    metadata,
    Column("run_id", TEXT, ForeignKey("run.id"), primary_key=True),
    Column("seq", INTEGER, primary_key=True, autoincrement=False),
    Column("kind", TEXT, nullable=False),
    Column("arm", TEXT),
    Column("stage", TEXT),
    Column("task", TEXT),
    Column("block", INTEGER),
    Column("position", INTEGER),
    Column("meta", TEXT, nullable=False),
    Column("codec", TEXT, nullable=False),
    Column("sha256", TEXT, nullable=False),
    Column("n_rows", INTEGER, nullable=False),
    Column("data", LargeBinary, nullable=False),
    sqlite_strict=True,
)

# Telemetry of servers and accelerators, one row per stage of one arm in one block. It shares the `seq` of the
# observations and is stored like them. `data` holds the samples.
telemetry = Table(
    "telemetry",
    metadata,
    Column("run_id", TEXT, ForeignKey("run.id"), primary_key=True),
    Column("seq", INTEGER, primary_key=True, autoincrement=False),
    Column("arm", TEXT, nullable=False),
    Column("stage", TEXT, nullable=False),
    Column("block", INTEGER, nullable=False),
    Column("position", INTEGER, nullable=False),
    Column("meta", TEXT, nullable=False),
    Column("codec", TEXT, nullable=False),
    Column("sha256", TEXT, nullable=False),
    Column("n_rows", INTEGER, nullable=False),
    Column("data", LargeBinary, nullable=False),
    sqlite_strict=True,
)

# The journal of a run, in one order (`seq`) with the observations.
event = Table(
    "event",
    metadata,
    Column("run_id", TEXT, ForeignKey("run.id"), primary_key=True),
    Column("seq", INTEGER, primary_key=True, autoincrement=False),
    Column("kind", TEXT, nullable=False),
    Column("data", TEXT, nullable=False),
    sqlite_strict=True,
)

# Numbers derived from observations, for trends; replaced whenever they are computed again. `lower` and `upper` are the
# 95% interval, where there is one.
metric = Table(
    "metric",
    metadata,
    Column("run_id", TEXT, ForeignKey("run.id"), primary_key=True),
    Column("seq", INTEGER, primary_key=True, autoincrement=False),
    Column("arm", TEXT, nullable=False),
    Column("name", TEXT, nullable=False),
    Column("statistic", TEXT),
    Column("stage", TEXT),
    Column("task", TEXT),
    Column("value", DOUBLE, nullable=False),
    Column("n", INTEGER, nullable=False),
    Column("lower", DOUBLE),
    Column("upper", DOUBLE),
    Index(
        "metric_by_name", "name", "arm", "statistic", "stage", "task", "run_id", "seq", "value", "n", "lower", "upper"
    ),  # a trend reads the index alone
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# Verdicts on a run, oldest first. `compared_run_id` is the other run when two runs were compared,
# `decided_at` when it was stored first (NULL: before schema 0005). `sha256` is over `document`, and with `decided_at`
# over the rest of the row too. `own`: 1 where it judges the run against its own baseline, by the policy it was measured
# under.
verdict = Table(
    "verdict",
    metadata,
    Column("run_id", TEXT, ForeignKey("run.id"), primary_key=True),
    Column("seq", INTEGER, primary_key=True, autoincrement=False),
    Column("compared_run_id", TEXT, ForeignKey("run.id")),
    Column("outcome", TEXT, nullable=False),
    Column("document", TEXT, nullable=False),
    Column("sha256", TEXT, nullable=False),
    Column("decided_at", TEXT),
    Column("own", INTEGER, nullable=False, server_default="0"),
    Index("verdict_by_own", "own", "run_id", "decided_at", "seq", "outcome"),
    sqlite_strict=True,
)

# The checks of a verdict as rows, for queries over many runs; the document is authoritative. `policy` is the rule of
# the check, as JSON.
check_result = Table(
    "check_result",
    metadata,
    Column("run_id", TEXT, primary_key=True),
    Column("verdict_seq", INTEGER, primary_key=True, autoincrement=False),
    Column("seq", INTEGER, primary_key=True, autoincrement=False),
    Column("check_id", TEXT, nullable=False),
    Column("outcome", TEXT, nullable=False),
    Column("required", INTEGER, nullable=False),
    Column("baseline", DOUBLE),
    Column("candidate", DOUBLE),
    Column("harm", DOUBLE),
    Column("lower", DOUBLE),
    Column("upper", DOUBLE),
    Column("n", INTEGER),
    Column("policy", TEXT),
    ForeignKeyConstraint(["run_id", "verdict_seq"], ["verdict.run_id", "verdict.seq"]),
    Index("check_result_by_check", "check_id", "run_id"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# Promotions and withdrawals, with their grounds in `document`; `sha256` is over it. `in_series`: 1 where
# the run was valid and of a protected ref, so later candidates are compared with it.
promotion = Table(
    "promotion",
    metadata,
    Column("id", TEXT, primary_key=True),
    Column("run_id", TEXT, ForeignKey("run.id"), nullable=False),
    Column("promoted_at", TEXT, nullable=False),
    Column("suite_name", TEXT, nullable=False),
    Column("in_series", INTEGER, nullable=False),
    Column("document", TEXT, nullable=False),
    Column("sha256", TEXT, nullable=False),
    Index("promotion_by_time", "suite_name", "promoted_at", "id"),
    Index("promotion_by_run", "run_id"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# Imports of other tools' files: the source file, and what was imported of it.
imported = Table(
    "imported",
    metadata,
    Column("id", TEXT, primary_key=True),
    Column("run_id", TEXT, ForeignKey("run.id"), nullable=False),
    Column("imported_at", TEXT, nullable=False),
    Column("source", TEXT, nullable=False),
    Column("source_sha256", TEXT, nullable=False),
    Column("document", TEXT, nullable=False),
    Column("sha256", TEXT, nullable=False),
    Index("imported_by_source", "source_sha256"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# Tombstones of removed raw records: `sealed` are the columns that the run's hash covers (JSON), `sha256` is over the
# removed bytes. `of_table` is "observation" or "telemetry", whose `seq` it has.
tombstone = Table(
    "tombstone",
    metadata,
    Column("run_id", TEXT, ForeignKey("run.id"), primary_key=True),
    Column("seq", INTEGER, primary_key=True, autoincrement=False),
    Column("of_table", TEXT, nullable=False),
    Column("sealed", TEXT, nullable=False),
    Column("sha256", TEXT, nullable=False),
    Column("n_bytes", INTEGER, nullable=False),
    Column("removed_at", TEXT, nullable=False),
    Column("reason", TEXT, nullable=False),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# Limits of the load generator on a machine, measured by `doctor --client`; the newest of a fingerprint counts.
# `fingerprint` is over the machine's facts in `document`; `sha256` is over `document`.
client_profile = Table(
    "client_profile",
    metadata,
    Column("fingerprint", TEXT, primary_key=True),
    Column("measured_at", TEXT, primary_key=True),
    Column("document", TEXT, nullable=False),
    Column("sha256", TEXT, nullable=False),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# Differences of a deployment from itself, found by the calibration `run_id`; the newest of a key counts.
# `key_sha256` is over the facts that must agree, which are in `document`; `sha256` is over `document`.
noise_profile = Table(
    "noise_profile",
    metadata,
    Column("run_id", TEXT, ForeignKey("run.id"), primary_key=True),
    Column("key_sha256", TEXT, nullable=False),
    Column("measured_at", TEXT, nullable=False),
    Column("document", TEXT, nullable=False),
    Column("sha256", TEXT, nullable=False),
    Index("noise_profile_by_key", "key_sha256", "measured_at"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)


def measured_here() -> ColumnElement[bool]:
    """Return the condition that benchgate measured a run: files of other tools have metrics alone."""
    return ~run.c.environment.contains(f'"{MEASURED_BY}":', autoescape=True)  # the text is canonical JSON


def of_suite(query: Select[Any], suite: str | None) -> Select[Any]:
    """Restrict a query of runs to those of a suite; None means every suite."""
    return query if suite is None else query.where(run.c.suite_name == suite)


def arms_of(run_ids: Sequence[str] | Select[str]) -> Select[*tuple[Any, ...]]:
    """Select the arms of some runs (their ids, or a query for them), always in the same order."""
    return select(arm).where(arm.c.run_id.in_(run_ids)).order_by(arm.c.run_id, arm.c.role)
