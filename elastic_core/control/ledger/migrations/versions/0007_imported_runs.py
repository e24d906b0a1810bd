"""Runs of other installations that forecasts are learnt from."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE imported_runs (
            id           text PRIMARY KEY,        -- the run's own id, where it comes from
            finished_at  double precision NOT NULL,
            imported_at  double precision NOT NULL,
            run          jsonb NOT NULL           -- a FinishedRun
        )
        """
    )
    op.execute("CREATE INDEX ix_imported_runs_finished_at ON imported_runs (finished_at)")


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
