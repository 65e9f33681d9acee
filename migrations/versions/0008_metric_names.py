"""Metrics of the store by the names that suites, checks and reports have for them.

A name of a row of `metric` carried its unit, so one metric had two names: `ttft` in a check, `ttft_s` in the store.
These rows are derived from the observations, and no hash covers them.

Revision: 0008. A migration never imports benchgate: it must keep meaning what it meant on the day it was released.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

NAMES = {
    **{f"{name}_s": name for name in ("ttft", "ttft_sent", "ttfot", "tpot", "itl", "e2e", "session_e2e")},
    **{f"{name}_ratio": name for name in ("goodput", "accuracy", "recovery", "flips", "same_top1")},
    **{f"shadow_{name}_ratio": f"shadow_{name}" for name in ("disagreement", "validity", "excess")},
    "error_ratio": "error_rate",
    "kld_nats": "kld",
    "output_tokens_per_s": "output_throughput",
    "input_tokens_per_s": "input_throughput",
    "total_tokens_per_s": "total_throughput",
    "requests_per_s": "request_throughput",
    "capacity_per_s": "capacity",
    "output_tokens_per_accelerator_per_s": "output_throughput_per_accelerator",
    "input_tokens_per_accelerator_per_s": "input_throughput_per_accelerator",
    "total_tokens_per_accelerator_per_s": "total_throughput_per_accelerator",
    "requests_per_accelerator_per_s": "request_throughput_per_accelerator",
    "capacity_per_accelerator_per_s": "capacity_per_accelerator",
}


def upgrade():
    rename = sa.text("UPDATE metric SET name = :new WHERE name = :old")
    for old, new in NAMES.items():
        op.get_bind().execute(rename, {"old": old, "new": new})


def downgrade():
    raise RuntimeError("metrics keep the names of the suite; keep a copy of the store instead")
