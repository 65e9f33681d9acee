"""Raw records by month on Postgres: a month of them can be read, copied or dropped without touching the others.

A run's id begins with its time (UUIDv7), so its month is a range of ids. What is there already stays where it is, in
the partition for everything that has no month of its own; it is not copied. SQLite has no partitions.

Revision: 0007. A migration never imports benchgate: it must keep meaning what it meant on the day it was released.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

RAW = ("observation", "telemetry")
NEVER_CHANGES = "rows of this table are evidence and never change"
NO_TOMBSTONE = "raw records go only after their tombstone: use benchgate store gc"
FINISHED = "a finished run takes no more evidence and never changes"


def upgrade():
    if op.get_bind().dialect.name == "sqlite":
        return
    # A partition has a name of its own: the function is told which table it guards.
    op.execute(
        "CREATE OR REPLACE FUNCTION benchgate_refuse_without_tombstone() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "DECLARE buried boolean; BEGIN "
        "EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I.tombstone WHERE run_id = $1 AND seq = $2 AND of_table = $3 "
        "AND sha256 = $4)', TG_TABLE_SCHEMA) INTO buried USING OLD.run_id, OLD.seq, TG_ARGV[1], OLD.sha256; "
        "IF NOT buried THEN "
        "RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = 'integrity_constraint_violation'; END IF; "
        "RETURN OLD; END $$"
    )
    for table in RAW:
        _partition(table)
    _create_months()


def downgrade():
    raise RuntimeError("going back to 0006 would need every record copied; keep a copy of the store instead")


def _partition(table):
    rest = f"{table}_rest"
    for name in ("no_change", "no_delete", "while_running"):
        op.execute(f"DROP TRIGGER {table}_{name} ON {table}")
    op.execute(f"ALTER TABLE {table} RENAME TO {rest}")
    op.execute(f"ALTER INDEX {table}_pkey RENAME TO {rest}_pkey")
    op.execute(f"ALTER TABLE {rest} RENAME CONSTRAINT {table}_run_id_fkey TO {rest}_run_id_fkey")
    op.execute(
        f"CREATE TABLE {table} (LIKE {rest}, CONSTRAINT {table}_pkey PRIMARY KEY (run_id, seq), "
        f"CONSTRAINT {table}_run_id_fkey FOREIGN KEY (run_id) REFERENCES run (id)) PARTITION BY RANGE (run_id)"
    )
    op.execute(f"ALTER TABLE {table} ATTACH PARTITION {rest} DEFAULT")
    for name, event, function, arguments in (
        ("no_change", "UPDATE", "benchgate_refuse", f"'{NEVER_CHANGES}'"),
        ("no_delete", "DELETE", "benchgate_refuse_without_tombstone", f"'{NO_TOMBSTONE}', '{table}'"),
        ("while_running", "INSERT", "benchgate_refuse_when_finished", f"'{FINISHED}'"),
    ):
        op.execute(
            f"CREATE TRIGGER {table}_{name} BEFORE {event} ON {table} FOR EACH ROW "
            f"EXECUTE FUNCTION {function}({arguments})"
        )
    op.execute(
        f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT "
        f"EXECUTE FUNCTION benchgate_refuse('{NEVER_CHANGES}')"
    )


def _create_months():
    """A function that makes the partitions of a run's month, called before the run is inserted.

    It runs as the owner of the store: who measures need not be allowed to create tables. Attaching a partition waits
    for those who insert runs at the moment, so the lock comes first: two who begin a month together do not wait for
    each other for ever.
    """
    tables = ", ".join(f"'{table}'" for table in RAW)
    op.execute(
        "CREATE FUNCTION benchgate_begin_month(run_id text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER "
        "SET search_path FROM CURRENT AS $$ "
        "DECLARE begins timestamp; month text; lower_id text; upper_id text; raw text; full_of boolean; BEGIN "
        "IF run_id !~ '^0[0-9a-f]{7}-[0-9a-f]{4}-7' THEN RETURN; END IF; "
        "begins := date_trunc('month', to_timestamp("
        "('x' || substr(replace(run_id, '-', ''), 1, 12))::bit(48)::bigint / 1000.0) AT TIME ZONE 'UTC'); "
        "month := to_char(begins, 'YYYY_MM'); "
        "IF to_regclass('observation_' || month) IS NOT NULL THEN RETURN; END IF; "
        "LOCK TABLE run IN SHARE ROW EXCLUSIVE MODE; "
        "IF to_regclass('observation_' || month) IS NOT NULL THEN RETURN; END IF; "
        "lower_id := benchgate_first_id(begins); upper_id := benchgate_first_id(begins + interval '1 month'); "
        f"FOREACH raw IN ARRAY ARRAY[{tables}] LOOP "
        "EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I WHERE run_id >= $1 AND run_id < $2)', raw || '_rest') "
        "INTO full_of USING lower_id, upper_id; "
        "IF full_of THEN RETURN; END IF; END LOOP; "
        f"FOREACH raw IN ARRAY ARRAY[{tables}] LOOP "
        "EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING CONSTRAINTS)', raw || '_' || month, raw); "
        "EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', "
        "raw, raw || '_' || month, lower_id, upper_id); "
        "EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %I FOR EACH STATEMENT "
        "EXECUTE FUNCTION benchgate_refuse(%L)', raw || '_no_truncate', raw || '_' || month, "
        f"'{NEVER_CHANGES}'); "
        "END LOOP; END $$"
    )
    op.execute(
        "CREATE FUNCTION benchgate_first_id(at timestamp) RETURNS text LANGUAGE sql IMMUTABLE AS $$ "
        "SELECT substr(digits, 1, 8) || '-' || substr(digits, 9, 4) || '-' FROM (SELECT lpad(to_hex("
        "(extract(epoch FROM at) * 1000)::bigint), 12, '0') AS digits) AS of_time $$"
    )
