"""Evaluating a model in the middle of training without leaving a trace: modes and random state are put back.

A task evaluates on the CPU, in training as afterwards, so that it need not know where it trained.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from elastic_core.errors import UserError
from elastic_core.state.format.rng import capture_rng, restore_rng

Evaluate = Callable[[nn.Module], Mapping[str, float]]


def measured(evaluate: Evaluate | None, model: nn.Module) -> dict[str, float]:
    """What `evaluate` says of the model in evaluation mode, without gradients; {} if there is nothing to ask.

    Raises `UserError` for anything but a mapping of names to numbers; the task's own exceptions go through.
    """
    if evaluate is None:
        return {}
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        model = copied_to(model, torch.device("cpu"))
    training = [module for module in model.modules() if module.training]
    random_state = capture_rng(0)
    try:
        model.eval()
        with torch.no_grad():
            metrics = evaluate(model)
    finally:
        for module in training:
            module.training = True
        restore_rng(random_state, 0)
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"evaluate() must give a mapping of names to numbers, not {metrics!r}.") from error


def copied_to(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy whose tensors lie on that device, without one in the memory that the model's own lie in."""
    copies: dict[int, Tensor] = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        moved = tensor.detach().to(device, copy=True)
        if isinstance(tensor, nn.Parameter):
            moved = nn.Parameter(moved, requires_grad=tensor.requires_grad)
        copies[id(tensor)] = moved
    return copy.deepcopy(model, memo=dict(copies))
