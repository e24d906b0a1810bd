"""A DAG as a user writes one: a training job is one of its tasks. What to train comes as the run's parameters."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from elastic_airflow.operators import ElasticTrainingOperator

with DAG(
    dag_id="a_users_dag",
    schedule=None,
    catchup=False,
    params={"spec": Param(type="object", default={}), "job_id": Param(type="string", default="")},
    render_template_as_native_obj=True,
):
    ElasticTrainingOperator(task_id="fit", spec="{{ params.spec }}", job_id="{{ params.job_id }}")
