"""Handwritten digits: a small CNN on scikit-learn's 1797 real 8x8 images (UCI, Alpaydin and Kaynak 1998).

The data ships with scikit-learn, so nothing is downloaded. Metric: accuracy on every sixth image, never trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from pydantic import BaseModel, ConfigDict, Field
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from elastic_core.train.task import Task


class DigitsParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    width: int = Field(default=32, ge=4, le=512, description="channels of the first convolution")
    learning_rate: float = Field(default=2e-3, gt=0)


class Digits(Task):
    Params = DigitsParams
    metric = "accuracy"
    metric_mode = "max"
    params: DigitsParams

    def model(self) -> nn.Module:
        width = self.params.width
        return nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 2 * 2, 10),
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.params.learning_rate)

    def dataset(self) -> TensorDataset:
        return split_digits()[0]

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        images, labels = split_digits()[1].tensors
        with torch.no_grad():
            logits = model(images)
        return {
            "accuracy": (logits.argmax(dim=1) == labels).double().mean().item(),
            "held_out_loss": nn.functional.cross_entropy(logits, labels).item(),
        }

    def evaluate_each(self, model: nn.Module) -> Tensor:
        images, labels = split_digits()[1].tensors
        return (model(images).argmax(dim=1) == labels).float()

    def example_input(self) -> Tensor:
        return split_digits()[1].tensors[0][:1]


@cache
def split_digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and held-out images (n, 1, 8, 8) in [0, 1], with their labels."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    targets = torch.tensor(labels, dtype=torch.int64)
    held_out = torch.arange(len(images)) % 6 == 0
    return TensorDataset(images[~held_out], targets[~held_out]), TensorDataset(images[held_out], targets[held_out])
