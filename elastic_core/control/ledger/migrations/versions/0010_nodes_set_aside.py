"""Nodes that get no slots although they are there: since when, by whom and why."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE nodes
            ADD COLUMN set_aside_at double precision,
            ADD COLUMN set_aside_by text,
            ADD COLUMN set_aside_reason text,
            ADD COLUMN trusted_since double precision -- taken back: what happened before counts no more
        """
    )


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
