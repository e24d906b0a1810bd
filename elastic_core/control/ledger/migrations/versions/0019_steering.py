"""What users wish of a job while it lives: that it hold no slots (`paused`), another priority or other slots."""

from alembic import op

revision = "0019"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN paused jsonb, ADD COLUMN changes jsonb")


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
