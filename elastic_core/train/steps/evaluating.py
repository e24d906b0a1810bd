"""Evaluating a model in the middle of training without leaving a trace: modes and random state are put back.

A task evaluates on the CPU, in training as afterwards, so that it need not know where it trained.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from elastic_core.errors import UserError
from elastic_core.state.format.rng import capture_rng, restore_rng

Evaluate = Callable[[nn.Module], Mapping[str, float]]
EvaluateEach = Callable[[nn.Module], Tensor | None]
Answer = TypeVar("Answer")


def measured(evaluate: Evaluate | None, model: nn.Module) -> dict[str, float]:
    """What `evaluate` says of the model in evaluation mode, without gradients; {} if there is nothing to ask.

    Raises `UserError` for anything but a mapping of names to numbers; the task's own exceptions go through.
    """
    if evaluate is None:
        return {}
    metrics = asked(evaluate, model)
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"evaluate() must give a mapping of names to numbers, not {metrics!r}.") from error


def each_measured(evaluate_each: EvaluateEach | None, model: nn.Module) -> list[float]:
    """A figure of each held-out sample; [] of a task that gives none. Raises `UserError` for what is no vector."""
    figures = None if evaluate_each is None else asked(evaluate_each, model)
    if figures is None:
        return []
    if not isinstance(figures, Tensor) or figures.dim() != 1:
        shape = tuple(figures.shape) if isinstance(figures, Tensor) else type(figures).__name__
        raise UserError(f"evaluate_each() must give a tensor of one dimension, a figure of each sample, not {shape}.")
    listed: list[float] = figures.double().tolist()
    return listed


def asked(question: Callable[[nn.Module], Answer], model: nn.Module) -> Answer:
    """In evaluation mode, without gradients, on the CPU; modes and random state are as they were afterwards."""
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        model = copied_to(model, torch.device("cpu"))
    training = [module for module in model.modules() if module.training]
    random_state = capture_rng(0)
    try:
        model.eval()
        with torch.no_grad():
            return question(model)
    finally:
        for module in training:
            module.training = True
        restore_rng(random_state, 0)


def copied_to(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy whose tensors lie on that device, without one in the memory that the model's own lie in."""
    copies: dict[int, Tensor] = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        moved = tensor.detach().to(device, copy=True)
        if isinstance(tensor, nn.Parameter):
            moved = nn.Parameter(moved, requires_grad=tensor.requires_grad)
        copies[id(tensor)] = moved
    return copy.deepcopy(model, memo=dict(copies))
