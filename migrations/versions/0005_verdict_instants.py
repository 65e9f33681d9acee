"""When each verdict was reached: what a run knew of the ones before it must not change when one of those is decided again.

Verdicts of earlier schemas have no instant, and hash as they did.

Revision: 0005. A migration never imports benchgate: it must keep meaning what it meant on the day it was released.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade():
    op.add_column("verdict", sa.Column("decided_at", TEXT))


def downgrade():
    raise RuntimeError("going back to 0004 would throw away when verdicts were reached; keep a copy of the store instead")
