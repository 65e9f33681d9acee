"""What servers and accelerators said of themselves around and during each stage, kept like observations.

Revision: 0003. A migration never imports benchgate: it must keep meaning what it meant on the day it was released.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NEVER_CHANGES = "rows of this table are evidence and never change"
FINISHED = "a finished run takes no more evidence and never changes"


def upgrade():
    op.create_table(
        "telemetry",
        sa.Column("run_id", TEXT, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("seq", INTEGER, primary_key=True, autoincrement=False),
        sa.Column("arm", TEXT, nullable=False),
        sa.Column("stage", TEXT, nullable=False),
        sa.Column("block", INTEGER, nullable=False),
        sa.Column("position", INTEGER, nullable=False),
        sa.Column("meta", TEXT, nullable=False),
        sa.Column("codec", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("n_rows", INTEGER, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
    )
    if op.get_bind().dialect.name == "sqlite":
        _create_sqlite_triggers()
    else:
        _create_postgres_triggers()


def _create_sqlite_triggers():
    for action in ("UPDATE", "DELETE"):
        _sqlite_trigger(f"telemetry_no_{action.lower()}", action, "1", NEVER_CHANGES)
    running = "(SELECT status FROM run WHERE id = NEW.run_id) <> 'running'"
    _sqlite_trigger("telemetry_insert_while_running", "INSERT", running, FINISHED)


def _sqlite_trigger(name, action, when, message):
    op.execute(
        f"CREATE TRIGGER {name} BEFORE {action} ON telemetry WHEN {when} BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def _create_postgres_triggers():
    for name, event, each, function, message in (
        ("no_change", "UPDATE OR DELETE", "ROW", "benchgate_refuse", NEVER_CHANGES),
        ("no_truncate", "TRUNCATE", "STATEMENT", "benchgate_refuse", NEVER_CHANGES),
        ("while_running", "INSERT", "ROW", "benchgate_refuse_when_finished", FINISHED),
    ):
        op.execute(
            f"CREATE TRIGGER telemetry_{name} BEFORE {event} ON telemetry FOR EACH {each} "
            f"EXECUTE FUNCTION {function}('{message}')"
        )


def downgrade():
    raise RuntimeError("going back to 0002 would throw telemetry away; keep a copy of the store instead")
