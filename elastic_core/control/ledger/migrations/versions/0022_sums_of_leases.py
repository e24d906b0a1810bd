"""Decisions and lists ask what jobs have spent, and how they paused, and would read all of their leases, however many.

`held_seconds`, of slots that are free again, is what `lease_slots` says, kept so by triggers: nobody writes it.
`lease_sums`: what the leases up to one of them come to (`ledger.profiles.sum_up_leases`); jobs without a row have all
of theirs read. And indices of what is few beside all leases and segments.
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

ADD = """
CREATE FUNCTION add_held_seconds_{event}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO held_seconds AS kept (job_id, node, seconds)
    SELECT l.job_id, s.node, sum(c.sign * (c.released_at - l.granted_at))
    FROM ({changes}) c JOIN leases l ON l.epoch = c.epoch JOIN slots s ON s.id = c.slot
    WHERE c.released_at IS NOT NULL
    GROUP BY l.job_id, s.node ORDER BY l.job_id, s.node
    ON CONFLICT (job_id, node) DO UPDATE SET seconds = kept.seconds + excluded.seconds;
    RETURN NULL;
END $$
"""
NEW = "SELECT epoch, slot, released_at, 1 AS sign FROM new_rows"
OLD = "SELECT epoch, slot, released_at, -1 AS sign FROM old_rows"
CHANGES = {"insert": (NEW,), "update": (OLD, NEW), "delete": (OLD,)}


def upgrade() -> None:
    op.execute("""
        CREATE TABLE held_seconds (
            job_id text NOT NULL REFERENCES jobs (id),
            node text NOT NULL REFERENCES nodes (name),
            seconds double precision NOT NULL,
            PRIMARY KEY (job_id, node)
        )
    """)
    op.execute("""
        INSERT INTO held_seconds (job_id, node, seconds)
        SELECT l.job_id, s.node, sum(h.released_at - l.granted_at)
        FROM lease_slots h JOIN leases l ON l.epoch = h.epoch JOIN slots s ON s.id = h.slot
        WHERE h.released_at IS NOT NULL
        GROUP BY l.job_id, s.node
    """)
    for event, changes in CHANGES.items():
        op.execute(ADD.format(event=event, changes=" UNION ALL ".join(changes)))
        tables = " ".join(
            f"{rows} TABLE AS {rows.lower()}_rows" for rows, read in (("OLD", OLD), ("NEW", NEW)) if read in changes
        )
        op.execute(
            f"CREATE TRIGGER held_seconds_after_{event} AFTER {event.upper()} ON lease_slots "
            f"REFERENCING {tables} FOR EACH STATEMENT EXECUTE FUNCTION add_held_seconds_{event}()"
        )
    op.execute("""
        CREATE TABLE lease_sums (
            job_id text PRIMARY KEY REFERENCES jobs (id),
            up_to_epoch bigint NOT NULL,
            slot_seconds double precision NOT NULL,
            num_resizes bigint NOT NULL,
            last_resize_at double precision,
            allocated_since double precision,
            num_moves bigint NOT NULL,
            move_seconds double precision NOT NULL,
            num_in_place bigint NOT NULL,
            in_place_seconds double precision NOT NULL,
            num_restarts bigint NOT NULL,
            restart_seconds double precision NOT NULL,
            num_starts bigint NOT NULL,
            start_seconds double precision NOT NULL
        )
    """)
    op.execute("CREATE INDEX ix_leases_live ON leases (job_id) WHERE released_at IS NULL")
    op.execute('CREATE INDEX ix_segments_exchange ON segments (job_id, "index") WHERE exchange IS NOT NULL')


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
