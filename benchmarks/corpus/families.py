"""Thirteen families of small tasks on data that every machine has: scikit-learn's own sets, made-up images, the
standard library's sources. Ordinary tasks of the platform: each runs as a job (`benchmarks.corpus.families:Digits`).

They differ in what matters to a forecast: losses that fall along a curve (regression, compression), that reach a floor
given by noise in the labels, that stand still and then fall (parity, modular addition), that swing (an adversary).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from sklearn import datasets
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from elastic_core.train.task import Task
from examples.bytes_lm import BytesParams, Transformer, Windows, read_sources

Split = tuple[TensorDataset, TensorDataset]  # trained on, held out


class FamilyParams(BaseModel):
    """What differs between two runs of a family."""

    model_config = ConfigDict(extra="forbid")

    width: int = Field(default=32, ge=2, le=512)
    depth: int = Field(default=1, ge=0, le=4, description="hidden layers, or blocks")
    learning_rate: float = Field(default=1e-3, gt=0)
    optimizer: Literal["sgd", "momentum", "adam"] = "adam"
    weight_decay: float = Field(default=0.0, ge=0)
    noise: float = Field(
        default=0.0, ge=0, le=1, description="share of labels drawn at random, or of the targets' spread"
    )


class Family(Task):
    """A task whose data is a pair of tensors. `metric` is the held-out loss."""

    Params = FamilyParams
    metric = "held_out_loss"
    metric_mode = "min"
    params: FamilyParams

    def split(self) -> Split:
        raise NotImplementedError

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        rate, decay = self.params.learning_rate, self.params.weight_decay
        if self.params.optimizer == "adam":
            return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
        momentum = 0.9 if self.params.optimizer == "momentum" else 0.0
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=decay)

    def dataset(self) -> TensorDataset:
        return self.split()[0]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs), targets)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        with torch.no_grad():
            return {"held_out_loss": self.loss(model, list(self.split()[1].tensors)).item()}

    def mlp(self, inputs: int, outputs: int) -> nn.Sequential:
        sizes = [inputs, *[self.params.width] * self.params.depth]
        hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs))


def _split(inputs: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> Split:
    """Every fifth row is held out. Inputs are standardised by column where they are vectors."""
    x = torch.tensor(inputs, dtype=torch.float32)
    if x.ndim == 2:
        x = (x - x.mean(dim=0)) / (x.std(dim=0) + 1e-6)
    whole = np.issubdtype(targets.dtype, np.integer)
    y = torch.tensor(targets, dtype=torch.int64 if whole else torch.float32)
    held_out = torch.arange(len(x)) % 5 == 4
    return TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])


def _with_noise(labels: np.ndarray[Any, Any], share: float, classes: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(7)
    drawn = rng.random(len(labels)) < share
    return np.where(drawn, rng.integers(0, classes, len(labels)), labels).astype(np.int64)


@lru_cache(maxsize=32)
def _bundled(name: str, noise: float) -> Split:
    inputs, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    return _split(inputs, _with_noise(labels, noise, int(labels.max()) + 1))


class Digits(Family):
    """Handwritten digits as vectors of 64."""

    def split(self) -> Split:
        return _bundled("digits", self.params.noise)

    def model(self) -> nn.Module:
        return self.mlp(64, 10)


class BreastCancer(Family):
    def split(self) -> Split:
        return _bundled("breast_cancer", self.params.noise)

    def model(self) -> nn.Module:
        return self.mlp(30, 2)


class Wine(Family):
    def split(self) -> Split:
        return _bundled("wine", self.params.noise)

    def model(self) -> nn.Module:
        return self.mlp(13, 3)


class Diabetes(Family):
    """Regression: a year's progression of the disease, in standard deviations."""

    def split(self) -> Split:
        return _diabetes(self.params.noise)

    def model(self) -> nn.Module:
        return self.mlp(10, 1)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs).squeeze(-1), targets)


@lru_cache(maxsize=32)
def _diabetes(noise: float) -> Split:
    inputs, targets = datasets.load_diabetes(return_X_y=True)
    spread = np.random.default_rng(7).normal(0.0, noise, len(targets))
    return _split(inputs, (targets - targets.mean()) / targets.std() + spread)


class Friedman(Diabetes):
    """Regression on Friedman's first function of ten variables, five of which count (Friedman 1991)."""

    def split(self) -> Split:
        return _friedman(self.params.noise)


@lru_cache(maxsize=32)
def _friedman(noise: float) -> Split:
    inputs, targets = datasets.make_friedman1(n_samples=3000, n_features=10, noise=5.0 * noise, random_state=3)
    return _split(inputs, (targets - targets.mean()) / targets.std())


class Shapes(Family):
    """Discs, squares, crosses and stripes of any place and size on 12 x 12 pixels, in noise: a small CNN."""

    def split(self) -> Split:
        return _shapes(self.params.noise)

    def model(self) -> nn.Module:
        width = max(self.params.width // 4, 2)
        return nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(2 * width * 9, 4),
        )  # fmt: skip


@lru_cache(maxsize=16)
def _shapes(noise: float) -> Split:
    rng = np.random.default_rng(11)
    num, size = 2000, 12
    row, column = np.mgrid[0:size, 0:size]
    images, labels = np.zeros((num, 1, size, size)), rng.integers(0, 4, num)
    for i, label in enumerate(labels):
        centre, radius = rng.uniform(3, size - 4, 2), rng.uniform(1.5, 4.0)
        a, b = row - centre[0], column - centre[1]
        images[i, 0] = (
            np.hypot(a, b) < radius, np.maximum(abs(a), abs(b)) < radius,
            (np.minimum(abs(a), abs(b)) < 1) & (np.maximum(abs(a), abs(b)) < radius), (a.astype(int) % 3 == 0) * 1.0,
        )[label]  # fmt: skip
    return _split(images + rng.normal(0.0, 0.6, images.shape), _with_noise(labels, noise, 4))


class Autoencoder(Family):
    """Digits through a narrow middle: mean squared error of the pixels."""

    def split(self) -> Split:
        return _autoencoded()

    def model(self) -> nn.Module:
        width = max(self.params.width // 4, 2)
        return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, width), nn.Linear(width, 48), nn.ReLU(),
                             nn.Linear(48, 64))  # fmt: skip

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        (images, _) = batch
        return nn.functional.mse_loss(model(images), images)


@lru_cache(maxsize=1)
def _autoencoded() -> Split:
    pixels, labels = datasets.load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32) / 16
    y = torch.tensor(labels)
    held_out = torch.arange(len(x)) % 5 == 4
    return TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])


class Ratings(Family):
    """Matrix factorisation: ratings of 300 users for 200 items of low rank, in noise."""

    def split(self) -> Split:
        return _ratings(self.params.noise)

    def model(self) -> nn.Module:
        return _Factors(300, 200, max(self.params.width // 4, 2))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        pairs, ratings = batch
        return nn.functional.mse_loss(model(pairs), ratings)


class _Factors(nn.Module):
    def __init__(self, users: int, items: int, rank: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, rank), nn.Embedding(items, rank)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, pairs_b2: Tensor) -> Tensor:
        predicted_b: Tensor = (self.user(pairs_b2[:, 0]) * self.item(pairs_b2[:, 1])).sum(dim=-1)
        return predicted_b


@lru_cache(maxsize=16)
def _ratings(noise: float) -> Split:
    rng = np.random.default_rng(5)
    users, items = rng.normal(size=(300, 4)), rng.normal(size=(200, 4))
    pairs = np.column_stack((rng.integers(0, 300, 6000), rng.integers(0, 200, 6000)))
    ratings = (users[pairs[:, 0]] * items[pairs[:, 1]]).sum(axis=1) / 2 + rng.normal(0.0, noise, 6000)
    x, y = torch.tensor(pairs), torch.tensor(ratings, dtype=torch.float32)
    held_out = torch.arange(len(x)) % 5 == 4
    return TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])


class Sines(Family):
    """A recurrent network that continues sums of two sines: mean squared error of the next value."""

    def split(self) -> Split:
        return _sines(self.params.noise)

    def model(self) -> nn.Module:
        return _Recurrent(max(self.params.width // 2, 4))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        series, following = batch
        return nn.functional.mse_loss(model(series), following)


class _Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, series_bt: Tensor) -> Tensor:
        following_b: Tensor = self.head(self.cell(series_bt.unsqueeze(-1))[0][:, -1]).squeeze(-1)
        return following_b


@lru_cache(maxsize=16)
def _sines(noise: float) -> Split:
    rng = np.random.default_rng(9)
    at = np.arange(17)[None, :]
    rates, phases = rng.uniform(0.2, 1.2, (2000, 2)), rng.uniform(0, 6.3, (2000, 2))
    series = sum(np.sin(rates[:, i : i + 1] * at + phases[:, i : i + 1]) for i in (0, 1))
    series = series + rng.normal(0.0, 0.5 * noise, series.shape)
    x, y = torch.tensor(series[:, :-1], dtype=torch.float32), torch.tensor(series[:, -1], dtype=torch.float32)
    held_out = torch.arange(len(x)) % 5 == 4
    return TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])


class Parity(Family):
    """The parity of 3 of 20 bits: nothing is learnt for long, then all of it at once (Barak et al. 2022)."""

    BITS: ClassVar[int] = 20

    def split(self) -> Split:
        return _parity(self.params.noise, self.BITS)

    def model(self) -> nn.Module:
        return self.mlp(self.BITS, 2)


@lru_cache(maxsize=16)
def _parity(noise: float, bits: int) -> Split:
    signs = np.random.default_rng(13).choice([-1.0, 1.0], (4000, bits))
    return _split(signs, _with_noise((signs[:, :3].prod(axis=1) > 0).astype(np.int64), noise, 2))


class ModularAddition(Family):
    """(a + b) mod 23 from a part of all pairs: memorised first, understood later (Power et al. 2022)."""

    MODULUS: ClassVar[int] = 23

    def split(self) -> Split:
        return _modular(self.params.noise, self.MODULUS)

    def model(self) -> nn.Module:
        width = self.params.width
        return nn.Sequential(
            nn.Embedding(self.MODULUS, width), nn.Flatten(), nn.Linear(2 * width, 2 * width), nn.ReLU(),
            nn.Linear(2 * width, self.MODULUS),
        )  # fmt: skip


@lru_cache(maxsize=16)
def _modular(noise: float, modulus: int) -> Split:
    a, b = (grid.ravel() for grid in np.meshgrid(np.arange(modulus), np.arange(modulus)))
    shuffled = np.random.default_rng(17).permutation(len(a))
    sums = _with_noise(((a + b) % modulus)[shuffled], noise, modulus)
    x, y = torch.tensor(np.column_stack((a, b))[shuffled]), torch.tensor(sums)
    held_out = torch.arange(len(x)) % 5 >= 3
    return TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])


class Adversary(Digits):
    """Digits told from features that an adversary must not tell the parity of the digit from (Ganin et al. 2016):
    features and adversary pull at each other, and the sum of both losses swings."""

    def model(self) -> nn.Module:
        return _Adversarial(self.mlp(64, self.params.width), self.params.width)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, labels = batch
        digits, parity = model(inputs)
        return nn.functional.cross_entropy(digits, labels) + nn.functional.cross_entropy(parity, labels % 2)


class _Adversarial(nn.Module):
    STRENGTH: ClassVar[float] = 3.0

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.features = features
        self.digits = nn.Linear(width, 10)
        self.parity = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, inputs_bi: Tensor) -> tuple[Tensor, Tensor]:
        features_bf = torch.relu(self.features(inputs_bi))
        # The gradient of the adversary's loss reaches the features with the opposite sign.
        reversed_bf = (1 + self.STRENGTH) * features_bf.detach() - self.STRENGTH * features_bf
        return self.digits(features_bf), self.parity(reversed_bf)


class Bytes(Family):
    """The byte-level transformer of the examples, very small."""

    CONTEXT: ClassVar[int] = 24

    def split(self) -> Split:
        return _bytes(self.CONTEXT)

    def model(self) -> nn.Module:
        width = max(self.params.width // 4 * 4, 8)
        return Transformer(BytesParams(width=width, depth=max(self.params.depth, 1), context=self.CONTEXT))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@lru_cache(maxsize=1)
def _bytes(context: int) -> Split:
    def windows(text: bytes, most: int) -> TensorDataset:
        windows = Windows(text, context)
        rows = [windows[i] for i in range(min(len(windows), most))]
        return TensorDataset(torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows]))

    return windows(read_sources(held_out=False), 3000), windows(read_sources(held_out=True), 300)


FAMILIES: Mapping[str, type[Family]] = {
    family.__name__: family
    for family in (
        Digits, BreastCancer, Wine, Diabetes, Friedman, Shapes, Autoencoder, Ratings, Sines, Parity, ModularAddition,
        Adversary, Bytes,
    )
}  # fmt: skip
