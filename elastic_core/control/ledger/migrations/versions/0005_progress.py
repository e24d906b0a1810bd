"""Progress of jobs whose work is counted by it, and the gain of the last step; NULL for all others."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("checkpoints", "heartbeats", "observations"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN progress double precision, ADD COLUMN gain double precision")


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
