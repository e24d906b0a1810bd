"""Observations say by which communication algorithm gradients were exchanged; those of before, by the exact sum."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE observations ADD COLUMN comm text NOT NULL DEFAULT 'allreduce'")


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
