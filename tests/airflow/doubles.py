"""Doubles of Airflow's own parts: what a task asks its supervisor for, and the context that it is given."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from airflow.configuration import conf
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import (
    CreateHITLDetailPayload,
    DagRunResult,
    DRCount,
    ErrorResponse,
    GetDagRun,
    GetDRCount,
    GetTaskStates,
    GetXComSequenceSlice,
    OKResponse,
    SetXCom,
    TaskStatesResult,
    TriggerDagRun,
    XComSequenceSliceResult,
)


class FakeSupervisor:
    """Airflow's runs as a dictionary; answers as the supervisor does."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], str] = {}
        self.task_states: dict[tuple[str, str], dict[str, str | None]] = {}
        self.started: list[tuple[str, str]] = []
        self.cleared: list[tuple[str, str]] = []
        self.stored: list[SetXCom] = []
        self.xcoms: dict[tuple[str, str, str], Any] = {}  # by run, task and key
        self.confs: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[CreateHITLDetailPayload] = []  # of persons
        self.overtaken: set[tuple[str, str]] = set()  # runs that somebody starts between our look and our start

    def send(self, msg: Any) -> Any:
        if isinstance(msg, GetDRCount):
            found = [self.runs.get((msg.dag_id, run_id)) for run_id in msg.run_ids or []]
            return DRCount(count=sum(state is not None and (not msg.states or state in msg.states) for state in found))
        if isinstance(msg, TriggerDagRun):
            return self._trigger(msg)
        if isinstance(msg, GetDagRun):
            return self._run(msg)
        if isinstance(msg, SetXCom):
            self.stored.append(msg)
            return OKResponse(ok=True)
        if isinstance(msg, CreateHITLDetailPayload):
            self.asked.append(msg)
            return OKResponse(ok=True)
        if isinstance(msg, GetXComSequenceSlice):
            key = (msg.run_id, msg.task_id, msg.key)
            return XComSequenceSliceResult(root=[self.xcoms[key]] if key in self.xcoms else [])
        if isinstance(msg, GetTaskStates):
            run_id = (msg.run_ids or [""])[0]
            return TaskStatesResult(task_states={run_id: self.task_states.get((msg.dag_id, run_id), {})})
        raise AssertionError(f"the double does not know {msg!r}")

    def _run(self, msg: GetDagRun) -> Any:
        key = (msg.dag_id, msg.run_id)
        if key not in self.runs:
            return ErrorResponse(error=ErrorType.API_SERVER_ERROR)
        of_no_matter = dict.fromkeys(
            ("logical_date", "data_interval_start", "data_interval_end", "start_date", "end_date", "partition_key")
        )
        return DagRunResult(
            dag_id=msg.dag_id, run_id=msg.run_id, run_after=datetime(2026, 11, 20, tzinfo=UTC), state=self.runs[key],
            run_type="operator_triggered" if key in self.started else "manual", conf=self.confs.get(key),
            consumed_asset_events=[], **of_no_matter,
        )  # fmt: skip

    def _trigger(self, msg: TriggerDagRun) -> Any:
        if ".." in msg.run_id or not re.match(conf.get("scheduler", "allowed_run_id_pattern"), msg.run_id):
            refusal = {"reason": "value_error", "message": f"The run_id provided '{msg.run_id}' does not match"}
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=refusal))
        key = (msg.dag_id, msg.run_id)
        if key in self.overtaken:
            self.runs[key] = "running"
        if key in self.runs:
            if not msg.reset_dag_run:
                return ErrorResponse(error=ErrorType.DAGRUN_ALREADY_EXISTS)
            self.cleared.append(key)
        else:
            self.started.append(key)
        self.runs[key] = "queued"
        self.task_states.setdefault(key, {"train": None})  # a run comes with its tasks
        self.confs[key] = dict(msg.conf or {})
        return OKResponse(ok=True)


class FakeTask:
    """A task instance: its identity and number of tries."""

    def __init__(
        self,
        dag_id: str = "elastic_job",
        run_id: str = "run-1",
        task_id: str = "train",
        max_tries: int = 500,
        try_number: int = 1,
    ) -> None:
        self.dag_id, self.run_id, self.task_id, self.map_index = dag_id, run_id, task_id, -1
        self.max_tries, self.try_number = max_tries, try_number
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def a_context(task: FakeTask | None = None, **more: Any) -> dict[str, Any]:
    task = task or FakeTask()
    run = SimpleNamespace(run_id=task.run_id, run_type="manual")
    return {"ti": task, "task_instance": task, "dag_run": run, **more}
