"""A checkpoint counts for progress as long as it can be read; and what ended lately is found by when it did.

Where a job went back behind checkpoints that are swept (a best one is kept longer than later ones), what it commits is
compared with what can still be restored.
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
        CREATE OR REPLACE FUNCTION refuse_regress() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            head record;
        BEGIN
            PERFORM 1 FROM jobs WHERE id = NEW.job_id FOR NO KEY UPDATE;
            SELECT max(step) AS step, max(samples) AS samples INTO head FROM checkpoints
                WHERE job_id = NEW.job_id AND NOT bad AND swept_at IS NULL
                  AND (lineage = NEW.lineage OR id = NEW.previous_id);
            IF head.step IS NULL THEN
                RETURN NEW;
            END IF;
            IF NEW.step > head.step AND NEW.samples > head.samples THEN
                RETURN NEW;
            END IF;
            IF NEW.final AND NEW.step = head.step AND NEW.samples = head.samples THEN
                RETURN NEW;
            END IF;
            RAISE EXCEPTION 'regress: step % (% samples) after step % (% samples) in lineage % of job %',
                NEW.step, NEW.samples, head.step, head.samples, NEW.lineage, NEW.job_id
                USING ERRCODE = 'EL003';
        END $$
    """)
    op.execute("CREATE INDEX ix_checkpoints_usable ON checkpoints (job_id, lineage) WHERE NOT bad AND swept_at IS NULL")
    op.execute("CREATE INDEX ix_jobs_finished_at ON jobs (finished_at)")
    op.execute("CREATE INDEX ix_segments_ended_at ON segments (ended_at)")
    op.execute("CREATE INDEX ix_leases_released_at ON leases (released_at)")
    op.execute("CREATE INDEX ix_leases_fenced_at ON leases (fenced_at) WHERE fenced_at IS NOT NULL")
    # Of jobs that were cancelled before a task had begun to drive them it was noted that it had ended, and no name.
    op.execute("UPDATE jobs SET results = results - 'airflow' WHERE NOT results -> 'airflow' ? 'dag_id'")


def downgrade() -> None:
    raise NotImplementedError("the ledger is not taken back: restore a dump from before the upgrade")
