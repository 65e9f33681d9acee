"""What the load generator can do on a machine: curves measured by `benchgate doctor --client`, kept like evidence.

Revision: 0002. A migration never imports benchgate: it must keep meaning what it meant on the day it was released.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
NEVER_CHANGES = "rows of this table are evidence and never change"


def upgrade():
    op.create_table(
        "client_profile",
        sa.Column("fingerprint", TEXT, primary_key=True),
        sa.Column("measured_at", TEXT, primary_key=True),
        sa.Column("document", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "sqlite":
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER client_profile_no_{action.lower()} BEFORE {action} ON client_profile WHEN 1 "
                f"BEGIN SELECT RAISE(ABORT, '{NEVER_CHANGES}'); END"
            )
    else:
        for name, event, each in (
            ("change", "UPDATE OR DELETE ON client_profile", "ROW"),
            ("truncate", "TRUNCATE ON client_profile", "STATEMENT"),
        ):
            op.execute(
                f"CREATE TRIGGER client_profile_no_{name} BEFORE {event} FOR EACH {each} "
                f"EXECUTE FUNCTION benchgate_refuse('{NEVER_CHANGES}')"
            )


def downgrade():
    raise RuntimeError("going back to 0001 would throw measured curves away; keep a copy of the store instead")
