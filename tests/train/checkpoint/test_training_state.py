"""What a checkpoint holds of a rank goes back into an equal one, and into nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elastic_core.errors import UserError
from elastic_core.train.checkpoint.training_state import TrainingState
from elastic_core.train.gradients.noise import NoiseState


def a_state(seed: int) -> TrainingState:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return TrainingState(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5), NoiseState())


def test_what_was_saved_comes_back_bit_for_bit() -> None:
    saved, fresh = a_state(0), a_state(1)
    fresh.load(saved.tensors(), saved.scalars(world=1))
    assert fresh.scalars(1) == saved.scalars(1)
    assert all(torch.equal(value, fresh.tensors()[name]) for name, value in saved.tensors().items())


def test_what_is_loaded_becomes_the_optimizers_own_and_nothing_of_it_is_shared() -> None:
    """As it would be from a file: an optimizer may keep one tensor for two parameters, or parts of a larger one."""
    saved, fresh = a_state(0), a_state(1)
    tensors = saved.tensors()
    steps = [name for name in tensors if name.endswith("/step")]
    moment = "optim/weight/exp_avg"
    tensors[steps[1]] = tensors[steps[0]]
    tensors[moment] = torch.cat([tensors[moment], torch.ones(1, 3)])[:2]
    fresh.load(tensors, saved.scalars(world=1))
    loaded = fresh.tensors()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    places = [tensor.data_ptr() for name, tensor in loaded.items() if name.startswith("optim/")]
    assert len(set(places)) == len(places)
    assert loaded[steps[0]].data_ptr() == tensors[steps[0]].data_ptr()
    assert loaded[moment].untyped_storage().nbytes() == loaded[moment].nbytes


def test_a_checkpoint_of_another_data_order_is_refused_and_changes_nothing() -> None:
    """Its cursor would point into another permutation: samples would be read twice, others not at all."""
    saved, fresh = a_state(0), a_state(1)
    before = fresh.model.weight.detach().clone()
    with pytest.raises(UserError, match="version 99 of the data order"):
        fresh.load(saved.tensors(), {**saved.scalars(1), "order": 99})
    assert torch.equal(fresh.model.weight, before)
