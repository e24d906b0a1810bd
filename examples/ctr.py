"""Click-through rate: whether somebody clicks, from a few numbers and many categories with very many values.

Rows of one wide table, a sum of pairwise products and a small network, as factorisation machines and DLRM have them
(Naumov et al. 2019, arXiv 1906.00091). The click logs are generated, by default: categories follow a power law
(Zipf), clicks a hidden logistic model, and sample i is the same for ever. With `criteo` they are read from a file in
the format of the Criteo display advertising challenge. Metric: area under the ROC curve on held-out clicks; guessing
gives 0.5.

`layers` says where a placed job may split the model over several types: rows of the table on some, the rest on others.
It trains on slots of one type as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from elastic_core.errors import UserError
from elastic_core.train.data.audit import mix
from elastic_core.train.task import Task

CRITEO_NUMBERS, CRITEO_CATEGORIES = 13, 26
NUMBERS = 4  # of generated logs
HELD_OUT = 4096  # samples, at most; of a file every tenth line
_GENERATED_FROM, _HELD_OUT_FROM = 0, 1 << 40  # sample numbers


class CTRParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    categories: int = Field(default=8, ge=1, le=1024, description="of a generated sample")
    rows: int = Field(default=20_000, ge=16, le=1 << 31, description="of the table, over all categories")
    dim: int = Field(default=16, ge=1, le=1024, description="of a row")
    width: int = Field(default=64, ge=1, le=16384, description="of the network's hidden layers")
    depth: int = Field(default=2, ge=1, le=32, description="hidden layers")
    samples: int = Field(default=20_000, ge=64, le=50_000_000, description="generated, of an epoch")
    skew: float = Field(default=1.1, gt=0, le=4, description="exponent of the power law that categories follow")
    criteo: str | None = Field(default=None, description="a file in Criteo's format, instead of generated logs")
    optimizer: Literal["adagrad", "sgd"] = "adagrad"
    late_updates: bool = Field(default=False, description="of rows, where the job is placed: they may come a step late")
    learning_rate: float = Field(default=0.05, gt=0)


class Embeddings(nn.Module):
    """Categories (n, c) to their rows (n, c, dim), out of one table; numbers (n, m) go along."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, dim, sparse=True)
        nn.init.uniform_(self.table.weight, -(dim**-0.5), dim**-0.5)

    def forward(self, categories: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        return self.table(categories), numbers


class Interaction(nn.Module):
    """Rows (n, c, dim) and numbers (n, m) to features (n, c * dim + m + dim): the rows, the numbers, and the sum over
    all pairs of rows of their products, which takes no more than a pass over them (Rendle 2010)."""

    def forward(self, rows: Tensor, numbers: Tensor) -> Tensor:
        pairs = (rows.sum(1).square() - rows.square().sum(1)) / 2
        return torch.cat([rows.flatten(1), numbers, pairs], dim=1)


class CTRModel(nn.Module):
    """(categories (n, c), numbers (n, m)) to logits (n,)."""

    def __init__(self, categories: int, numbers: int, params: CTRParams) -> None:
        super().__init__()
        self.embeddings = Embeddings(params.rows, params.dim)
        self.interaction = Interaction()
        sizes = [(categories + 1) * params.dim + numbers] + [params.width] * params.depth
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes))
        self.head = nn.Sequential(nn.Linear(sizes[-1], 1), nn.Flatten(0))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        x = self.interaction(*self.embeddings(categories, numbers))
        for layer in self.mlp:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


class CTR(Task):
    Params = CTRParams
    metric = "auc"
    metric_mode = "max"
    params: CTRParams

    def __init__(self, params: CTRParams) -> None:
        super().__init__(params)
        self.late_embedding_updates = params.late_updates

    def model(self) -> nn.Module:
        if self.params.criteo is not None:
            return CTRModel(CRITEO_CATEGORIES, CRITEO_NUMBERS, self.params)
        return CTRModel(self.params.categories, NUMBERS, self.params)

    def layers(self, model: nn.Module) -> Sequence[nn.Module]:
        assert isinstance(model, CTRModel)
        return [model.embeddings, model.interaction, *model.mlp, model.head]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        kind = torch.optim.Adagrad if self.params.optimizer == "adagrad" else torch.optim.SGD
        return kind(model.parameters(), lr=self.params.learning_rate)

    def dataset(self) -> TensorDataset:
        return self._clicks(held_out=False)

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        categories, numbers, clicks = batch
        return nn.functional.binary_cross_entropy_with_logits(model(categories, numbers), clicks)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        categories, numbers, clicks = self._clicks(held_out=True).tensors
        with torch.no_grad():
            logits = model(categories, numbers)
        log_loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        return {"auc": area_under_roc(logits, clicks), "log_loss": log_loss.item()}

    def _clicks(self, held_out: bool) -> TensorDataset:
        params = self.params
        if params.criteo is not None:
            return read_criteo(params.criteo, params.rows, held_out)
        first, count = (_HELD_OUT_FROM, HELD_OUT) if held_out else (_GENERATED_FROM, params.samples)
        return generated(first, count, params.categories, params.rows, params.skew)


@cache
def generated(first: int, count: int, categories: int, rows: int, skew: float) -> TensorDataset:
    """Samples [first, first + count): categories (count, categories), numbers (count, NUMBERS), clicks (count,)."""
    counts = rows_by_category(rows, categories)
    samples = np.arange(first, first + count, dtype=np.int64)
    ids = np.empty((count, categories), dtype=np.int64)
    logits = np.full(count, -1.0)
    for number, (offset, size) in enumerate(counts):
        ids[:, number] = offset + zipf(_uniform(samples, number), size, skew)
        logits += 1.5 * (_uniform(ids[:, number], 1000) - 0.5)  # of each row a hidden weight
    numbers = np.stack([_uniform(samples, 2000 + number) for number in range(NUMBERS)], axis=1) - 0.5
    logits += numbers @ np.linspace(-1.0, 1.0, NUMBERS)
    clicks = _uniform(samples, 3000) < 1 / (1 + np.exp(-logits))
    return TensorDataset(
        torch.from_numpy(ids), torch.from_numpy(numbers.astype(np.float32)), torch.from_numpy(clicks.astype(np.float32))
    )


def rows_by_category(rows: int, categories: int) -> list[tuple[int, int]]:
    """(first row, rows) of each category in the one table: half of what is left, at least 2, the last the rest."""
    counts, left = [], rows
    for number in range(categories):
        more = categories - 1 - number
        size = left if more == 0 else max(2, min(left // 2, left - 2 * more))
        if size < 2 or left < size:
            raise UserError(f"{categories} categories need {2 * categories} rows at least, not {rows}.")
        counts.append((rows - left, size))
        left -= size
    return counts


def zipf(uniform: NDArray[np.float64], size: int, skew: float) -> NDArray[np.int64]:
    """Numbers below `size` from uniform ones in [0, 1): k with a probability as (k + 1)^-skew, by its integral."""
    low, high, power = 1.0, size + 1.0, 1.0 - skew
    if abs(power) < 1e-9:
        x = low * (high / low) ** uniform
    else:
        x = (low**power + uniform * (high**power - low**power)) ** (1 / power)
    return np.clip(x.astype(np.int64) - 1, 0, size - 1)


def _uniform(values: NDArray[np.int64], salt: int) -> NDArray[np.float64]:
    """In [0, 1), a function of value and salt alone."""
    hashed = mix(mix(values).astype(np.int64) ^ np.int64(salt))
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53


@cache
def read_criteo(path: str, rows: int, held_out: bool) -> TensorDataset:
    """A file of lines "click, 13 numbers, 26 categories in hexadecimal", between tabs; what is missing is empty.

    Every tenth line is held out. A category's value is hashed to one of its share of the rows; numbers x become
    log(1 + x), negative ones and missing ones 0. Raises `UserError` for a line that is none of these.
    """
    share = rows // CRITEO_CATEGORIES
    if share < 1:
        raise UserError(f"Criteo's {CRITEO_CATEGORIES} categories need as many rows at least, not {rows}.")
    offsets = np.arange(CRITEO_CATEGORIES, dtype=np.int64) * share
    values, numbers, clicks = [], [], []
    with Path(path).open() as file:
        for number, line in enumerate(file):
            if (number % 10 == 9) == held_out:
                click, floats, categories = _parse(line.rstrip("\n"), number + 1, path)
                clicks.append(click)
                numbers.append(floats)
                values.append(categories)
    if not clicks:
        raise UserError(f"{path} has no line to {'hold out: that takes ten' if held_out else 'train on'}.")
    hashed = mix(np.array(values, dtype=np.int64)) % np.uint64(share)
    return TensorDataset(
        torch.from_numpy(hashed.astype(np.int64) + offsets), torch.tensor(numbers).clamp(min=0).log1p(),
        torch.tensor(clicks),
    )  # fmt: skip


def _parse(line: str, number: int, path: str) -> tuple[float, list[float], list[int]]:
    fields = line.split("\t")
    if len(fields) != 1 + CRITEO_NUMBERS + CRITEO_CATEGORIES:
        raise UserError(
            f"{path}, line {number}: {len(fields)} fields between tabs, and Criteo's format has 40: a click, "
            f"{CRITEO_NUMBERS} numbers, {CRITEO_CATEGORIES} categories."
        )
    try:
        floats = [float(text or 0) for text in fields[1 : 1 + CRITEO_NUMBERS]]
        categories = [int(text, 16) + 1 if text else 0 for text in fields[1 + CRITEO_NUMBERS :]]
        return float(fields[0]), floats, categories
    except ValueError as error:
        raise UserError(f"{path}, line {number}: {error}. Numbers are decimal, categories hexadecimal.") from error


def area_under_roc(scores: Tensor, clicks: Tensor) -> float:
    """Probability that a clicked sample scores above another; ties count half. 0.5 where all are alike."""
    positives, negatives = int(clicks.sum()), int((1 - clicks).sum())
    if positives == 0 or negatives == 0:
        return 0.5
    _, places, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    above = counts.cumsum(0) - counts
    ranks = above[places].double() + (counts[places].double() + 1) / 2  # of ties the mean
    return float((ranks[clicks > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))
