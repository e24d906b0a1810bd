"""Modules in the place of `nn.Embedding` and `nn.EmbeddingBag` whose rows are shared out over a stage's ranks.

They give what the module that they replace gives, for the same arguments, and their `weight` has its name. Not possible
here: `max_norm` (a lookup would write to rows) and `scale_grad_by_freq`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from elastic_core.errors import UserError
from elastic_core.train.placed.embedding_rows import EmbeddingRows

Table = nn.Embedding | nn.EmbeddingBag


class ShardedEmbedding(nn.Module):
    """Looks up rows that it pulls. Collective over the stage: every rank calls it as often."""

    def __init__(
        self, table: Table, index: int, ranks: int, group: dist.ProcessGroup | None, device: torch.device
    ) -> None:
        super().__init__()
        self.rows = EmbeddingRows(table.weight, index, ranks, group, device)
        self.weight = self.rows.weight
        self._padding = table.padding_idx
        self._bag = (table.mode, table.include_last_offset) if isinstance(table, nn.EmbeddingBag) else None
        self._calls = 0  # since a pass began
        self._calls_a_pass = 1

    def begin_pass(self) -> None:
        """A micro-batch's forward pass begins."""
        if self._calls:
            self._calls_a_pass = self._calls
        self._calls = 0

    def sit_out(self) -> None:
        """Take part in the pulls of a forward pass that this rank has no samples for."""
        for _ in range(self._calls_a_pass):
            self.rows.pull(self.rows.weight.new_empty(0).long())

    def forward(self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        self._calls += 1
        rows, places = self.rows.pull(ids)
        padding = self._padding_place(ids, places)
        if self._bag is None:
            return functional.embedding(places, rows, padding)
        mode, include_last = self._bag
        return functional.embedding_bag(
            places, rows, offsets, mode=mode, per_sample_weights=per_sample_weights, include_last_offset=include_last,
            padding_idx=padding,
        )  # fmt: skip

    def _padding_place(self, ids: Tensor, places: Tensor) -> int | None:
        if self._padding is None:
            return None
        found = places[ids == self._padding]
        return int(found[0]) if found.numel() else None


def sparse_tables(model: nn.Module) -> dict[str, Table]:
    """The tables that a placed job shares out, by name. Raises `UserError` for one that it cannot."""
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }
    for name, table in found.items():
        if table.max_norm is not None or table.scale_grad_by_freq:
            raise UserError(
                f"{name} has max_norm or scale_grad_by_freq, which an embedding with sparse updates cannot have in a "
                "placed job: leave them out, or make it sparse=False."
            )
        users = [
            other for other, parameter in model.named_parameters(remove_duplicate=False) if parameter is table.weight
        ]
        if len(users) > 1:
            raise UserError(
                f"{' and '.join(users)} are one parameter: an embedding with sparse updates cannot share its rows in a "
                "placed job; give each its own, or make it sparse=False."
            )
    return found


def replace_module(root: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(root.get_submodule(parent), last, module)
