"""One training job: fill in the form, watch it train. Whatever submits a job starts a run of this DAG.

`submit` checks the job and writes it to the ledger; `train` drives its segments (runs of `elastic_segment`) until all
its work is done; `evaluate` measures the model on held-out data; `register` gives it a version in MLflow's registry,
and the alias *champion* if it is better than the version that holds it. At the end, well or badly, the notifiers of
`ELASTIC_NOTIFIERS` are told.
"""

from __future__ import annotations

import json
from pathlib import Path

from airflow.sdk import DAG, Param, get_parsing_context

from elastic_airflow.notifications.notifier_setting import parsed_notifiers
from elastic_airflow.notifications.run_callbacks import callbacks
from elastic_airflow.tasks.drive_job import DriveJobOperator
from elastic_airflow.tasks.job_tasks import EvaluateOperator, RegisterOperator, SubmitJobOperator
from elastic_core.settings import Settings
from elastic_core.spec.entry_catalogue import find_entries
from elastic_core.spec.form import form_fields

SPECS = Path(__file__).resolve().parent.parent / "examples" / "specs"
SETTINGS = Settings()
PRESETS = {file.stem: json.loads(file.read_text()) for file in sorted(SPECS.glob("*.json"))}
# A task that is about to run reads this file too, and shows no form.
ENTRIES = () if get_parsing_context().dag_id else find_entries(SETTINGS.project, SETTINGS.tasks)
FIELDS = form_fields(PRESETS, ENTRIES)

with DAG(
    dag_id="elastic_job",
    dag_display_name="elastic job",
    description="Train a model on slots that follow the pool's load",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    # The ledger decides who may run; waiting jobs must never keep running ones from their turn.
    max_active_runs=10_000,
    max_active_tasks=10_000,
    is_paused_upon_creation=False,
    params={field.name: Param(field.default, **field.schema) for field in FIELDS},
    render_template_as_native_obj=True,
    tags=["elastic"],
    **callbacks(parsed_notifiers(SETTINGS)),
):
    submit = SubmitJobOperator(task_id="submit", presets=PRESETS)
    train = DriveJobOperator(task_id="train", job_id=submit.output)
    evaluate = EvaluateOperator(task_id="evaluate", job_id=submit.output)
    register = RegisterOperator(task_id="register", job_id=submit.output)
    submit >> train >> evaluate >> register
