"""Retrain a model every night, or when its training data is updated; replace the champion only by a better one.

Set Airflow's variable `elastic_retrain_spec` to a job spec (JSON). The new model starts from the champion's weights
(or anew, by the parameter `start_from`); both are measured on the same held-out data; the alias *champion* moves only
if the new one is better. Update the asset `elastic_training_data` from the pipeline that makes the data.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset, AssetOrTimeSchedule, CronTriggerTimetable, Param

from elastic_airflow.tasks.drive_job import DriveJobOperator
from elastic_airflow.tasks.job_tasks import EvaluateOperator, RegisterOperator
from elastic_airflow.tasks.retraining import ANEW, CHAMPION, PlanRetrainingOperator

with DAG(
    dag_id="elastic_retrain",
    dag_display_name="elastic retrain",
    description="Trains again from the champion; the better model becomes the champion",
    doc_md=__doc__,
    schedule=AssetOrTimeSchedule(
        timetable=CronTriggerTimetable("30 3 * * *", timezone="UTC"), assets=[Asset("elastic_training_data")]
    ),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    params={
        "spec": Param(
            None,
            type=["object", "null"],
            title="Job spec",
            description="What to train, as JSON. Empty: Airflow's variable elastic_retrain_spec.",
        ),
        "start_from": Param(
            CHAMPION,
            type="string",
            enum=[CHAMPION, ANEW],
            title="Start from",
            description="The champion's weights (step and data order start over), or a new model.",
        ),
    },
    render_template_as_native_obj=True,
    tags=["elastic"],
):
    plan = PlanRetrainingOperator(task_id="plan")
    train = DriveJobOperator(
        task_id="train",
        spec="{{ ti.xcom_pull('plan')['spec'] }}",
        warm_start="{{ ti.xcom_pull('plan')['warm_start'] }}",
    )
    job_id = "{{ ti.xcom_pull('train')['job_id'] }}"
    evaluate = EvaluateOperator(task_id="evaluate", job_id=job_id)
    register = RegisterOperator(task_id="register", job_id=job_id, compare=True)
    plan >> train >> evaluate >> register
