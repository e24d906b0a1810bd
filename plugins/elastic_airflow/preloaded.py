"""`python -m elastic_airflow.preloaded scheduler ...`: Airflow's command, with what its tasks need made before.

Airflow runs each task in a process that is forked from its scheduler, and parses each file of DAGs in one forked from
its DAG processor. Such a process imports what its parent has not: without this the platform's operators, their HTTP
client and the launcher, 0.4 s of a core for every task of every job, and makes what the client reads answers with and
trusts servers by, 0.2 s more. Nothing of a user is loaded, nor torch or MLflow, and no thread may be started: forks
would not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

PRELOADED: Sequence[str] = (
    "airflow.dag_processing.dagbag",
    "airflow.sdk.execution_time.task_runner",
    "elastic_airflow.plugin",
    "elastic_airflow.platform_dags",  # and with it all operators, and the form
    "elastic_airflow.retraining.factory",
    "elastic_core.launch.launchers",  # what follows is imported inside functions, in the task that needs it
    "elastic_core.protocol.http_client",
    "elastic_core.train.process.inspect",
)


def preload() -> None:
    for name in PRELOADED:
        import_module(name)
    from elastic_core.protocol import http_client

    http_client.make_for_services()


def main() -> None:
    from airflow.__main__ import main as airflow_command

    preload()
    airflow_command()


if __name__ == "__main__":
    main()
