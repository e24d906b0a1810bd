"""Names that DAGs, operators and page agree on. Loads nothing, so that every component can have them."""

from __future__ import annotations

from typing import Any

JOB_DAG = "elastic_job"
SEGMENT_DAG = "elastic_segment"
RECONCILE_DAG = "elastic_reconcile"
PREDICTORS_DAG = "elastic_predictors"
TRAIN_TASK = "train"  # of a segment's run: the task that has its processes run
SUBMIT_TASK = "submit"  # of a job's run: the task that inspects the user's task and records the job
JOB = "job_id"  # XCom of a task that drives a job, from its beginning on
REFUSAL = "refusal"  # XCom of that task: why it would not have the job
SIGNATURE = "signature"  # XCom of a task that hands something over: of what it returned (`access.handed`)

CONN_ID = "elastic_control"  # Airflow connection to the control API
URL_PREFIX = "/elastic"  # where the API server mounts the platform's app
PAGE_ROUTE = "elastic"  # the page's place in Airflow's UI: /plugin/elastic
TABLE_ROUTE = "elastic-jobs"  # that of the table of jobs
JOB_ROUTE = "elastic-job"  # that of one job: /plugin/elastic-job?job=ID
WHAT_IF_ROUTE = "elastic-what-if"
DECISIONS_ROUTE = "elastic-decisions"
MODELS_ROUTE = "elastic-models"
TRIED_AGAIN = "elastic_try_again"  # event in Airflow's log: who started a run asked the platform for it once more
PAUSE_TAKEN_BACK = "elastic_pause_taken_back"  # event in Airflow's log: of `RECONCILE_DAG`

# Key of a job's results: the Airflow task that drives it ("dag_id", "run_id", "task_id", "max_tries", and of a mapped
# one "map_index"). "ended" is true once that task has ended together with the job, so that a job revived by other means
# gets another driver.
DRIVER = "airflow"

# Key of a job's results: the Airflow run that recorded it ("dag_id", "run_id"), or took it up last. Its driver is known
# only once the next task of that run has begun.
RUN = "airflow_run"

# Key of a job's results: which risks its operator's notifiers were told of (`notifications.risk_notices`).
AT_RISK = "at_risk"


# Key of a job's results: id of the run that takes it up, where the usual id is of a run that somebody else started.
RESUMED = "resumed_run"

# How Airflow calls the type of runs that tasks have started. Who starts one by its API or command cannot choose it.
BY_A_TASK = "operator_triggered"


def resumed_run_id(job_id: str) -> str:
    """Of the run that takes up a job which lost its own; `RESUMED` goes before."""
    return f"{job_id}__resumed"


def takes_up(run: Any, job_id: str) -> bool:
    """Whether this run of `JOB_DAG`, as any of Airflow's classes has it, was started by a task of ours for this job."""
    from elastic_core.spec.form import JOB_ID

    return run.run_type == BY_A_TASK and (run.conf or {}).get(JOB_ID) == job_id
