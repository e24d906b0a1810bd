"""The exchanges for ordinary DistributedDataParallel, without the platform: docs/guide/exchanges.md.

DDP's users expect the mean over ranks, so that is what they get: gradients of each rank count 1/world. Exchanges have a
process group of their own, since DDP exchanges messages itself in the model's (buffers, which parameters were used).
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from elastic_core.comm.algorithm import CommAlgorithm
from elastic_core.comm.algorithms import NAMES, averages, averaging_class, create, steps_weights
from elastic_core.comm.optimizers.frozen_adam import thaw
from elastic_core.comm.optimizers.momentum_exchange import WARMUP_STEPS
from elastic_core.domain import AUTO, EXACT
from elastic_core.errors import UserError

PATIENCE_SECONDS = 600.0


def attach(
    model: DistributedDataParallel,
    optimizer: Optimizer,
    algorithm: str,
    *,
    warmup_steps: int = WARMUP_STEPS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> CommAlgorithm:
    """From now on `model` and `optimizer` exchange by this algorithm what they learn; their mean over ranks.

    Collective over the model's process group; once per model, before the first step. `warmup_steps`: of the optimizer
    by the exact mean, before `onebit_adam` or `qadam` freezes its variance. `patience_seconds`: that a rank waits for
    the others, who may be at work on a checkpoint, before the exchange fails (`comm.silence`). Save the `state_dict` of
    what it gives with the checkpoint, for each rank its own, and `close` it before the process group. Raises
    `UserError` for what cannot be.
    """
    if not isinstance(model, DistributedDataParallel):
        raise UserError(
            f"attach exchanges what a DistributedDataParallel learns, and the model is a {type(model).__name__}: wrap "
            "it first."
        )
    if averages(algorithm):
        named = averaging_class(algorithm).__name__
        raise UserError(
            f"{algorithm!r} averages weights, and so is for a model that is not wrapped: attach {named} of "
            "elastic_core.comm.averaging to it and its optimizer."
        )
    if algorithm == AUTO:
        raise UserError(
            f"{AUTO!r} chooses by the times of steps, which are measured in jobs of the platform and not here: it "
            f"would stay with {EXACT!r}. Name one of {', '.join(name for name in NAMES if not averages(name))}."
        )
    if warmup_steps < 1:
        raise UserError(f"warmup_steps is {warmup_steps}; allowed is 1 and more, since Adam needs a variance.")
    group, device = model.process_group, next(model.parameters()).device
    if device.type != "cuda" or algorithm != EXACT:
        ranks = dist.get_process_group_ranks(group)
        timeout = timedelta(seconds=patience_seconds)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        group = dist.new_group(ranks, timeout, backend=backend, use_local_synchronization=True)
    made = create(algorithm, device, group, warmup_steps=warmup_steps)
    if not steps_weights(algorithm):
        thaw(optimizer)
    made.attach(model, weight=1 / dist.get_world_size(group))
    made.follow(optimizer)
    return made
