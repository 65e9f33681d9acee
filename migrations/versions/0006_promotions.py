"""What becomes of runs over the years: promotions, imports, checks as rows, and what retention took away.

- A derived number keeps its interval; a verdict, whether it judges the run itself.
- A run that was cut short may go on: it is partial without a hash of its evidence until then.
- Raw records of a finished run may go once a tombstone holds what the run's hash covers of them, and not before.

Revision: 0006. A migration never imports benchgate: it must keep meaning what it meant on the day it was released.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOUBLE = sa.Double().with_variant(sa.REAL(), "sqlite")

RUN_IDENTITY = (
    "id", "suite_name", "suite", "suite_sha256", "measurement_sha256", "plan_sha256", "seed", "tool_version", "label",
    "started_at", "environment",
)  # fmt: skip
RAW = ("observation", "telemetry")
APPEND_ONLY = ("check_result", "promotion", "imported", "tombstone")
NEVER_CHANGES = "rows of this table are evidence and never change"
NO_TOMBSTONE = "raw records go only after their tombstone: use benchgate store gc"
FINISHED = "a finished run takes no more evidence and never changes"
UNFINISHED = "only a finished run has records to spare"

# A verdict that compares two runs, or tries another policy, says nothing of what became of the run.
IS_OWN = "CASE WHEN compared_run_id IS NULL AND document NOT LIKE '%\"policy_replaced\"\\:true%' THEN 1 ELSE 0 END"


def upgrade():
    sqlite = op.get_bind().dialect.name == "sqlite"
    _add_columns(sqlite)
    _create_tables()
    if sqlite:
        _create_sqlite_triggers()
    else:
        _create_postgres_triggers()
    _create_view(sqlite)


def downgrade():
    raise RuntimeError("going back to 0005 would throw promotions away; keep a copy of the store instead")


def _add_columns(sqlite):
    op.add_column("metric", sa.Column("lower", DOUBLE))
    op.add_column("metric", sa.Column("upper", DOUBLE))
    op.add_column("verdict", sa.Column("own", INTEGER, nullable=False, server_default="0"))
    if sqlite:
        op.execute("DROP TRIGGER verdict_no_update")
        op.execute(f"UPDATE verdict SET own = {IS_OWN}")
        _sqlite_trigger("verdict_no_update", "UPDATE ON verdict", NEVER_CHANGES)
    else:
        op.execute("ALTER TABLE verdict DISABLE TRIGGER verdict_no_change")
        op.execute(f"UPDATE verdict SET own = {IS_OWN}")
        op.execute("ALTER TABLE verdict ENABLE TRIGGER verdict_no_change")
    op.create_index("verdict_by_own", "verdict", ["own", "run_id", "decided_at", "seq", "outcome"])
    # Everything a trend shows of a run and of a number, so that it reads no other row of either table.
    op.drop_index("run_by_time", "run")
    op.create_index("run_by_time", "run", ["started_at", "id", "label", "suite_name"])
    op.drop_index("metric_by_name", "metric")
    op.create_index(
        "metric_by_name",
        "metric",
        ["name", "arm", "statistic", "stage", "task", "run_id", "seq", "value", "n", "lower", "upper"],
    )


def _create_tables():
    op.create_table(
        "check_result",
        sa.Column("run_id", TEXT, primary_key=True),
        sa.Column("verdict_seq", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("seq", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("check_id", TEXT, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.Column("required", INTEGER, nullable=False),
        sa.Column("baseline", DOUBLE),
        sa.Column("candidate", DOUBLE),
        sa.Column("harm", DOUBLE),
        sa.Column("lower", DOUBLE),
        sa.Column("upper", DOUBLE),
        sa.Column("n", INTEGER),
        sa.Column("policy", TEXT),
        sa.ForeignKeyConstraint(["run_id", "verdict_seq"], ["verdict.run_id", "verdict.seq"]),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("check_result_by_check", "check_result", ["check_id", "run_id"])
    op.create_table(
        "promotion",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("run_id", TEXT, sa.ForeignKey("run.id"), nullable=False),
        sa.Column("promoted_at", TEXT, nullable=False),
        sa.Column("suite_name", TEXT, nullable=False),
        sa.Column("in_series", INTEGER, nullable=False),
        sa.Column("document", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("promotion_by_time", "promotion", ["suite_name", "promoted_at", "id"])
    op.create_index("promotion_by_run", "promotion", ["run_id"])
    op.create_table(
        "imported",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("run_id", TEXT, sa.ForeignKey("run.id"), nullable=False),
        sa.Column("imported_at", TEXT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("source_sha256", TEXT, nullable=False),
        sa.Column("document", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("imported_by_source", "imported", ["source_sha256"])
    op.create_table(
        "tombstone",
        sa.Column("run_id", TEXT, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("seq", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("of_table", TEXT, nullable=False),
        sa.Column("sealed", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("n_bytes", INTEGER, nullable=False),
        sa.Column("removed_at", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def _create_sqlite_triggers():
    for table in APPEND_ONLY:
        for action in ("UPDATE", "DELETE"):
            _sqlite_trigger(f"{table}_no_{action.lower()}", f"{action} ON {table}", NEVER_CHANGES)
    status = "(SELECT status FROM run WHERE id = {row}.run_id)"
    unfinished = f"{status.format(row='NEW')} = 'running'"
    _sqlite_trigger("tombstone_of_finished", "INSERT ON tombstone", UNFINISHED, when=unfinished)
    for table in RAW:
        buried = (
            "EXISTS (SELECT 1 FROM tombstone WHERE tombstone.run_id = OLD.run_id AND tombstone.seq = OLD.seq "
            f"AND tombstone.of_table = '{table}' AND tombstone.sha256 = OLD.sha256)"
        )
        op.execute(f"DROP TRIGGER {table}_no_delete")
        _sqlite_trigger(f"{table}_no_delete", f"DELETE ON {table}", NO_TOMBSTONE, when=f"NOT {buried}")
    changed = " OR ".join(f"NEW.{column} IS NOT OLD.{column}" for column in RUN_IDENTITY)
    over = "OLD.status <> 'running' AND NOT (OLD.status = 'partial' AND OLD.evidence_sha256 IS NULL)"
    op.execute("DROP TRIGGER run_no_update")
    _sqlite_trigger("run_no_update", "UPDATE ON run", FINISHED, when=f"({over}) OR {changed}")


def _sqlite_trigger(name, event, message, *, when="1"):
    op.execute(f"CREATE TRIGGER {name} BEFORE {event} WHEN {when} BEGIN SELECT RAISE(ABORT, '{message}'); END")


def _create_postgres_triggers():
    for table in APPEND_ONLY:
        _postgres_trigger(f"{table}_no_change", f"UPDATE OR DELETE ON {table}", "benchgate_refuse", NEVER_CHANGES)
        _postgres_trigger(
            f"{table}_no_truncate", f"TRUNCATE ON {table}", "benchgate_refuse", NEVER_CHANGES, each="STATEMENT"
        )
    # The schema is named: a session's search_path must not decide which rows are looked at.
    op.execute(
        "CREATE FUNCTION benchgate_refuse_while_running() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "DECLARE found_status text; BEGIN "
        "EXECUTE format('SELECT status FROM %I.run WHERE id = $1', TG_TABLE_SCHEMA) INTO found_status USING NEW.run_id; "
        "IF found_status = 'running' THEN "
        "RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = 'integrity_constraint_violation'; END IF; "
        "RETURN NEW; END $$"
    )
    op.execute(
        "CREATE FUNCTION benchgate_refuse_without_tombstone() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "DECLARE buried boolean; BEGIN "
        "EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I.tombstone WHERE run_id = $1 AND seq = $2 AND of_table = $3 "
        "AND sha256 = $4)', TG_TABLE_SCHEMA) INTO buried USING OLD.run_id, OLD.seq, TG_TABLE_NAME::text, OLD.sha256; "
        "IF NOT buried THEN "
        "RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = 'integrity_constraint_violation'; END IF; "
        "RETURN OLD; END $$"
    )
    _postgres_trigger(
        "tombstone_of_finished", "INSERT ON tombstone", "benchgate_refuse_while_running", UNFINISHED
    )
    for table in RAW:
        op.execute(f"DROP TRIGGER {table}_no_change ON {table}")
        _postgres_trigger(f"{table}_no_change", f"UPDATE ON {table}", "benchgate_refuse", NEVER_CHANGES)
        _postgres_trigger(
            f"{table}_no_delete", f"DELETE ON {table}", "benchgate_refuse_without_tombstone", NO_TOMBSTONE
        )
    changed = " OR ".join(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in RUN_IDENTITY)
    over = "OLD.status <> 'running' AND NOT (OLD.status = 'partial' AND OLD.evidence_sha256 IS NULL)"
    op.execute("DROP TRIGGER run_no_update ON run")
    _postgres_trigger(
        "run_no_update", "UPDATE ON run", "benchgate_refuse", FINISHED, when=f"WHEN (({over}) OR {changed})"
    )


def _postgres_trigger(name, event, function, message, *, each="ROW", when=""):
    op.execute(f"CREATE TRIGGER {name} BEFORE {event} FOR EACH {each} {when} EXECUTE FUNCTION {function}('{message}')")


def _create_view(sqlite):
    """The deployments with columns of their own, for whoever asks the database itself."""
    columns = ("name", "model", "engine", "url", "price_usd_per_hour", "accelerators", "settings", "facts")
    if not sqlite:
        # A server may say NUL or half a character of itself, which JSON can hold and a text of Postgres cannot.
        op.execute(
            r"CREATE FUNCTION benchgate_member(document text, member text) RETURNS text LANGUAGE plpgsql IMMUTABLE "
            r"AS $$ BEGIN RETURN document::json ->> member; "
            r"EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN "
            r"RETURN regexp_replace(document, '(?<!\\)((?:\\\\)*)\\u(0000|d[89a-f][0-9a-f]{2})', '\1\\ufffd', 'g')"
            r"::json ->> member; END $$"
        )

    def of(name):
        return f"json_extract(deployment, '$.{name}')" if sqlite else f"benchgate_member(deployment, '{name}')"

    listed = ", ".join(f"{of(name)} AS {name}" for name in columns)
    op.execute(f"CREATE VIEW deployment AS SELECT run_id, role, fingerprint, {listed} FROM arm")
