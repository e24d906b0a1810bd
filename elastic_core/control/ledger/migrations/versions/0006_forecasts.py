"""What was expected of each job, decision by decision, and how that turned out when it ended."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE forecasts (
            id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            job_id    text NOT NULL REFERENCES jobs (id),
            forecast  jsonb NOT NULL
        )
        """
    )
    op.execute("CREATE INDEX ix_forecasts_job_id ON forecasts (job_id, id)")
    op.execute("ALTER TABLE jobs ADD COLUMN hindsight jsonb")  # grades; NULL while it is active


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
