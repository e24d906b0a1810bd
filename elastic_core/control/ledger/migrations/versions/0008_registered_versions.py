"""Which job registered a version of a model is asked without reading all jobs."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE INDEX ix_jobs_registered_versions ON jobs USING gin ((results -> 'registered_versions'))")
    op.execute(
        "CREATE INDEX ix_jobs_registered_model ON jobs"
        " ((results ->> 'registered_model'), (results ->> 'registered_version'))"
    )


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
