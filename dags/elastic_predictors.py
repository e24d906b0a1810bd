"""The DAG `elastic_predictors`, as the installed package makes it (`elastic_airflow.platform_dags`)."""

from __future__ import annotations

from elastic_airflow.platform_dags import predictors_dag

dag = predictors_dag()
