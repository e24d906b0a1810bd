"""Each example learns in seconds of plain single-process training, from data that is the same every time."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

from elastic_core.spec import JobSpec
from elastic_core.train.task import Task
from examples.bytes_lm import BytesLM, read_sources
from examples.digits import Digits
from examples.tabular import Tabular

SPECS = Path(__file__).parents[2] / "examples" / "specs"


def train(task: Task, steps: int, batch: int) -> tuple[torch.nn.Module, list[float]]:
    torch.manual_seed(0)
    model, dataset = task.model(), task.dataset()
    optimizer, losses = task.optimizer(model), []
    for _ in range(steps):
        indices = torch.randint(len(dataset), (batch,)).tolist()  # type: ignore[arg-type]
        loss = task.loss(model, task.collate([dataset[i] for i in indices]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.eval(), losses


@pytest.mark.parametrize(
    ("task", "steps", "batch", "factor", "better_than"),
    [
        (Digits(Digits.Params()), 120, 64, 0.15, 0.93),
        pytest.param(
            BytesLM(BytesLM.Params(width=32, context=32, train_bytes=100_000)), 120, 32, 0.65, 4.5,
            marks=pytest.mark.nightly,
        ),
        (Tabular(Tabular.Params()), 150, 64, 0.6, 65.0),
    ],
    ids=["digits", "bytes_lm", "tabular"],
)  # fmt: skip
def test_loss_falls_and_held_out_metric_beats_guessing(task, steps, batch, factor, better_than):
    untrained, _ = train(task, 0, batch)
    model, losses = train(task, steps, batch)
    assert sum(losses[-10:]) < factor * sum(losses[:10])

    before, after = task.evaluate(untrained), task.evaluate(model)
    assert task.metric in after
    if task.metric_mode == "max":
        assert before[task.metric] < better_than < after[task.metric]
    else:
        assert before[task.metric] > better_than > after[task.metric]


@pytest.mark.parametrize("kind", [Digits, BytesLM, Tabular])
def test_dataset_gives_the_same_sample_for_the_same_index(kind):
    one, two = kind(kind.Params()).dataset(), kind(kind.Params()).dataset()
    assert len(one) == len(two)
    for index in (0, len(one) // 2, len(one) - 1):
        for a, b in zip(one[index], two[index], strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("kind", [Digits, BytesLM, Tabular])
def test_example_input_goes_through_the_model(kind):
    task = kind(kind.Params())
    assert len(task.model()(task.example_input())) == 1


def test_held_out_sources_are_not_trained_on():
    training, held_out = read_sources(held_out=False), read_sources(held_out=True)
    assert len(held_out) > 100_000
    assert held_out[:2000] not in training


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.json")), ids=lambda path: path.stem)
def test_spec_is_valid_and_its_parameters_fit_the_task(path):
    spec = JobSpec.model_validate(json.loads(path.read_text()))
    module, name = spec.entry_point.split(":")
    entry = getattr(importlib.import_module(module), name)
    if isinstance(entry, type):
        entry.Params.model_validate(spec.params)
    else:
        assert callable(entry)


def test_parameters_that_cannot_work_are_refused_before_anything_runs():
    with pytest.raises(ValueError, match="width 30 is not a multiple of heads 4"):
        BytesLM.Params(width=30, heads=4)
