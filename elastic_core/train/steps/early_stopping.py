"""Early stopping (Prechelt 1998): a job with `work.patience` ends when its metric has stopped getting better.

Measured at fixed places of the work, so that neither the length of segments nor the layout decides: after the step
that finishes a pass over the data set, by the job's own measure of work. It is the task's metric on held-out data; the
mean training loss of that pass, where the task evaluates nothing or its metric is "loss" and it does not say one. What
is known is part of the training state: an interrupted job counts on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Any, Literal

from torch import nn

from elastic_core.domain import from_json, to_json
from elastic_core.errors import UserError
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.train.parallel.group import Group
from elastic_core.train.steps.evaluating import Evaluate, measured

KEY = "patience"  # among a checkpoint's scalars
LOSS = "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """`best` is None before the first pass is over; `since_best` counts the passes after it. The sums: of this pass."""

    passes: int = 0
    best: float | None = None
    since_best: int = 0
    loss_sum: float = 0.0
    loss_samples: int = 0

    def trained(self, loss: float, samples: int) -> Evaluations:
        """A step's mean loss over its samples."""
        return replace(self, loss_sum=self.loss_sum + loss * samples, loss_samples=self.loss_samples + samples)

    @property
    def mean_loss(self) -> float:
        return self.loss_sum / self.loss_samples if self.loss_samples else inf

    def evaluated(self, value: float, passes: int, mode: Literal["min", "max"]) -> Evaluations:
        """A pass is over. Not a number is never better."""
        better = self.best is None or (value < self.best if mode == "min" else value > self.best)
        if better and not isnan(value):
            return Evaluations(passes=passes, best=value)
        return Evaluations(passes=passes, best=self.best, since_best=self.since_best + 1)

    def to_scalars(self) -> dict[str, Any]:
        return {KEY: to_json(self)}

    @staticmethod
    def from_scalars(scalars: Mapping[str, Any]) -> Evaluations:
        return from_json(Evaluations, scalars[KEY]) if KEY in scalars else Evaluations()


class HeldOut:
    """Measures a job's metric on rank 0, for all ranks."""

    def __init__(
        self,
        group: Group,
        evaluate: Evaluate | None,
        model: nn.Module,
        settle: Callable[[], None],
        metric: str,
        mode: Literal["min", "max"],
    ) -> None:
        """`settle`: makes one model of what the ranks hold; collective."""
        self._group, self._evaluate, self._model, self._settle = group, evaluate, model, settle
        self._metric, self._mode = metric, mode

    @staticmethod
    def of(
        order: LaunchOrder, group: Group, evaluate: Evaluate | None, model: nn.Module, settle: Callable[[], None]
    ) -> HeldOut | None:
        """None for a job without patience."""
        if order.spec.work.patience is None:
            return None
        mode: Literal["min", "max"] = "max" if order.facts.metric_mode == "max" else "min"
        return HeldOut(group, evaluate, model, settle, order.facts.metric, mode)

    def after_pass(self, state: Evaluations, passes: int) -> tuple[Evaluations, dict[str, float]]:
        """Collective. What is known after `passes` passes, and on rank 0 all that the task has measured."""
        self._settle()
        metrics: dict[str, float] = {}
        if self._group.rank == 0:
            metrics = measured(self._evaluate, self._model)
            if self._evaluate is not None and self._metric not in metrics and self._metric != LOSS:
                raise UserError(
                    f"work.patience follows the task's metric {self._metric!r}, which its evaluation does not give: it "
                    f"gives {sorted(metrics) or 'nothing'}. Name one of them as the task's metric, or leave patience "
                    "out."
                )
        announced = json.dumps(metrics.get(self._metric)).encode()
        value = json.loads(self._group.from_first(announced))
        if value is None:
            return state.evaluated(state.mean_loss, passes, "min"), metrics
        return state.evaluated(value, passes, self._mode), metrics
