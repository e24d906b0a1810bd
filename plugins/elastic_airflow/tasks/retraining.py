"""Retraining: what to train, and from which weights. The rest of the pipeline is that of any job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Variable
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from elastic_airflow.operators import ElasticOperator
from elastic_core.errors import UserError
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec
from elastic_core.spec.job import parse_job_spec

CHAMPION, ANEW = "champion", "anew"
SPEC_VARIABLE = "elastic_retrain_spec"


class PlanRetrainingOperator(ElasticOperator):
    """The spec to retrain by and the checkpoint to start from: {"spec", "warm_start" or None}.

    The spec is the run's parameter `spec`, else Airflow's variable `elastic_retrain_spec`. A scheduled run without
    either is skipped, saying so: nobody has set retraining up.
    """

    def execute(self, context: Any) -> dict[str, Any]:
        params = context["params"]
        spec = self._spec(params.get("spec"))
        warm_start = self._champion(spec) if params["start_from"] == CHAMPION else None
        self.log.info("%s is trained %s", spec.name, f"from {warm_start}" if warm_start else "anew")
        return {"spec": spec.model_dump(mode="json"), "warm_start": warm_start}

    def _spec(self, given: Mapping[str, Any] | None) -> JobSpec:
        if not given:
            text = Variable.get(SPEC_VARIABLE, default=None)
            if not text:
                raise AirflowSkipException(
                    f"nothing to retrain: set Airflow's variable {SPEC_VARIABLE!r} to a job spec (JSON), or trigger "
                    "this DAG with one as its parameter 'spec'"
                )
            given = json.loads(text)
        try:
            return parse_job_spec(given)
        except UserError as error:
            raise AirflowFailException(str(error)) from error

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
