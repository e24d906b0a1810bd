"""Tasks whose speed and failures a test chooses. Pure functions of the sample's index, so every run reads the same."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.utils.data import Dataset

from elastic_core.comm.hooked import slower_link
from elastic_core.train.task import Task
from examples.bytes_lm import BytesLM, BytesParams

FEATURES = 4


class LineParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    samples: int = Field(default=400, ge=8)
    milliseconds: float = Field(default=1.0, ge=0, description="time that one sample takes on one slot")
    poison: int | None = Field(default=None, description="the sample that raises ValueError when it is read")


class Line(Dataset[tuple[Tensor, Tensor]]):
    """Sample i: FEATURES numbers made of i, and a fixed linear function of them."""

    def __init__(self, params: LineParams) -> None:
        self.params = params

    def __len__(self) -> int:
        return self.params.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.params.poison:
            raise ValueError(f"sample {index} is poisoned")
        x = torch.sin(torch.arange(FEATURES, dtype=torch.float32) * (index + 1))
        return x, x.sum()


class LineTask(Task):
    Params = LineParams
    metric = "held_out_loss"
    metric_mode = "min"
    params: LineParams

    def model(self) -> nn.Module:
        return nn.Linear(FEATURES, 1)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def dataset(self) -> Dataset[Any]:
        return Line(self.params)

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        x, y = batch
        time.sleep(self.params.milliseconds * len(x) / 1000)
        return nn.functional.mse_loss(model(x).squeeze(-1), y)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        rows = [Line(LineParams(samples=10_000))[i] for i in range(9_000, 9_064)]
        x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
        return {"held_out_loss": nn.functional.mse_loss(model(x).squeeze(-1), y).item()}

    def example_input(self) -> Tensor:
        return torch.zeros(1, FEATURES)


class WideLineParams(LineParams):
    width: int = Field(default=1600, ge=1, description="of the layers in between, whose gradients are exchanged")
    layers: int = Field(default=2, ge=2, description="in between")


class WideLine(LineTask):
    """The same with many weights: computing takes its time on a slot of its own, exchanging takes a network."""

    Params = WideLineParams
    params: WideLineParams

    def model(self) -> nn.Module:
        sizes = (FEATURES, *[self.params.width] * self.params.layers)
        layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3)


class SlowLinkLineParams(WideLineParams):
    link_milliseconds: float = Field(ge=0, description="that replicas' sum of gradients takes besides, by sleeping")
    fitting: int = Field(ge=1, description="samples that a slot computes as usual; those beyond take longer")
    slow_milliseconds: float = Field(ge=0, description="that each of those takes, by sleeping")


class SlowLinkLine(WideLine):
    """Replicas sum their gradients over a link that is slow to them and not to servers, which leave fewer workers to
    compute more samples each."""

    Params = SlowLinkLineParams
    params: SlowLinkLineParams

    def model(self) -> nn.Module:
        self._until_the_process_ends = slower_link(lambda: time.sleep(self.params.link_milliseconds / 1000))
        self._until_the_process_ends.__enter__()
        return super().model()

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        beyond = max(0, len(batch[0]) - self.params.fitting)
        time.sleep(max(0.0, self.params.slow_milliseconds - self.params.milliseconds) * beyond / 1000)
        return super().loss(model, batch)


class SlowBytesParams(BytesParams):
    milliseconds: float = Field(default=5.0, ge=0, description="time that one sample takes on the slots of a replica")


class SlowBytes(BytesLM):
    """The example transformer, whose layers and state may be split, with replicas that are worth their slots."""

    Params = SlowBytesParams
    params: SlowBytesParams

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        time.sleep(self.params.milliseconds * len(batch[0]) / 1000)
        return super().loss(model, batch)


class SharedBytes(SlowBytes):
    """The same for one replica that is worth all slots that its layers are split over: they share the time."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if torch.is_grad_enabled():  # evaluating takes what it takes
            time.sleep(self.params.milliseconds * len(batch[0]) / 1000 / int(os.environ["WORLD_SIZE"]))
        return BytesLM.loss(self, model, batch)
