"""Updates of sparse embeddings that travel while the next step computes; `placed.embedding_rows` has what is promised.

A step's gradients of rows become the optimizer's with the next step, at its learning rate. Before a checkpoint, where
no step follows, the optimizer steps those rows alone, at the learning rates of the last step, clipped as steps are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch.optim import Optimizer

from elastic_core.train.gradients.rates import rates_of, set_rates
from elastic_core.train.placed.sharded_embedding import ShardedEmbedding
from elastic_core.train.placed.stage_places import StagePlaces


class LateUpdates:
    """Of one rank's stage. Collective to make, over all stages."""

    def __init__(self, embeddings: Sequence[ShardedEmbedding], optimizer: Optimizer, places: StagePlaces) -> None:
        self._embeddings, self._optimizer = embeddings, optimizer
        self._group = places.another_group("late updates of stage")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="late-updates")
        self._rates: list[Any] = []
        optimizer.register_step_pre_hook(self._note_rates)

    def push(self) -> None:
        """After a step's last backward: its gradients of rows leave, those of the step before are the optimizer's."""
        for embedding in self._embeddings:
            embedding.rows.take_late()
        for embedding in self._embeddings:
            embedding.rows.push_late(self._thread, self._group)

    def apply(self, clip: Callable[[], None]) -> None:
        """Between two steps: update the rows by what is on its way. `clip` scales its gradients; it is called on every
        rank, whether it has any or not, so that it may be collective."""
        late = any([embedding.rows.take_late() for embedding in self._embeddings])
        clip()
        if not late:
            return
        now = rates_of(self._optimizer)
        set_rates(self._optimizer, self._rates)
        self._optimizer.step()  # of other parameters there is no gradient
        self._optimizer.zero_grad(set_to_none=True)
        set_rates(self._optimizer, now)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _note_rates(self, optimizer: Optimizer, *_: Any) -> None:
        self._rates = rates_of(optimizer)
