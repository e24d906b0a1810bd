"""The ledger's first tables, with their invariants."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Not through SQLAlchemy's text(): the bodies of the triggers hold colons and percent signs.
    cursor = op.get_bind().connection.cursor()
    cursor.execute(Path(__file__).with_name("0001_ledger.sql").read_text())
    cursor.close()


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
