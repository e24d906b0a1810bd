"""History as JSON lines: runs that another installation has finished, to learn forecasts from.

One run a line, validated on the way in; what is wrong is said by line. `elastic history export` writes it, `elastic
history import` reads it, and anything else may write it (docs/guide/operate.md). Nothing is executed.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from elastic_core.domain import EXACT, ProfilePoint
from elastic_core.errors import UserError
from elastic_core.protocol.records import FinishedRun, JobDescription

MOST_PROBLEMS = 20  # that are told at once

Points = list[tuple[int, float]]


class HistoryStep(BaseModel):
    """What a step took under one configuration."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    type: str = Field(min_length=1)
    slots: int = Field(default=1, ge=1)
    nodes: int = Field(default=1, ge=1)
    batch: int = Field(ge=1)
    seconds: float = Field(gt=0)
    reports: int = Field(default=1, ge=1)


class HistoryRun(BaseModel):
    """One line. Amounts of work are samples, by the run's `measure`; losses and metrics are [samples, value], in
    ascending order."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    run_id: str = Field(min_length=1, max_length=250)
    finished_at: float
    entry_point: str = Field(min_length=1)
    params: dict[str, Any] = {}
    slots: int = Field(default=1, ge=1)
    batch: int = Field(ge=1)
    dataset_samples: int = Field(ge=1)
    num_parameters: int = Field(default=0, ge=0)
    accelerated: bool | None = None
    most_samples: int = Field(ge=1)
    target_loss: float | None = Field(default=None, gt=0)
    patience: int | None = Field(default=None, ge=1)
    metric_mode: str = Field(default="min", pattern="^(min|max)$")
    measure: Literal["samples", "progress"] = "samples"
    resubmitted: bool = False
    samples: int = Field(ge=0)
    completed: bool
    losses: Points = []
    metrics: Points = []
    steps: list[HistoryStep] = []

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        for name, points in (("losses", self.losses), ("metrics", self.metrics)):
            places = [at for at, _ in points]
            if places != sorted(places) or (places and places[0] < 0):
                raise ValueError(f"{name} must be pairs [samples, value] with samples ascending from 0 or more")
        return self

    def finished_run(self) -> FinishedRun:
        return FinishedRun(
            job_id=self.run_id,
            finished_at=self.finished_at,
            description=JobDescription(
                entry_point=self.entry_point, params=self.params, requested_slots=self.slots,
                requested_batch=self.batch, dataset_samples=self.dataset_samples, most_samples=self.most_samples,
                num_parameters=self.num_parameters, accelerated=self.accelerated, target_loss=self.target_loss,
                patience=self.patience, metric_mode=self.metric_mode, measure=self.measure,
            ),
            resubmitted=self.resubmitted,
            losses=tuple(self.losses),
            metrics=tuple(self.metrics),
            work=self.samples,
            completed=self.completed,
            profile=tuple(_point(step) for step in self.steps),
        )  # fmt: skip

    @staticmethod
    def of(run: FinishedRun) -> HistoryRun:
        job = run.description
        return HistoryRun(
            run_id=run.job_id, finished_at=run.finished_at, entry_point=job.entry_point, params=dict(job.params),
            slots=job.requested_slots, batch=job.requested_batch, dataset_samples=job.dataset_samples,
            num_parameters=job.num_parameters, accelerated=job.accelerated, most_samples=job.most_samples,
            target_loss=job.target_loss, patience=job.patience, metric_mode=job.metric_mode,
            measure=job.measure, resubmitted=run.resubmitted, samples=run.work_done, completed=run.completed,
            losses=list(run.losses), metrics=list(run.metrics),
            steps=[
                HistoryStep(type=point.type, slots=point.num_slots, nodes=point.num_nodes, batch=point.global_batch,
                            seconds=point.step_seconds, reports=point.count)
                for point in run.profile
                if point.layout is None and not point.roles and (point.comm == EXACT or point.num_slots == 1)
            ],
        )  # fmt: skip


def _point(step: HistoryStep) -> ProfilePoint:
    return ProfilePoint(
        num_slots=step.slots, num_nodes=step.nodes, type=step.type, global_batch=step.batch,
        local_batch=-(-step.batch // step.slots), accumulation=1, step_seconds=step.seconds, sync_seconds=0.0,
        count=step.reports,
    )  # fmt: skip


def read_history(path: Path) -> list[FinishedRun]:
    """Of a file of JSON lines, gzipped where its name ends in .gz. Raises `UserError` with every line that is wrong."""
    runs: list[FinishedRun] = []
    problems: list[str] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            runs.append(HistoryRun.model_validate_json(line).finished_run())
        except ValidationError as error:
            problems += [f"line {number}, {_where(problem)}: {problem['msg']}" for problem in error.errors()]
    if problems:
        more = f"\n... and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
        raise UserError(
            f"{path} is no history that can be imported, and nothing of it was; one run a line is wanted:\n"
            + "\n".join(problems[:MOST_PROBLEMS])
            + more
        )
    return runs


def write_history(runs: Iterable[FinishedRun], path: Path) -> int:
    """How many lines were written."""
    count = 0
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        for run in runs:
            line = HistoryRun.of(run).model_dump(mode="json", exclude_defaults=True)
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            count += 1
    return count


def _lines(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            yield from file
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise UserError(f"the history {path} cannot be read: {error}") from error


def _where(problem: Any) -> str:
    return ".".join(map(str, problem["loc"])) or "the run"
