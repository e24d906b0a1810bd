"""The DAG `elastic_reconcile`, as the installed package makes it (`elastic_airflow.platform_dags`)."""

from __future__ import annotations

from elastic_airflow.platform_dags import reconcile_dag

dag = reconcile_dag()
