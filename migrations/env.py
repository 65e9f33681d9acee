"""Runs the migrations on the connection benchgate hands over; locking, backup and commit are the caller's.

There is no alembic.ini and no address here: `benchgate store upgrade` and opening a store are the only ways in.
"""

from __future__ import annotations

from alembic import context

options = context.config.attributes

context.configure(
    connection=options["connection"],
    target_metadata=options.get("target_metadata"),
    version_table=options["version_table"],
    render_as_batch=True,  # SQLite cannot alter most of a table in place
)
with context.begin_transaction():
    context.run_migrations()
