"""The platform's own DAGs, each made by a function that a small file in a DAGs folder calls.

So a new release brings its DAGs along, wherever those files were copied; and they are made anew each time such a file
is read, with the presets and tasks that the project's folder has then.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, Param, get_parsing_context

from elastic_airflow.access.handed import HandedJob
from elastic_airflow.names import JOB_DAG, PREDICTORS_DAG, RECONCILE_DAG, SEGMENT_DAG, SUBMIT_TASK, TRAIN_TASK
from elastic_airflow.notifications.notifier_setting import parsed_notifiers
from elastic_airflow.notifications.run_callbacks import callbacks
from elastic_airflow.tasks.drive_job import DriveJobOperator
from elastic_airflow.tasks.job_tasks import EvaluateOperator, RegisterOperator, SubmitJobOperator
from elastic_airflow.tasks.segment_tasks import AcquireSlotsOperator, RunSegmentOperator
from elastic_airflow.tasks.segment_timetable import ByLedger, ByReconciliation
from elastic_airflow.tasks.upkeep_tasks import ReconcileOperator, RefitOperator
from elastic_core.settings import Settings
from elastic_core.spec.catalogue.entry_catalogue import find_entries
from elastic_core.spec.form import form_fields
from elastic_core.spec.inputs.presets import find_presets

MOST_RUNS = 10_000  # the ledger decides who may run: what waits must never keep what runs from its turn


def job_dag() -> DAG:
    """One training job: fill in the form, watch it train. Whatever submits a job starts a run of this DAG.

    `submit` checks the job and writes it to the ledger; `train` drives its segments (runs of `elastic_segment`) until
    all its work is done; `evaluate` measures the model on held-out data; `register` gives it a version in MLflow's
    registry, and the alias *champion* if it is better than the version that holds it. At the end, well or badly, the
    notifiers of `ELASTIC_NOTIFIERS` are told.
    """
    settings = Settings()
    presets = find_presets(settings.project)
    # A task that is about to run reads this, too, and shows no form.
    entries = () if get_parsing_context().dag_id else find_entries(settings.project, settings.tasks)
    with DAG(
        dag_id=JOB_DAG,
        dag_display_name="elastic job",
        description="Train a model on slots that follow the pool's load",
        doc_md=inspect.getdoc(job_dag),
        schedule=None,
        catchup=False,
        max_active_runs=MOST_RUNS,
        max_active_tasks=MOST_RUNS,
        is_paused_upon_creation=False,
        params={field.name: Param(field.default, **field.schema) for field in form_fields(presets, entries)},
        render_template_as_native_obj=True,
        tags=["elastic"],
        **callbacks(parsed_notifiers(settings)),
    ) as dag:
        submit = SubmitJobOperator(task_id=SUBMIT_TASK, presets=presets)
        train = DriveJobOperator(task_id=TRAIN_TASK, job_id=HandedJob(SUBMIT_TASK))
        evaluate = EvaluateOperator(task_id="evaluate", job_id=HandedJob(SUBMIT_TASK))
        register = RegisterOperator(task_id="register", job_id=HandedJob(SUBMIT_TASK))
        submit >> train >> evaluate >> register
    return dag


def segment_dag() -> DAG:
    """One stretch of a job's training under one allocation: hold the slots, run the processes.

    Runs are started by a job's task or by `elastic_reconcile`, under the segment's id, and can be looked at, cleared
    and marked by themselves. Clearing a committed segment does nothing; clearing or marking a running one ends it
    early, with a checkpoint.
    """
    with DAG(
        dag_id=SEGMENT_DAG,
        dag_display_name="elastic segment",
        description="A stretch of one job's training under one allocation",
        doc_md=inspect.getdoc(segment_dag),
        schedule=ByLedger(),
        catchup=False,
        allowed_run_types=["operator_triggered", "scheduled"],
        max_active_runs=MOST_RUNS,
        max_active_tasks=MOST_RUNS,
        is_paused_upon_creation=False,
        tags=["elastic"],
    ) as dag:
        AcquireSlotsOperator(task_id="acquire") >> RunSegmentOperator(task_id=TRAIN_TASK)
    return dag


def reconcile_dag() -> DAG:
    """Every minute: ledger, processes and Airflow are made to agree again, whatever crashed.

    Leases that expired, processes that nobody owns, and jobs and segments that go on without a run. Once an hour it
    starts a run of `elastic_predictors`.
    """
    about, every_minute = inspect.getdoc(reconcile_dag), CronTriggerTimetable("* * * * *", timezone="UTC")
    what = "Makes ledger, processes and Airflow agree again"
    with _upkeep(RECONCILE_DAG, what, about, timedelta(minutes=10), every_minute, ["scheduled"]) as dag:
        # The next minute is the retry.
        ReconcileOperator(task_id="reconcile", retries=0, retry_policy=None)
    return dag


def predictors_dag() -> DAG:
    """What finished jobs teach about others, fitted anew: who can be predicted, their work, what their steps take.

    Runs are started by `elastic_reconcile`, once an hour and after an import of history. A fit takes a core for minutes
    where there are hundreds of jobs; it leaves the core to whoever else wants it. One that fails changes nothing: what
    was fitted before stays in force.
    """
    about, when, types = inspect.getdoc(predictors_dag), ByReconciliation(), ["operator_triggered", "scheduled"]
    what = "Fits anew what finished jobs teach about others"
    with _upkeep(PREDICTORS_DAG, what, about, timedelta(hours=1), when, types) as dag:
        # The next hour is the retry.
        RefitOperator(task_id="fit", retries=0, retry_policy=None)
    return dag


def _upkeep(
    dag_id: str, description: str, about: str | None, longest: timedelta, schedule: Any, run_types: Sequence[str]
) -> DAG:
    """Of no job: one run at a time, and never for so long that the next ones would not come.

    `run_types`: no manual ones, nor a backfill's. Who may start runs could start one that is due in a hundred years,
    and no other comes while it is there.
    """
    return DAG(
        dag_id=dag_id,
        dag_display_name=dag_id.replace("_", " "),
        description=description,
        doc_md=about,
        schedule=schedule,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        allowed_run_types=run_types,
        dagrun_timeout=longest,
        tags=["elastic"],
    )
