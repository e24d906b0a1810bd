"""Slots say whether they are held: which are free is asked at every step of a plan, and of ten thousand few are.

What they say is what `lease_slots` says of them, kept so by triggers: nobody writes the column.
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

MARK = """
CREATE FUNCTION mark_held_slots() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE slots s SET held = found.held
    FROM (
        SELECT c.slot, EXISTS (SELECT 1 FROM lease_slots l WHERE l.slot = c.slot AND l.released_at IS NULL) AS held
        FROM (SELECT DISTINCT slot FROM changed) c
    ) found
    WHERE s.id = found.slot AND s.held <> found.held;
    RETURN NULL;
END $$
"""


def upgrade() -> None:
    op.execute("ALTER TABLE slots ADD COLUMN held boolean NOT NULL DEFAULT false")
    op.execute("UPDATE slots SET held = true WHERE id IN (SELECT slot FROM lease_slots WHERE released_at IS NULL)")
    op.execute('CREATE INDEX ix_slots_free ON slots (node, "index") WHERE NOT held')
    op.execute(MARK)
    for event, rows in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
        op.execute(
            f"CREATE TRIGGER slots_held_after_{event.lower()} AFTER {event} ON lease_slots "
            f"REFERENCING {rows} TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION mark_held_slots()"
        )


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
