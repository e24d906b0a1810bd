"""The factory of retraining pipelines.

A run goes through: `drift` (if asked for: is the data another than the champion was trained on?), `snapshot` (if asked
for: the files as they are now), `plan`, `train`, `evaluate`, `register`, and with approval `better`, `approve`,
`promote`. A run is started by a cron line, by updates of assets, by a person, or for past intervals by a backfill.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    BaseNotifier,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    Param,
    chain,
)

from elastic_airflow.access.handed import HandedJob
from elastic_airflow.notifications.run_callbacks import callbacks
from elastic_airflow.operators import ElasticOperator
from elastic_airflow.retraining.data_snapshot import Snapshot, SnapshotOperator
from elastic_airflow.retraining.drift_check import Drift, DriftOperator, RememberDataOperator
from elastic_airflow.retraining.handed_parts import HandedPlan, HandedRegistration, HandedSnapshot
from elastic_airflow.retraining.plan import ANEW, CHAMPION, PlanRetrainingOperator
from elastic_airflow.retraining.promotion import ApproveOperator, BetterOperator, PromoteOperator
from elastic_airflow.tasks.drive_job import DriveJobOperator
from elastic_airflow.tasks.job_tasks import EvaluateOperator, RegisterOperator
from elastic_core.errors import UserError
from elastic_core.spec.job import parse_job_spec

APPROVAL_WITHIN = timedelta(days=7)
JOB_ID = HandedJob("train", "job_id")
REGISTRATION = HandedRegistration("register")
INTERVAL_WORDS = ("data_interval", "logical_date", "{{ ds", "{{ts", "{{ ts", "{{ds")


def retraining_dag(
    dag_id: str,
    spec: Mapping[str, Any] | str,
    *,
    cron: str | None = None,
    timezone: str = "UTC",
    assets: Sequence[Asset] = (),
    drift: Drift | None = None,
    data: Snapshot | None = None,
    data_params: Sequence[str] | str = (),
    start_from: str = CHAMPION,
    margin: float = 0.0,
    alpha: float | None = None,
    approval: bool = False,
    approval_within: timedelta = APPROVAL_WITHIN,
    notifiers: Sequence[BaseNotifier] = (),
    **dag_arguments: Any,
) -> DAG:
    """A DAG that trains a model again and replaces the champion only by a better one.

    :param spec: the job spec, whose texts may hold Airflow's templates; or the name of an Airflow variable that holds
        it as JSON: without the variable a scheduled run is skipped, saying so.
    :param cron: starts a run at these times. Where spec or data name the data interval, or drift is looked for in
        it, a run has the interval that has ended.
    :param assets: an update of all of them starts a run, with `cron` or without.
    :param drift: train only where the data has drifted from what the champion was trained on. Needs `cron` or `assets`.
    :param data: files that are frozen before the training, which then reads the copy.
    :param data_params: names of further parameters of the task that say which data. The champion is measured with the
        run's value of these, of the snapshot's, and of those whose template names the data interval; with its own
        job's of all others. For a spec that a variable holds also a template that gives them.
    :param start_from: "champion": its weights; "anew": a new model.
    :param margin: how much better than the champion's the new model's metric has to be, in the metric's unit, at least.
        0: better at all.
    :param alpha: it also has to be better by more than chance, at this level (e.g. 0.05), on the held-out samples one
        by one, of which the task's `evaluate_each` gives a figure. None: that is not asked.
    :param approval: a person has to approve in Airflow before a better model becomes champion.
    :param approval_within: so long a run waits for the person. After it the champion stays, and the run's task
        `approve` is skipped, saying so. No other run of the pipeline begins meanwhile.
    :param notifiers: told when a run ends, well or badly, and when a person is asked to approve; their context has a
        `notifications.job_news.JobNews` as `elastic`.
    :param dag_arguments: of Airflow's `DAG`.

    Raises `ValueError` for arguments that do not go together, and `UserError` for a spec that no run could train: both
    are import errors of the file in Airflow, before anything runs.
    """
    _check_spec(spec)
    if start_from not in (CHAMPION, ANEW):
        raise ValueError(f"start_from is {start_from!r}; it must be {CHAMPION!r} or {ANEW!r}")
    if not margin >= 0:
        raise ValueError(f"margin is {margin}; it must be at least 0, in the unit of the task's metric")
    if alpha is not None and not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; it must be between 0 and 1, e.g. 0.05, or None")
    if not approval_within > timedelta():
        raise ValueError(f"approval_within is {approval_within}; it must be more than nothing, e.g. timedelta(days=7)")
    if drift is not None and cron is None and not assets:
        raise ValueError(f"{dag_id} looks for drift, and nothing starts it: give cron= (how often to look) or assets=")
    by_interval = _names_interval([spec, data.files if data else ""])
    dag = DAG(
        dag_id=dag_id,
        schedule=_schedule(cron, timezone, assets, by_interval or drift is not None),
        params={"spec": _spec_param(), "start_from": _start_param(start_from)},
        render_template_as_native_obj=True,
        **{**callbacks(notifiers), "catchup": False, "max_active_runs": 1, "tags": ["elastic"], **dag_arguments},
    )
    with dag:
        named = _all_data_params(spec, data, data_params)
        register = _tasks(spec, drift, data, named, margin, alpha, approval, by_interval)
        if approval:
            _ask_a_person(register, approval_within, notifiers)
    return dag


def _check_spec(spec: Mapping[str, Any] | str) -> None:
    """Where a template stands anywhere but among the task's parameters, only a run knows what the spec is."""
    if isinstance(spec, str):
        return
    fixed = json.dumps({name: value for name, value in spec.items() if name != "params"})
    if not any(mark in fixed for mark in ("{{", "{%")):
        parse_job_spec(spec)


def _tasks(
    spec: Mapping[str, Any] | str,
    drift: Drift | None,
    data: Snapshot | None,
    data_params: Sequence[str] | str,
    margin: float,
    alpha: float | None,
    approval: bool,
    by_interval: bool,
) -> RegisterOperator:
    plan = PlanRetrainingOperator(task_id="plan", spec=spec, data=data, by_interval=by_interval)
    before: list[ElasticOperator] = []
    if drift is not None:
        before.append(DriftOperator(task_id="drift", drift=drift, spec=spec))
    if data is not None:
        before.append(SnapshotOperator(task_id="snapshot", data=data, files=data.files))
    chain(*before, plan)
    train = DriveJobOperator(
        task_id="train",
        spec=HandedPlan("plan", "spec"),
        warm_start=HandedPlan("plan", "warm_start"),
    )
    evaluate = EvaluateOperator(task_id="evaluate", job_id=JOB_ID)
    register = RegisterOperator(
        task_id="register", job_id=JOB_ID, compare=True, margin=margin, alpha=alpha, hold=approval,
        data_params=data_params,
        data_sha256=None if data is None else HandedSnapshot("snapshot", "sha256"),
    )  # fmt: skip
    plan >> train >> evaluate >> register
    if drift is not None:
        train >> RememberDataOperator(task_id="remember_data", job_id=JOB_ID) >> register
    return register


def _names_interval(given: Any) -> bool:
    written = json.dumps(given)
    return any(word in written for word in INTERVAL_WORDS)


def _all_data_params(
    spec: Mapping[str, Any] | str, data: Snapshot | None, named: Sequence[str] | str
) -> Sequence[str] | str:
    if isinstance(named, str):
        if data is not None or not isinstance(spec, str):
            raise UserError(
                f"data_params={named!r} is a template, which a pipeline may have whose spec is the name of a variable "
                "and that freezes no data: give a list of names"
            )
        return named
    params = {} if isinstance(spec, str) else spec.get("params", {})
    by_interval = [name for name, value in params.items() if _names_interval(value)]
    return tuple(dict.fromkeys([*([data.param] if data else []), *by_interval, *named]))


def _ask_a_person(register: RegisterOperator, within: timedelta, notifiers: Sequence[BaseNotifier]) -> None:
    better = BetterOperator(task_id="better", registration=REGISTRATION)
    approve = ApproveOperator(
        task_id="approve",
        registration=REGISTRATION,
        job_id=JOB_ID,
        subject=HandedRegistration("register", words="Shall version {version} of model {model} become champion?"),
        body=HandedRegistration("register", "verdict"),
        response_timeout=within,
        notifiers=notifiers,
    )
    promote = PromoteOperator(task_id="promote", registration=REGISTRATION, approved_in=approve.task_id)
    register >> better >> approve >> promote


def _schedule(cron: str | None, timezone: str, assets: Sequence[Asset], intervals: bool) -> Any:
    if cron is None:
        return list(assets) or None
    timetable = (CronDataIntervalTimetable if intervals else CronTriggerTimetable)(cron, timezone=timezone)
    return AssetOrTimeSchedule(timetable=timetable, assets=list(assets)) if assets else timetable


def _spec_param() -> Param:
    return Param(
        None,
        type=["object", "null"],
        title="Job spec",
        description="What to train, as JSON, this time. Empty: what the pipeline says.",
    )


def _start_param(start_from: str) -> Param:
    return Param(
        start_from,
        type="string",
        enum=[CHAMPION, ANEW],
        title="Start from",
        description="The champion's weights (step and data order start over), or a new model.",
    )
