"""What the optimizer's learning rates are during a step, and what a scheduler sees of them."""

from __future__ import annotations

import pytest
import torch

from elastic_core.spec.parts.job_work import Batch
from elastic_core.train.gradients.rates import Rates


def make(rule: str, scheduler=None, schedule=lambda _: 1.0):
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": parameters[:1], "lr": 0.1}, {"params": parameters[1:], "lr": 0.01}])
    made = scheduler(optimizer) if scheduler else None
    batch = Batch(min=8, max=64, base=16, learning_rate_rule=rule)
    return optimizer, Rates(optimizer, made, schedule, batch)


def during(optimizer, rates, batch: int, progress: float = 0.0) -> list[float]:
    with rates.applied(batch, progress, None) as first:
        seen = [group["lr"] for group in optimizer.param_groups]
        optimizer.step()
    assert first == seen[0]
    return seen


def test_every_group_follows_batch_and_schedule_and_is_put_back():
    optimizer, rates = make("linear", schedule=lambda progress: 1.0 - progress)
    assert during(optimizer, rates, 64, 0.5) == pytest.approx([0.2, 0.02])
    assert during(optimizer, rates, 16, 0.75) == pytest.approx([0.025, 0.0025])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]


def test_scheduler_steps_on_its_own_rates_not_on_the_scaled_ones():
    optimizer, rates = make("linear", lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5))
    assert during(optimizer, rates, 64)[0] == pytest.approx(0.4)
    assert during(optimizer, rates, 64)[0] == pytest.approx(0.2)
    assert during(optimizer, rates, 16)[0] == pytest.approx(0.025)


def test_rates_in_tensors_are_written_in_place():
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    rates = Rates(optimizer, None, lambda _: 1.0, Batch(min=4, max=64, learning_rate_rule="sqrt"))
    for _ in range(2):
        with rates.applied(16, 0.0, None):
            assert optimizer.param_groups[0]["lr"] is rate
            assert float(rate) == pytest.approx(0.2)
        assert float(rate) == pytest.approx(0.1)
