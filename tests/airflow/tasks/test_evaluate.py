"""The task that evaluates a job's newest checkpoint, by the job's own code in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from elastic_airflow.tasks.job_tasks import EvaluateOperator
from elastic_core.protocol.process_groups import held_out
from elastic_core.settings import Settings
from examples.digits import Digits
from tests.track.trained_job import TrainedJob


def test_a_model_that_has_diverged_is_measured_and_its_task_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's client sends no NaN: what a task returns has to be strict JSON."""
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    job = TrainedJob(Settings(home=tmp_path))
    diverged = Digits(Digits.Params(width=8)).model()
    for parameter in diverged.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    job.checkpoint(10, model=diverged)
    monkeypatch.setattr(EvaluateOperator, "control", lambda _: job)
    monkeypatch.setattr(EvaluateOperator, "ended", lambda self, control: control.job(self.job_id))
    told = EvaluateOperator(task_id="evaluate", job_id=job.name).execute({})
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert "NaN" in told.values()
    assert held_out({"evaluation": told}).keys() == job.results["evaluation"].keys()
