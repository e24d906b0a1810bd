"""The digits of the example, by a module whose loss follows how far its trainer is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from elastic_core.train.adapters.lightning import lightning_task
from examples.lightning_digits import Classifier, Digits


class Annealed(Classifier):
    def training_step(self, batch: list[Tensor]) -> Tensor:
        part = 1 - self.current_epoch / self.trainer.max_epochs
        return super().training_step(batch) * (part + self.global_step % 2)

    def teardown(self, stage: str) -> None:
        self.print(f"{stage} ends after step {self.global_step}", flush=True)


@lightning_task(metric="val_accuracy", metric_mode="max")
def train(params: Mapping[str, Any]) -> tuple[Annealed, Digits]:
    return Annealed(**params), Digits()
