"""Every minute: ledger, processes and Airflow are made to agree again, whatever crashed.

Leases that expired, processes that nobody owns, and jobs and segments that go on without a run. Once an hour the
classifier that says whose progress can be predicted is fitted to what jobs turned out to be.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable

from elastic_airflow.tasks.job_tasks import ReconcileOperator

with DAG(
    dag_id="elastic_reconcile",
    dag_display_name="elastic reconcile",
    description="Makes ledger, processes and Airflow agree again",
    doc_md=__doc__,
    schedule=CronTriggerTimetable("* * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    dagrun_timeout=timedelta(minutes=10),
    tags=["elastic"],
):
    # The next minute is the retry.
    ReconcileOperator(task_id="reconcile", retries=0, retry_policy=None)
