"""Evaluating a model beside its training: what is copied for it."""

from __future__ import annotations

import torch
from torch import nn

from elastic_core.train.steps.evaluating import copied_to


def test_a_copy_for_another_device_shares_nothing_with_the_model_and_keeps_what_the_model_shares() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    model(torch.randn(4, 3)).sum().backward()
    copy = copied_to(model, torch.device("cpu"))
    state = copy.state_dict()
    assert state.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor)
        assert state[name].data_ptr() != tensor.data_ptr()
    assert copy[2].weight is copy[0].weight
    assert [p.requires_grad for p in copy.parameters()] == [p.requires_grad for p in model.parameters()]
    assert all(parameter.grad is None for parameter in copy.parameters())


def test_no_copy_is_made_on_the_models_own_device() -> None:
    with torch.device("meta"):  # where nothing can be copied from
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    made: list[str] = []

    class Watched(nn.Parameter):
        def __deepcopy__(self, memo: dict[int, object]) -> object:
            made.append("parameter")
            return super().__deepcopy__(memo)

    model[0].weight = Watched(model[0].weight.detach())
    copied_to(model, torch.device("meta"))
    assert made == []
