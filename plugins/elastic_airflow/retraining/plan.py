"""What a retraining trains, on which data, and from which weights. The rest of the pipeline is that of any job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Variable
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from elastic_airflow.access.handed import Handed
from elastic_airflow.operators import ElasticOperator
from elastic_airflow.retraining.data_snapshot import Snapshot
from elastic_core.errors import UserError
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec
from elastic_core.spec.job import parse_job_spec

CHAMPION, ANEW = "champion", "anew"
BACKFILL = "backfill"  # Airflow's word for the type of a run


class PlanRetrainingOperator(ElasticOperator):
    """The spec to retrain by and the checkpoint to start from: {"spec", "warm_start" or None}.

    The spec is the run's parameter `spec`, else the pipeline's: its own, or that of an Airflow variable. A scheduled
    run without the variable is skipped, saying so. A backfill is refused where nothing that is trained on depends on
    the data interval: it would train the same again and again.
    """

    template_fields: Sequence[str] = ("spec",)

    def __init__(
        self, *, spec: Mapping[str, Any] | str, data: Snapshot | None = None, by_interval: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.spec, self.data, self.by_interval = spec, data, by_interval

    def execute(self, context: Any) -> dict[str, Any]:
        params = context["params"]
        if context["dag_run"].run_type == BACKFILL and not self.by_interval:
            raise AirflowFailException(
                "a backfill trains on the data of its interval, and nothing of this pipeline depends on it: name "
                "{{ data_interval_start }} and {{ data_interval_end }} in the spec or in the files of its snapshot"
            )
        spec = parsed(params.get("spec") or given_spec(self.spec))
        if self.data is not None:
            folder = Handed("snapshot", "folder").resolve(context)
            spec = parsed({**spec.model_dump(mode="json"), "params": {**(spec.params or {}), self.data.param: folder}})
        warm_start = self._champion(spec) if params["start_from"] == CHAMPION else None
        self.log.info("%s is trained %s", spec.name, f"from {warm_start}" if warm_start else "anew")
        planned: dict[str, Any] = {"spec": spec.model_dump(mode="json"), "warm_start": warm_start}
        return dict(self.hand_over(context, planned))

    def _champion(self, spec: JobSpec) -> str | None:
        from elastic_core.track import model_registry  # imports mlflow

        name = spec.registered_model or spec.name
        try:
            checkpoint = model_registry.champion_checkpoint(self.control(), Settings(), name)
        except UserError as error:
            raise AirflowFailException(str(error)) from error
        if checkpoint is None:
            self.log.info("model %s has no champion yet", name)
            return None
        self.log.info("the champion of %s is from step %d of job %s", name, checkpoint.step, checkpoint.job_id)
        return checkpoint.uri


def given_spec(spec: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """The pipeline's own, or what the variable of that name holds. Raises `AirflowSkipException` without the variable,
    `AirflowFailException` for one that is no JSON object."""
    if not isinstance(spec, str):
        return spec
    text = Variable.get(spec, default=None)
    if not text:
        raise AirflowSkipException(
            f"nothing to retrain: set Airflow's variable {spec!r} to a job spec (JSON), or trigger this DAG with one "
            "as its parameter 'spec'"
        )
    try:
        found = json.loads(text)
    except ValueError as error:
        raise AirflowFailException(f"Airflow's variable {spec!r} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise AirflowFailException(f"Airflow's variable {spec!r} holds {text[:40]!r}, and a job spec is a JSON object")
    return found


def parsed(spec: Mapping[str, Any]) -> JobSpec:
    """Raises `AirflowFailException` with the words of what is wrong: no retry mends a spec."""
    try:
        return parse_job_spec(spec)
    except UserError as error:
        raise AirflowFailException(str(error)) from error
