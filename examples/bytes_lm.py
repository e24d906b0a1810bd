"""A byte-level transformer on real text that every machine has: the Python standard library's own sources.

Files are read in the order of their names, so the same Python gives the same data on every node. Every tenth file
is held out. Metric: bits per byte on the held-out files (8 is chance; a good compressor gets about 2).
"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.utils.data import Dataset

from elastic_core.train.layouts import local
from elastic_core.train.task import Task

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle


class BytesParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    width: int = Field(default=64, ge=8, le=4096, description="model width, a multiple of heads")
    depth: int = Field(default=2, ge=1, le=64, description="transformer blocks")
    heads: int = Field(default=4, ge=1, le=64)
    context: int = Field(default=64, ge=8, le=4096, description="bytes that one sample predicts")
    train_bytes: int = Field(default=500_000, ge=10_000, description="at most this much of the sources is trained on")
    learning_rate: float = Field(default=3e-3, gt=0)

    @model_validator(mode="after")
    def heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}: change one of the two")
        return self


class BytesLM(Task):
    Params = BytesParams
    metric = "bits_per_byte"
    metric_mode = "min"
    params: BytesParams

    def model(self) -> nn.Module:
        return Transformer(self.params)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.params.learning_rate, weight_decay=0.01)

    def tensor_plan(self, model: nn.Module) -> Mapping[str, ParallelStyle]:  # noqa: ARG002 - the same for any size
        """Attention by heads, the MLP by its hidden units; neither need divide by the ranks, hence DTensors between."""
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        from elastic_core.train.styles import SumOfParts

        return {
            "blocks.*.attention": SumOfParts({"qkv": 0, "qkv_bias": 0, "out": 0}),
            "blocks.*.mlp.0": ColwiseParallel(use_local_output=False),
            "blocks.*.mlp.2": RowwiseParallel(),
        }

    def tensor_sizes(self) -> Sequence[int]:
        return range(1, self.params.heads + 1)

    def pipeline_units(self, model: nn.Module) -> Sequence[str]:  # noqa: ARG002 - known from the parameters
        return ("embed", *(f"blocks.{i}" for i in range(self.params.depth)), "head")

    def learning_rate_factor(self, progress: float) -> float:
        return min(1.0, progress / 0.05) * (0.55 + 0.45 * math.cos(math.pi * progress))

    def dataset(self) -> Dataset[tuple[Tensor, Tensor]]:
        return Windows(read_sources(held_out=False)[: self.params.train_bytes], self.params.context)

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        held_out = Windows(read_sources(held_out=True), self.params.context)
        every = max(1, len(held_out) // 256)
        with torch.no_grad():
            loss = self.loss(model, self.collate([held_out[i] for i in range(0, len(held_out), every)])).item()
        return {"bits_per_byte": loss / math.log(2), "held_out_loss": loss}

    def example_input(self) -> Tensor:
        return torch.zeros(1, self.params.context, dtype=torch.int64)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Sample i: bytes [i*context, (i+1)*context) and the same shifted by one, (context,) int64 each."""

    def __init__(self, text: bytes, context: int) -> None:
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.bytes[index * self.context : (index + 1) * self.context + 1].long()
        return window[:-1], window[1:]


class Attention(nn.Module):
    """Causal self-attention as a sum over heads, of which this rank may hold some, or none."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        size, bound = width // heads, width**-0.5
        self.qkv = nn.Parameter(torch.empty(heads, 3, size, width))
        self.qkv_bias = nn.Parameter(torch.zeros(heads, 3, size))
        self.out = nn.Parameter(torch.empty(heads, size, width))
        nn.init.uniform_(self.qkv, -bound, bound)  # parameters are filled: then a resize need not draw them again
        nn.init.uniform_(self.out, -bound, bound)

    def forward(self, x_btw: Tensor) -> Tensor:
        qkv, bias, out = local(self.qkv), local(self.qkv_bias), local(self.out)
        heads, _, size, _ = qkv.shape
        mixed = nn.functional.linear(x_btw, qkv.flatten(0, 2), bias.flatten()).unflatten(-1, (heads, 3, size))
        q, k, v = (part.transpose(1, 2) for part in mixed.unbind(-2))
        weighed_bthd = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return weighed_bthd.flatten(2) @ out.flatten(0, 1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_btw: Tensor) -> Tensor:
        x_btw = x_btw + self.attention(self.norm_1(x_btw))
        mixed_btw: Tensor = x_btw + self.mlp(self.norm_2(x_btw))
        return mixed_btw


class Embed(nn.Module):
    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.position = nn.Parameter(torch.empty(context, width))
        nn.init.normal_(self.position, std=0.02)

    def forward(self, bytes_bt: Tensor) -> Tensor:
        embedded: Tensor = self.token(bytes_bt) + self.position[: bytes_bt.shape[1]]
        return embedded


class Transformer(nn.Module):
    """Bytes (batch, time) to logits of the next byte (batch, time, 256)."""

    def __init__(self, params: BytesParams) -> None:
        super().__init__()
        self.embed = Embed(params.width, params.context)
        self.blocks = nn.Sequential(*(Block(params.width, params.heads) for _ in range(params.depth)))
        self.head = nn.Sequential(nn.LayerNorm(params.width), nn.Linear(params.width, 256))

    def forward(self, bytes_bt: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.embed(bytes_bt)))
        return logits


def read_sources(held_out: bool) -> bytes:
    """The top-level modules of this Python's standard library: every tenth file, or all the others."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return b"".join(file.read_bytes() for i, file in enumerate(files) if (i % 10 == 0) == held_out)
