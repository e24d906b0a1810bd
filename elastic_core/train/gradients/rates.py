"""Sets the optimizer's learning rates of a step: schedule times the factor of the global batch.

The schedule is the task's (a function of progress) or a torch scheduler's. A scheduler computes each rate from the
one before, so the batch's factor is on the optimizer only during its step, and never in what the scheduler sees. It
counts optimizer steps, or, where the job's work is measured by progress, the steps at the base batch that they come to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from elastic_core.spec.parts.job_work import Batch
from elastic_core.train.gradients.learning_rate import batch_factor
from elastic_core.train.gradients.noise import NoiseEstimate


class Rates:
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Any | None,
        schedule: Callable[[float], float],
        batch: Batch,
    ) -> None:
        """`schedule`: progress of the job in [0, 1] to a factor; not used with a scheduler."""
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._schedule = schedule
        self._batch = batch
        self._base = rates_of(self._optimizer)

    def restored(self) -> None:
        """A checkpoint was loaded: rates without a scheduler are the task's own again, not what was saved."""
        if self._scheduler is None:
            set_rates(self._optimizer, self._base)

    @contextmanager
    def applied(
        self, global_batch: int, progress: float, noise: NoiseEstimate | None, scheduler_steps: int = 1
    ) -> Iterator[float]:
        """The optimizer steps within; gives the first group's rate. A scheduler is so many steps further then."""
        planned = rates_of(self._optimizer)
        rule, base = self._batch.learning_rate_rule, self._batch.base or self._batch.min
        factor = batch_factor(rule, global_batch, base, noise)
        if self._scheduler is None:
            factor *= self._schedule(progress)
        set_rates(self._optimizer, [rate * factor for rate in planned])
        yield float(self._optimizer.param_groups[0]["lr"])
        set_rates(self._optimizer, planned)
        if self._scheduler is not None:
            for _ in range(scheduler_steps):
                self._scheduler.step()


def rates_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Learning rates by group. Copies: a rate may be a tensor, which is written in place."""
    rates = [group["lr"] for group in optimizer.param_groups]
    return [rate.clone() if isinstance(rate, torch.Tensor) else rate for rate in rates]


def set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[Any]) -> None:
    """As `rates_of` gave them; one that is a tensor stays the same tensor."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
