"""One stretch of a job's training under one allocation: hold the slots, run the processes.

Runs are started by a job's task or by `elastic_reconcile`, under the segment's id, and can be looked at, cleared and
marked by themselves. Clearing a committed segment does nothing; clearing or marking a running one ends it early, with
a checkpoint.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset

from elastic_airflow.names import TRAIN_TASK
from elastic_airflow.tasks.segment_tasks import AcquireSlotsOperator, RunSegmentOperator

# Nobody ever updates this asset. Airflow wants manual runs to be allowed where a DAG has no schedule at all, and a run
# that no segment of the ledger stands behind would only fail.
NEVER = Asset("elastic_segment_of_a_job", uri="x-elastic://segment-of-a-job")

with DAG(
    dag_id="elastic_segment",
    dag_display_name="elastic segment",
    description="A stretch of one job's training under one allocation",
    doc_md=__doc__,
    schedule=NEVER,
    catchup=False,
    allowed_run_types=["operator_triggered", "asset_triggered"],
    # The ledger decides who may run: waiting segments must never keep running ones from their turn.
    max_active_runs=10_000,
    max_active_tasks=10_000,
    is_paused_upon_creation=False,
    tags=["elastic"],
):
    AcquireSlotsOperator(task_id="acquire") >> RunSegmentOperator(task_id=TRAIN_TASK)
