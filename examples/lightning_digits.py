"""A Lightning script made elastic: the lines that say `lightning_task` and `return` are all that was changed.

It trains a small network on scikit-learn's digits. As a plain script it ended with `Trainer().fit(module, data)`. Needs
the packages of requirements-adapters.lock (`make adapters`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from elastic_core.train.adapters.lightning import lightning_task
from examples.digits import split_digits


class Classifier(lightning.LightningModule):
    def __init__(self, width: int = 64, learning_rate: float = 2e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: list[Tensor]) -> Tensor:
        images, labels = batch
        logits = self(images)
        self.log("train_accuracy", (logits.argmax(-1) == labels).float().mean())
        return nn.functional.cross_entropy(logits, labels)

    def validation_step(self, batch: list[Tensor]) -> None:
        images, labels = batch
        logits = self(images)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(-1) == labels).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)]


class Digits(lightning.LightningDataModule):
    def setup(self, stage: str) -> None:  # noqa: ARG002 - the same for all
        self.trained, self.held_out = split_digits()

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.trained, batch_size=64, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.held_out, batch_size=128)


@lightning_task(metric="val_accuracy", metric_mode="max")
def train(params: Mapping[str, Any]) -> tuple[Classifier, Digits]:
    return Classifier(**params), Digits()
