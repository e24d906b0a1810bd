"""Checkpoints of a lease are found by its epoch: metrics read those of the latest leases only."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE INDEX ix_checkpoints_epoch ON checkpoints (epoch)")


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
