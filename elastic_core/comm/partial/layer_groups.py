"""Who propagates back how far: the schedule of structured partial back-propagation, by step, rank and number of ranks.

The layers are in as many groups as there are ranks W, of about as many values each: group 0 the last layers, which are
the first of backward. A rank is at position p = (rank + turn) mod W in the step number `turn`, and propagates back
through groups 0 to p. So group g has gradients of W - g of W ranks at every step, and each rank goes all the way in one
of W steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def groups_of(shapes: Sequence[torch.Size], world: int) -> list[int]:
    """Of every parameter, in the model's order. A vector is with the matrix before it: a bias with its weights.

    A layer is in the group in which the middle of it lies, and the last one in group 0: no rank computes nothing.
    """
    layers: list[list[int]] = []  # places of parameters
    for place, shape in enumerate(shapes):
        if not layers or len(shape) > 1:
            layers.append([])
        layers[-1].append(place)
    groups, total, after = [0] * len(shapes), sum(shape.numel() for shape in shapes), 0
    for layer in reversed(layers):
        values = sum(shapes[place].numel() for place in layer)
        group = min(world - 1, (2 * after + values) * world // (2 * total)) if after else 0
        for place in layer:
            groups[place] = group
        after += values
    return groups


def position(rank: int, turn: int, world: int) -> int:
    return (rank + turn) % world


def computing(group: int, turn: int, world: int) -> list[int]:
    """The ranks that have gradients of a group at that step, in order."""
    return [rank for rank in range(world) if position(rank, turn, world) >= group]


def backward_share(shapes: Sequence[torch.Size], world: int) -> float:
    """Of the whole backward pass of a model, what a rank computes in the mean over steps, by numbers of values."""
    groups = groups_of(shapes, world)
    computed = sum(shape.numel() * (world - group) for shape, group in zip(shapes, groups, strict=True))
    return computed / (world * sum(shape.numel() for shape in shapes))
