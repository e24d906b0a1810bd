"""What a checkpoint of this rank holds at a moment: the training state, the data's, and metrics.

Held-out metrics are taken at every boundary, and with interval checkpoints as long as that is quick. Where no rank
holds the whole model, they are taken from the checkpoint as it lies in the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from elastic_core.state.stores.store import CheckpointStore
from elastic_core.train.checkpoint.rank_part import Content
from elastic_core.train.checkpoint.restore import read_weights
from elastic_core.train.checkpoint.training_state import TrainingState, averaging_tensors, rank_tensors
from elastic_core.train.data.batches import DataPlan
from elastic_core.train.data.data_state import DataState
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.places import Places
from elastic_core.train.steps.evaluating import Evaluate, measured
from elastic_core.train.steps.segment_progress import Progress

if TYPE_CHECKING:
    from elastic_core.train.gradients.gradients_of import AnyGradients

_QUICK_SECONDS = 1.0  # of evaluation that an interval checkpoint may take


class ContentSource:
    """`skeleton`: of the whole model, without weights; None where every rank holds all of it."""

    def __init__(
        self,
        group: Group,
        places: Places,
        store: CheckpointStore,
        progress: Progress,
        plan: DataPlan,
        state: TrainingState,
        gradients: AnyGradients,
        evaluate: Evaluate | None,
        skeleton: nn.Module | None,
    ) -> None:
        self._group, self._places, self._store = group, places, store
        self._progress, self._plan = progress, plan
        self._state, self._gradients = state, gradients
        self._evaluate, self._skeleton = evaluate, skeleton
        self._evaluate_seconds = 0.0  # that it took last time

    def describe(self, boundary: bool) -> Content:
        """Tensors are views: they change with the next step. Collective: first ranks make one model of theirs.

        Raises `Diverged` for weights that are not finite, where the job's exchange is not exact.
        """
        self._gradients.settle()
        self._progress.check_weights(self._state.model)
        comm = self._gradients.comm
        shared = {**self._state.tensors(), **averaging_tensors(comm)}
        progress, places, rank = self._progress, self._places, self._group.rank
        work, gain = progress.progress_and_gain
        metrics: dict[str, float] = {}
        measure = None
        if rank == 0 and self._evaluate is not None and (boundary or self._evaluate_seconds < _QUICK_SECONDS):
            if self._skeleton is None:
                metrics = self._evaluated(lambda: self._state.model)
            else:
                measure = partial(self._evaluated_from_store, self._skeleton)
        return Content(
            step=progress.step,
            samples=progress.samples,
            shared=shared,
            own=rank_tensors(rank, comm),
            scalars=self._scalars() if places.data == 0 and places.tensor == 0 else {},
            metrics={**progress.metrics(), **metrics},
            timings=progress.timings,
            measure=measure,
            progress=work,
            gain=gain,
            notes=progress.notes(self._state.noise),
            collection=self._state.collect(shared, self._group, progress.order.allocation.slots),
        )

    def _evaluated_from_store(self, skeleton: nn.Module, uri: str) -> dict[str, float]:
        from elastic_core.train.checkpoint.partitioned_state import whole_model

        return self._evaluated(lambda: whole_model(skeleton, read_weights(self._store, uri)))

    def _evaluated(self, model: Callable[[], nn.Module]) -> dict[str, float]:
        started = time.perf_counter()
        metrics = measured(self._evaluate, model())
        self._evaluate_seconds = time.perf_counter() - started
        self._progress.time("evaluate", self._evaluate_seconds)
        self._progress.log({name: float(value) for name, value in metrics.items()})
        return metrics

    def _scalars(self) -> dict[str, Any]:
        """Those of the training state, and how the data has been read since this stretch began."""
        data = DataState.of(self._plan, self._progress.order.allocation.global_batch, *self._progress.began)
        return {**self._state.scalars(self._group.world), **data.to_scalars(), **self._progress.scalars()}
