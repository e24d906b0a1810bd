"""The DAG `elastic_segment`, as the installed package makes it (`elastic_airflow.platform_dags`)."""

from __future__ import annotations

from elastic_airflow.platform_dags import segment_dag

dag = segment_dag()
