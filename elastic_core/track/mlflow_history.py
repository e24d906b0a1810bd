"""Runs of any MLflow server as history to learn from: those that logged a loss by step.

A run needs a batch size and the samples of an epoch among its parameters; the names that are looked for are below. How
far it came is its last step times its batch. What was not FINISHED was cut off, and so was what might have ended
sooner, by a target loss or patience, and came to the limit that its parameters say instead: the next step to be logged
would have been beyond it. Where the parameters name no limit, or nothing that ends a run before it, a run that is
FINISHED is taken to have done all its work. A run that is still RUNNING, or says too little, is passed over with the
reason. Step times are not taken: MLflow does not say on what they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlflow.tracking import MlflowClient

from elastic_core.protocol.records import FinishedRun, JobDescription
from elastic_core.snapshot.job_ends import came_to_its_end

BATCH = ("batch", "batch_size", "global_batch", "train_batch_size", "per_device_train_batch_size")
DATASET = ("dataset_samples", "num_samples", "train_samples", "dataset_size")
MOST = ("most_samples", "max_samples")
MOST_STEPS = ("most_steps", "max_steps", "total_steps")
EPOCHS = ("epochs", "max_epochs", "num_epochs", "num_train_epochs")
TARGET = ("target_loss",)
PATIENCE = ("patience", "early_stopping_patience")
MOST_REPORTS = 256  # of one run
PAGE = 200


@dataclass(frozen=True)
class Found:
    runs: list[FinishedRun]
    passed_over: Mapping[str, str]  # run id -> why


def mlflow_runs(uri: str, experiment: str = "", loss: str = "loss", metric: str = "") -> Found:
    """Of one experiment by name, or of all. `loss` and `metric` name what the runs logged by step."""
    client = MlflowClient(tracking_uri=uri)
    wanted = f"name = '{experiment}'" if experiment else None
    experiments = {each.experiment_id: each.name for each in client.search_experiments(filter_string=wanted)}
    runs, passed_over, token = [], {}, None
    while experiments:
        page = client.search_runs(list(experiments), max_results=PAGE, page_token=token)
        for run in page:
            try:
                runs.append(_finished_run(client, run, experiments[run.info.experiment_id], loss, metric))
            except ValueError as error:
                passed_over[run.info.run_id] = str(error)
        token = page.token
        if not token:
            break
    return Found(runs, passed_over)


def _finished_run(client: MlflowClient, run: Any, experiment: str, loss: str, metric: str) -> FinishedRun:
    """Raises `ValueError` for a run that says too little."""
    if run.info.status not in ("FINISHED", "FAILED", "KILLED"):
        raise ValueError(f"it is {run.info.status}")
    params = run.data.params
    batch, dataset = _needed(params, BATCH), _needed(params, DATASET)
    losses = _history(client, run.info.run_id, loss, batch)
    if not losses:
        raise ValueError(f"it logged no metric {loss!r} after step 0")
    work = losses[-1][0]
    most, full = _most(params, batch, dataset)
    # Without a limit a run's end says nothing about other limits: its work is taken as declared.
    target = _first(params, TARGET) if most else None
    patience = int(_first(params, PATIENCE) or 0) or None if most else None
    to_its_end = came_to_its_end(
        end_is_known=target is None and patience is None,
        at_its_limit=2 * work - losses[-2][0] > full if len(losses) > 1 else work >= full,
        target_loss=target,
        last_loss=losses[-1][1],
    )
    return FinishedRun(
        job_id=f"mlflow-{run.info.run_id}",
        finished_at=(run.info.end_time or run.info.start_time or 0) / 1000.0,
        description=JobDescription(
            entry_point=params.get("entry_point", run.data.tags.get("entry_point", f"mlflow:{experiment}")),
            params={name: _value(text) for name, text in params.items()},
            requested_slots=int(_first(params, ("slots", "world_size")) or 1),
            requested_batch=batch,
            dataset_samples=dataset,
            most_samples=max(most or work, work),
            num_parameters=int(_first(params, ("num_parameters",)) or 0),
            target_loss=target,
            patience=patience,
        ),
        resubmitted=False,
        losses=losses,
        metrics=_history(client, run.info.run_id, metric, batch) if metric else (),
        work=work,
        completed=run.info.status == "FINISHED" and to_its_end,
    )


def _history(client: MlflowClient, run_id: str, name: str, batch: int) -> tuple[tuple[int, float], ...]:
    by_step = {point.step: float(point.value) for point in client.get_metric_history(run_id, name) if point.step > 0}
    steps = sorted(by_step)
    every = max(len(steps) // MOST_REPORTS, 1)
    return tuple((step * batch, by_step[step]) for step in dict.fromkeys([*steps[::every], *steps[-1:]]))


def _most(params: Mapping[str, str], batch: int, dataset: int) -> tuple[int | None, int]:
    """The limit in samples, None where there is none; and from where on it counts as reached: some loops leave the last
    samples of a pass out that fill no batch."""
    full_batches = max(dataset // batch, 1) * batch
    for names, unit, full in ((MOST, 1, 1), (MOST_STEPS, batch, batch), (EPOCHS, dataset, min(full_batches, dataset))):
        value = _first(params, names)
        if value is not None and value > 0:
            return int(value * unit), int(value * full)
    return None, 0


def _needed(params: Mapping[str, str], names: tuple[str, ...]) -> int:
    value = _first(params, names)
    if value is None or value < 1:
        raise ValueError(f"none of its parameters {', '.join(names)} is a number of at least 1")
    return int(value)


def _first(params: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    values = (_value(params[name]) for name in names if name in params)
    return next((float(value) for value in values if isinstance(value, int | float)), None)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
