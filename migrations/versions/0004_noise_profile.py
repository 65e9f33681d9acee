"""How much a deployment differs from itself: profiles measured by `benchgate calibrate`, kept like evidence.

The journal of a finished run takes no more events: where its load ended is read from there.

Revision: 0004. A migration never imports benchgate: it must keep meaning what it meant on the day it was released.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NEVER_CHANGES = "rows of this table are evidence and never change"
FINISHED = "a finished run takes no more evidence and never changes"


def upgrade():
    op.create_table(
        "noise_profile",
        sa.Column("run_id", TEXT, sa.ForeignKey("run.id"), primary_key=True),
        sa.Column("key_sha256", TEXT, nullable=False),
        sa.Column("measured_at", TEXT, nullable=False),
        sa.Column("document", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("noise_profile_by_key", "noise_profile", ["key_sha256", "measured_at"])
    if op.get_bind().dialect.name == "sqlite":
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER noise_profile_no_{action.lower()} BEFORE {action} ON noise_profile WHEN 1 "
                f"BEGIN SELECT RAISE(ABORT, '{NEVER_CHANGES}'); END"
            )
        op.execute(
            "CREATE TRIGGER event_insert_while_running BEFORE INSERT ON event "
            "WHEN (SELECT status FROM run WHERE id = NEW.run_id) <> 'running' "
            f"BEGIN SELECT RAISE(ABORT, '{FINISHED}'); END"
        )
    else:
        op.execute(
            "CREATE TRIGGER event_while_running BEFORE INSERT ON event FOR EACH ROW "
            f"EXECUTE FUNCTION benchgate_refuse_when_finished('{FINISHED}')"
        )
        for name, event, each in (
            ("change", "UPDATE OR DELETE ON noise_profile", "ROW"),
            ("truncate", "TRUNCATE ON noise_profile", "STATEMENT"),
        ):
            op.execute(
                f"CREATE TRIGGER noise_profile_no_{name} BEFORE {event} FOR EACH {each} "
                f"EXECUTE FUNCTION benchgate_refuse('{NEVER_CHANGES}')"
            )


def downgrade():
    raise RuntimeError("going back to 0003 would throw noise profiles away; keep a copy of the store instead")
