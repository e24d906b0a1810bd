"""Plain Adam after a frozen variance: a fallback to the exact sum, or a fork that exchanges otherwise."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from elastic_core.comm.algorithms import create
from elastic_core.comm.optimizers.frozen_adam import thaw
from elastic_core.comm.optimizers.momentum_exchange import MomentumExchange

WARMUP, RATE = 100, 0.01


class Training:
    """Of 400 values, by gradients of one size and any sign; `warmup`: before the variance is frozen, None for never."""

    def __init__(self, warmup: int | None = WARMUP) -> None:
        self.weight = nn.Parameter(torch.zeros(20, 20))
        self.late = nn.Parameter(torch.zeros(20))
        self.optimizer = torch.optim.Adam([self.weight, self.late], lr=RATE)
        self.taken = 0
        self.exchange = self.relaxed(warmup) if warmup is not None else None

    def relaxed(self, warmup: int) -> MomentumExchange:
        exchange = create("qadam", torch.device("cpu"), warmup_steps=warmup)
        assert isinstance(exchange, MomentumExchange)
        exchange.follow(self.optimizer)
        return exchange

    def steps(self, count: int, rows: int = 18) -> Tensor:
        """What the last one moves the weights of the first rows by; other rows have no gradient."""
        for _ in range(count):
            self.taken += 1
            self.weight.grad = torch.randn(20, 20, generator=torch.Generator().manual_seed(self.taken))
            self.weight.grad[rows:] = 0.0
            before = self.weight.detach().clone()
            self.optimizer.step()
        return (self.weight.detach() - before)[:18]

    def fall_back(self) -> Training:
        assert self.exchange is not None
        self.exchange.close()
        thaw(self.optimizer)
        return self

    @property
    def state(self) -> dict[str, Tensor]:
        return self.optimizer.state[self.weight]


def test_right_after_the_freeze_adam_goes_on_as_if_there_had_been_none():
    plain, frozen = Training(warmup=None), Training()
    for training in (plain, frozen):
        training.steps(WARMUP)
    assert "frozen_at" in frozen.optimizer.param_groups[0]
    frozen.fall_back()
    for key in ("step", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(frozen.state[key], plain.state[key], rtol=1e-6, atol=0.0)
    torch.testing.assert_close(frozen.steps(20), plain.steps(20), rtol=1e-4, atol=1e-7)


def test_long_after_it_steps_are_as_large_as_adams():
    plain, frozen = Training(warmup=None), Training()
    for training in (plain, frozen):
        training.steps(3 * WARMUP)
    frozen.fall_back()
    assert float(frozen.steps(1).norm()) == pytest.approx(float(plain.steps(1).norm()), rel=0.1)


def test_what_never_had_a_gradient_has_no_variance_again_and_what_had_its_first_later_makes_no_great_steps():
    training = Training()
    training.steps(WARMUP)
    training.steps(5, rows=19)  # the last but one has its first gradients
    assert bool((training.state["exp_avg_sq"][18:] > 0).all()), "while it is frozen"
    training.fall_back()
    assert bool((training.state["exp_avg_sq"][19] == 0).all())
    assert training.late not in training.optimizer.state, "as Adam has it of a parameter without gradients"
    training.steps(30, rows=20)
    moved = training.weight.detach().abs().amax(1)
    assert bool((moved < 40 * RATE).all())


def test_a_later_relaxed_run_warms_up_anew():
    training = Training()
    training.steps(WARMUP + 10)
    training.fall_back().steps(3)
    again = training.relaxed(warmup=8)
    training.steps(4)
    assert not again.gradients_are_local()
    variance = training.state["exp_avg_sq"].clone()
    training.steps(1)
    assert again.gradients_are_local(), "eight steps after the thaw"
    assert not torch.equal(training.state["exp_avg_sq"], variance)
    assert training.optimizer.param_groups[0]["frozen_at"] == WARMUP + 18


def test_an_optimizer_that_was_never_frozen_is_left_alone():
    training = Training(warmup=None)
    training.steps(5)
    before = deepcopy(training.optimizer.state_dict())
    thaw(training.optimizer)
    after = training.optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(torch.equal(value, before["state"][0][key]) for key, value in after["state"][0].items())
