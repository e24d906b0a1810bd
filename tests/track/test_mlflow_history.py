"""Runs of MLflow as history: how far they came, and whether that was all of their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from mlflow import MlflowClient

from elastic_core.track.mlflow_history import mlflow_runs
from tests.track.mlflow_server import MlflowServer

PARAMS = {"batch_size": 10, "num_samples": 1000}


def logged(
    client: MlflowClient, experiment: str, params: Mapping[str, object], steps: Sequence[int], status: str = "FINISHED",
    last_loss: float = 0.5,
) -> None:  # fmt: skip
    run_id = client.create_run(client.create_experiment(experiment)).info.run_id
    for name, value in {**PARAMS, **params}.items():
        client.log_param(run_id, name, value)
    for step in steps:
        client.log_metric(run_id, "loss", last_loss if step == steps[-1] else 1.0, step=step)
    client.set_terminated(run_id, status)


@pytest.mark.parametrize(
    ("params", "steps", "status", "last_loss", "completed"),
    [
        ({"max_steps": 100, "patience": 3}, (50, 100), "FINISHED", 0.5, False),  # ended at its limit
        ({"max_steps": 100, "patience": 3}, (50, 60), "FINISHED", 0.5, True),
        ({"max_steps": 100, "patience": 3}, (60, 90), "FINISHED", 0.5, False),  # the next report was due beyond it
        ({"max_steps": 100, "target_loss": 0.6}, (50, 100), "FINISHED", 0.5, True),  # its last step was good enough
        ({"max_steps": 100, "target_loss": 0.1}, (50, 100), "FINISHED", 0.5, False),
        ({"epochs": 2, "patience": 3, "num_samples": 1009}, (199, 200), "FINISHED", 0.5, False),  # 100 batches a pass
        ({"epochs": 2}, (100, 200), "FINISHED", 0.5, True),  # how much work it is was declared
        ({"patience": 3}, (50, 100), "FINISHED", 0.5, True),  # no limit is known
        ({"max_steps": 100, "patience": 3}, (50, 60), "KILLED", 0.5, False),
    ],
)
def test_a_run_that_took_the_most_it_might_is_no_completed_run_as_in_the_ledger(
    client: MlflowClient, mlflow_server: MlflowServer, request: pytest.FixtureRequest, params: dict[str, object],
    steps: tuple[int, ...], status: str, last_loss: float, completed: bool,
) -> None:  # fmt: skip
    name = request.node.name
    logged(client, name, params, steps, status, last_loss)
    found = mlflow_runs(mlflow_server.uri, name)
    assert not found.passed_over
    assert [(run.completed, run.work_done) for run in found.runs] == [(completed, 10 * steps[-1])]
