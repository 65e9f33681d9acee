"""The first schema: runs, what they observed, what was decided, and the triggers that keep it as it was.

Revision: 0001. A migration never imports benchgate: it must keep meaning what it meant on the day it was released.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOUBLE = sa.Double().with_variant(sa.REAL(), "sqlite")
BYTES = sa.LargeBinary()

APPEND_ONLY = ("plan", "observation", "event", "verdict")
RUN_IDENTITY = (
    "id", "suite_name", "suite", "suite_sha256", "measurement_sha256", "plan_sha256", "seed", "tool_version", "label",
    "started_at", "environment",
)  # fmt: skip
NEVER_CHANGES = "rows of this table are evidence and never change"
FINISHED = "a finished run takes no more evidence and never changes"


def upgrade():
    _create_runs()
    _create_observations()
    _create_results()
    if op.get_bind().dialect.name == "sqlite":
        _create_sqlite_triggers()
    else:
        _create_postgres_triggers()


def downgrade():
    raise RuntimeError("there is no schema before 0001; going back would throw the evidence away")


def _create_runs():
    op.create_table(
        "store_info",
        sa.Column("key", TEXT, primary_key=True),
        sa.Column("value", TEXT, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "plan",
        sa.Column("sha256", TEXT, primary_key=True),
        sa.Column("data", BYTES, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "run",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("suite_name", TEXT, nullable=False),
        sa.Column("suite", TEXT, nullable=False),
        sa.Column("suite_sha256", TEXT, nullable=False),
        sa.Column("measurement_sha256", TEXT, nullable=False),
        sa.Column("plan_sha256", TEXT, sa.ForeignKey("plan.sha256"), nullable=False),
        sa.Column("seed", INTEGER, nullable=False),
        sa.Column("tool_version", TEXT, nullable=False),
        sa.Column("label", TEXT),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("started_at", TEXT, nullable=False),
        sa.Column("finished_at", TEXT),
        sa.Column("environment", TEXT, nullable=False),
        sa.Column("evidence_sha256", TEXT),
        sqlite_strict=True,
    )
    op.create_index("run_by_time", "run", ["started_at", "id"])
    op.create_index("run_by_label", "run", ["label"])
    op.create_table(
        "arm",
        *_key_of_run("role", TEXT),
        sa.Column("deployment", TEXT, nullable=False),
        sa.Column("fingerprint", TEXT, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def _create_observations():
    op.create_table(
        "observation",
        *_key_of_run("seq", INTEGER),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("arm", TEXT),
        sa.Column("stage", TEXT),
        sa.Column("task", TEXT),
        sa.Column("block", INTEGER),
        sa.Column("position", INTEGER),
        sa.Column("meta", TEXT, nullable=False),
        sa.Column("codec", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("n_rows", INTEGER, nullable=False),
        sa.Column("data", BYTES, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "event",
        *_key_of_run("seq", INTEGER),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("data", TEXT, nullable=False),
        sqlite_strict=True,
    )


def _create_results():
    op.create_table(
        "metric",
        *_key_of_run("seq", INTEGER),
        sa.Column("arm", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("statistic", TEXT),
        sa.Column("stage", TEXT),
        sa.Column("task", TEXT),
        sa.Column("value", DOUBLE, nullable=False),
        sa.Column("n", INTEGER, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("metric_by_name", "metric", ["name", "run_id"])
    op.create_table(
        "verdict",
        *_key_of_run("seq", INTEGER),
        sa.Column("compared_run_id", TEXT, sa.ForeignKey("run.id")),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("document", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sqlite_strict=True,
    )


def _key_of_run(second, kind):
    return (
        sa.Column("run_id", TEXT, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column(second, kind, primary_key=True, autoincrement=False),
    )


def _create_sqlite_triggers():
    for table in APPEND_ONLY:
        for action in ("UPDATE", "DELETE"):
            _sqlite_trigger(f"{table}_no_{action.lower()}", f"{action} ON {table}", NEVER_CHANGES)
    changed = " OR ".join(f"NEW.{column} IS NOT OLD.{column}" for column in RUN_IDENTITY)
    _sqlite_trigger("run_no_delete", "DELETE ON run", NEVER_CHANGES)
    _sqlite_trigger("run_no_update", "UPDATE ON run", FINISHED, when=f"OLD.status <> 'running' OR {changed}")
    for table, action, row in (
        ("observation", "INSERT", "NEW"), ("arm", "INSERT", "NEW"), ("arm", "UPDATE", "OLD"), ("arm", "DELETE", "OLD"),
    ):  # fmt: skip
        _sqlite_trigger(
            f"{table}_{action.lower()}_while_running",
            f"{action} ON {table}",
            FINISHED,
            when=f"(SELECT status FROM run WHERE id = {row}.run_id) <> 'running'",
        )


def _sqlite_trigger(name, event, message, *, when="1"):
    op.execute(f"CREATE TRIGGER {name} BEFORE {event} WHEN {when} BEGIN SELECT RAISE(ABORT, '{message}'); END")


def _create_postgres_triggers():
    op.execute(
        "CREATE FUNCTION benchgate_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    # The schema is named: a session's search_path must not decide which run is looked at.
    op.execute(
        "CREATE FUNCTION benchgate_refuse_when_finished() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "DECLARE the_row record; found_status text; BEGIN "
        "IF TG_OP = 'DELETE' THEN the_row = OLD; ELSE the_row = NEW; END IF; "
        "EXECUTE format('SELECT status FROM %I.run WHERE id = $1', TG_TABLE_SCHEMA) "
        "INTO found_status USING the_row.run_id; "
        "IF found_status <> 'running' THEN "
        "RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = 'integrity_constraint_violation'; END IF; "
        "RETURN the_row; END $$"
    )
    for table in APPEND_ONLY:
        _postgres_trigger(f"{table}_no_change", f"UPDATE OR DELETE ON {table}", NEVER_CHANGES)
    for table in (*APPEND_ONLY, "run", "arm"):
        _postgres_trigger(f"{table}_no_truncate", f"TRUNCATE ON {table}", NEVER_CHANGES, each="STATEMENT")
    changed = " OR ".join(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in RUN_IDENTITY)
    _postgres_trigger("run_no_delete", "DELETE ON run", NEVER_CHANGES)
    _postgres_trigger("run_no_update", "UPDATE ON run", FINISHED, when=f"WHEN (OLD.status <> 'running' OR {changed})")
    for table, action in (("observation", "INSERT"), ("arm", "INSERT OR UPDATE OR DELETE")):
        name = f"{table}_while_running"
        _postgres_trigger(name, f"{action} ON {table}", FINISHED, function="benchgate_refuse_when_finished")


def _postgres_trigger(name, event, message, *, when="", each="ROW", function="benchgate_refuse"):
    op.execute(f"CREATE TRIGGER {name} BEFORE {event} FOR EACH {each} {when} EXECUTE FUNCTION {function}('{message}')")
