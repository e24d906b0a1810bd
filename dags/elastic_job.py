"""The DAG `elastic_job`, as the installed package makes it (`elastic_airflow.platform_dags`)."""

from __future__ import annotations

from elastic_airflow.platform_dags import job_dag

dag = job_dag()
