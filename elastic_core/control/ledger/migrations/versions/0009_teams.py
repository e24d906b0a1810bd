"""Rules of queues, who submitted a job, and the record of who did what."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE queues ADD COLUMN rules jsonb NOT NULL DEFAULT '{}'")
    op.execute("ALTER TABLE jobs ADD COLUMN submitted_by text")
    op.execute(
        """
        CREATE TABLE audit_records (
            id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            at       double precision NOT NULL,
            actor    text NOT NULL,
            way      text NOT NULL,
            action   text NOT NULL,
            job_id   text,                     -- no foreign key: what was refused may name no job of the ledger
            subject  text NOT NULL,            -- job, segment, policy, ...
            queue    text,
            done     boolean NOT NULL,         -- false: refused
            detail   text NOT NULL             -- the reason given, or why it was refused
        )
        """
    )
    op.execute("CREATE INDEX ix_audit_records_job_id ON audit_records (job_id, id)")
    op.execute("CREATE INDEX ix_audit_records_actor ON audit_records (actor, id)")
    op.execute("CREATE INDEX ix_audit_records_at ON audit_records (at)")


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
