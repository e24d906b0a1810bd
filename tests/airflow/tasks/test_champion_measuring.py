"""A champion is measured again by what its own job was trained with, and on the data of the job that would replace it:
both may have changed since."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from elastic_airflow.tasks.champion_measuring import ChampionMeasuring, on_data_of
from elastic_core.protocol.records import CheckpointRecord, JobStatus
from elastic_core.settings import Settings
from elastic_core.state.job_code.pinned_code import pin
from elastic_core.track.champions.judging import RegisteredVersion
from elastic_core.track.model_registry import Measured
from tests.builders import a_spec
from tests.launch.builders import order
from tests.track.trained_job import TrainedJob

LINE = """
import torch
from pydantic import BaseModel, ConfigDict
from torch import nn
from elastic_core.train.task import Task

class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int = 1
    target: float = 0.0

class Line(Task):
    Params = Params
    metric = "distance"

    def model(self):
        return nn.Linear(self.params.width, 1, bias=False)

    def optimizer(self, model):
        raise NotImplementedError

    def dataset(self):
        raise NotImplementedError

    def loss(self, model, batch):
        raise NotImplementedError

    def evaluate(self, model):
        return {"distance": abs(model(torch.ones(self.params.width)).item() - self.params.target)}
"""


@dataclass
class Jobs:
    """Champion and candidate, of one ledger."""

    champion: TrainedJob
    candidate: TrainedJob

    def job(self, job_id: str) -> JobStatus:
        return self._of(job_id).job(job_id)

    def checkpoints(self, job_id: str) -> list[CheckpointRecord]:
        return self._of(job_id).records

    def _of(self, job_id: str) -> TrainedJob:
        return self.champion if job_id == self.champion.name else self.candidate

    def measured(self, **how: Any) -> Measured:
        made = self.champion.records[0]
        holder = RegisteredVersion(
            name="line", version="1", job_id=self.champion.name, checkpoint_uri=made.uri,
            manifest_sha256=made.manifest_sha256,
        )  # fmt: skip
        control: Any = self
        return ChampionMeasuring(control, self.champion.settings, self.candidate.job(""), **how)(holder)


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    """Of a task whose code each was pinned to: the champion's model sums two numbers up, the candidate's four."""
    package = tmp_path / "project" / "line_of_one_test"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    settings = Settings(home=tmp_path / "home", project=tmp_path / "project", tasks="line_of_one_test.*")
    made = []
    for name, width, target in (("champion", 2, 1.0), ("candidate", 4, 7.0)):
        (package / "line.py").write_text(LINE if name == "champion" else LINE.replace("abs(", "100 + abs("))
        job = TrainedJob(
            settings, name, entry_point="line_of_one_test.line:Line", params={"width": width, "target": target}
        )
        control: Any = job
        pin(control, settings, replace(order(), spec=job.job("").spec))
        model = nn.Linear(width, 1, bias=False)
        nn.init.constant_(model.weight, 2.0)
        job.checkpoint(10, model=model)
        made.append(job)
    return Jobs(*made)


def test_it_is_measured_by_its_own_code_and_parameters_on_the_candidates_data(jobs: Jobs) -> None:
    assert jobs.measured(data_params=("target",)) == Measured({"distance": 7.0 - 2 * 2.0})


def test_what_its_code_cannot_measure_is_said_and_fails_nothing(jobs: Jobs) -> None:
    """Such as data that is given to a parameter which its code did not have."""
    jobs.candidate.params = {**jobs.candidate.params, "folder": "/data/of/today"}
    found = jobs.measured(data_params=("target", "folder"))
    assert found.metrics is None
    assert "folder: Extra inputs are not permitted" in found.fault


def test_a_champion_whose_bytes_are_no_longer_its_own_is_said_to_be_so(jobs: Jobs) -> None:
    store = jobs.champion.settings.home / "store"
    (shard,) = (store / jobs.champion.records[0].uri).glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "safetensors" in jobs.measured().fault


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"folder": "/today", "width": 16}, {"folder": "/today", "width": 8}),
        ({"width": 16}, {"width": 8}),  # what was left out says which data, too: the default's
    ],
)
def test_only_which_data_is_the_candidates(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    candidate = a_spec(params=given, seed=5, entry_point="examples.tabular:Tabular")
    own = a_spec(params={"folder": "/yesterday", "width": 8}, seed=3)
    assert on_data_of(candidate, own, ("folder",)) == own.model_copy(update={"params": wanted, "seed": 5})
