"""A registration asks, where it is told to, whether a model is better by more than chance: both are measured on every
held-out sample, by the task's own code in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastic_airflow.tasks.champion_measuring import ChampionMeasuring
from elastic_core.settings import Settings
from elastic_core.track.champions.judging import RegisteredVersion
from elastic_core.track.champions.paired_test import PairedTest
from examples.digits import Digits, split_digits
from tests.track.trained_job import TrainedJob


@pytest.fixture
def job(tmp_path: Path) -> TrainedJob:
    return TrainedJob(Settings(home=tmp_path))


def trained(steps: int) -> nn.Module:
    torch.manual_seed(0)
    model = Digits(Digits.Params(width=8)).model()
    images, labels = split_digits()[0].tensors
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


def holder(job: TrainedJob, record: int) -> RegisteredVersion:
    """The champion: a version that was made of this checkpoint."""
    made = job.records[record]
    return RegisteredVersion(
        name=job.name, version="1", job_id=job.name, checkpoint_uri=made.uri, manifest_sha256=made.manifest_sha256
    )


def asked(job: TrainedJob, champion: RegisteredVersion, alpha: float | None) -> PairedTest | None:
    control: Any = job
    found = ChampionMeasuring(control, job.settings, job.job(job.name), alpha=alpha)(champion)
    assert not found.fault
    return found.test


def told(job: TrainedJob, champion: RegisteredVersion) -> PairedTest:
    test = asked(job, champion, alpha=0.05)
    assert test is not None
    return test


@pytest.mark.nightly
def test_who_learnt_more_is_better_by_more_than_chance_and_the_other_way_round_is_not(job: TrainedJob) -> None:
    job.checkpoint(10, model=trained(steps=2))
    job.checkpoint(20, model=trained(steps=40))
    better = told(job, holder(job, 0))
    assert better.significant, better
    assert better.samples == len(split_digits()[1])

    job.checkpoint(30, model=trained(steps=2))
    worse = told(job, holder(job, 1))
    assert worse.p_value > 0.95, worse


@pytest.mark.nightly
def test_the_same_weights_once_more_are_no_better(job: TrainedJob) -> None:
    job.checkpoint(10, seed=3)
    job.checkpoint(20, seed=3)
    same = told(job, holder(job, 0))
    assert (same.p_value, same.significant) == (1.0, False)


def test_without_an_alpha_nothing_is_asked(job: TrainedJob) -> None:
    job.checkpoint(10)
    assert asked(job, holder(job, 0), alpha=None) is None
