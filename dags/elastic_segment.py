"""One stretch of a job's training under one allocation: hold the slots, run the processes.

Runs are started by a job's task or by `elastic_reconcile`, under the segment's id, and can be looked at, cleared and
marked by themselves. Clearing a committed segment does nothing; clearing or marking a running one ends it early, with
a checkpoint.
"""

from __future__ import annotations

from airflow.sdk import DAG

from elastic_airflow.names import TRAIN_TASK
from elastic_airflow.tasks.segment_tasks import AcquireSlotsOperator, RunSegmentOperator
from elastic_airflow.tasks.segment_timetable import ByLedger

with DAG(
    dag_id="elastic_segment",
    dag_display_name="elastic segment",
    description="A stretch of one job's training under one allocation",
    doc_md=__doc__,
    schedule=ByLedger(),
    catchup=False,
    allowed_run_types=["operator_triggered", "scheduled"],
    # The ledger decides who may run: waiting segments must never keep running ones from their turn.
    max_active_runs=10_000,
    max_active_tasks=10_000,
    is_paused_upon_creation=False,
    tags=["elastic"],
):
    AcquireSlotsOperator(task_id="acquire") >> RunSegmentOperator(task_id=TRAIN_TASK)
