"""A model whose weights come from what a process kept is made without drawing them, where nobody could tell."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elastic_core.train.checkpoint.training_state import seed_everything
from elastic_core.train.checkpoint.undrawn_weights import make_model
from examples.bytes_lm import BytesLM
from examples.digits import Digits


class Model(nn.Module):
    """Weights drawn in the usual ways, one that begins at a constant, and one that is two modules'."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.convolution = nn.Conv2d(3, 4, 3)
        self.embedding = nn.Embedding(9, 8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.embedding.weight
        self.normal = nn.Parameter(torch.empty(6, 6))
        nn.init.normal_(self.normal, std=0.02)
        self.gain = nn.Parameter(torch.empty(8))
        nn.init.ones_(self.gain)
        self.register_buffer("places", torch.arange(8), persistent=False)


class WithDrawnBuffer(Model):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(8), persistent=False)


class WithOldWeights(Model):
    def __init__(self) -> None:
        super().__init__()
        self.before = self.linear.weight.detach().clone()


class WithDrawnWiring(Model):
    def __init__(self) -> None:
        super().__init__()
        self.order = torch.randperm(8).tolist()


class WithTruncatedNormal(Model):
    """torch draws it until no value lies outside."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.trunc_normal_(self.normal)


class WithNorm(Model):
    def __init__(self) -> None:
        super().__init__()
        self.norm = self.linear.weight.norm().item()


class WithValues(Model):
    def __init__(self) -> None:
        super().__init__()
        self.positive = self.gain.tolist()


def draws() -> tuple[Tensor, float, float]:
    return torch.randn(4), float(np.random.standard_normal()), random.random()


def test_what_is_drawn_after_the_model_is_the_same_as_if_it_had_been_drawn() -> None:
    seed_everything(3)
    _, drawn = make_model(Model, None)
    then = draws()
    seed_everything(3)
    _, again = make_model(Model, drawn)
    now = draws()
    assert torch.equal(now[0], then[0])
    assert now[1:] == then[1:]
    assert again is drawn


def test_parameters_are_not_drawn_and_all_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seed_everything(3)
    model, drawn = make_model(Model, None)
    monkeypatch.setattr(torch, "empty", torch.zeros)  # what nobody fills is zero, so that it can be seen
    undrawn, _ = make_model(Model, drawn)
    weights = dict(undrawn.named_parameters())
    for name in ("linear.weight", "linear.bias", "convolution.weight", "embedding.weight", "attention.in_proj_weight"):
        assert not weights[name].any(), name
    assert torch.equal(weights["gain"], torch.ones(8))
    assert torch.equal(undrawn.places, torch.arange(8))
    undrawn.load_state_dict(model.state_dict())
    assert all(torch.equal(weights[name], weight) for name, weight in model.named_parameters())


def test_the_first_model_is_drawn_as_ever() -> None:
    seed_everything(3)
    model, _ = make_model(Model, None)
    seed_everything(3)
    plain = Model()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize(
    "make", [WithDrawnBuffer, WithOldWeights, WithDrawnWiring, WithTruncatedNormal, WithNorm, WithValues]
)
def test_a_model_that_could_tell_is_drawn_each_time(make: Callable[[], nn.Module]) -> None:
    seed_everything(3)
    model, drawn = make_model(make, None)
    assert drawn is None
    seed_everything(3)
    again, _ = make_model(make, drawn)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("task", [BytesLM(BytesLM.Params(train_bytes=10_000)), Digits(Digits.Params())])
def test_models_of_the_examples_need_not_be_drawn_again(task: BytesLM | Digits) -> None:
    assert make_model(task.model, None)[1] is not None
