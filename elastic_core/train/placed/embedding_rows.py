"""An embedding table whose rows are shared out over the ranks of a stage: workers that are its servers as well.

Rank i keeps rows [offset, offset + length) and steps them by the task's optimizer. `pull` gives the rows that a
micro-batch uses, wherever they lie; `push` sends each row's gradient to the rank that keeps it, once a step, summed
over micro-batches by the rank that used it and over ranks in their order: only rows that the batch uses travel, and on
CPU a step gives the same bits whenever it is taken. Row placement as in Li et al. 2014 (parameter server), by ranges.

Late pushes (`Task.late_embedding_updates`) travel while the next step computes. What that promises is bounded staleness
(Ho et al. 2013) of one step: rows that a step pulls lack at most the updates of the step before; every gradient is
applied once, in the order of steps; `take_late` waits for the last, so that a checkpoint lacks none.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future

import torch
import torch.distributed as dist
from torch import Tensor, nn

from elastic_core.state.order.sample_order import rank_share


class EmbeddingRows:
    """One rank's rows of a table. `weight`: (length, dim), the parameter that the optimizer steps."""

    def __init__(
        self, table: Tensor, index: int, ranks: int, group: dist.ProcessGroup | None, device: torch.device
    ) -> None:
        """`table`: (rows, dim), whole, the same on every rank. `device`: of what `pull` gives."""
        self.num_rows, self.dim = int(table.shape[0]), int(table.shape[1])
        self.lengths = row_counts(self.num_rows, ranks)
        self.offset = sum(self.lengths[:index])
        self.weight = nn.Parameter(table[self.offset : self.offset + self.lengths[index]].detach().clone())
        self._group, self._ranks, self._device = group, ranks, device
        self._ends = torch.tensor(self.lengths).cumsum(0)
        self._pulled: list[tuple[Tensor, Tensor]] = []
        self._late: Future[Tensor] | None = None

    def pull(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of `ids` (integers of any shape), each once, as a leaf that takes their gradient, and where each id
        is among them. Collective; a rank that needs none gives no ids."""
        needed, places = _distinct(ids.detach().cpu().reshape(-1))
        asked, by_rank, for_rank = self._ask(needed, self._group)
        rows = self._swap(self.weight.detach()[asked - self.offset], for_rank, by_rank, self._group)
        leaf = rows.to(self._device).requires_grad_()
        self._pulled.append((needed, leaf))
        return leaf, places.view(ids.shape).to(self._device)

    def push(self) -> None:
        """After a step's last backward: the gradients of all rows pulled since the last push become the sparse gradient
        of `weight`, on the ranks that keep the rows. Collective."""
        self.weight.grad = self._exchanged(*self._own_sum(), self._group)

    def push_late(self, thread: Executor, group: dist.ProcessGroup | None) -> None:
        """As `push`, but the gradient becomes that of `weight` when it is taken; nothing else may exchange anything in
        `group` meanwhile. One at a time."""
        assert self._late is None, "the last one is taken first"
        self._late = thread.submit(self._exchanged, *self._own_sum(), group)

    def take_late(self) -> bool:
        """Wait for what was pushed late: it is the gradient of `weight` now. Whether there was any; the same on every
        rank. Raises what the exchange raised."""
        late, self._late = self._late, None
        if late is not None:
            self.weight.grad = late.result()
        return late is not None

    def _exchanged(self, needed: Tensor, summed: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """The sparse gradient of this rank's rows."""
        asked, by_rank, for_rank = self._ask(needed, group)
        received = self._swap(summed, by_rank, for_rank, group)
        rows, places = _distinct(asked)
        total = received.new_zeros(len(rows), self.dim)
        for ids, part in zip(torch.split(places, for_rank), torch.split(received, for_rank), strict=True):
            total.index_add_(0, ids, part)  # a rank's rows are distinct, so the order of ranks is the order of sums
        index = (rows - self.offset).unsqueeze(0)
        return torch.sparse_coo_tensor(index, total, self.weight.shape, is_coalesced=True)

    def _own_sum(self) -> tuple[Tensor, Tensor]:
        pulled, self._pulled = self._pulled, []
        used = [(ids, leaf.grad.cpu()) for ids, leaf in pulled if leaf.grad is not None]
        empty = torch.empty(0, dtype=torch.int64)
        needed, places = _distinct(torch.cat([empty, *(ids for ids, _ in used)]))
        summed = self.weight.new_zeros(len(needed), self.dim)
        for at, (_, grad) in zip(torch.split(places, [len(ids) for ids, _ in used]), used, strict=True):
            summed.index_add_(0, at, grad)
        return needed, summed

    def _ask(self, needed: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, list[int], list[int]]:
        """Tell every rank which of its rows this one means. `needed`: ascending. Gives what the others mean of this
        rank's rows, one rank after another, and how many rows this rank means of each, and each of this rank."""
        splits = torch.searchsorted(needed, self._ends)
        by_rank = torch.diff(splits, prepend=splits.new_zeros(1))
        if group is None or self._ranks == 1:
            return needed, by_rank.tolist(), by_rank.tolist()
        for_rank = torch.empty_like(by_rank)
        dist.all_to_all_single(for_rank, by_rank, group=group)
        asked = torch.empty(int(for_rank.sum()), dtype=torch.int64)
        dist.all_to_all_single(asked, needed, for_rank.tolist(), by_rank.tolist(), group=group)
        return asked, by_rank.tolist(), for_rank.tolist()

    def _swap(self, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None) -> Tensor:
        """Rows to every rank, `sent[rank]` to each in order; those that come, one rank after another."""
        if group is None or self._ranks == 1:
            return rows.clone()
        out = rows.new_empty(sum(received), self.dim)
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out


def row_counts(rows: int, ranks: int) -> tuple[int, ...]:
    """How many rows each rank keeps, in order."""
    return tuple(rank_share(rows, rank, ranks)[1] for rank in range(ranks))


def _distinct(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending, and where each of `ids` is among them."""
    distinct, places = torch.unique(ids, return_inverse=True)
    return distinct, places
