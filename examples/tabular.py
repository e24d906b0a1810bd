"""Tabular regression: disease progression of 442 real diabetes patients (Efron et al. 2004), ten measurements each.

The data ships with scikit-learn (`load_diabetes`). Every fifth patient is held out. Metric: root mean squared error
of the progression score, which goes from 25 to 346 (always guessing its mean gives about 75).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from pydantic import BaseModel, ConfigDict, Field
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from elastic_core.train.task import Task

MEAN, SCALE = 152.0, 77.0  # of the progression score, so that the network predicts values near 0 +- 1


class TabularParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    width: int = Field(default=64, ge=1, le=4096)
    depth: int = Field(default=2, ge=1, le=32, description="hidden layers")
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)


class Tabular(Task):
    Params = TabularParams
    metric = "rmse"
    metric_mode = "min"
    params: TabularParams

    def model(self) -> nn.Module:
        sizes = [10] + [self.params.width] * self.params.depth
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(sizes[-1], 1), nn.Flatten(0))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            model.parameters(), lr=self.params.learning_rate, weight_decay=self.params.weight_decay
        )

    def dataset(self) -> TensorDataset:
        return split_patients()[0]

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        features, scores = batch
        return nn.functional.mse_loss(model(features), scores)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        features, scores = split_patients()[1].tensors
        with torch.no_grad():
            errors = model(features) - scores
        return {
            "rmse": SCALE * errors.square().mean().sqrt().item(),
            "r2": 1 - (errors.square().mean() / scores.var(correction=0)).item(),
        }

    def evaluate_each(self, model: nn.Module) -> Tensor:
        features, scores = split_patients()[1].tensors
        return (model(features) - scores).square()

    def example_input(self) -> Tensor:
        return split_patients()[1].tensors[0][:1]


def split_patients() -> tuple[TensorDataset, TensorDataset]:
    """Training and held-out patients: features (n, 10) of unit variance, standardised scores (n,)."""
    features, scores = load_diabetes(return_X_y=True)
    x = torch.tensor(features * len(features) ** 0.5, dtype=torch.float32)
    y = torch.tensor((scores - MEAN) / SCALE, dtype=torch.float32)
    held_out = torch.arange(len(x)) % 5 == 0
    return TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])
