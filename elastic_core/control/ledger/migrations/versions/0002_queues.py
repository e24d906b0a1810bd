"""Queues with a guaranteed share of the pool."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE queues (
            name        text PRIMARY KEY,
            guaranteed  jsonb NOT NULL            -- slots by resource type
        )
        """
    )


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
